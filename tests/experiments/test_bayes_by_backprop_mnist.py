"""The study of Bayes by backprop on MNIST, at toy size."""

from dataclasses import replace

import pytest
import torch

import plausible as pl
from plausible.experiments import bayes_by_backprop_mnist as study_file
from plausible.experiments import registry
from plausible.experiments.reproduce import run_rows
from plausible.experiments.study import comparable


def test_the_study_runs_at_toy_size(made_up_digits):
    study = registry.load("bayes-by-backprop-mnist")
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None, root=made_up_digits))
    assert [result.row.name for result in found] == [row.name for row in study.rows]
    for result in found:
        assert result.repetitions == 2 and set(result.scores) == set(study.columns)


@pytest.mark.slow
def test_a_longer_run_tells_made_up_digits_apart(made_up_digits):
    row = replace(study_file.toy(study_file.MIXTURE), epochs=60, limit=None, seeds=1, learning_rate=0.01)
    outcome = study_file.run(row, made_up_digits)
    assert outcome.scores["error"][0] < 5
    # Chance is 100 · log 0.1 = −230.
    assert outcome.scores["log_likelihood"][0] > -50


def test_the_priors_are_those_of_the_rows():
    mixture, normal = (study_file.model_for(study_file.toy(r)) for r in (study_file.MIXTURE, study_file.NORMAL))
    assert mixture.prior == pl.priors.ScaleMixture((1.0, 0.0025), (0.5, 0.5))
    assert normal.prior == pl.priors.Normal(scale=0.1)
    params = {k: torch.zeros_like(w).double() for k, w in normal.init().items()}
    count = sum(w.numel() for w in params.values())
    expected = count * torch.distributions.Normal(0.0, 0.1).log_prob(torch.zeros((), dtype=torch.float64)).item()
    assert float(normal.log_prior(params)) == pytest.approx(expected)


def test_the_full_rows_are_of_the_published_size_and_shorter_ones_do_not_stand_beside_the_paper():
    study = registry.load("bayes-by-backprop-mnist")
    for row in study.rows:
        assert row.hidden == (1200, 1200) and row.limit is None
        beside = comparable(row, study.published[row.name]) is not None
        assert beside == (row.name not in ("scale-mixture", "normal"))  # 300 epochs where the paper has 600
