"""The study of priors under ADVI: what is known of its data, its cells, and a toy of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import plausible as pl
from plausible.experiments import advi_prior_answers as answers_file
from plausible.experiments import advi_prior_points as points
from plausible.experiments import advi_priors as study_file
from plausible.experiments import registry, tables
from plausible.experiments.reproduce import run_rows


def blurred(curve, noise, x):
    """The density at x of a point that is evenly spread over the parameter in (0, 1) of a curve, plus noise, by quadrature."""

    def along(t):
        return math.prod(stats.norm.pdf(x[i], curve(t)[i], noise) for i in range(2))

    return integrate.quad(along, 0, 1, limit=200)[0]


@pytest.mark.parametrize("noise", [0.1, 0.43])
def test_the_densities_are_those_of_the_curves_with_noise(noise):
    curves = {
        "moons": (
            lambda t: (math.cos(math.pi * t), math.sin(math.pi * t)),
            lambda t: (1 - math.cos(math.pi * t), 0.5 - math.sin(math.pi * t)),
        ),
        "circles": tuple(
            (lambda t, r=r: (r * math.cos(2 * math.pi * t), r * math.sin(2 * math.pi * t)))
            for r in (1.0, points.FACTOR)
        ),
    }
    x = torch.tensor([[0.9, 0.4], [0.1, -0.3], [-0.6, 0.7]], dtype=torch.float64)
    for name, pair in curves.items():
        found = points.log_densities(name, noise, x).exp()
        expected = [[blurred(curve, noise, place.tolist()) for curve in pair] for place in x]
        # Relative; quad's own error is an absolute 1e-8 at the most.
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)


def test_points_lie_on_the_curves_that_the_densities_are_of():
    for name in points.SETS:
        x, y = points.drawn_points(name, 0.05, 400, seed=0)
        # Little noise: the wrong class's curve is practically nowhere near.
        assert (points.best_guess(name, 0.05, x) == y).float().mean() > 0.99


@pytest.mark.parametrize(("name", "noise"), [("moons", 0.43), ("circles", 0.37)])
def test_no_other_rule_is_right_as_often_as_the_best_guess(name, noise):
    x, y = points.drawn_points(name, noise, 20_000, seed=1)
    right = float((points.best_guess(name, noise, x) == y).double().mean())
    optimum = points.optimal_accuracy(name, noise)
    assert abs(right - optimum) < 4 * math.sqrt(optimum * (1 - optimum) / len(x))
    # A straight cut for moons, and a ring half-way for circles, are worse.
    other = x[:, 1] < 0.25 if name == "moons" else x.norm(dim=1) < 0.75
    assert float((other.long() == y).double().mean()) < right
    shares = points.log_densities(name, noise, x).softmax(1)
    nll = -shares[torch.arange(len(y)), y].log()
    assert abs(float(nll.mean()) - points.optimal_nll(name, noise)) < 4 * float(nll.std()) / math.sqrt(len(x))


def test_the_boundary_is_where_the_best_guess_changes():
    edge = points.boundary("circles", 0.2)
    radius = edge.norm(dim=1)
    near = edge[(radius - radius.mean()).abs() < 0.2]
    step = 2.0 * (1 + points.EDGE * 0.2) / (points.GRID - 1)
    assert len(near) == len(edge) and float(radius.max() - radius.min()) < 2 * step
    inside, outside = (edge * (1 + sign * 3 * step) for sign in (-1, 1))
    assert bool((points.best_guess("circles", 0.2, inside) == 1).all())
    assert bool((points.best_guess("circles", 0.2, outside) == 0).all())
    far = torch.tensor([[float(radius.mean()) + 0.5, 0.0]])
    assert float(points.distance_from_boundary("circles", 0.2, far)) == pytest.approx(0.5, abs=step)


def test_there_are_thirteen_cells_and_the_best_rule():
    names = [row.name for row in study_file.ROWS]
    assert len(set(names)) == 14 and names[0] == "bayes-optimal" and names[-1] == "flat"
    for row in study_file.ROWS[1:]:
        assert (row.hidden, row.train, row.test, row.fresh) == ((5, 5), 700, 300, 20_000)
        assert row.seeds >= 10 and len(row.places) == 5
        model = study_file.model_for(row)
        scales = [k for k in model.hyperpriors if k.startswith("prior.")]
        assert len(scales) == (0 if row.hyperprior == "fixed" else 3)
        assert sum(w.numel() for k, w in model.start.items() if k not in scales) == 57
        if row.family != "flat":
            assert isinstance(model.sample_prior(1)["0.weight"], torch.Tensor)
    assert isinstance(study_file.model_for(study_file.ROWS[-1]).prior, pl.priors.Flat)
    learnt = {row.name: study_file.fixed_row(row).name for row in study_file.ROWS[1:-1]}
    assert set(learnt.values()) == {"normal-fixed", "laplace-fixed", "cauchy-fixed"}


def test_the_study_runs_at_toy_size_and_draws_its_pictures(tmp_path, caplog):
    study = registry.load("advi-priors")
    found = list(run_rows(study, [study.toy(row) for row in study.rows], None))
    assert [result.row.name for result in found] == [row.name for row in study.rows]
    assert "flat prior" in caplog.text
    by_name = {result.row.name: result for result in found}
    for row in study.rows[1:]:
        details = by_name[row.name].record["details"]
        assert by_name[row.name].repetitions == 2
        assert ("moons gain" in by_name[row.name].scores) == (row.hyperprior != "fixed") == ("scales" in details)
        assert ("tuned" in details) == (row.hyperprior == "fixed" and row.family != "flat")
        assert all(len(details["sweep"][name]["gap"]) == 2 for name in points.SETS)
    fixed, learnt = by_name["normal-fixed"].record, by_name["normal-half-cauchy"].record
    gain = [
        np.mean(
            [fixed["details"]["sweep"][name]["nll"][p] - learnt["details"]["sweep"][name]["nll"][p] for p in (0, 1)]
        )
        for name in points.SETS
    ]
    assert [learnt["details"]["gain"][name]["mean"] for name in points.SETS] == pytest.approx(gain, abs=2e-5)
    for picture in tables.drawable(study, found):
        picture.draw(by_name, tmp_path / f"{picture.name}.png")
    assert len(list(tmp_path.glob("*.png"))) == len(study.pictures) == 5
    assert all(path.stat().st_size > 10_000 for path in tmp_path.glob("*.png"))


def test_all_data_at_once_is_what_one_large_batch_gives():
    row = study_file.toy(study_file.FIRST)
    data, model = study_file._points("moons", 3, 0, 40, 20).train, study_file.model_for(row)
    course = {"steps": 5, "seed": 3, "init": "reset", "progress": False, "device": "cpu"}
    whole = pl.fit(model, data, study_file.FullBatchADVI(learning_rate=0.03), **course)
    batch = pl.fit(model, data, pl.ADVI(learning_rate=0.03), batch_size=40, **course)
    for name, mean in whole.mean.items():
        torch.testing.assert_close(mean, batch.mean[name], rtol=1e-4, atol=1e-5)


def test_rank_correlations_and_intervals_are_scipys():
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(50, generator=rng)
    b = a + torch.randn(50, generator=rng)
    assert answers_file.rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    found = answers_file.mean_and_interval(b.tolist())
    low, high = stats.t.interval(0.95, 49, loc=float(b.mean()), scale=stats.sem(b.double()))
    assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-6)


def test_learnt_scales_and_last_layers_are_natural_values():
    row = study_file.toy(
        replace(study_file.FIRST, name="cauchy-half-normal", family="cauchy", hyperprior="half-normal")
    )
    found = study_file._fitted(replace(row, epochs=2, seeds=1), [3])
    answer = found["moons", 3, 0]
    drawn = answer.model.constrain(answer.sample(8, seed=0))
    scales = answers_file.learnt_scales([answer], 8)
    assert set(scales) == {"prior.0.scale", "prior.2.scale", "prior.4.scale"}
    assert scales["prior.4.scale"][0] == pytest.approx(float(drawn["prior.4.scale"].log().mean().exp()), abs=1e-4)
    told = answers_file.weight_details([answer], 8)
    means = drawn["4.weight"].mean(0).flatten()
    assert told["means"] == pytest.approx(means.tolist(), abs=6e-4)
    assert told["small"] == pytest.approx(float((means.abs() < 0.1).float().mean()))


@pytest.mark.slow
def test_a_longer_run_comes_near_the_optimum_on_quiet_moons():
    row = replace(study_file.FIRST, epochs=1000, seeds=2, restarts=1, fresh=2000, full=False)
    found = study_file._fitted(row, [1])
    gaps = [study_file._score(row, which, answer)["gap"] for which, answer in found.items() if which[0] == "moons"]
    assert max(gaps) < 5
