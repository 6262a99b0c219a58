"""The study of ADVI on MNIST, at toy size."""

from dataclasses import replace

import pytest
import torch
from tests.experiments.made_up_sets import write_digits

import plausible as pl
from plausible.core.predictive import Predictive
from plausible.experiments import advi_mnist as study_file
from plausible.experiments import registry, tables
from plausible.experiments.reproduce import run_rows


def test_the_study_runs_at_toy_size_and_draws_its_pictures(made_up_digits, tmp_path):
    study = registry.load("advi-mnist")
    rows = [study.toy(row) for row in study.rows]
    found = list(run_rows(study, rows, None, root=made_up_digits))
    for result in found:
        assert set(result.scores) == set(study.columns)
        details = result.record["details"]
        assert sum(details["by_expected_error"]["count"]) == 40
        assert len(details["least_confident"]) == 12 and len(details["least_confident"][0]["grey"]) == 28 * 28
        confidences = [one["confidence"] for one in details["least_confident"]]
        assert confidences == sorted(confidences)
        assert all(one["label"] != one["guess"] and one["expected_error"] == 0 for one in details["surely_wrong"])
    by_name = {result.row.name: result for result in found}
    for picture in tables.drawable(study, found):
        picture.draw(by_name, tmp_path / f"{picture.name}.png")
    assert {path.stem for path in tmp_path.glob("*.png")} == {"uncertainty", "surely-wrong", "least-confident"}
    assert all(path.stat().st_size > 2_000 for path in tmp_path.glob("*.png"))


def test_the_network_is_the_one_that_the_study_names():
    network = study_file.TanhConvolutions()
    assert sum(w.numel() for w in network.parameters()) == 59_946
    assert network(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    fixed, learnt = (study_file.model_for(row) for row in study_file.STUDY.rows)
    assert not fixed.hyperpriors and len(learnt.hyperpriors) == 4
    # A weight of the second convolution has 32 · 25 inputs.
    params = {k: torch.zeros_like(w).double() for k, w in fixed.init().items()}
    expected = sum(
        w.numel() * float(torch.distributions.Normal(0.0, s).log_prob(torch.zeros(())))
        for k, w in params.items()
        for s in [w[0].numel() ** -0.5 if w.dim() > 1 else 1.0]
    )
    assert float(fixed.log_prior(params)) == pytest.approx(expected, rel=1e-5)


def test_images_are_grouped_by_how_many_draws_disagree():
    expected, wrong = torch.tensor([0.0, 0.0, 0.005, 0.6, 0.9]), torch.tensor([False, True, False, True, True])
    found = study_file._by_expected_error(expected, wrong)
    assert found["count"] == [2, 1, 2] and found["wrong"] == [0.5, 0.0, 1.0]
    assert found["expected"] == pytest.approx([0.0, 0.005, 0.75])


def test_surely_wrong_images_are_those_that_all_draws_agree_on():
    logits = torch.full((4, 3, 10), -5.0)
    logits[:, 0, 7] = 5.0  # all draws say 7, the label is 7
    logits[:, 1, 3] = 5.0  # all say 3, the label is 8
    logits[:2, 2, 1], logits[2:, 2, 4] = 5.0, 4.0  # half of them say another class
    data = pl.datasets.Dataset(
        name="three", task="classification", x_train=torch.zeros(1, 1, 28, 28), y_train=torch.zeros(1, dtype=torch.int64),
        x_test=torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)), y_test=torch.tensor([7, 8, 4]),
    )  # fmt: skip
    predicted = Predictive(logits, pl.likelihoods.Categorical())
    (only,) = study_file._details(predicted, data)["surely_wrong"]
    assert (only["label"], only["guess"], only["expected_error"]) == (8, 3, 0.0)
    scores = study_file._score(predicted, data.y_test)
    assert scores["certain"] == pytest.approx(200 / 3) and scores["certain_wrong"] == 1
    assert scores["accuracy"] == pytest.approx(100 / 3)


@pytest.mark.slow
def test_a_longer_run_tells_made_up_digits_apart(tmp_path):
    # With a few hundred images the prior outweighs them, and the best diagonal normal knows no class.
    small = study_file.toy(study_file.STUDY.rows[1])
    row = replace(small, epochs=30, batch_size=50, units=10, limit=None, samples=20, learning_rate=0.02)
    assert study_file.run_seed(row, write_digits(tmp_path, 1000), 0).scores["accuracy"][0] > 95
