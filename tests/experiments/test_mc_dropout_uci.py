"""The study of MC dropout on UCI regression, at toy size."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tests.experiments.made_up_sets import NOISE, write_uci_sets

import plausible as pl
from plausible.experiments import mc_dropout_uci as study_file
from plausible.experiments import registry
from plausible.experiments.reproduce import run_rows
from plausible.experiments.study import comparable


@pytest.fixture(scope="module")
def made_up_data(tmp_path_factory):
    """A data set in the published format under every name that the study asks for: y = 3 + 10 x₀ with noise of deviation 2."""
    return write_uci_sets(tmp_path_factory.mktemp("data"), [row.data for row in study_file.STUDY.rows])


def test_the_study_runs_at_toy_size(made_up_data):
    study = registry.load("mc-dropout-uci")
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None, root=made_up_data))
    assert [result.row.name for result in found] == ["boston", "yacht", "concrete", "kin8nm"]
    for result in found:
        assert result.repetitions == 2 and set(result.scores) == set(study.columns)
        assert len(set(result.record["seeds"])) == len(result.record["seeds"]) == 4
        assert set(result.record["details"]["rate"]) <= set(result.row.rates)
        assert set(result.record["details"]["precision"]) <= set(result.row.precisions)


@pytest.mark.slow
def test_a_longer_run_finds_the_precision_and_the_error_of_made_up_data(made_up_data):
    row = replace(
        study_file.BOSTON, full=False, epochs=150, splits=2, learning_rate=0.01, rates=(0.005, 0.5), passes=200,
        precisions=(0.01 / NOISE**2, 1 / NOISE**2, 100 / NOISE**2),
    )  # fmt: skip
    outcome = study_file.run(row, made_up_data)
    # Dropping half of three inputs costs far more than the noise, and the neighbours of the true precision are far from it.
    assert outcome.details == {"rate": [0.005, 0.005], "precision": [1 / NOISE**2, 1 / NOISE**2]}
    assert all(1.2 < rmse < 4.0 for rmse in outcome.scores["rmse"])
    # N(0, 2²) has −2.11 nats, the target's own spread alone −3.74.
    assert all(-3.4 < score < -1.8 for score in outcome.scores["log_likelihood"])


def test_scores_are_those_of_the_mixture_over_passes_in_the_units_of_the_target(made_up_data):
    split = pl.datasets.uci("bostonHousing", 0, made_up_data)
    row = replace(study_file.BOSTON, epochs=2)
    (posterior,) = study_file.fitted(row, [split], [0.1], [0])
    precisions, passes = (0.05, 0.3), 40
    found = study_file.score(posterior, split, precisions, passes)
    outputs = posterior.predict(split.x_test, num_samples=passes).outputs.double().numpy()[..., 0]
    means = outputs * split.target_scale + split.target_mean
    y = split.y_test.double().numpy()[:, 0] * split.target_scale + split.target_mean
    assert means.std(0).min() > 0  # masks differ from pass to pass
    for told, precision in zip(found, precisions, strict=True):
        densities = stats.norm(means, precision**-0.5).pdf(y)
        assert told["log_likelihood"] == pytest.approx(np.log(densities.mean(0)).mean(), rel=1e-6)
        assert told["rmse"] == pytest.approx(np.sqrt(((means.mean(0) - y) ** 2).mean()), rel=1e-6)


def test_many_points_are_scored_as_if_together(made_up_data, monkeypatch):
    split = pl.datasets.uci("bostonHousing", 0, made_up_data)
    (posterior,) = study_file.fitted(replace(study_file.BOSTON, epochs=1), [split], [0.1], [0])
    whole = study_file.score(posterior.weight_average(), split, [0.1, 0.2], 1)
    monkeypatch.setattr(study_file, "POINTS", 7)
    assert study_file.score(posterior.weight_average(), split, [0.1, 0.2], 1) == [pytest.approx(s) for s in whole]


def test_the_last_fifth_of_the_training_part_is_held_out_and_the_rest_gives_the_scaling(made_up_data):
    split = pl.datasets.uci("bostonHousing", 1, made_up_data)
    inner = study_file.held_out(split)
    assert len(inner.x_train) == 48 and len(inner.x_test) == 12
    torch.testing.assert_close(inner.x_train.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    assert float(inner.y_train.std(correction=0)) == pytest.approx(1, rel=1e-5)

    def in_own_units(y, data):
        return y * data.target_scale + data.target_mean

    expected = in_own_units(split.y_train, split)
    torch.testing.assert_close(in_own_units(inner.y_train, inner), expected[:48], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(in_own_units(inner.y_test, inner), expected[48:], rtol=1e-4, atol=1e-4)


def test_the_prior_is_the_published_weight_decay():
    row, count, rate = study_file.BOSTON, 455, 0.1
    model = study_file.model_for(row, inputs=13)
    tau = 0.15  # the middle of the grid
    decay = row.length_scale**2 * (1 - rate) / (2 * count * tau)
    # Their loss, the mean squared error + decay · ‖w‖², times −N τ / 2 is our log joint. Under dropout the prior's share is
    # (1 − p) log prior(w / (1 − p)), where their decay is of w itself: the same up to (1 − p)².
    theirs = count * tau / 2 * decay
    ours = (1 - rate) / (2 * model.prior.scale**2)
    assert ours == pytest.approx(theirs)
    assert model.likelihood.scale == pytest.approx(tau**-0.5)


def test_the_full_rows_are_the_published_protocol():
    study = registry.load("mc-dropout-uci")
    for row in study.rows:
        assert comparable(row, study.published[row.name]) is not None
        assert (row.splits, row.hidden, row.batch_size, row.passes, row.limit) == (20, 50, 128, 10_000, None)
        assert row.rates == (0.005, 0.01, 0.05, 0.1) and len(row.precisions) == 3


def test_the_mixture_does_not_underflow_far_from_the_target():
    outputs = torch.tensor([0.0, 1.0], dtype=torch.float64).reshape(2, 1, 1)
    found = study_file.log_mixture(outputs, torch.tensor([[100.0]], dtype=torch.float64), precision=4.0)
    expected = stats.norm.logpdf(100, 1, 0.5) - math.log(2)  # the nearer one is all that counts
    assert float(found) == pytest.approx(expected, rel=1e-12)
