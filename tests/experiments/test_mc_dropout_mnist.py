"""The study of dropout in a convolutional network on MNIST, at toy size."""

from dataclasses import replace

import pytest
import torch

import plausible as pl
from plausible.experiments import mc_dropout_mnist as study_file
from plausible.experiments import registry
from plausible.experiments.reproduce import run_rows


def test_the_study_runs_at_toy_size_and_draws_its_curves(made_up_digits, tmp_path):
    study = registry.load("mc-dropout-mnist")
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None, root=made_up_digits))
    assert [result.row.name for result in found] == [row.name for row in study.rows]
    for result in found:
        assert result.repetitions == 2 and set(result.scores) == set(study.columns)
        curve = result.record["details"]["curve"]
        assert curve["epoch"] == [1.0, 2.0]
        assert [errors[-1] for errors in curve["error"]] == result.record["scores"]["error"]
    (picture,) = study.pictures
    picture.draw({result.row.name: result for result in found}, tmp_path / "errors.png")
    assert (tmp_path / "errors.png").stat().st_size > 10_000
    assert set(picture.needs) == {row.name for row in study.rows}


def test_weight_averaging_and_masks_share_one_training(made_up_digits):
    averaging, masked = (study_file.toy(row) for row in study_file.FULL[2:])
    study_file._trained.cache_clear()
    first, second = study_file.run(averaging, made_up_digits), study_file.run(masked, made_up_digits)
    assert study_file._trained.cache_info().misses == 1
    assert first.scores["nll"] != second.scores["nll"]


def test_snapshots_are_the_answers_on_the_way_to_what_the_method_gives_alone():
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(40, 3, generator=rng), torch.randn(40, 1, generator=rng)
    model = pl.BayesianModel(torch.nn.Linear(3, 1), pl.likelihoods.Normal(), prior=pl.priors.Normal())
    method = pl.MCDropout(rate=0.3, base=pl.MAP(schedule="constant"))
    settings = {"batch_size": 10, "progress": False, "device": "cpu"}
    found = pl.fit(model, data, study_file.Snapshots(base=method, count=4), steps=8, **settings)
    assert len(found.components) == 4
    for moment, steps in zip(found.components, (2, 4, 6, 8), strict=True):
        alone = pl.fit(model, data, method, steps=steps, **settings)
        for name, weights in alone.params.items():
            assert torch.equal(moment.params[name], weights)


def test_dropout_is_where_the_rows_say(made_up_digits):
    network = study_file.LeNet()
    assert sum(w.numel() for w in network.parameters()) == 431_080
    names = {name for name, _ in network.named_children()}
    assert {name for rates in study_file.DROPPED.values() for name in rates} <= names
    assert isinstance(study_file.method_for(study_file.FULL[0]), pl.MAP)
    row = replace(study_file.toy(study_file.FULL[1]), epochs=1, seeds=1, looks=1)
    ((posterior,),) = study_file._trained(row, made_up_digits)
    assert set(posterior.rates) == {"last.weight"}
    ((posterior,),) = study_file._trained(replace(row, dropped="everywhere"), made_up_digits)
    assert set(posterior.rates) == {"first.weight", "second.weight", "last.weight"}


def test_a_quarter_is_a_quarter():
    for whole, quarter in zip(study_file.STUDY.rows[:4], study_file.STUDY.rows[4:], strict=True):
        assert quarter.name == f"{whole.name}-quarter" and quarter.share == 0.25 and whole.share == 1.0
        assert (quarter.dropped, quarter.masks) == (whole.dropped, whole.masks)
        assert whole.limit is quarter.limit is None


@pytest.mark.slow
def test_a_longer_run_tells_made_up_digits_apart(made_up_digits):
    row = replace(study_file.toy(study_file.FULL[3]), epochs=40, limit=None, seeds=1, masks=20)
    outcome = study_file.run(row, made_up_digits)
    assert outcome.scores["error"][0] < 5
