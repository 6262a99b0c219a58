"""Everything printed in the README and on the pages of docs/ runs, and says the truth about what there is."""

import re
from pathlib import Path

import pytest
import torch

import plausible as pl
from plausible.report.catalogue import ENTRIES

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def blocks(page: Path) -> list[str]:
    """The Python of a page, each block moved down to its own line so that a traceback names the page's line."""
    text = page.read_text()
    return ["\n" * text[: match.start(1)].count("\n") + match.group(1) for match in BLOCK.finditer(text)]


def run_page(page: Path) -> dict[str, object]:
    """Run a page from top to bottom; its blocks share their names, as for somebody who types along."""
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_of_a_page_runs_as_printed(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert blocks(page), f"{page.name} has no code; take it out of this list if that is meant"
    run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_to_a_file_leads_to_one(page):
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_the_readme_lists_exactly_the_methods_there_are():
    rows = re.findall(r"^\| `pl\.(\w+)` \| `([\w-]+)` \| ([^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == [(entry.class_name, entry.name, entry.paper) for entry in ENTRIES]


def test_the_changelog_names_every_public_name():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in pl.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_the_method_of_the_skeleton_samples_a_known_gaussian(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sgld = run_page(ROOT / "docs" / "add_a_method.md")["SGLD"]
    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.5]], dtype=torch.float64)
    precision = torch.linalg.inv(covariance)

    def log_prob(values):
        gap = values["w"] - mean
        return -0.5 * (gap * (precision @ gap)).sum()

    step_size, chains, steps = 0.05, 512, 1500
    density = pl.LogDensity(log_prob, {"w": torch.zeros(2, dtype=torch.float64)})
    # Far apart in a chain, so that the draws are nearly independent: the slowest direction forgets in 1 / (ε λ) steps.
    posterior = pl.fit(
        density, None, sgld(step_size=step_size, burn_in=0.4, thin=100), steps=steps, num_modes=chains, compile=False
    )
    draws = torch.cat([component.draws["w"] for component in posterior.components])
    assert draws.shape == (chains * 9, 2)
    # The stationary covariance of the update at a finite step, exactly.
    expected = torch.linalg.inv(precision - step_size / 2 * precision @ precision)
    error = (draws - mean).T @ (draws - mean) / len(draws) - expected
    deviation = expected.diagonal()
    # Var of an entry of a sample covariance: (σii σjj + σij²) / n; a mean's is σii / n. Four Monte Carlo errors.
    allowed = 4 * ((deviation[:, None] * deviation[None, :] + expected**2) / len(draws)).sqrt()
    assert (error.abs() < allowed).all(), f"{error} beside {allowed}"
    assert ((draws.mean(0) - mean).abs() < 4 * (deviation / len(draws)).sqrt()).all()
    # What is tested could fail: noise of the wrong scale (ε for 2 ε) would be off by half, far outside.
    assert (allowed.diagonal() < 0.2 * deviation).all()
