"""Predictions with the network linearised at the mean, against dense Jacobians and closed forms."""

import logging
import math

import pytest
import torch
from tests.core.test_prediction import LiveBytes
from tests.oracles import anisotropic_covariance, assert_moments, vector_of
from torch import nn

import plausible as pl
from plausible import posteriors
from plausible.core import linearised as module
from plausible.core.linearised import output_moments
from plausible.core.posteriors.kronecker import Block, block_from_factors

SHAPES = ["Diagonal", "LowRank", "Kronecker", "Full"]


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tanh_network(dtype=torch.float64):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def a_model(likelihood=None, dtype=torch.float64, network=None):
    return pl.BayesianModel(network or tanh_network(dtype), likelihood or pl.likelihoods.Normal(scale=0.3))


def tree_of(model, vector):
    parts = vector.split([w.numel() for w in model.start.values()], -1)
    return {k: p.reshape((*vector.shape[:-1], *w.shape)) for (k, w), p in zip(model.start.items(), parts, strict=True)}


def a_gaussian(model, shape="Full", size=0.4, seed=0):
    """A posterior of the given shape at the network's own weights, and its dense covariance over the weights."""
    mean = model.init()
    count = sum(w.numel() for w in mean.values())
    dtype = model.dtype
    if shape == "Full":
        covariance = size**2 * anisotropic_covariance(count, seed=seed)
        return posteriors.Full(model, mean, covariance.to(dtype)), covariance
    if shape == "Diagonal":
        scale = size * 10 ** (randn(count, seed=seed).clamp(-1, 1) / 2)
        return posteriors.Diagonal(model, mean, tree_of(model, scale.to(dtype))), torch.diag(scale**2)
    if shape == "LowRank":
        variance, factors = size**2 * randn(count, seed=seed) ** 2 + 1e-3, size / 2 * randn(3, count, seed=seed + 1)
        made = posteriors.LowRank(model, mean, tree_of(model, variance.to(dtype)), tree_of(model, factors.to(dtype)))
        return made, torch.diag(variance) + factors.T @ factors
    return a_kronecker(model, size, seed)


def a_kronecker(model, size=0.4, seed=0):
    blocks, scale, covered = [], {}, set()
    for k, w in model.start.items():
        if w.dim() > 1:
            bias = k.removesuffix("weight") + "bias"
            bias = bias if bias in model.start else None
            rows, columns = w.shape[0], w[0].numel() + (bias is not None)
            a, g = randn(1, columns + 1, columns, seed=seed), randn(1, rows + 1, rows, seed=seed + 1)
            d = torch.full((1, columns), size**-2, dtype=torch.float64)
            block, _ = block_from_factors(k, bias, a.mT @ a, g.mT @ g, d)
            tensors = [t.to(model.dtype) for t in (block.left, block.right, block.scale)]
            blocks.append(Block(k, bias, *tensors))
            covered |= set(blocks[-1].names)
    scale = {k: torch.full_like(w, size) for k, w in model.start.items() if k not in covered}
    posterior = posteriors.Kronecker(model, model.init(), blocks, scale)
    eye = torch.eye(sum(w.numel() for w in model.start.values()), dtype=model.dtype)
    root = posterior.unscatter(eye)  # tested against brute force with the shape itself
    return posterior, (root @ root.T).double()


def dense_jacobian(model, params, x, buffers=None):
    """(N, outputs, P) by torch's reverse mode on the user's own module."""
    names = model.weight_names
    net = model.source.eval()

    def outputs(vector):
        weights = tree_of(model, vector)
        return torch.func.functional_call(net, {**{k: weights[k] for k in names}, **(buffers or {})}, (x,))

    return outputs(vector_of(params)).detach(), torch.autograd.functional.jacobian(outputs, vector_of(params))


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_the_mean_and_the_jacobian_times_the_posteriors_own_draws(shape):
    model, x = a_model(), randn(7, 3, seed=1)
    posterior, _ = a_gaussian(model, shape)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    deviations = vector_of(posterior.sample(9, seed=4), 1) - vector_of(posterior.mean)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    predictive = posterior.predict(x, num_samples=9, seed=4, linearised=True)
    torch.testing.assert_close(predictive.outputs, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(posterior.predict(x, num_samples=9, seed=4, linearised=True).outputs, predictive.outputs)
    assert not torch.equal(posterior.predict(x, num_samples=9, seed=5, linearised=True).outputs, predictive.outputs)
    assert not torch.allclose(posterior.predict(x, num_samples=9, seed=4).outputs, predictive.outputs, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_that_is_linear_in_its_weights_predicts_the_same_either_way(shape, dtype):
    model = a_model(pl.likelihoods.Categorical(), dtype, nn.Linear(3, 4).to(dtype))
    posterior, _ = a_gaussian(model, shape)
    x = randn(20, 3, seed=1, dtype=dtype)
    sampled, linear = (posterior.predict(x, linearised=way) for way in (False, True))
    torch.testing.assert_close(linear.outputs, sampled.outputs, rtol=1e-5, atol=1e-5)
    assert linear.outputs.dtype == linear.probs.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES)
def test_linearised_outputs_have_the_moments_of_the_dense_formula(shape):
    model, x = a_model(), randn(3, 3, seed=1)
    posterior, covariance = a_gaussian(model, shape)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    flat = jacobian.reshape(6, -1)
    predictive = posterior.predict(x, num_samples=50_000, seed=2, linearised=True)
    assert_moments(predictive.outputs.flatten(1), value.flatten(), flat @ covariance @ flat.T)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_variance_of_outputs_is_exact(shape):
    model, x = a_model(), randn(5, 3, seed=1)
    posterior, covariance = a_gaussian(model, shape)
    value, jacobian = dense_jacobian(model, posterior.mean, x)
    expected = torch.einsum("ncp,pq,ncq->nc", jacobian, covariance, jacobian)
    for memory in (1, 20_000, 10**8):
        mean, variance = output_moments(posterior, x, memory)
        torch.testing.assert_close(mean, value, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(variance, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("memory", [40_000, 100_000, 10**6])
@pytest.mark.parametrize("shape", [*SHAPES, "mixture"])
def test_blocks_change_nothing_but_memory(shape, memory):
    model, x = a_model(), randn(40, 3, seed=1)
    if shape == "mixture":
        posterior = pl.mixture([a_gaussian(model, "Full")[0], a_gaussian(model, "Diagonal")[0]], weights=[0.25, 0.75])
    else:
        posterior = a_gaussian(model, shape)[0]
    whole = posterior.predict(x, num_samples=16, seed=1, linearised=True)
    blocks = posterior.predict(x, num_samples=16, seed=1, linearised=True, memory=memory)
    torch.testing.assert_close(blocks.outputs, whole.outputs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ["Diagonal", "Kronecker"])
@pytest.mark.parametrize("link", [None, "probit"])
def test_a_linearised_prediction_never_holds_more_than_its_budget(shape, link):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior, x = a_gaussian_of_a_large_network(model, shape), randn(60 if link else 2000, 3, dtype=torch.float32)
    posterior.predict(x[:1], num_samples=1, linearised=True)  # torch makes tables when it first differentiates forward
    memory = 16 * 2**20
    with LiveBytes() as live:
        posterior.predict(x, num_samples=20, memory=memory, linearised=True, link=link)
    assert live.peak <= memory


def a_gaussian_of_a_large_network(model, shape):
    if shape == "Diagonal":
        return posteriors.Diagonal(model, model.init(), {k: torch.full_like(w, 0.1) for k, w in model.start.items()})
    blocks = []
    for k in ("0", "2", "4"):
        rows, columns = model.start[f"{k}.weight"].shape
        eye = lambda n: torch.eye(n)[None]  # noqa: E731
        scale = torch.full((1, rows, columns + 1), 0.1)
        blocks.append(Block(f"{k}.weight", f"{k}.bias", eye(rows), eye(columns + 1), scale))
    return posteriors.Kronecker(model, model.init(), blocks)


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


# --- which way a posterior predicts ---


def test_a_mixture_is_linearised_at_each_members_own_mean():
    model, x = a_model(), randn(4, 3, seed=1)
    first, _ = a_gaussian(model, "Full")
    second = posteriors.Diagonal(model, model.init(5), {k: torch.full_like(w, 0.2) for k, w in model.start.items()})
    point = posteriors.Delta(model, model.init(6))
    mixture = pl.mixture([first, second, point])
    predictive = mixture.predict(x, num_samples=9, seed=2, linearised=True)
    assert torch.bincount(predictive.strata).tolist() == [3, 3, 1]
    for own, stratum in enumerate(mixture.strata(9, seed=2)[:2]):
        value, jacobian = dense_jacobian(model, stratum.posterior.mean, x)
        deviations = vector_of(stratum.posterior.draw(stratum.indices, stratum.seed), 1)
        deviations = deviations - vector_of(stratum.posterior.mean)
        expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
        torch.testing.assert_close(predictive.outputs[predictive.strata == own], expected, rtol=1e-10, atol=1e-10)
    at_point, _ = dense_jacobian(model, point.mean, x)
    torch.testing.assert_close(predictive.outputs[-1], at_point, rtol=1e-10, atol=1e-10)


def test_none_means_the_way_of_the_posterior_or_of_each_member(tmp_path):
    model, x = a_model(), randn(4, 3, seed=1)
    linear, sampled = a_gaussian(model, "Diagonal")[0], a_gaussian(model, "Diagonal", seed=3)[0]
    linear.linearised_by_default = True
    torch.testing.assert_close(linear.predict(x).outputs, linear.predict(x, linearised=True).outputs)
    torch.testing.assert_close(sampled.predict(x).outputs, sampled.predict(x, linearised=False).outputs)
    assert not torch.allclose(linear.predict(x, linearised=False).outputs, linear.predict(x).outputs)
    mixture = pl.mixture([linear, sampled])
    own = mixture.predict(x, num_samples=8).outputs
    assert torch.equal(own[:4], mixture.predict(x, num_samples=8, linearised=True).outputs[:4])
    assert torch.equal(own[4:], mixture.predict(x, num_samples=8, linearised=False).outputs[4:])
    mixture.save(tmp_path / "a")
    for other in (pl.load(tmp_path / "a", tanh_network()), mixture.to("cpu")):
        assert torch.equal(other.predict(x, num_samples=8).outputs, own)


@pytest.mark.parametrize("names", [["2.weight", "2.bias"], ["0.weight", "likelihood.scale"], ["likelihood.scale"]])
def test_weights_that_do_not_vary_keep_their_mean(names):
    model, x = a_model(pl.likelihoods.Normal(scale="learn")), randn(4, 3, seed=1)
    mean = {k: w + 0.1 for k, w in model.init().items()}
    posterior = posteriors.Diagonal(model, mean, {k: torch.full_like(mean[k], 0.3) for k in names})
    value, jacobian = dense_jacobian(model, mean, x)
    draws = posterior.sample(5, seed=0)
    deviations = vector_of(draws, 1) - vector_of(mean)
    predictive = posterior.predict(x, num_samples=5, linearised=True)
    expected = value + torch.einsum("ncp,sp->snc", jacobian, deviations)
    torch.testing.assert_close(predictive.outputs, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(predictive.unknowns["scale"], draws["likelihood.scale"].exp())
    inside = torch.cat([torch.full((w.numel(),), 0.09 * (k in names), dtype=torch.float64) for k, w in mean.items()])
    _, variance = output_moments(posterior, x, 10**7)
    torch.testing.assert_close(variance, (jacobian**2 * inside).sum(-1), rtol=1e-10, atol=1e-10)


def test_a_point_predicts_itself_and_stored_draws_are_refused():
    model, x = a_model(), randn(4, 3, seed=1)
    point = posteriors.Delta(model, model.init())
    assert torch.equal(point.predict(x, linearised=True).outputs, point.predict(x).outputs)
    draws = posteriors.Samples(model, a_gaussian(model)[0].sample(5, seed=0))
    with pytest.raises(pl.NotSupported, match="Samples is no Gaussian.*Kronecker.*linearised=True"):
        draws.predict(x, linearised=True)
    with pytest.raises(pl.NotSupported, match="Samples"):
        pl.mixture([point, draws]).predict(x, linearised=True)


# --- what a prediction is made of ---


def test_unknown_noise_is_drawn_as_for_sampled_weights():
    model, x = a_model(pl.likelihoods.Normal(scale="learn")), randn(5, 3, seed=1)
    posterior, _ = a_gaussian(model, "Full")
    linear, sampled = (posterior.predict(x, num_samples=11, seed=3, linearised=way) for way in (True, False))
    torch.testing.assert_close(linear.unknowns["scale"], sampled.unknowns["scale"])
    torch.testing.assert_close(linear.aleatoric, sampled.aleatoric)
    _, variance = output_moments(posterior, x, 10**7)
    many = posterior.predict(x, num_samples=20_000, linearised=True)
    assert ((many.epistemic / variance - 1).abs() < 5 * math.sqrt(2 / 20_000)).all()


@pytest.mark.parametrize(
    "likelihood", [pl.likelihoods.Categorical(), pl.likelihoods.Normal(scale="learn"), pl.likelihoods.Bernoulli()]
)
def test_total_is_aleatoric_and_epistemic(likelihood):
    model = a_model(likelihood)
    link = None if isinstance(likelihood, pl.likelihoods.Normal) else "probit"
    predictive = a_gaussian(model)[0].predict(randn(5, 3), linearised=True, link=link)
    assert torch.equal(predictive.total, predictive.aleatoric + predictive.epistemic)
    assert (predictive.epistemic > 0).all()


@pytest.mark.parametrize("shape", [*SHAPES, "mixture"])
@pytest.mark.parametrize("likelihood", [pl.likelihoods.Categorical(), pl.likelihoods.Bernoulli()])
def test_the_probit_link_is_its_closed_form_with_a_dense_jacobian(likelihood, shape):
    model, x = a_model(likelihood), randn(6, 3, seed=1)
    parts = [(shape, 1.0)] if shape != "mixture" else [("Full", 0.3), ("Diagonal", 0.7)]
    members, expected = [], torch.zeros(6, 2, dtype=torch.float64)
    for kind, weight in parts:
        member, covariance = a_gaussian(model, kind, size=1.0)
        value, jacobian = dense_jacobian(model, member.mean, x)
        variance = torch.einsum("ncp,pq,ncq->nc", jacobian, covariance, jacobian)
        logits = value / (1 + math.pi / 8 * variance).sqrt()
        squash = torch.sigmoid if isinstance(likelihood, pl.likelihoods.Bernoulli) else lambda f: torch.softmax(f, 1)
        expected += weight * squash(logits)
        members.append(member)
    posterior = members[0] if shape != "mixture" else pl.mixture(members, weights=[w for _, w in parts])
    predictive = posterior.predict(x, linearised=True, link="probit")
    torch.testing.assert_close(predictive.probs, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(predictive.mean, predictive.probs)
    assert not predictive.mc_error.any()
    drawn = posterior.predict(x, linearised=True)
    assert not torch.allclose(drawn.probs, predictive.probs, atol=1e-4)
    for same in ("aleatoric", "epistemic", "total"):
        assert torch.equal(getattr(drawn, same), getattr(predictive, same))


def test_a_probit_of_a_binary_logit_is_near_the_integral():
    """MacKay's stand-in errs by less than 0.02 anywhere, so a wrong variance of a wide posterior would show."""
    model, x = a_model(pl.likelihoods.Bernoulli()), 2 * randn(8, 3, seed=3)
    covariance = 4 * anisotropic_covariance(26)
    posterior = posteriors.Full(model, {k: 3 * w for k, w in model.init().items()}, covariance)
    closed = posterior.predict(x, linearised=True, link="probit").probs
    drawn = posterior.predict(x, num_samples=20_000, linearised=True)
    plugged = posteriors.Delta(model, posterior.mean).predict(x).probs
    assert (closed - drawn.probs).abs().max() < 0.02 + 4 * drawn.mc_error.max()
    assert (plugged - drawn.probs).abs().max() > 0.05  # else nothing would be shown


def test_a_probit_link_where_there_is_none_is_refused():
    x = randn(3, 3)
    classes, numbers = a_gaussian(a_model(pl.likelihoods.Categorical()))[0], a_gaussian(a_model())[0]
    with pytest.raises(ValueError, match="linearised=True"):
        classes.predict(x, link="probit")
    with pytest.raises(ValueError, match="link must be"):
        classes.predict(x, linearised=True, link="logit")
    with pytest.raises(pl.NotSupported, match="Normal has no probit link"):
        numbers.predict(x, linearised=True, link="probit")


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
