"""Chains handed to ArviZ, and its numbers beside ours."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import plausible as pl
from plausible.core.diagnostics import e_bfmi, ess, r_hat

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it announces its next version
    import arviz


def autoregressive(chains, draws, phi, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=chains)
    rows = []
    for _ in range(draws):
        x = phi * x + math.sqrt(1 - phi**2) * rng.standard_t(5, size=chains)
        rows.append(x)
    return np.stack(rows, 1)


@pytest.mark.parametrize("draws", [9, 14, 41, 100, 501])  # halves of an odd and of an even length
@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.9])
def test_r_hat_and_effective_sizes_are_those_of_arviz(phi, draws):
    values = autoregressive(4, draws, phi)
    chains = torch.from_numpy(values)
    assert float(r_hat(chains)) == pytest.approx(float(arviz.rhat(values)), rel=1e-6)
    for kind in ("bulk", "mean", "tail"):
        assert float(ess(chains, kind)) == pytest.approx(float(arviz.ess(values, method=kind)), rel=1e-6), kind


def constant():
    return np.ones((4, 60))


def constant_by_chain():
    return np.arange(4.0)[:, None] * np.ones((4, 60))


def one_constant():
    values = autoregressive(4, 60, 0.0)
    values[0] = 0.3
    return values


def two_values():
    return (autoregressive(4, 60, 0.5) > 0).astype(float)


def two_values_equally_often():
    """All equally far from the median."""
    rng = np.random.default_rng(0)
    return np.stack([rng.permutation([0.0, 1.0] * 30) for _ in range(4)])


def two_chains_at_two_values():
    return np.array([[0.0], [1.0]]) * np.ones((2, 60))


def missing():
    values = autoregressive(4, 60, 0.0)
    values[1, 5] = np.nan
    return values


def three_draws():
    return autoregressive(4, 3, 0.0)


def mirrored():
    """Every other draw on the other side: the two next to the median are a tie in their distance from it."""
    return autoregressive(4, 60, 0.0) * 0.01 + np.array([1.0, -1.0] * 30)


@pytest.mark.filterwarnings("ignore")  # ArviZ's divisions by zero
@pytest.mark.parametrize(
    "make",
    [
        constant, constant_by_chain, one_constant, two_values, two_values_equally_often, two_chains_at_two_values, missing,
        mirrored, three_draws,
    ],
)  # fmt: skip
def test_chains_at_the_edge_have_the_numbers_of_arviz(make):
    values = make()
    chains = torch.from_numpy(values)
    within_reach = 1e9  # a variance that is zero but for rounding makes one of them infinite, the other large
    found, expected = (min(float(v), within_reach) for v in (r_hat(chains), arviz.rhat(values)))
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    for kind in ("bulk", "mean", "tail"):
        expected = float(arviz.ess(values, method=kind))
        assert float(ess(chains, kind)) == pytest.approx(expected, rel=1e-9, nan_ok=True), kind


def test_e_bfmi_is_that_of_arviz():
    energy = autoregressive(3, 400, 0.7)
    assert e_bfmi(torch.from_numpy(energy)).numpy() == pytest.approx(arviz.bfmi(energy), rel=1e-6)


def regression():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=rng)
    y = x @ torch.tensor([[1.0], [-2.0]]) + 0.3 * torch.randn(30, 1, generator=rng)
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=pl.hyperpriors.HalfCauchy()))
    return x, pl.fit(model, (x, y), pl.HMC(trajectory_length=0.3, warmup=40), steps=100, num_modes=2, progress=False)


def test_chains_arrive_in_arviz_with_natural_values_and_statistics():
    _, posterior = regression()
    handed = posterior.to_arviz()
    chain = posterior.components[1]
    scale = chain.model.constrain(chain.draws)["likelihood.scale"]
    assert np.array_equal(handed.posterior["likelihood.scale"].values[1], scale.numpy())
    assert handed.posterior["weight"].shape == (2, 60, 1, 2)
    assert np.array_equal(handed.sample_stats["lp"].values[0], posterior.components[0].statistics["log_joint"].numpy())
    assert handed.sample_stats["diverging"].dtype == bool
    assert chain.to_arviz().posterior["weight"].shape == (1, 60, 1, 2)


def test_draws_in_half_precision_arrive_in_arviz_as_numpy_has_them():
    density = pl.LogDensity(lambda p: -(p["x"] ** 2).sum() / 2, {"x": torch.zeros(3, dtype=torch.bfloat16)})
    posterior = pl.fit(density, None, pl.SGLD(step_size=0.1), steps=20, progress=False, compile=False)
    assert posterior.to_arviz().posterior["x"].dtype == np.float32


def test_what_is_not_a_chain_is_refused_by_name():
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal())
    points = pl.mixture([pl.posteriors.Delta(model, model.init(s)) for s in (0, 1)])
    with pytest.raises(pl.NotSupported, match="HMC"):
        points.to_arviz()


def test_a_missing_arviz_is_named(monkeypatch):
    import sys

    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal())
    chain = pl.posteriors.Samples(model, {k: torch.stack([v] * 9) for k, v in model.init().items()})
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(pl.NotSupported, match=r"plausible\[arviz\]"):
        chain.to_arviz()


# --- in function space ---


def swapped(draws, number):
    """Draws of a 1-2-1 network whose hidden units have traded places in every draw: the same function, other weights."""
    order = [1, 0] if number else [0, 1]
    return {
        "0.weight": draws["0.weight"][:, order],
        "0.bias": draws["0.bias"][:, order],
        "2.weight": draws["2.weight"][:, :, order],
        "2.bias": draws["2.bias"],
    }


def test_chains_with_traded_hidden_units_agree_in_function_space_only():
    model = pl.BayesianModel(nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)), pl.likelihoods.Normal())
    rng = torch.Generator().manual_seed(1)
    centre = {"0.weight": [[3.0], [-1.0]], "0.bias": [2.0, -2.0], "2.weight": [[1.0, 4.0]], "2.bias": [0.0]}

    def chain(number):
        draws = {
            k: torch.tensor(v) + 0.1 * torch.randn(500, *torch.tensor(v).shape, generator=rng)
            for k, v in centre.items()
        }
        return pl.posteriors.Samples(model, swapped(draws, number))

    posterior = pl.mixture([chain(0), chain(1)])
    weights, functions = posterior.diagnostics(), posterior.diagnostics(torch.linspace(-2, 2, 20)[:, None])
    assert not weights.ok and weights.table["0.weight"]["r_hat"] > 1.5
    assert functions.ok and functions.table["predictions"]["r_hat"] < 1.01
    assert "function space" in functions.messages[0]


def test_a_chain_that_stands_still_and_one_of_infinite_density_are_reported():
    model = pl.BayesianModel(nn.Linear(1, 1), pl.likelihoods.Normal())
    rng = torch.Generator().manual_seed(2)

    def chain(acceptance, log_joint):
        draws = {k: torch.randn(400, *v.shape, generator=rng) for k, v in model.init().items()}
        noted = {"acceptance": torch.full((400,), acceptance), "log_joint": log_joint}
        return pl.posteriors.Samples(model, draws, noted)

    finite = torch.randn(400, generator=rng)
    good, stuck = chain(0.8, finite), chain(0.0, finite.flip(0))
    assert good.diagnostics().ok
    verdict = pl.mixture([good, stuck]).diagnostics()
    assert not verdict.ok and any("chain 1 " in m and "hardly ever accepted" in m for m in verdict.messages)
    lost = chain(0.8, torch.cat([finite[1:], torch.tensor([-torch.inf])]))
    assert not lost.diagnostics().ok and any("finite log joint" in m for m in lost.diagnostics().messages)


def test_slow_energies_are_reported():
    model = pl.BayesianModel(nn.Linear(1, 1), pl.likelihoods.Normal())
    rng = torch.Generator().manual_seed(3)
    draws = {k: torch.randn(400, *v.shape, generator=rng) for k, v in model.init().items()}
    slow = torch.randn(400, generator=rng).cumsum(0)
    verdict = pl.posteriors.Samples(model, draws, {"energy": slow}).diagnostics()
    assert not verdict.ok and any("E-BFMI" in m for m in verdict.messages)
