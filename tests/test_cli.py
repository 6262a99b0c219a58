"""The command line."""

import ast
import math
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import plausible as pl
from plausible import cli
from plausible.report import catalogue, images, scoring, settings, tables

ROOT = Path(__file__).parents[1]


def call(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "120", "NO_COLOR": "1"})


def fresh(code: str) -> str:
    """Run code in a new interpreter, which has imported nothing yet."""
    path = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
    return subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["methods"], ["cite", "swag"], ["compare", "--help"]])
def test_what_needs_no_network_does_not_import_torch(arguments):
    code = f"""
from plausible.cli import app
try:
    app({arguments!r})
except SystemExit as done:
    assert not done.code, done.code
print("imported", [name for name in ("torch", "numpy", "sklearn", "matplotlib") if name in sys.modules])
"""
    assert fresh(code).splitlines()[-1] == "imported []"


def test_help_is_there_at_once():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        fresh("from plausible.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass")
        times.append(time.perf_counter() - began)
    assert min(times) < 1.0, times  # the quickest of three: the machine may be busy


def test_every_public_name_is_found_and_the_two_lists_of_them_agree():
    tree = ast.parse((ROOT / "src/plausible/__init__.py").read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    followed = {alias.name: ".".join(filter(None, [node.module])) for node in guarded.body for alias in node.names}
    loaded = {**pl._HOMES, **{name: home.rpartition(".")[0] for name, home in pl._MODULES.items()}}
    assert followed == loaded
    assert sorted(loaded) == sorted(pl.__all__)
    for name in pl.__all__:
        assert getattr(pl, name) is not None and name in dir(pl)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        pl.Nonsense  # noqa: B018


def test_the_version_is_the_packages():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert call("--version").output.strip() == f"plausible {stated['version']}"
    assert stated["scripts"]["plausible"] == "plausible.cli:app"


def test_the_catalogue_has_exactly_the_public_methods():
    public = {
        name
        for name in pl.__all__
        if isinstance(getattr(pl, name), type) and issubclass(getattr(pl, name), pl.Method) and name != "Method"
    }
    assert {entry.class_name for entry in catalogue.ENTRIES} == public
    assert {name: type(method).__name__ for name, method in settings.METHODS.items()} == {
        entry.name: entry.class_name for entry in catalogue.ENTRIES
    }


def test_methods_lists_every_method_with_its_paper():
    output = call("methods").output
    for entry in catalogue.ENTRIES:
        assert entry.name in output and entry.class_name in output and entry.paper.split()[0].rstrip(",") in output


@pytest.mark.parametrize(
    "name", ["SWAG", "swag", "multiswag", "MultiSWAG", "deep-ensemble", "DeepEnsemble", "HMC", "map"]
)
def test_cite_prints_bibtex_with_balanced_braces(name):
    output = call("cite", name).output
    assert output.startswith("@") and output.count("{") == output.count("}")
    assert re.search(r"^  year\s+= \{\d{4}\}", output, re.MULTILINE)


def test_cite_of_swag_is_the_swag_paper():
    assert "Maddox" in call("cite", "SWAG").output
    assert call("cite", "pl.SWAG").output == call("cite", "swag").output


def test_cite_of_several_methods_has_each_paper_once():
    output = call("cite", "vogn", "ivon", "vogn", "kfac").output
    assert [output.count(name) for name in ("Osawa", "Shen", "Martens")] == [
        call("cite", n).output.count(a) for n, a in (("vogn", "Osawa"), ("ivon", "Shen"), ("kfac", "Martens"))
    ]


def test_what_is_to_be_written_is_never_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    output = call("methods").output
    for entry in catalogue.ENTRIES:
        assert f" {entry.name} " in output and f" pl.{entry.class_name} " in output


def test_the_package_is_the_command():
    found = subprocess.run([sys.executable, "-m", "plausible", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("plausible ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cite", "nonsense"], f"method must be one of {', '.join(catalogue.names())}, got 'nonsense'"),
        (["compare", "--methods", "map,nonsense"], "got 'nonsense'"),
        (["compare", "moons", "--examples", "100"], "--examples and --data-dir are for mnist, fashion-mnist"),
        (["compare", "mnist", "--data-dir", "/nowhere"], "in the folder that data_dir= (--data-dir) names"),
        (["compare", "mnist", "--data-dir", "/nowhere"], "/nowhere/mnist is missing; download the four files"),
        (["compare", "moon"], "data must be any of moons, circles, digits"),
        (["compare", "--quick", "--epochs", "20"], "give one of --quick and --epochs"),
        (["compare", "pyproject.toml"], "say which column to predict: --target COLUMN"),
        (["compare", "a.csv", "b.csv", "--target", "price"], "--target is a column of one file, got 2 files"),
        (["compare", "--report", "nowhere/report.html"], "--report must lie in a folder that exists"),
        (["compare", "--report", "/"], "--report must be a file, and / is a folder"),
        (["compare", "nowhere.csv", "--target", "price"], "nowhere.csv"),
    ],
)
def test_a_wrong_name_is_told_with_the_right_ones(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def row_of(output: str, method: str) -> list[str]:
    (row,) = [line.split() for line in output.splitlines() if line.split()[:1] == [method] and "%" in line]
    return row


def test_compare_prints_a_table_whose_numbers_are_those_of_a_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("compare", "moons", "--methods", "map,swag", "--quick", "--seed", "3")
    assert result.exit_code == 0, result.output
    data = pl.datasets.moons()
    model = settings.model_for(data, settings.SETTINGS["moons"], seed=3)
    posterior = pl.fit(model, data.train, settings.METHODS["swag"], epochs=cli.QUICK_EPOCHS, seed=3, progress=False)
    probs = posterior.predict(data.x_test).probs
    right = (probs.argmax(1) == data.y_test).double().mean()
    loss = torch.nn.functional.nll_loss(probs.log(), data.y_test)
    row = [cell.rstrip(tables.MARK) for cell in row_of(result.output, "swag")]
    assert row[1] == f"{right:.1%}" and row[2] == f"{loss:.3f}"
    assert "map-temperature" in result.output and "best of its column" in result.output
    assert "NLL against seconds to fit" in result.output and "a map   b map-temperature   c swag" in result.output
    assert (tmp_path / "report.html").is_file() and "report.html" in result.output


def test_compare_leaves_hmc_out_of_large_networks_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("compare", "wine", "--epochs", "8", "--seeds", "2", "--no-report")
    assert result.exit_code == 0, result.output
    assert not [line for line in result.output.splitlines() if line.split()[:1] == ["hmc"] and "%" in line]
    assert "runs only when asked: --methods hmc" in " ".join(result.output.split())
    assert "±" in result.output and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_compare_runs_hmc_where_it_is_asked_for_and_scores_numbers_in_their_units(tmp_path):
    page = tmp_path / "numbers.html"
    result = call("compare", "diabetes", "--methods", "map,hmc", "--epochs", "4", "--seeds", "1", "--report", str(page))
    assert result.exit_code == 0, result.output
    for heading in ("RMSE", "NLL", "CRPS", "in 90 %"):
        assert heading in result.output
    rmse = float(row_of(result.output, "map")[1].rstrip(tables.MARK))
    spread = float(pl.datasets.diabetes().target_scale)
    # A few epochs: about as good as the mean, in the data's units and not in deviations.
    assert 0.5 * spread < rmse < 1.5 * spread
    assert page.is_file()


def test_compare_reads_a_table_and_predicts_the_column_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator)
    lines = [f"{a:.4f},{b:.4f},{3000 + 200 * a - 100 * b:.1f}" for a, b in x.tolist()]
    Path("houses.csv").write_text("\n".join(["size,age,price", *lines]) + "\n")
    result = call("compare", "houses.csv", "--target", "price", "--methods", "map", "--quick")
    assert result.exit_code == 0, result.output
    assert "houses: 160 training and 40 test examples" in result.output and "CRPS" in result.output
    assert "houses" in Path("report.html").read_text()


def test_regression_scores_are_those_of_a_normal_in_closed_form():
    data = pl.datasets.diabetes()
    outputs = torch.zeros(1, *data.y_test.shape)
    predictive = pl.Predictive(outputs, pl.likelihoods.Normal(scale=1.0), exact=True)
    scores = scoring.scores(predictive, data)
    y, scale = data.y_test.double() * data.target_scale, data.target_scale
    law = torch.distributions.Normal(0.0, torch.tensor(scale, dtype=torch.float64))
    assert scores["rmse"] == pytest.approx(y.square().mean().sqrt().item(), rel=1e-5)
    assert scores["nll"] == pytest.approx(-law.log_prob(y).mean().item(), rel=1e-5)
    assert scores["coverage"] == pytest.approx((y.abs() < 1.6448536 * scale).double().mean().item())
    z = y / scale
    unit = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    crps = scale * (
        z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - 1 / math.sqrt(math.pi)
    )  # Gneiting & Raftery
    assert scores["crps"] == pytest.approx(crps.mean().item(), rel=1e-4)


def rows_of(table) -> dict[str, list[str]]:
    cells = [list(column.cells) for column in table.columns]
    return {row[0]: row[1:] for row in zip(*cells, strict=True)}


def test_the_best_of_each_column_is_marked_and_ties_are_marked_together():
    columns = {
        "high": tables.Column("high", ".2f", "high"),
        "low": tables.Column("low", ".2f", "low"),
        "plain": tables.Column("plain", ".0f", None),
    }
    rows = {
        "a": {"high": 0.901, "low": 0.5, "plain": 1.0},
        "b": {"high": 0.899, "low": 0.4, "plain": 2.0},
        "c": {"high": float("nan"), "low": 0.6, "plain": 3.0},
    }
    rows = {name: {k: tables.Estimate(v, math.nan) for k, v in row.items()} for name, row in rows.items()}
    cells = rows_of(tables.comparison_table(rows, columns))
    marked = {name: [tables.MARK in cell for cell in row] for name, row in cells.items()}
    assert marked == {"a": [True, False, False], "b": [True, True, False], "c": [False, False, False]}
    assert cells["c"][0].strip() == "–"


def test_the_network_of_a_comparison_follows_from_the_seed_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    data, setting = pl.datasets.moons(), settings.SETTINGS["moons"]
    first, again, other = (settings.model_for(data, setting, seed).init() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


def test_every_data_set_of_the_command_line_loads():
    assert set(settings.SETTINGS) == set(cli.DATASETS) and set(images.IMAGES) == set(cli.IMAGES)
    for name, setting in settings.SETTINGS.items():
        assert setting.load().name.replace("_", "-") == name
