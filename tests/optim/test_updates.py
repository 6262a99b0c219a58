"""The optimisers in a hand-written loop do what `pl.fit` does with the same data, numbers and seed."""

import pytest
import torch
from tests.optim.cases import LOOPS, N, assert_close, data, loop, make, mlp, model, weights

import plausible as pl

STEPS, DELTA = 12, 2.0
TWINS = {
    "IVON": (
        pl.IVON(learning_rate=0.1, curvature_decay=0.99, initial_curvature=0.1, schedule="constant"),
        {},
    ),
    "IVON, clipped, three draws": (
        pl.IVON(
            learning_rate=0.1, curvature_decay=0.99, initial_curvature=0.3, schedule="constant", num_samples=3, clip_radius=0.1
        ),
        {"hess_init": 0.3, "clip_radius": 0.1, "num_samples": 3},
    ),
    "OGN": (pl.OGN(learning_rate=0.01, curvature_decay=0.9, damping=0.01, schedule="constant"), {"damping": 0.01}),
    "SGHMC": (pl.SGHMC(step_size=(0.01 / N) ** 0.5, friction=0.1 / (0.01 / N) ** 0.5, burn_in=0), {"burn_in": 0}),
    "SGLD": (pl.SGLD(step_size=0.01 / N, burn_in=0), {"burn_in": 0}),
    "VOGN": (pl.VOGN(learning_rate=0.01, curvature_decay=0.9, schedule="constant"), {}),
    "VOGN, tempered, two draws": (
        pl.VOGN(
            learning_rate=0.01, curvature_decay=0.9, schedule="constant", tempering=0.5, num_samples=2, augmentation_factor=2.0,
            damping=0.01,
        ),
        {"tempering": 0.5, "num_samples": 2, "augmentation_factor": 2.0, "damping": 0.01},
    ),
}  # fmt: skip


def fitted(method):
    prior = pl.priors.Normal(scale=DELTA**-0.5)
    return pl.fit(model(mlp(), prior=prior), data(), method, steps=STEPS, batch_size=N, seed=3, progress=False)


def tensors(posterior):
    return (
        posterior.draws
        if hasattr(posterior, "draws")
        else {**posterior.mean, **{f"σ {k}": v for k, v in posterior.scale.items()}}
    )


@pytest.mark.parametrize("case", TWINS)
def test_a_hand_written_loop_gives_the_posterior_of_fit(case):
    method, numbers = TWINS[case]
    expected = tensors(fitted(method))
    samples = numbers.pop("num_samples", 1)
    network = mlp()
    optimizer = make(case.split(",")[0], network, prior_precision=DELTA, seed=3, **numbers)
    x, y = data()
    for _ in range(STEPS):
        for _ in range(samples):
            with optimizer.sampled():
                optimizer.zero_grad()
                (0.5 * ((network(x) - y) ** 2).sum(1) / 0.25).mean().backward()
        optimizer.step()
    assert_close(tensors(optimizer.posterior(model(network))), expected, 1e-9)


@pytest.mark.parametrize("style", LOOPS)
@pytest.mark.parametrize("name", ["IVON", "OGN", "SGHMC", "SGLD", "VOGN"])
def test_every_kind_of_loop_makes_the_same_steps(name, style):
    first, second = mlp(), mlp()
    loop(make(name, first), *data())
    LOOPS[style](make(name, second), *data())
    assert_close(weights(second), weights(first), 1e-12)


@pytest.mark.parametrize("name", ["IVON", "OGN", "SGHMC", "SGLD", "VOGN"])
def test_a_summed_loss_makes_the_steps_of_a_mean_loss(name):
    first, second = mlp(), mlp()
    loop(make(name, first), *data())
    loop(make(name, second, reduction="sum"), *data(), reduction="sum")
    assert_close(weights(second), weights(first), 1e-10)


def test_sgld_has_the_stationary_variance_of_a_known_normal():
    """One weight, N observations of it with unit noise: the posterior's variance is 1 / (N + δ)."""
    network = torch.nn.Linear(1, 1, bias=False).double()
    temperature, lr = 2.0, 0.4
    optimizer = pl.optim.SGLD(
        network, num_data=4, lr=lr, prior_precision=2.0, temperature=temperature, burn_in=50, max_draws=10_000
    )
    x, y = torch.ones(4, 1, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.float64)
    for _ in range(400):
        optimizer.zero_grad()
        (0.5 * (network(x) - y) ** 2).mean().backward()
        optimizer.step()
    draws = optimizer.posterior(pl.BayesianModel(network, pl.likelihoods.Normal(), temperature=temperature)).draws[
        "weight"
    ]
    a = 1 - lr * (1 + 2.0 / 4)  # w ← a w + √(2 lr T / N) ξ
    exact = 2 * lr * temperature / 4 / (1 - a**2)
    effective = len(draws) * (1 - a**2) / (1 + a**2)  # of squares of an autoregression
    assert abs(draws.var().item() / exact - 1) < 4 * (2 / effective) ** 0.5
