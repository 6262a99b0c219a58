"""`plausible reproduce`."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.experiments.toy_study import CALLS, STUDY
from typer.testing import CliRunner

from plausible import cli
from plausible.experiments import registry

ROOT = Path(__file__).parents[2]


def call(*arguments, **environment):
    env = {"COLUMNS": "160", "NO_COLOR": "1", **environment}
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)], env=env)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """The toy study in place of a real one, and a folder of its own."""
    CALLS.clear()
    monkeypatch.setattr(registry, "load", lambda name: STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_name_the_studies_are_listed():
    result = call()
    assert result.exit_code == 0
    for entry in registry.ENTRIES:
        assert entry.name in result.output and entry.paper in result.output


def test_names_are_whole_in_a_narrow_terminal():
    listed = call(COLUMNS="80").output
    assert all(entry.name in listed for entry in registry.ENTRIES)


def test_the_list_does_not_import_torch():
    code = (
        f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\nfrom plausible.cli import app\n"
        "try: app(['reproduce'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines()[-1] == "False"


def test_every_registered_study_is_found_under_its_name():
    for entry in registry.ENTRIES:
        study = registry.load(entry.name)
        assert study.name == entry.name and entry.paper.split(",")[0] in study.paper


def test_an_unknown_study_lists_those_there_are():
    result = call("ensemble")
    assert result.exit_code == 2
    words = " ".join(result.output.replace("│", " ").split())
    assert "the study must be one of ensemble-uci, swag-uci" in words and "got 'ensemble'" in words


def test_an_unknown_row_is_one_line(toy):
    result = call("ensemble-uci", "--rows", "a,z")
    assert result.exit_code == 2
    assert "Error: rows must be any of a, b, c, got 'z'" in result.output


def test_a_missing_folder_of_data_is_named(tmp_path):
    result = call("ensemble-uci", "--data-dir", tmp_path / "nowhere")
    assert result.exit_code == 2 and "--data-dir must be a folder" in " ".join(result.output.split())


def test_a_folder_without_the_data_says_what_to_download(tmp_path):
    result = call("ensemble-uci", "--quick", "--rows", "yacht", "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith("Error: ") and "is missing; download" in result.output


def test_no_folder_of_data_at_all_says_so(tmp_path):
    result = call("ensemble-uci", "--quick", "--rows", "yacht", PLAUSIBLE_DATA="")
    assert result.exit_code == 2 and "set PLAUSIBLE_DATA" in result.output


def test_a_study_prints_its_table_and_writes_numbers_and_page(toy):
    result = call("ensemble-uci")
    assert result.exit_code == 0, result.output
    assert "3.125" in result.output and "1.5 SE better" in result.output
    assert "differs from the paper: it is a toy" in result.output
    assert sorted(path.name for path in (toy / "results/toy").iterdir()) == ["a.json", "b.json", "c.json"]
    assert sorted(path.name for path in (toy / "docs/studies").iterdir()) == ["toy.md", "toy.png"]


def test_finished_rows_are_read_and_restart_runs_them_again(toy):
    call("ensemble-uci", "--rows", "a")
    assert "a (1 of 3): read" in call("ensemble-uci").output and CALLS == ["a", "b", "c"]
    call("ensemble-uci", "--restart", "--rows", "b")
    assert CALLS == ["a", "b", "c", "b"]


def test_it_says_what_is_stored_before_anything_runs(toy):
    assert "0 of 3 rows are stored in results; the others run now" in call("ensemble-uci", "--rows", "a,b,c").output
    assert "3 of 3 rows are stored in results." in call("ensemble-uci").output


def test_show_prints_what_is_stored_and_runs_nothing(toy):
    assert call("ensemble-uci", "--show").exit_code == 0 and not CALLS
    call("ensemble-uci", "--rows", "a")
    before = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    result = call("ensemble-uci", "--show")
    assert result.exit_code == 0 and CALLS == ["a"]
    assert "1 of 3 rows are stored in results." in result.output and "3.125" in result.output
    assert {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()} == before
    assert call("ensemble-uci", "--show", "--quick").exit_code == 2


def test_another_folder_gets_numbers_and_page(toy):
    assert call("ensemble-uci", "--results", "elsewhere").exit_code == 0
    assert sorted(path.name for path in (toy / "elsewhere").iterdir()) == ["toy", "toy.md", "toy.png"]
    assert not (toy / "results").exists() and not (toy / "docs").exists()


def test_quick_keeps_nothing_and_shows_no_published_number(toy):
    result = call("ensemble-uci", "--quick")
    assert result.exit_code == 0 and CALLS == ["a", "b", "c"]
    assert "3.125" not in result.output and "these numbers mean nothing" in result.output
    assert list(toy.iterdir()) == []


def test_quick_does_not_read_finished_rows_either(toy):
    call("ensemble-uci")
    before = {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()}
    call("ensemble-uci", "--quick")
    assert CALLS == ["a", "b", "c"] * 2
    assert {path: path.read_bytes() for path in toy.rglob("*") if path.is_file()} == before


def test_the_list_of_studies_links_to_every_page():
    pages = sorted((ROOT / "docs" / "studies").glob("*.md"))
    text = (ROOT / "docs" / "studies.md").read_text()
    assert pages and [page.name for page in pages if f"(studies/{page.name})" not in text] == []
    assert {page.stem for page in pages} <= {entry.name for entry in registry.ENTRIES}


def test_seeds_are_numbers():
    result = call("vogn-cifar10", "--seeds", "0,one")
    assert result.exit_code == 2 and "numbers separated by commas" in result.output


def test_seeds_do_not_go_with_a_toy():
    result = call("vogn-cifar10", "--quick", "--seeds", "0")
    assert result.exit_code == 2 and "--seeds does not go with --quick" in result.output


def test_a_row_may_be_left_with_some_of_its_seeds(toy, monkeypatch):
    from tests.experiments.test_seeds_of_a_row import SEEDED

    monkeypatch.setattr(registry, "load", lambda name: SEEDED)
    first = call("vogn-cifar10", "--seeds", "0,2")
    assert first.exit_code == 0 and "still without seeds 1" in first.output
    assert "No row has been run yet" in (toy / "docs/studies/toy.md").read_text()
    assert call("vogn-cifar10", "--seeds", "1").exit_code == 0
    assert (toy / "results/toy/a.json").is_file()
