"""`plausible fit`, `predict` and `show`, as typed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import plausible as pl
from plausible import cli
from plausible.tabular.reading import read_table


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "120", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, its posterior, and what fitting said."""
    place = tmp_path_factory.mktemp("commands")
    torch.manual_seed(0)
    x = torch.randn(80, 2)
    lines = [f"{a:.3f};{b:.3f};[bold]{i % 3};{2 * a - b + 10:.3f};1" for i, (a, b) in enumerate(x.tolist())]
    (place / "data.csv").write_text("a;b;[red]tag;y;one\n" + "\n".join([*lines, "1;1;[bold]1;;1"]) + "\n")
    result = call(
        "fit", place / "data.csv", "--target", "y", "--method", "MAP", "--epochs", 40, "--out", place / "y.plausible"
    )
    assert result.exit_code == 0, result.output
    (place / "said.txt").write_text(result.output)
    return place


def said(result):
    return " ".join(result.output.split())


def test_fit_says_how_it_read_the_file_what_it_did_and_how_good_it_is(folder):
    text = " ".join((folder / "said.txt").read_text().split())
    for part in (
        "81 rows and 5 columns of data.csv: CSV, semicolon-separated (found)",
        "y (regression: 'y' has",
        "left out 1 rows without a value of y",
        "is always '1'",
        "64 rows of data.csv",
        "on 16 held-out rows",
        "in 90% interval",
        "MAP, network 6-64-1, 40 epochs, seed 0",
    ):
        assert part in text, part
    assert "[red]tag" in text and "[bold]0" in text  # names are text, not markup


def test_show_says_the_same_from_the_file_alone(folder):
    result = call("show", folder / "y.plausible")
    assert result.exit_code == 0
    for part in (
        "predicts y (regression",
        "trained on 64 rows of data.csv",
        "by MAP",
        "[red]tag",
        "RMSE",
        "before calibration",
        "spread multiplied by",
        "values inside intervals",
        "UTC",
    ):
        assert part in said(result), part


def test_show_of_a_posterior_made_in_python_says_what_it_is(tmp_path):
    model = pl.BayesianModel(pl.networks.MLP(1), pl.likelihoods.Normal())
    pl.fit(model, (torch.zeros(4, 1), torch.zeros(4, 1)), pl.MAP(), steps=1, progress=False).save(tmp_path / "plain")
    result = call("show", tmp_path / "plain")
    assert result.exit_code == 0 and "a Delta of 1 component of a MLP with 151 unknowns, trained on 4 examples" in said(
        result
    )


def test_predict_writes_a_row_per_row_and_says_what_was_odd(folder, tmp_path):
    (tmp_path / "new.csv").write_text("b,a,[red]tag,extra\n0,0,[bold]0,1\n0,,elsewhere,1\n0,40,[bold]1,1\n")
    result = call("predict", folder / "y.plausible", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    found = read_table(tmp_path / "p.csv").columns
    assert float(found["mean"][0]) == pytest.approx(10, abs=1.5) and found["far_from_training"] == ["no", "yes", "yes"]
    for part in (
        "ignored, not in the training data: 'extra'",
        "[red]tag: 1 row with a category that training never saw (such as 'elsewhere')",
        "a: 1 row with a missing value, taken as the median, though training had none",
        "far from the training rows 2 of 3 rows",
        "3 predictions written",
    ):
        assert part in said(result), part
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", ["fit", "--target", "y"], "data.csv is empty"),
        ("a,y\n", ["fit", "--target", "y"], "data.csv has column names but no rows"),
        ("a,y\n1,2\n", ["fit", "--target", "y"], "has 1 row with a value of 'y'"),
        ("a,y\n1,2\n", ["fit", "--target", "z"], "data.csv has no column 'z'; its columns are 'a', 'y'"),
        ("a,y\n1,2\n", ["fit", "--target", "y", "--delimiter", ";"], "try --delimiter auto"),
        ("a,a,y\n1,2,3\n", ["fit", "--target", "y"], "the column name 'a' occurs 2 times"),
        (b"a,y\n\xff\xfe,2\n", ["fit", "--target", "y"], "is not utf-8 text: byte 0xff in line 2"),
        ("a,y\n" + "1,2\n" * 20, ["fit", "--target", "y"], "the target 'y' is always '2'"),
        ("a,y\n" + "1,2\n1,3\n" * 20, ["fit", "--target", "y"], "no column to predict 'y' from ('a': is always '1')"),
        ("a,y\n1,2\n", ["fit", "--target", "y", "--method", "magic"], "method must be one of map"),
        ("a,y\n1,2\n", ["fit", "--target", "y", "--task", "guess"], "task must be one of auto, regression"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_and_status_2(tmp_path, content, arguments, message):
    (tmp_path / "data.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    result = call(arguments[0], tmp_path / "data.csv", *arguments[1:], "--out", tmp_path / "never.plausible")
    assert result.exit_code == 2 and message in said(result), result.output
    assert not (tmp_path / "never.plausible").exists()
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "new.csv lacks the column '[red]tag'; it has 'a', 'b'"),
        ("", "new.csv is empty"),
    ],
)
def test_a_file_that_cannot_be_predicted_is_told_and_nothing_is_written(folder, tmp_path, content, message):
    (tmp_path / "new.csv").write_text(content)
    result = call("predict", folder / "y.plausible", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert result.exit_code == 2 and f"Error: {message}" in said(result)
    assert not (tmp_path / "p.csv").exists()


def test_a_posterior_that_is_not_there_or_no_posterior_is_one_line(tmp_path, folder):
    assert "there is no file" in said(call("show", tmp_path / "nothing"))
    assert "is not a plausible file or is damaged" in said(call("predict", folder / "data.csv", folder / "data.csv"))


def test_predictions_do_not_overwrite_the_data(folder):
    result = call("predict", folder / "y.plausible", folder / "data.csv", "--out", folder / "data.csv")
    assert result.exit_code == 2 and "would overwrite the data" in said(result)


def test_a_file_that_cannot_be_used_is_told_before_torch_is_imported(tmp_path):
    (tmp_path / "data.csv").write_text("a,y\n1,2\n")
    code = f"""
import sys
sys.path[:0] = {[p for p in sys.path if p]!r}
from plausible.cli import app
try:
    app(["fit", {str(tmp_path / "data.csv")!r}, "--target", "z"])
except SystemExit as done:
    print(done.code, [name for name in ("torch", "sklearn") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 []" and done.stderr.count("\n") == 1
    assert Path.cwd() != tmp_path
