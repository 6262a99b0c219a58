"""Priors named on the command line."""

import re

import pytest
from typer.testing import CliRunner

import plausible as pl
from plausible.cli import app


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [f"{i},{(i * 7) % 13},{i * 0.5 + (i % 3)}" for i in range(60)]
    path.write_text("\n".join(["a,b,price", *rows]))
    return path


def run(table, prior, *more):
    out = table.parent / "posterior.plausible"
    options = ["--target", "price", "--method", "map", "--epochs", "2", "--no-calibrate", "--out", str(out)]
    return CliRunner().invoke(app, ["fit", str(table), *options, "--prior", prior, *more]), out


def test_fit_takes_a_prior_with_unknown_scales(table):
    done, out = run(table, "hierarchical(laplace, inverse-gamma)")
    assert done.exit_code == 0, done.output
    loaded = pl.load(out)
    assert loaded.model.prior == pl.priors.Hierarchical(pl.priors.Laplace(), pl.hyperpriors.InverseGamma())
    assert any(k.startswith("prior.") for k in loaded.mean)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("norml(1)", "no prior is called 'norml'; known are normal, laplace"),
        ("normal(0)", "scale must be positive"),
        ("horseshoe", "use HMC or ADVI, or LogNormal or InverseGamma"),
    ],
)
def test_a_prior_that_cannot_be_is_one_line_on_stderr(table, prior, message):
    done, _ = run(table, prior)
    assert done.exit_code == 2
    assert message in re.sub(r"\s+", " ", done.stderr)


def test_compare_takes_a_prior():
    options = ["--methods", "map", "--seeds", "1", "--epochs", "4", "--no-report", "--prior", "student-t(5, 0.5)"]
    done = CliRunner().invoke(app, ["compare", "moons", *options])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(app, ["compare", "moons", *options[:-1], "wide"])
    assert refused.exit_code == 2 and "known are" in refused.stderr
