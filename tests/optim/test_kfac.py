"""K-FAC's optimisers against `fit`, a hand-written update of one layer, and the kinds of loops that users write."""

import pytest
import torch
from tests.inference.natural_gradient.kronecker_cases import dense_covariance, on_a_plateau
from tests.optim.cases import LOOPS, NOISE, N, assert_close, data, loop, make, mlp, model, weights
from torch import nn

import plausible as pl
from plausible.weights.rng import Keys, run_key

STEPS = 7  # the last of which looks at the curvature again, as that of `fit` does
NUMBERS = {"lr": 0.1, "update_every": 3, "damping": 0.01, "curvature_decay": 0.6, "trust": 0.05}
FITTED = pl.KFAC(
    learning_rate=0.1, update_every=3, damping=0.01, curvature_decay=0.6, trust=0.05, schedule="constant",
    curvature="empirical-fisher",
)  # fmt: skip


def convolutional() -> nn.Module:
    torch.manual_seed(2)
    layers = nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2, bias=False), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(4, 1)
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("make_network", [mlp, convolutional])
def test_a_hand_written_loop_gives_the_posterior_of_fit(make_network):
    network = make_network()
    prior = pl.priors.Normal(scale=2.0**-0.5)
    expected = pl.fit(model(network, prior=prior), data(), FITTED, steps=STEPS, batch_size=N, progress=False)
    optimizer = pl.optim.KFAC(network, num_data=N, prior_precision=2.0, **NUMBERS)
    loop(optimizer, *data(), steps=STEPS)
    found = optimizer.posterior(model(network, prior=prior))
    assert_close(found.mean, expected.mean, 1e-9)
    torch.testing.assert_close(dense_covariance(found), dense_covariance(expected), rtol=1e-8, atol=1e-12)
    assert_close({"": found.predict(data()[0]).mean}, {"": expected.predict(data()[0]).mean}, 1e-7)


@pytest.mark.parametrize("name", ["KFAC", "NoisyKFAC"])
def test_every_kind_of_loop_and_both_reductions_make_the_same_steps(name):
    networks = {style: mlp() for style in [*LOOPS, "sum"]}
    for style, network in networks.items():
        optimizer = make(name, network, reduction="sum" if style == "sum" else "mean")
        if style == "sum":
            loop(optimizer, *data(), reduction="sum")
        else:
            LOOPS[style](optimizer, *data())
    for network in networks.values():
        assert_close(weights(network), weights(networks["sampled"]), 1e-10)


def test_a_noisy_step_is_the_published_update_with_the_prior_in_the_curvature():
    """One layer: q = N(μ, (g A + δ I)⁻¹), whose symmetric root times the step's normals is the draw."""
    torch.manual_seed(0)
    network = nn.Linear(3, 1).double()
    optimizer = pl.optim.NoisyKFAC(
        network, num_data=N, lr=0.3, momentum=0.5, curvature_decay=0.6, damping=0.02, update_every=1, trust=None,
        prior_precision=2.0, seed=5,
    )  # fmt: skip
    x, y = data()
    design = torch.cat([x, torch.ones(N, 1).double()], 1)
    mean = torch.cat([network.weight[0], network.bias]).detach().clone()
    unit, momentum, g = torch.eye(4).double(), torch.zeros(4).double(), torch.zeros(()).double()
    inputs = design.T @ design / N
    for step in range(4):
        rng = Keys(run_key(5), torch.tensor(step))
        noise = rng.normal_like({"weight": network.weight, "bias": network.bias})
        z = torch.cat([noise["weight"][0], noise["bias"]]).detach()
        values, vectors = torch.linalg.eigh(g * inputs + 2.0 * unit)
        draw = mean + (vectors * values.rsqrt()) @ vectors.T @ z if step else mean
        slopes = (y[:, 0] - design @ draw) / NOISE**2
        share = max(1 / (step + 1), 0.4)
        g = g + share * (slopes.square().sum() - g)
        momentum = 0.5 * momentum + 0.5 * (design.T @ slopes - 2.0 * mean)
        damped = g * inputs + (2.0 + 0.02 * N) * unit
        mean = mean + 0.3 * torch.linalg.solve(damped, momentum) / (1 - 0.5 ** (step + 1))
    loop(optimizer, x, y, steps=4)
    found = torch.cat([network.weight[0], network.bias]).detach()
    torch.testing.assert_close(found, mean, rtol=1e-10, atol=1e-12)
    posterior = optimizer.posterior(model(network))
    torch.testing.assert_close(dense_covariance(posterior), torch.linalg.inv(g * inputs + 2.0 * unit))


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(3, 4), nn.LayerNorm(4)
        self.one, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, task):
        return getattr(self, task)(torch.tanh(self.norm(self.body(x))))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_batches_of_several_tasks_share_is_averaged_and_the_rest_is_each_tasks_own(set_to_none):
    def factors(*tasks):
        torch.manual_seed(0)
        optimizer = make("KFAC", TwoTasks().double(), lr=1e-30, update_every=1)  # which stays where it is
        x, y = data()
        for task in tasks:
            optimizer.zero_grad(set_to_none)
            ((optimizer.network(x, task) - y) ** 2).mean().backward()
            optimizer.step()
        found = optimizer.factors()
        return {**{k: v["rows"] for k, v in found["blocks"].items()}, **found["diagonal"]}

    both, one, other = factors("one", "other", "one", "other"), factors("one"), factors("other")
    shared = {k: (one[k] + other[k]) / 2 for k in ("body.weight + body.bias", "norm.weight", "norm.bias")}
    own = {"one.weight + one.bias": one["one.weight + one.bias"]}
    own["other.weight + other.bias"] = other["other.weight + other.bias"]
    assert_close(both, {**shared, **own}, 1e-12)


def test_passes_between_two_looks_are_not_recorded():
    optimizer = make("KFAC", mlp(), update_every=3)
    looked = []
    for _ in range(8):
        looked.append(optimizer.measures)
        loop(optimizer, *data(), steps=1)
        assert bool(optimizer.ledger.done.tensors) is False
    assert looked == [True, True, True, True, False, False, True, False]


def test_a_curvature_that_is_not_finite_is_left_out_and_said(caplog):
    network = mlp(torch.float32)
    optimizer = make("KFAC", network, update_every=1)
    x, y = data(torch.float32)
    loop(optimizer, x, y, steps=2)
    before = {k: {n: t.clone() for n, t in own.items()} for k, own in optimizer.factors()["blocks"].items()}
    loop(optimizer, x, y * 1e22, steps=1)  # whose squares float32 does not hold
    assert "curvature of step 2 is not finite" in caplog.text
    for k, own in optimizer.factors()["blocks"].items():
        assert all(torch.equal(own[n], before[k][n]) for n in own)


def test_there_is_no_posterior_before_the_first_step():
    network = mlp()
    with pytest.raises(RuntimeError, match="no step yet"):
        make("NoisyKFAC", network).posterior(model(network))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [({"momentum": 1.0}, "momentum must lie"), ({"curvature_decay": -0.1}, "curvature_decay must lie"),
     ({"damping": -1.0}, "damping must not"), ({"update_every": 0}, "update_every must"), ({"trust": 0.0}, "trust must")],
)  # fmt: skip
def test_numbers_out_of_range_are_errors_that_say_so(numbers, message):
    with pytest.raises(ValueError, match=message):
        pl.optim.KFAC(mlp(), num_data=N, **numbers)


def test_a_deep_network_without_norms_leaves_its_plateau():
    network, (x, y) = on_a_plateau()
    optimizer, rng = pl.optim.KFAC(network, num_data=len(x), prior_precision=0.18), torch.Generator().manual_seed(0)
    for _ in range(200):
        batch = torch.randint(len(x), (128,), generator=rng)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
    assert (network(x).argmax(1) == y).float().mean() > 0.95


@pytest.mark.parametrize("name", ["KFAC", "NoisyKFAC"])
def test_the_state_of_a_half_precision_network_goes_on_to_the_bit(name):
    x, y = data(torch.bfloat16)
    network, again = mlp(torch.bfloat16), mlp(torch.bfloat16)
    optimizer = make(name, network, update_every=1)
    loop(optimizer, x, y, steps=3)
    twin = make(name, again, update_every=1)
    again.load_state_dict(network.state_dict())
    twin.load_state_dict(optimizer.state_dict())
    for known, loaded in zip(optimizer.factors()["blocks"].values(), twin.factors()["blocks"].values(), strict=True):
        for what in ("rows", "columns"):
            assert torch.equal(known[what], loaded[what]) and known[what].data_ptr() != loaded[what].data_ptr()
    loop(optimizer, x, y, steps=3)
    loop(twin, x, y, steps=3)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("batches", [[32, 1], [32, 32, 1], [20, 20, 5]])
def test_a_batch_counts_by_its_examples(batches):
    """Inputs' factors do not depend on the weights: those of one epoch are the mean over all its examples."""
    x = torch.randn(sum(batches), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, network = x.sum(1, keepdim=True), nn.Linear(3, 1, bias=False).double()
    optimizer = pl.optim.KFAC(network, num_data=len(x))
    for rows in torch.arange(len(x)).split(batches):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x[rows]), y[rows]).backward()
        optimizer.step()
    found = optimizer.factors()["blocks"]["weight"]["columns"].squeeze(0)
    torch.testing.assert_close(found, x.T @ x / len(x))
