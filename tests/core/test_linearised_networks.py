"""Networks that linearise in a way of their own: norm statistics, fused kernels, operations without a forward rule, a GPU."""

import logging
import math

import pytest
import torch
from tests.core.dense_gaussians import a_gaussian, a_kronecker, a_model, dense_jacobian, randn
from tests.oracles import vector_of
from torch import nn

import plausible as pl
from plausible import posteriors
from plausible.core import linearised as module
from plausible.core.linearised import output_moments


def test_convolutions_are_linearised():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, groups=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ).double()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior, _ = a_kronecker(model, 0.3)
    x = randn(5, 1, 6, 6)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    deviations = vector_of(posterior.sample(6, seed=0), 1) - vector_of(posterior.mean)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    for memory in (None, 60_000):
        predictive = posterior.predict(x, num_samples=6, linearised=True, memory=memory)
        torch.testing.assert_close(predictive.outputs, expected, rtol=1e-9, atol=1e-9)
    _, variance = output_moments(posterior, x, 10**7)
    root = posterior.unscatter(jacobian)
    torch.testing.assert_close(variance, root.square().sum(-1), rtol=1e-9, atol=1e-9)


# --- norm statistics ---


def normed(dtype=torch.float64):
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def test_norm_statistics_are_those_of_the_mean_for_every_draw(tmp_path):
    model = a_model(pl.likelihoods.Categorical(), network=normed())
    data, x = 2 + 3 * randn(256, 3), randn(6, 3, seed=1)
    posterior, covariance = a_gaussian(model, "Full")
    with pytest.raises(ValueError, match="statistics for the mean.*refresh"):
        posterior.predict(x, linearised=True)
    posterior.refresh((data, torch.zeros(256).long()), num_samples=1)
    hidden = torch.nn.functional.linear(data, posterior.mean["0.weight"], posterior.mean["0.bias"])
    buffers = {"1.running_mean": hidden.mean(0), "1.running_var": hidden.var(0)}
    value, jacobian = dense_jacobian(model, posterior.mean, x, buffers)
    deviations = vector_of(posterior.sample(70, seed=9), 1) - vector_of(posterior.mean)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    # More draws than the bank holds, of another seed than its own: one set of statistics serves them all.
    found = posterior.predict(x, num_samples=70, seed=9, linearised=True, link="probit")
    torch.testing.assert_close(found.outputs, expected, rtol=1e-9, atol=1e-9)
    variance = torch.einsum("ncp,pq,ncq->nc", jacobian, covariance, jacobian)
    probit = torch.softmax(value / (1 + math.pi / 8 * variance).sqrt(), 1)
    torch.testing.assert_close(found.probs, probit, rtol=1e-9, atol=1e-9)
    posterior.linearised_by_default = True
    posterior.save(tmp_path / "a")
    for other in (pl.load(tmp_path / "a", normed()), posterior.to("cpu")):
        assert torch.equal(other.predict(x, num_samples=70, seed=9).outputs, found.outputs)


def test_statistics_that_all_draws_share_are_the_means_too():
    model = a_model(pl.likelihoods.Categorical(), network=normed())
    x = randn(6, 3, seed=1)
    posterior, _ = a_gaussian(model, "Diagonal")
    row = {"1.running_mean": randn(5), "1.running_var": randn(5, seed=1) ** 2 + 0.1}
    row["1.num_batches_tracked"] = torch.tensor(3)
    posterior.bank = {k: v.expand(4, *v.shape) for k, v in row.items()}  # as after a fit in eval mode
    value, jacobian = dense_jacobian(model, posterior.mean, x, row)
    deviations = vector_of(posterior.sample(2, seed=0), 1) - vector_of(posterior.mean)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    torch.testing.assert_close(posterior.predict(x, num_samples=2, linearised=True).outputs, expected)


def test_a_fit_leaves_statistics_of_the_mean():
    model = a_model(pl.likelihoods.Categorical(), network=normed())
    data = randn(200, 3), (randn(200, seed=1) > 0).long()
    quiet = {"progress": False, "compile": False, "device": "cpu"}
    swag = pl.fit(model, data, pl.SWAG(rank=3, snapshots=6), epochs=8, batch_size=50, **quiet)
    hidden = torch.nn.functional.linear(data[0], swag.mean["0.weight"], swag.mean["0.bias"])
    torch.testing.assert_close(swag.mean_bank["1.running_mean"], hidden.mean(0), rtol=1e-9, atol=1e-9)
    assert torch.isfinite(swag.predict(data[0][:5], num_samples=100, linearised=True).probs).all()


# --- networks that do not differentiate forward ---


class Sine(torch.autograd.Function):
    """As users write their own: no forward mode, no vmap."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * x.cos()


class WithSine(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.first, self.last, self.own = nn.Linear(3, 4), nn.Linear(4, 2), own
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        h = self.first(x)
        return self.last(Sine.apply(h) if self.own else h.sin())


def test_an_operation_without_a_forward_rule_is_differentiated_twice_backwards_and_said_once(caplog):
    torch.manual_seed(0)
    plain, own = WithSine(own=False).double(), WithSine(own=True).double()
    own.load_state_dict(plain.state_dict())
    x = randn(5, 3)
    with caplog.at_level(logging.WARNING, logger="plausible"):
        found = []
        for network in (plain, own):
            model = pl.BayesianModel(network, pl.likelihoods.Categorical())
            posterior, _ = a_gaussian(model, "Diagonal")
            found.append(posterior.predict(x, linearised=True, link="probit", num_samples=7))
            posterior.predict(x, linearised=True, num_samples=3)
    torch.testing.assert_close(found[1].outputs, found[0].outputs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[1].probs, found[0].probs, rtol=1e-10, atol=1e-10)
    assert len([r for r in caplog.records if "backwards" in r.message]) == 1


@pytest.mark.parametrize("kind", ["attention", "encoder", "lstm"])
def test_fused_kernels_are_linearised(kind):
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = {
                "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
                "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
                "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
            }[kind]()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            out = self.layer(x, x, x) if kind == "attention" else self.layer(x)
            return self.head((out[0] if isinstance(out, tuple) else out).mean(1))

    torch.manual_seed(0)
    model = pl.BayesianModel(Sequence(), pl.likelihoods.Categorical())
    posterior = posteriors.Diagonal(model, model.init(), {k: torch.full_like(w, 1e-3) for k, w in model.start.items()})
    x = randn(6, 5, 4, dtype=torch.float32)
    before = torch.backends.mha.get_fastpath_enabled()
    linear, sampled = (posterior.predict(x, num_samples=5, linearised=way, seed=1) for way in (True, False))
    assert torch.backends.mha.get_fastpath_enabled() == before
    at_mean = posteriors.Delta(model, posterior.mean).predict(x).outputs
    moved = (sampled.outputs - at_mean).abs().max()
    assert (
        linear.outputs - sampled.outputs
    ).abs().max() < 0.03 * moved  # small steps: the curvature is of second order
    _, variance = output_moments(posterior, x, 10**7)
    drawn = posterior.predict(x, num_samples=500, linearised=True).outputs.var(0)
    assert ((drawn / variance - 1).abs() < 5 * math.sqrt(2 / 500)).all()


def test_a_network_that_vmap_cannot_run_takes_a_draw_at_a_time():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            out = self.layer(x)
            return out * 2 if out.sum().item() > -1e9 else out

    torch.manual_seed(0)
    model = pl.BayesianModel(Branching().double(), pl.likelihoods.Categorical())
    posterior, _ = a_gaussian(model, "Diagonal")
    x = randn(4, 3)
    predictive = posterior.predict(x, num_samples=5, linearised=True, link="probit")
    torch.testing.assert_close(predictive.outputs, posterior.predict(x, num_samples=5, linearised=False).outputs)
    assert model.network not in module._backward_only
    assert torch.isfinite(predictive.probs).all()


# --- on a GPU ---


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.parametrize("shape", ["Diagonal", "Kronecker"])
def test_a_gpu_predicts_what_a_cpu_does(shape, tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
    ).double()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior, _ = a_gaussian(model, shape)
    posterior.refresh((randn(50, 1, 6, 6), torch.zeros(50).long()), num_samples=2)
    posterior.linearised_by_default = True
    x = randn(40, 1, 6, 6, seed=1)
    here, there = posterior.predict(x, link="probit"), posterior.to("cuda").predict(x.cuda(), link="probit")
    assert there.outputs.device.type == "cuda"
    torch.testing.assert_close(there.outputs.cpu(), here.outputs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.probs.cpu(), here.probs, rtol=1e-9, atol=1e-9)
    posterior.to("cuda").save(tmp_path / "a")
    loaded = pl.load(tmp_path / "a", network, device="cuda").predict(x)
    torch.testing.assert_close(loaded.outputs, here.outputs, rtol=1e-9, atol=1e-9)
