"""Deep ensembles: independent members, averaged exactly."""

import pytest
import torch
from tests.oracles import linear_regression, vector_of
from torch import nn

import plausible as pl

QUIET = {"progress": False, "compile": False}


def data(n=30):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=rng, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def model():
    torch.manual_seed(1)
    return pl.BayesianModel(
        nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)).double(), pl.likelihoods.Categorical()
    )


@pytest.mark.parametrize("num_samples", [1, 2, 64])
def test_the_prediction_is_the_exact_mean_of_the_members_whatever_num_samples(num_samples):
    ensemble = pl.fit(model(), data(), pl.DeepEnsemble(members=3), epochs=5, **QUIET)
    x = data(7)[0]
    members = torch.stack([c.predict(x).probs for c in ensemble.components])
    predictive = ensemble.predict(x, num_samples=num_samples, seed=num_samples)
    torch.testing.assert_close(predictive.probs, members.mean(0), rtol=1e-14, atol=1e-14)
    assert predictive.outputs.shape[0] == 3
    assert not predictive.mc_error.any()  # nothing was sampled


def test_members_differ_and_each_is_the_run_of_its_own_mode():
    ensemble = pl.fit(model(), data(), pl.DeepEnsemble(members=4), epochs=3, **QUIET)
    vectors = torch.stack([vector_of(c.mean) for c in ensemble.components])
    assert torch.pdist(vectors).min() > 0.1
    assert ensemble.weights.tolist() == [0.25] * 4
    same = pl.fit(model(), data(), pl.MAP(), epochs=3, num_modes=4, **QUIET)
    assert torch.equal(vectors, torch.stack([vector_of(c.mean) for c in same.components]))


def test_vectorised_members_equal_looped_ones():
    options = {"epochs": 10, "batch_size": 7, **QUIET}
    together = pl.fit(model(), data(), pl.DeepEnsemble(members=5), vectorise=True, **options)
    looped = pl.fit(model(), data(), pl.DeepEnsemble(members=5), vectorise=False, **options)
    for a, b in zip(together.components, looped.components, strict=True):
        torch.testing.assert_close(vector_of(a.mean), vector_of(b.mean), rtol=1e-10, atol=1e-10)


def test_on_a_convex_problem_all_members_find_the_one_mode():
    truth = linear_regression(n=20, inputs=2, seed=3)
    method = pl.DeepEnsemble(members=4, base=pl.MAP(learning_rate=0.05))
    ensemble = pl.fit(truth.model(), truth.data(), method, steps=1000, batch_size=20, **QUIET)
    for member in ensemble.components:
        assert (vector_of(member.mean) - truth.mean).abs().max() < 1e-4


def test_disagreement_widens_a_regressions_interval():
    network = nn.Linear(1, 1).double()
    belief = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.1))
    points = [{"weight": torch.zeros(1, 1).double(), "bias": torch.tensor([b]).double()} for b in (-1.0, 1.0)]
    ensemble = pl.mixture([pl.posteriors.Delta(belief, p) for p in points])
    predictive = ensemble.predict(torch.zeros(1, 1).double())
    assert predictive.variance.item() == pytest.approx(0.1**2 + 1.0)
    low, high = predictive.interval(0.9)
    assert low.item() < -1 and high.item() > 1


def test_modes_cannot_be_asked_for_twice():
    with pytest.raises(ValueError, match="num_modes"):
        pl.fit(model(), data(), pl.DeepEnsemble(members=3), epochs=1, num_modes=2, **QUIET)
    with pytest.raises(ValueError, match="members"):
        pl.DeepEnsemble(members=0)
    with pytest.raises(ValueError, match="base"):
        pl.DeepEnsemble(base="adam")


def test_an_ensemble_of_ensembles_is_refused():
    with pytest.raises(ValueError, match="base must be a method of one mode"):
        pl.DeepEnsemble(base=pl.MultiSWAG(modes=2))
