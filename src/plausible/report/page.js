"use strict";
// Sorting: a click on a heading, or Enter on it, sorts upwards and then downwards; what has no value goes last.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.firstElementChild.addEventListener("click", () => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    headings.forEach(other => other.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.value;
    const order = (a, b) => {
      if (column === 0) return key(a).localeCompare(key(b)) * (up ? 1 : -1);
      const [x, y] = [Number(key(a)), Number(key(b))];
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return (x - y) * (up ? 1 : -1);
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}
// Switching: one method's pictures at a time. Without scripts all of them stay visible.
for (const group of document.querySelectorAll(".switch")) {
  const show = () => {
    const chosen = group.querySelector(":checked").value;
    for (const panel of group.nextElementSibling.children) panel.hidden = panel.id !== chosen;
  };
  group.addEventListener("change", show);
  show();
}
// Hovering: a point's name and numbers.
const tip = document.getElementById("tip");
for (const point of document.querySelectorAll("[data-tip]")) {
  const show = () => {
    const box = point.getBoundingClientRect();
    tip.textContent = point.dataset.tip;
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(box.right + 8, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, box.top - tip.offsetHeight - 4) + "px";
  };
  const hide = () => { tip.hidden = true; };
  point.addEventListener("pointerenter", show);
  point.addEventListener("focus", show);
  point.addEventListener("pointerleave", hide);
  point.addEventListener("blur", hide);
}
