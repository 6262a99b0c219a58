"""R-hat and effective sizes against Vehtari et al. (2021) written again in numpy, and against chains of known worth."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import plausible as pl
from plausible.core.diagnostics import ess, r_hat


def ar1(chains, draws, phi, seed=0, shift=0.0):
    """Stationary x' = φ x + √(1 − φ²) z, whose mean is worth K (1 − φ) / (1 + φ) independent draws."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=chains)
    rows = []
    for _ in range(draws):
        x = phi * x + math.sqrt(1 - phi**2) * rng.normal(size=chains)
        rows.append(x)
    return np.stack(rows, 1) + shift * np.arange(chains)[:, None]


# --- the paper, again ---


def split(x):
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def normal_scores(x):
    ranks = stats.rankdata(x, method="average").reshape(x.shape)
    return stats.norm.ppf((ranks - 3 / 8) / (x.size + 1 / 4))


def basic_r_hat(x):
    n = x.shape[1]
    between, within = n * x.mean(1).var(ddof=1), x.var(1, ddof=1).mean()
    return math.sqrt(((n - 1) / n * within + between / n) / within)


def paper_r_hat(x):
    x = split(x)
    return max(basic_r_hat(normal_scores(x)), basic_r_hat(normal_scores(np.abs(x - np.median(x)))))


def basic_ess(x):
    """Equations 10 to 13, the autocovariances by their definition; of the pair that ends the sum, half counts, as in ArviZ."""
    chains, n = x.shape
    centred = x - x.mean(1, keepdims=True)
    covariance = np.array([[np.sum(c[: n - t] * c[t:]) / n for t in range(n)] for c in centred])
    within = (covariance[:, 0] * n / (n - 1)).mean()
    total = (n - 1) / n * within + (x.mean(1).var(ddof=1) if chains > 1 else 0.0)
    rho = 1 - (within - covariance.mean(0)) / total
    rho[0] = 1.0
    tau, smallest = -1.0, math.inf
    for t in range(0, n - 1, 2):
        pair = rho[t] + rho[t + 1]
        if pair <= 0 or t > n - 5:
            tau += max(rho[t], 0)
            break
        smallest = min(smallest, pair)
        tau += 2 * smallest
    return chains * n / max(tau, 1 / math.log10(chains * n))


@pytest.mark.parametrize("phi, shift", [(0.0, 0.0), (0.9, 0.0), (-0.5, 0.0), (0.5, 0.3)])
def test_r_hat_and_ess_are_the_papers(phi, shift):
    x = ar1(4, 300, phi, seed=1, shift=shift)
    given = torch.as_tensor(x)
    assert r_hat(given).item() == pytest.approx(paper_r_hat(x), rel=1e-10)
    assert ess(given, "mean").item() == pytest.approx(basic_ess(split(x)), rel=1e-8)
    assert ess(given, "bulk").item() == pytest.approx(basic_ess(normal_scores(split(x))), rel=1e-8)
    tails = [basic_ess((split(x) <= np.quantile(split(x), q)).astype(float)) for q in (0.05, 0.95)]
    assert ess(given, "tail").item() == pytest.approx(min(tails), rel=1e-8)


def test_ties_have_their_mean_rank():
    x = np.round(ar1(3, 200, 0.5, seed=2))
    given = torch.as_tensor(x)
    assert r_hat(given).item() == pytest.approx(paper_r_hat(x), rel=1e-10)
    assert ess(given).item() == pytest.approx(basic_ess(normal_scores(split(x))), rel=1e-8)


def test_several_quantities_are_judged_apart():
    x = np.stack([ar1(4, 200, 0.2, seed=3), ar1(4, 200, 0.8, seed=4), ar1(4, 200, 0.0, seed=5, shift=1.0)], -1)
    together, sizes = r_hat(torch.as_tensor(x)), ess(torch.as_tensor(x))
    for j in range(3):
        assert together[j].item() == pytest.approx(paper_r_hat(x[..., j]), rel=1e-10)
        assert sizes[j].item() == pytest.approx(basic_ess(normal_scores(split(x[..., j]))), rel=1e-8)


@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.5, 0.9])
def test_chains_of_known_worth_are_judged_so(phi):
    x = torch.as_tensor(ar1(8, 20_000, phi, seed=6))
    truth = x.numel() * (1 - phi) / (1 + phi)
    assert ess(x, "mean").item() == pytest.approx(truth, rel=0.1)
    assert r_hat(x).item() < 1.01


def test_chains_that_disagree_in_mean_or_only_in_scale_are_seen():
    same = ar1(4, 500, 0.0, seed=7)
    assert r_hat(torch.as_tensor(ar1(4, 500, 0.0, seed=7, shift=1.0))).item() > 1.1
    wider = same * np.array([1.0, 1.0, 1.0, 5.0])[:, None]
    assert r_hat(torch.as_tensor(wider)).item() > 1.05
    drifting = same + np.linspace(0, 3, 500)
    assert r_hat(torch.as_tensor(drifting)).item() > 1.1
    assert r_hat(torch.as_tensor(same)).item() < 1.01


def test_infinite_variance_does_not_disturb_ranks():
    cauchy = np.tan(np.pi * (stats.norm.cdf(ar1(4, 2000, 0.0, seed=8)) - 0.5))
    assert r_hat(torch.as_tensor(cauchy)).item() < 1.01
    assert ess(torch.as_tensor(cauchy)).item() > 6000


# --- what a posterior says of itself ---


def posterior_of(x, **statistics):
    model = pl.LogDensity(lambda p: -(p["a"] ** 2).sum(), {"a": torch.zeros(1)})
    pieces = [
        pl.posteriors.Samples(model, {"a": torch.as_tensor(c)[:, None]}, {k: v[i] for k, v in statistics.items()})
        for i, c in enumerate(x)
    ]
    return pl.mixture(pieces) if len(pieces) > 1 else pieces[0]


def test_good_chains_are_ok_and_their_numbers_are_in_the_table():
    x = ar1(4, 1000, 0.3, seed=9)
    found = posterior_of(x).diagnostics()
    assert found.ok
    assert found.table["a"]["r_hat"] == pytest.approx(paper_r_hat(x), rel=1e-10)
    assert found.table["a"]["ess"] == pytest.approx(basic_ess(normal_scores(split(x))), rel=1e-8)


def test_bad_chains_are_not_ok_and_it_says_why():
    found = posterior_of(ar1(4, 1000, 0.3, seed=9, shift=2.0)).diagnostics()
    assert not found.ok and any("not mixed" in m for m in found.messages)
    slow = posterior_of(ar1(4, 200, 0.97, seed=9)).diagnostics()
    assert any("run longer" in m for m in slow.messages)
    short = posterior_of(ar1(2, 5, 0.0)).diagnostics()
    assert not short.ok and any("too few" in m for m in short.messages)


def test_divergences_are_counted_and_acceptance_is_shown():
    x = ar1(2, 500, 0.0, seed=3)
    divergent = torch.zeros(2, 500)
    divergent[0, :3] = 1
    found = posterior_of(x, divergent=divergent, acceptance=torch.full((2, 500), 0.8)).diagnostics()
    assert not found.ok
    assert any("3 transitions diverged" in m for m in found.messages)
    assert any("0.80" in m for m in found.messages)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_draw_that_is_no_number_is_reported(value):
    x = ar1(4, 200, 0.0, seed=1)
    x[1, 5] = value
    found = posterior_of(x).diagnostics()
    assert not found.ok and "some draws of a are not finite" in found.messages[1]


def test_chains_that_never_move_are_reported_however_well_they_agree():
    agreeing = posterior_of(np.ones((4, 200))).diagnostics()
    assert not agreeing.ok and any("chain 0, 1, 2, 3 (of 0 to 3) never moved" in m for m in agreeing.messages)
    x = ar1(4, 200, 0.0, seed=1)
    x[2] = x[0, 0]
    found = posterior_of(x).diagnostics()
    assert not found.ok and any("chain 2 (of 0 to 3) never moved" in m for m in found.messages)
    # One that is said to have accepted nothing is named once.
    acceptance = torch.full((4, 200), 0.8)
    acceptance[2] = 0.0
    found = posterior_of(x, acceptance=acceptance).diagnostics()
    assert sum("chain 2 (of 0 to 3)" in m for m in found.messages) == 1


def test_energies_and_temperatures_that_are_no_numbers_are_called_so():
    x, missing = ar1(4, 200, 0.0, seed=1), torch.full((4, 200), math.nan)
    energies = posterior_of(x, energy=missing).diagnostics()
    assert not energies.ok and any("E-BFMI cannot be told" in m for m in energies.messages)
    warmth = posterior_of(x, kinetic_temperature=missing).diagnostics()
    assert not warmth.ok and any("kinetic temperature of some draws is not a number" in m for m in warmth.messages)


@pytest.mark.parametrize("draws", [1, 2, 3, 7])
def test_chains_of_a_few_draws_are_not_judged(draws):
    found = posterior_of(ar1(2, draws, 0.0)).diagnostics()
    assert not found.ok and "too few to judge" in found.messages[0]


def test_an_unknown_without_numbers_has_nothing_to_mix():
    class Empty(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 1)
            self.nothing = torch.nn.Parameter(torch.zeros(0, 3))

    rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=rng)
    model = pl.BayesianModel(Empty(), pl.likelihoods.Normal())
    posterior = pl.fit(model, (x, x.sum(1, keepdim=True)), pl.MALA(warmup=5), steps=20, num_modes=2, progress=False)
    assert set(posterior.diagnostics().table) == {"weight", "bias", "log_joint"}
    assert posterior.predict(x).mean.shape == (20, 1)
