"""From a posterior and inputs to a predictive: which draws, in which blocks, within which memory."""

import math
import warnings
import weakref

import pytest
import torch
from tests.oracles import linear_regression, vector_of
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import plausible as pl
from plausible import posteriors


def a_model(dtype=torch.float64, likelihood=None):
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    return pl.BayesianModel(network, likelihood or pl.likelihoods.Normal(scale=0.3))


def a_gaussian(model, scale=0.3):
    return posteriors.Diagonal(model, model.init(), {k: torch.full_like(w, scale) for k, w in model.start.items()})


def inputs(n=50, dtype=torch.float64):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def by_hand(model, draws, x):
    """One plain forward pass per draw."""
    import copy

    rows = []
    for i in range(len(next(iter(draws.values())))):
        network = copy.deepcopy(model.source)
        network.load_state_dict({k: v[i] for k, v in draws.items()}, strict=False)
        rows.append(network.eval()(x).detach())
    return torch.stack(rows)


def test_outputs_are_those_of_the_posteriors_own_draws():
    model = a_model()
    posterior = a_gaussian(model)
    predictive = posterior.predict(inputs(), num_samples=9, seed=4)
    expected = by_hand(model, posterior.sample(9, seed=4), inputs())
    torch.testing.assert_close(predictive.outputs, expected, rtol=1e-12, atol=1e-12)
    again = posterior.predict(inputs(), num_samples=9, seed=4)
    assert torch.equal(again.outputs, predictive.outputs)
    assert not torch.equal(posterior.predict(inputs(), num_samples=9, seed=5).outputs, predictive.outputs)


def test_the_predictive_of_conjugate_regression_is_the_closed_form():
    truth = linear_regression(n=15, inputs=2, noise=0.5, seed=1)
    posterior = posteriors.Full(truth.model(), truth.params(truth.mean), truth.covariance)
    x = torch.tensor([[0.3, -1.0], [4.0, 2.0]], dtype=torch.float64)
    a = torch.cat([x, torch.ones(2, 1, dtype=torch.float64)], 1)
    mean, epistemic = a @ truth.mean, ((a @ truth.covariance) * a).sum(1)
    predictive = posterior.predict(x, num_samples=20_000, seed=0)
    assert ((predictive.mean[:, 0] - mean).abs() < 4 * (epistemic / 20_000).sqrt()).all()
    assert ((predictive.epistemic[:, 0] / epistemic - 1).abs() < 4 * math.sqrt(2 / 20_000)).all()
    torch.testing.assert_close(predictive.aleatoric[:, 0], torch.full((2,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("memory", [22_000, 60_000, 10**6])
@pytest.mark.parametrize("shape", ["gaussian", "mixture", "ensemble"])
def test_blocks_change_nothing_but_memory(shape, memory):
    model = a_model()
    pieces = {
        "gaussian": a_gaussian(model),
        "mixture": pl.mixture([a_gaussian(model, 0.1), a_gaussian(model, 0.5)], weights=[0.25, 0.75]),
        "ensemble": pl.mixture([posteriors.Delta(model, model.init(s)) for s in range(3)]),
    }
    whole = pieces[shape].predict(inputs(40), num_samples=16, seed=1)
    blocks = pieces[shape].predict(inputs(40), num_samples=16, seed=1, memory=memory)
    torch.testing.assert_close(blocks.outputs, whole.outputs, rtol=1e-12, atol=1e-12)
    assert torch.equal(blocks.weights, whole.weights)


def test_a_budget_that_cannot_hold_the_answer_is_refused_with_the_bytes():
    posterior = a_gaussian(a_model())
    with pytest.raises(ValueError, match=r"102,400 bytes.*budget of 50,000.*memory="):  # 64 · 100 · 2 · 8
        posterior.predict(inputs(100), memory=50_000)
    with pytest.raises(ValueError, match=r"bytes, more than the budget of 100;"):
        posterior.predict(inputs(1), num_samples=1, memory=100)


class LiveBytes(TorchDispatchMode):
    """Follows the memory that is alive: storages, counted when they are first seen, dropped when they are freed."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak, self.known = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                if storage._cdata not in self.known:
                    self.known.add(storage._cdata)
                    self.alive += storage.nbytes()
                    weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
                    self.peak = max(self.peak, self.alive)
        return out

    def freed(self, key, size):
        self.known.discard(key)
        self.alive -= size


@pytest.mark.parametrize("shape", ["gaussian", "mixture", "ensemble"])
def test_a_prediction_never_holds_more_than_its_budget(shape):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    pieces = {
        "gaussian": lambda: a_gaussian(model),
        "mixture": lambda: pl.mixture([a_gaussian(model, 0.1), a_gaussian(model, 0.5)]),
        "ensemble": lambda: pl.mixture([posteriors.Delta(model, model.init(s)) for s in range(3)]),
    }
    posterior, x = pieces[shape](), inputs(3000, torch.float32)
    memory = 16 * 2**20
    with LiveBytes() as live:
        posterior.predict(x, num_samples=20, memory=memory)
    assert live.peak <= memory


def test_convolutions_predict_what_they_predict_one_by_one():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior = a_gaussian(model, 0.1)
    x = torch.randn(7, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = by_hand(model, posterior.sample(5, seed=0), x)
    torch.testing.assert_close(posterior.predict(x, num_samples=5).outputs, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        posterior.predict(x, num_samples=5, memory=30_000).outputs, expected, rtol=1e-4, atol=1e-5
    )


def test_a_mixture_is_stratified_and_weighs_its_members():
    model = a_model()
    near, far = a_gaussian(model, 0.05), a_gaussian(model, 0.5)
    predictive = pl.mixture([near, far], weights=[0.9, 0.1]).predict(inputs(6), num_samples=40)
    counts = torch.bincount(predictive.strata).tolist()
    assert counts == [36, 4]
    torch.testing.assert_close(predictive.weights[:36].sum(), torch.tensor(0.9, dtype=torch.float64))
    few = pl.mixture([near, far], weights=[0.999, 0.001]).predict(inputs(6), num_samples=10)
    assert torch.bincount(few.strata).min() == 1  # every member is heard, at its weight
    torch.testing.assert_close(few.weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert few.weights[-1].item() == pytest.approx(0.001)


def test_a_weighted_ensemble_is_its_exact_weighted_mean():
    model = a_model()
    points = [model.init(s) for s in range(3)]
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    ensemble = pl.mixture([posteriors.Delta(model, p) for p in points], weights=weights)
    stacked = {k: torch.stack([p[k] for p in points]) for k in points[0]}
    expected = torch.tensordot(weights, by_hand(model, stacked, inputs()), 1)
    for num_samples in (1, 5, 100):
        predictive = ensemble.predict(inputs(), num_samples=num_samples)
        torch.testing.assert_close(predictive.mean, expected, rtol=1e-12, atol=1e-12)
        assert not predictive.mc_error.any()


def test_stored_draws_are_all_used_or_spread_evenly():
    model = a_model()
    draws = a_gaussian(model).sample(20, seed=0)
    posterior = posteriors.Samples(model, draws)
    everything = by_hand(model, draws, inputs())
    torch.testing.assert_close(posterior.predict(inputs(), num_samples=64).outputs, everything, rtol=1e-12, atol=1e-12)
    some = posterior.predict(inputs(), num_samples=5)
    torch.testing.assert_close(some.outputs, everything[2::4], rtol=1e-12, atol=1e-12)


def test_mc_error_is_the_scatter_over_seeds():
    posterior = a_gaussian(a_model())
    runs = [posterior.predict(inputs(4), num_samples=30, seed=s) for s in range(200)]
    spread = torch.stack([r.mean for r in runs]).std(0)
    told = torch.stack([r.mc_error for r in runs]).mean(0)
    assert ((told / spread - 1).abs() < 4 / math.sqrt(2 * 200)).all()


def test_a_tolerance_draws_until_it_is_met():
    posterior = a_gaussian(a_model())
    predictive = posterior.predict(inputs(4), num_samples=8, tolerance=0.02)
    assert predictive.mc_error.max() <= 0.02
    assert predictive.outputs.shape[0] > 8
    longer = posterior.predict(inputs(4), num_samples=predictive.outputs.shape[0])
    assert torch.equal(longer.outputs, predictive.outputs)  # the draws are the same ones, only more
    with pytest.warns(UserWarning, match="max_samples"):
        stopped = posterior.predict(inputs(4), num_samples=8, tolerance=1e-9, max_samples=32)
    assert stopped.outputs.shape[0] == 32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posteriors.Delta(posterior.model, posterior.mean).predict(inputs(4), tolerance=1e-12)  # nothing is sampled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept(dtype):
    predictive = a_gaussian(a_model(dtype)).predict(inputs(5, dtype))
    assert {predictive.outputs.dtype, predictive.mean.dtype, predictive.variance.dtype, predictive.mc_error.dtype} == {
        dtype
    }


def test_unknown_noise_is_each_draws_own():
    model = a_model(likelihood=pl.likelihoods.Normal(scale="learn"))
    posterior = a_gaussian(model)
    predictive = posterior.predict(inputs(5), num_samples=11, seed=3)
    scales = posterior.sample(11, seed=3)["likelihood.scale"].exp()
    torch.testing.assert_close(predictive.aleatoric, (scales**2).mean().expand(5, 2))


def test_inputs_may_be_arrays_tuples_and_dictionaries():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a, b):
            return self.layer(a + b)

    torch.manual_seed(0)
    model = pl.BayesianModel(Sum().double(), pl.likelihoods.Normal())
    posterior = posteriors.Delta(model, model.init())
    x = inputs(6)
    plain = posterior.predict((x, x)).mean
    assert torch.equal(posterior.predict({"a": x, "b": x}).mean, plain)
    assert torch.equal(posterior.predict((x.numpy(), x.numpy())).mean, plain)


def test_what_cannot_be_predicted_is_refused():
    posterior = a_gaussian(a_model())
    with pytest.raises(ValueError, match="num_samples"):
        posterior.predict(inputs(), num_samples=0)
    with pytest.raises(ValueError, match="tolerance"):
        posterior.predict(inputs(), tolerance=0.0)
    with pytest.raises(ValueError, match="no rows"):
        posterior.predict(inputs()[:0])
    with pytest.raises(ValueError, match="float32"):
        posterior.predict(inputs().float())
    with pytest.raises(ValueError, match="nan"):
        posterior.predict(torch.full((2, 3), torch.nan).double())
    with pytest.raises(pl.NotSupported, match="evidence"):
        posterior.evidence()
    assert vector_of(posterior.mean).shape == (50,)


def test_a_tolerance_stops_when_all_stored_draws_are_used():
    model = pl.BayesianModel(torch.nn.Linear(1, 1), likelihood=pl.likelihoods.Normal())
    posterior = pl.posteriors.Samples(model, model.sample_prior(100, seed=0))
    with pytest.warns(UserWarning, match="after 100 samples.*keep more"):
        predictive = posterior.predict(torch.ones(3, 1), tolerance=1e-9)
    assert predictive.outputs.shape[0] == 100
