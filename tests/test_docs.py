"""Everything printed in the README and on the pages of docs/ runs, and says the truth about what there is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks import choosing
from tests.pages import blocks, difference, has_code, pictures, run_page

import plausible as pl
from plausible.report.catalogue import ENTRIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PROGRAMS = [page for page in PAGES if has_code(page)]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
LONG = ("docs/tutorials/sampling", "docs/tutorials/variational")  # half a minute each
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
PNG = b"\x89PNG\r\n\x1a\n"


def named(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


def program(page: Path) -> Any:
    return pytest.param(page, id=named(page), marks=[pytest.mark.slow] if named(page) in LONG else [])


@pytest.mark.parametrize("page", [program(page) for page in PROGRAMS])
def test_a_page_runs_as_printed_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    for printed in run_page(page):
        if printed.promised is not None:
            assert difference(printed.promised, printed.found) is None
    for name in pictures(page):
        assert (tmp_path / name).read_bytes().startswith(PNG), f"{name} is drawn by the page that shows it"
        assert (page.parent / "images" / name).is_file()


@pytest.mark.parametrize("page", TUTORIALS, ids=named)
def test_a_tutorial_is_a_program_that_shows_what_it_prints(page):
    languages = [block.language for block in blocks(page.read_text())]
    assert "python" in languages
    assert "text" in languages or "console" in languages


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_to_a_file_leads_to_one(page):
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


# --- the judge of what pages print ---


@pytest.mark.parametrize(
    ("promised", "found"),
    [
        ("NLL 0.31\n", "NLL 0.32\n"),
        ("rows 1,000\n", "rows 1,020\n"),
        ("first\n...\nlast 7\n", "first\na 1\nb 2\nlast 7\n"),
        ("...\nlast 7\n", "a 1\nlast 7\n"),
        ("│  9.5 │ ██··\n", "│ 10.1 │ ███·\n"),
    ],
)
def test_a_run_that_differs_by_rounding_is_what_the_page_says(promised, found):
    assert difference(promised, found) is None


@pytest.mark.parametrize(
    ("promised", "found"),
    [
        ("NLL 0.31\n", "NLL 0.41\n"),
        ("accuracy 0.9\n", "precision 0.9\n"),
        ("first\nlast\n", "first\nmiddle\nlast\n"),
        ("first\n...\nlast 7\n", "first\na 7\nlast 9\n"),
        ("-1.0\n", "1.0\n"),
        ("yes\n", ""),
        ("\n", "more\n"),
    ],
)
def test_a_run_that_differs_in_words_or_by_more_than_rounding_is_found(promised, found):
    assert difference(promised, found) is not None


def test_a_command_that_fails_fails_its_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```console\n$ plausible fit nothing.csv --target x\n```\n")
    with pytest.raises(AssertionError, match="nothing.csv"):
        run_page(page)


def test_what_stands_right_below_a_block_is_what_it_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n```text\n3\n```\n\nwords\n\n```text\nnot printed by anything\n```\n")
    (printed,) = run_page(page)
    assert (printed.promised, printed.found) == ("3\n", "2\n")
    assert difference(printed.promised, printed.found) == "the page says 3 and the run printed 2"


# --- the site ---


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The whole site, built as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def home(module: ModuleType, name: str) -> str:
    """Where a name of a module is defined, which is what its entry is called."""
    value = getattr(module, name)
    return f"{getattr(value, '__module__', module.__name__)}.{getattr(value, '__qualname__', name)}"


def public_names() -> list[str]:
    """Every name of the library, and every name of its public modules, by what their entries are called."""
    listed = [getattr(pl, name) for name in pl.__all__]
    modules = [value for value in listed if isinstance(value, ModuleType)]
    names = [f"plausible.{name}" for name in pl.__all__ if getattr(pl, name) not in modules]
    for module in modules:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        public = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
        assert public, f"{module.__name__} offers nothing"
        names += [home(module, name) for name in public]
    return names


def test_every_public_name_has_an_entry_and_nothing_is_fetched(site):
    entries = set().union(*(re.findall(r'id="([\w.]+)"', page.read_text()) for page in site.glob("api/*/index.html")))
    missing = [name for name in public_names() if name not in entries]
    assert missing == [], "give it an entry (`::: path`) on a page of docs/api"
    # The site is read without a network, too.
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(https?://[^\" >]+)", page.read_text())
        assert fetched == [], page


def test_every_command_has_its_help_in_the_reference():
    from docs.hooks import commands

    from plausible.cli import app

    shown = commands()
    assert re.findall(r"^## `plausible ([\w-]+)`", shown, re.MULTILINE) == sorted(
        command.name or command.callback.__name__ for command in app.registered_commands
    )
    assert "--target COLUMN" in shown


# --- what the methods do ---


def test_the_tables_of_choosing_are_those_of_the_stored_results():
    page = (DOCS / "choosing.md").read_text()
    assert choosing.with_tables(page, json.loads(choosing.RESULTS.read_text())) == page


def test_the_runs_behind_choosing_give_tables():
    part = choosing.study("wine", ["map", "swag"], seeds=2, epochs=4)
    results = {"commit": "c", "torch": "t", "device": "d", "command": "x", "seeds": 2, "data": {"wine": part}}
    shown = choosing.render(results)
    assert re.search(r"^\| `swag` \| \d\.\d \| ", shown, re.MULTILINE)
    mean = sum(run["nll"] for run in part["runs"]["swag"]) / 2
    assert re.search(rf"^\| `swag` \|.*\b{mean:.3f}\b", shown.partition("### wine")[2], re.MULTILINE)


def test_a_method_within_two_standard_errors_counts_as_near_the_best():
    scores = {"a": [1.0, 1.2], "b": [1.1, 1.3], "c": [2.0, 2.1]}  # errors of 0.1, 0.1 and 0.05
    part = {
        "title": "t", "outliers": "", "notes": [], "columns": {"nll": ["NLL", ".2f", "low"]},
        "runs": {name: [{"nll": value, "seconds": 1.0} for value in values] for name, values in scores.items()},
    }  # fmt: skip
    shown = choosing.render(
        {"commit": "c", "torch": "t", "device": "d", "command": "x", "seeds": 2, "data": {"toy": part}}
    )
    summary = shown.partition("### toy")[0]
    assert ["toy" in line for line in summary.splitlines() if line.startswith("| `")] == [True, True, False]
    assert "| `a` | **1.10** ± 0.10 |" in shown


# --- the README and the skeleton ---


def test_the_readme_lists_exactly_the_methods_there_are():
    rows = re.findall(r"^\| `pl\.(\w+)` \| `([\w-]+)` \| ([^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == [(entry.class_name, entry.name, entry.paper) for entry in ENTRIES]


def test_the_changelog_names_every_public_name():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in pl.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_the_method_of_the_skeleton_samples_a_known_gaussian(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    run_page(DOCS / "add_a_method.md", names)
    sgld = names["SGLD"]
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
