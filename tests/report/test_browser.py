"""The report in a real browser: sorting, switching and hovering."""

import shutil
import subprocess

import pytest

import plausible as pl
from plausible.report.page import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=390,800",
)  # fmt: skip

# Runs after the page's own script and leaves one line for each thing that is not as it must be.
VISIT = """<script>
addEventListener("load", () => {
const wrong = [];
const check = (fine, what) => { if (!fine) wrong.push(what); };
const heading = document.querySelectorAll("thead th")[2], button = heading.firstElementChild;
const values = () => [...document.querySelectorAll("tbody")[0].rows].map(row => Number(row.cells[2].dataset.value));
const sorted = (list, sign) => list.every((v, k) => k === 0 || sign * (v - list[k - 1]) >= 0);
button.click();
check(heading.getAttribute("aria-sort") === "ascending" && sorted(values(), 1), "first click sorts upwards");
button.click();
check(heading.getAttribute("aria-sort") === "descending" && sorted(values(), -1), "second click sorts downwards");
check(new Set(values()).size > 1, "there is something to sort");
document.querySelectorAll("thead th")[1].firstElementChild.click();
check(heading.getAttribute("aria-sort") === "none", "one column is sorted at a time");
button.focus();
check(document.activeElement === button, "a heading can be reached with the keyboard");

const visible = () => [...document.querySelectorAll(".panel")].filter(p => p.offsetHeight > 0).map(p => p.id);
check(visible().join() === "panel0-0", "the first method is shown: " + visible());
document.querySelectorAll(".switch input")[2].click();
check(visible().join() === "panel0-2", "another method is shown: " + visible());

const tip = document.getElementById("tip"), point = document.querySelector("[data-tip]");
check(tip.offsetHeight === 0, "no words before hovering");
point.dispatchEvent(new PointerEvent("pointerenter"));
check(tip.offsetHeight > 0 && tip.textContent.includes("NLL"), "hovering a point shows its numbers");
point.dispatchEvent(new PointerEvent("pointerleave"));
check(tip.offsetHeight === 0, "the words go away again");
point.focus();
check(tip.offsetHeight > 0, "the keyboard shows them too");
check(document.documentElement.scrollWidth <= innerWidth, "the page is no wider than a phone: "
  + document.documentElement.scrollWidth + " of " + innerWidth);
check([...document.images].every(image => image.naturalWidth > 0), "every picture is readable");
document.body.textContent = "visited: " + (wrong.join("; ") || "all as it must be");
});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser here")
@pytest.mark.parametrize("data", ["moons", "digits", "diabetes"])
def test_a_browser_sorts_the_table_switches_methods_and_shows_a_points_numbers(data, tmp_path):
    methods = ["map", "swag", "deep-ensemble"]
    text = page([pl.compare(data, methods, seeds=2, epochs=4, progress=False)])
    place = tmp_path / "report.html"
    place.write_text(text.replace("</body>", VISIT + "</body>"), encoding="utf-8")
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", place.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "visited: all as it must be" in shown, shown[-600:]
