"""NaturalGradientVI: Bayes' rule in one step, optima of the bound, and precisions that stay positive."""

import pytest
import torch
from tests.contract_cases import blobs, mlp, seeded
from tests.inference.natural_gradient.test_updates import DELTA, NOISE, regression
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient.full import _full_step

QUIET = {"progress": False, "device": "cpu"}


def conjugate(temperature=1.0):
    x, y = regression()
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    network = seeded(lambda: nn.Linear(3, 1)).double()
    prior = pl.priors.Normal(scale=DELTA**-0.5)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=NOISE), prior, temperature=temperature)
    precision = (x.T @ x / NOISE**2 + DELTA * torch.eye(4, dtype=torch.float64)) / temperature
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2 / temperature)
    return model, (x[:, :3], y.unsqueeze(1)), mean, precision


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_one_full_step_of_size_one_on_a_conjugate_model_is_exact_bayes(temperature):
    model, data, mean, precision = conjugate(temperature)
    found = pl.fit(model, data, pl.NaturalGradientVI(learning_rate=1.0), steps=1, batch_size=40, **QUIET)
    own = torch.cat([found.mean["weight"].flatten(), found.mean["bias"]])
    torch.testing.assert_close(own, mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.covariance, torch.linalg.inv(precision), rtol=1e-10, atol=1e-10)


def test_a_step_of_half_the_size_goes_half_of_the_way_in_precision():
    model, data, _, precision = conjugate()
    method = pl.NaturalGradientVI(learning_rate=0.5, schedule="constant")
    found = pl.fit(model, data, method, steps=1, batch_size=40, **QUIET)
    half = 0.5 * 40 * torch.eye(4, dtype=torch.float64) + 0.5 * precision
    torch.testing.assert_close(torch.linalg.inv(found.covariance), half, rtol=1e-9, atol=1e-9)


def test_the_diagonal_family_settles_at_the_best_independent_normal():
    model, data, mean, precision = conjugate()
    method = pl.NaturalGradientVI(family="diagonal", learning_rate=0.45, schedule="constant")
    found = pl.fit(model, data, method, steps=150, batch_size=40, **QUIET)
    scale = torch.cat([found.scale["weight"].flatten(), found.scale["bias"]])
    torch.testing.assert_close(scale, precision.diagonal().rsqrt(), rtol=1e-8, atol=0)
    own = torch.cat([found.mean["weight"].flatten(), found.mean["bias"]])
    assert bool(((own - mean).abs() < 0.05 * scale).all())


@pytest.mark.slow
def test_it_finds_the_highest_bound_of_a_skew_density_that_is_not_concave():
    def log_prob(params):  # a mixture's: between its two bumps it bends upwards
        w = params["w"]
        bumps = torch.stack([-0.5 * (w + 1.0) ** 2 / 0.5**2, -0.5 * (w - 1.2) ** 2 / 0.8**2])
        return torch.logsumexp(bumps, 0).sum()

    target = pl.LogDensity(log_prob, {"w": torch.tensor([-0.1], dtype=torch.float64)})
    method = pl.NaturalGradientVI(learning_rate=0.1, num_samples=32)
    found = pl.fit(target, None, method, steps=100, **QUIET)
    mean, variance = float(found.mean["w"]), float(found.covariance)

    def bound(m, v):  # by quadrature
        z = torch.linspace(-8, 8, 401, dtype=torch.float64)
        weight = torch.exp(-0.5 * z * z) / (2 * torch.pi) ** 0.5 * (z[1] - z[0])
        values = torch.stack([log_prob({"w": (m + v**0.5 * t).reshape(1)}) for t in z])
        return float((weight * values).sum() + 0.5 * torch.log(torch.tensor(v)))

    here = bound(mean, variance)
    for m, v in ((mean + 0.15, variance), (mean - 0.15, variance), (mean, 1.25 * variance), (mean, 0.8 * variance)):
        assert bound(m, v) < here


def test_the_precision_stays_positive_where_the_hessian_is_negative():
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        root = torch.randn(5, 5, generator=rng, dtype=torch.float64)
        wild = 100 * torch.randn(5, 5, generator=rng, dtype=torch.float64)
        rate = torch.rand((), generator=rng, dtype=torch.float64)
        found = _full_step(root @ root.T + 1e-3 * torch.eye(5).double(), wild + wild.T, rate)
        assert float(torch.linalg.eigvalsh(found)[0]) > 0


def test_a_step_along_negative_curvature_is_the_geodesic_of_lin_et_al():
    start = torch.diag(torch.tensor([2.0, 3.0], dtype=torch.float64))
    negative = -torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    rate = torch.tensor(0.4, dtype=torch.float64)
    gap = start - negative
    expected = start - rate * gap + 0.5 * rate**2 * gap @ torch.linalg.inv(start) @ gap
    torch.testing.assert_close(_full_step(start, negative, rate), expected)


def test_a_small_network_learns_with_correlations():
    x, y = blobs(dtype=torch.float64)
    model = pl.BayesianModel(mlp(torch.float64), pl.likelihoods.Categorical())
    found = pl.fit(model, (x, y), pl.NaturalGradientVI(), steps=40, batch_size=50, **QUIET)
    assert float((found.predict(x).probs.argmax(1) == y).double().mean()) > 0.8
    scale = found.covariance.diagonal().sqrt()
    correlations = found.covariance / scale / scale[:, None] - torch.eye(len(scale)).double()
    assert float(correlations.abs().max()) > 0.3


def test_steps_of_default_size_forget_the_precision_it_began_with():
    rng = torch.Generator().manual_seed(0)
    x = 0.03 * torch.randn(1000, 2, generator=rng, dtype=torch.float64)  # the data say little beside N
    y = torch.randn(1000, 1, generator=rng, dtype=torch.float64)
    model = pl.BayesianModel(nn.Linear(2, 1, bias=False).double(), pl.likelihoods.Normal(scale=1.0))
    found = pl.fit(model, (x, y), pl.NaturalGradientVI(), steps=100, batch_size=1000, **QUIET)
    expected = torch.linalg.inv(x.T @ x + torch.eye(2).double())
    torch.testing.assert_close(found.covariance, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_a_pass_that_is_not_finite_stops_the_run_and_says_when(family):
    class Pole(nn.Linear):
        def forward(self, x):
            return super().forward(x) / (x[:, :1] - 1.0)

    x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(40, 1)
    x[7, 0] = 1.0
    model = pl.BayesianModel(Pole(2, 1), pl.likelihoods.Normal(scale=1.0))
    with pytest.raises(FloatingPointError, match="step"):
        pl.fit(model, (x, y), pl.NaturalGradientVI(family=family), steps=20, batch_size=10, **QUIET)


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_a_last_step_that_is_not_finite_leaves_no_posterior(family):
    class Cusp(nn.Linear):
        def forward(self, x):
            return super().forward(x) + (0 * self.weight.sum()).sqrt()  # a value, and no slope

    x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(40, 1)
    model = pl.BayesianModel(Cusp(2, 1), pl.likelihoods.Normal(scale=1.0))
    with pytest.raises(FloatingPointError, match="mean.* is not finite"):
        pl.fit(model, (x, y), pl.NaturalGradientVI(family=family), steps=1, batch_size=10, **QUIET)


@pytest.mark.parametrize(
    "prior",
    [
        pl.priors.Laplace(), pl.priors.fan_in(pl.priors.Laplace()), pl.priors.Hierarchical(pl.priors.Laplace),
        {"bias": pl.priors.Normal(), "*": pl.priors.Laplace(scale=pl.hyperpriors.HalfNormal())},
    ],
)  # fmt: skip
def test_a_prior_with_a_kink_is_refused(prior):
    """Its curvature is all in one point, and a run without it would widen for ever."""
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=1.0), prior=prior)
    with pytest.raises(pl.NotSupported, match="kink"):
        pl.fit(model, (torch.randn(40, 2), torch.zeros(40, 1)), pl.NaturalGradientVI(), steps=3, **QUIET)


@pytest.mark.parametrize("steps", [50, 500])
def test_the_diagonal_family_finds_the_mean_of_dependent_weights(steps):
    rng = torch.Generator().manual_seed(0)
    common = torch.randn(60, 1, generator=rng).double()
    x = 0.995 * common + 0.1 * torch.randn(60, 2, generator=rng).double()
    y = x @ torch.tensor([[3.0], [-2.0]]).double() + 0.5 * torch.randn(60, 1, generator=rng).double()
    model = pl.BayesianModel(nn.Linear(2, 1, bias=False).double(), pl.likelihoods.Normal(scale=0.5))
    found = pl.fit(model, (x, y), pl.NaturalGradientVI(family="diagonal"), steps=steps, batch_size=60, **QUIET)
    precision = x.T @ x / 0.25 + torch.eye(2).double()
    exact = torch.linalg.solve(precision, x.T @ y / 0.25).flatten()
    assert ((found.mean["weight"].flatten() - exact).abs() * precision.diagonal().sqrt()).max() < 1e-3
    torch.testing.assert_close(found.scale["weight"].flatten(), precision.diagonal().rsqrt(), rtol=1e-3, atol=0)


def test_a_network_too_large_for_its_hessian_is_refused_with_the_way_out():
    model = pl.BayesianModel(nn.Linear(100, 100), pl.likelihoods.Categorical())
    with pytest.raises(pl.NotSupported, match=r"10,100 unknowns needs 5 GiB; IVON, VOGN and ADVI"):
        pl.fit(
            model, (torch.zeros(4, 100), torch.zeros(4, dtype=torch.int64)), pl.NaturalGradientVI(), steps=1, **QUIET
        )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"family": "low-rank"}, "ADVI has a low-rank one"),
        ({"learning_rate": 1.5}, r"learning_rate must lie in \(0, 1\], got 1.5"),
        ({"num_samples": 0}, "num_samples must be a positive integer, got 0"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, match):
    with pytest.raises((ValueError, pl.NotSupported), match=match):
        pl.NaturalGradientVI(**settings)


@pytest.mark.parametrize("steps", [3, 10, 30, 100])
def test_short_runs_with_independent_normals_do_not_blow_up(steps):
    """Of weights that depend on one another, where Newton's step for each alone is many times too long for all together."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    moons = pl.datasets.moons()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    posterior = pl.fit(model, moons.train, pl.NaturalGradientVI(family="diagonal"), steps=steps, progress=False)
    x, y = moons.test
    assert -posterior.predict(x).log_prob(y).mean() < 0.5  # a guess has 0.69


def test_more_weights_than_it_is_for_are_named_before_the_first_step(caplog):
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(0))
    for outputs, many in ((20, False), (30, True)):
        caplog.clear()
        model = pl.BayesianModel(torch.nn.Linear(40, outputs), pl.likelihoods.Normal(scale=1.0))
        y = torch.zeros(20, outputs)
        pl.fit(model, (x, y), pl.NaturalGradientVI(), steps=1, progress=False, device="cpu")
        assert any(f"{40 * outputs + outputs:,} unknowns" in r.getMessage() for r in caplog.records) == many
