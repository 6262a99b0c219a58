"""Simulation-based calibration (Talts et al., 2018): where parameters come from the prior, ranks among draws are uniform."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import plausible as pl

SIMULATIONS, EXAMPLES, NOISE = 512, 8, 0.7
METHODS = {
    "HMC": (pl.HMC(warmup=80, thin=4), 156),
    "NUTS": (pl.NUTS(warmup=80, thin=4), 156),
    "Metropolis": (pl.Metropolis(warmup=500, thin=60), 1640),
}


def z_scores(ranks: torch.Tensor, draws: int) -> tuple[float, float]:
    """How many errors the mean and the dispersion of ranks 0..draws are off."""
    u = (ranks.double() + 0.5) / (draws + 1)
    variance = ((draws + 1) ** 2 - 1) / 12 / (draws + 1) ** 2
    mean = float(u.mean() - 0.5) / math.sqrt(variance / len(u))
    spread = float(((u - 0.5) ** 2).mean() - variance) / math.sqrt(1 / 180 / len(u))
    return mean, spread


def test_the_scores_see_ranks_that_are_off_or_too_narrow_or_too_wide():
    rng = torch.Generator().manual_seed(0)
    uniform = torch.randint(20, (SIMULATIONS,), generator=rng)
    assert max(map(abs, z_scores(uniform, 19))) < 3
    assert z_scores((uniform + 3).clamp(max=19), 19)[0] > 4
    assert z_scores((uniform + torch.randint(20, (SIMULATIONS,), generator=rng)) // 2, 19)[1] < -4
    assert z_scores(torch.where(uniform < 10, uniform // 2, 19 - (19 - uniform) // 2), 19)[1] > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_ranks_of_the_truth_are_uniform(name):
    method, steps = METHODS[name]
    network = nn.Linear(1, 1).double()
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=NOISE), prior=pl.priors.Normal(scale=1.0))
    truth = model.sample_prior(SIMULATIONS, seed=11)
    rng = torch.Generator().manual_seed(12)
    x = torch.linspace(-1, 2, EXAMPLES, dtype=torch.float64).unsqueeze(1)
    noise = NOISE * torch.randn(SIMULATIONS, EXAMPLES, 1, generator=rng, dtype=torch.float64)
    y = x * truth["weight"] + truth["bias"].unsqueeze(1) + noise
    posteriors = pl.fit_many(
        model, [(x, rows) for rows in y], method, steps=steps, seed=list(range(SIMULATIONS)), init="prior", compile=True,
        progress=False, device="cpu",
    )  # fmt: skip
    drawn = {k: torch.stack([p.draws[k].flatten(1) for p in posteriors]) for k in truth}  # (S, K, 1)
    draws = drawn["weight"].shape[1]
    quantities = {
        "weight": (drawn["weight"], truth["weight"].flatten(1)),
        "bias": (drawn["bias"], truth["bias"]),
        "product": (drawn["weight"] * drawn["bias"], truth["weight"].flatten(1) * truth["bias"]),
    }
    for what, (values, true) in quantities.items():
        ranks = (values < true.unsqueeze(1)).sum((1, 2))
        scores = z_scores(ranks, draws)
        assert max(map(abs, scores)) < 4, f"{what}: mean and dispersion of the ranks are {scores} errors off"
