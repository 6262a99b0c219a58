"""What people bring: too few data, dead units, odd likelihoods and priors, networks of every kind and size."""

import time

import pytest
import torch
from tests.inference.laplace.networks import QUICK, STRUCTURES, class_model, classes, mlp, regression_model, sine
from torch import nn
from torch.nn import functional as F

import plausible as pl

every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def deviations(posterior) -> torch.Tensor:
    draws = posterior.sample(200, seed=0)
    return torch.cat([draws[k].reshape(200, -1).std(0) for k in posterior.free])


def assert_sane(posterior, x, largest: float = 1.5) -> None:
    """Every weight varies, none more than the prior by far, and predictions are numbers."""
    spread = deviations(posterior)
    assert torch.isfinite(spread).all() and (spread > 0).all() and spread.max() < largest
    predictive = posterior.predict(x, num_samples=8)
    assert torch.isfinite(predictive.outputs).all()
    assert torch.isfinite(posterior.evidence().log_marginal_likelihood)


# --- data that say little ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_structure
def test_fewer_data_than_weights_leave_the_prior_in_charge_of_the_rest(structure, dtype):
    x, y = (t.to(dtype) for t in sine(3))
    posterior = pl.fit(regression_model(dtype), (x, y), pl.Laplace(structure=structure), **QUICK)
    assert_sane(posterior, x)
    assert deviations(posterior).max() > 0.8  # somewhere nothing was learned


@every_structure
def test_single_precision_bears_a_weak_prior_beside_strong_data_and_unknown_noise(structure):
    x, y = sine(8, torch.float32)
    model = regression_model(torch.float32, pl.likelihoods.Normal(scale="learn"), prior=pl.priors.Normal(scale=100.0))
    posterior = pl.fit(model, (x, 100 * y), pl.Laplace(structure=structure), **QUICK)
    assert_sane(posterior, x, largest=150.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_structure
def test_duplicated_inputs_are_one_input_seen_often(structure, dtype):
    x, y = (t[:1].expand(200, -1).clone() for t in sine(1, dtype))
    model = regression_model(dtype, pl.likelihoods.Normal(scale=0.01))
    posterior = pl.fit(model, (x, y), pl.Laplace(structure=structure), **QUICK)
    assert_sane(posterior, x)


@every_structure
def test_dead_units_keep_the_variance_of_their_prior(structure):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        network[0].bias[:] = torch.tensor([-100.0, 1.0, 1.0, -100.0])
        network[2].weight.fill_(1.0)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.2), pl.priors.Normal(scale=0.7))
    x, y = sine()
    method = pl.Laplace(structure=structure, subset=["0.weight", "2.*"])
    posterior = pl.fit(model, (x, y), method, **QUICK)
    spread = posterior.sample(4000, seed=0)["0.weight"].std(0)
    if structure == "kronecker":  # factors average over units, so a dead one learns from those that live, but little
        assert (spread[[0, 3]] > 0.5).all()
    else:
        torch.testing.assert_close(spread[[0, 3]], torch.full((2, 2), 0.7).double(), rtol=0.05, atol=0)
    assert (spread[[1, 2]] < 0.6).all()


@every_structure
def test_dead_units_with_a_flat_prior_are_an_error_with_a_way_out(structure):
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        network[0].bias[0] = -100.0
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.2), pl.priors.Flat())
    with pytest.raises(ValueError, match=r"variance.*infinite.*pl\.priors\.Normal\(\)"):
        pl.fit(model, sine(), pl.Laplace(structure=structure), **QUICK)


# --- odd likelihoods and priors ---


class Scaled:
    """A likelihood whose −log p is not convex in the output: |y − f| in a heavy tail."""

    def log_prob(self, outputs, y):
        return -torch.log1p(((y - outputs) / 0.1) ** 2).sum(-1)

    def distribution(self, outputs):
        return torch.distributions.Cauchy(outputs, 0.1)


@every_structure
def test_an_indefinite_likelihood_is_clipped_and_said_so(structure):
    model = regression_model(likelihood=Scaled())
    posterior = pl.fit(model, sine(), pl.Laplace(structure=structure), **QUICK)
    assert_sane(posterior, sine()[0])
    told = posterior.diagnostics()
    if structure != "full":  # full goes to the top, where the data may well be in the convex part
        assert not told.ok and any("indefinite" in m for m in told.messages)


@every_structure
def test_a_cauchy_prior_where_it_is_not_log_concave_is_an_error_with_a_way_out(structure):
    network = mlp()
    with torch.no_grad():
        network[0].weight.fill_(30.0)  # tanh saturates, so the data say nothing about it
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.2), pl.priors.Cauchy(scale=0.5))
    method = pl.Laplace(structure=structure, subset="0.*")
    if structure == "full":  # climbs to where the log joint is bent downwards, or says why not
        try:
            posterior = pl.fit(model, sine(), method, **QUICK)
        except ValueError as error:
            assert "pl.priors.Normal()" in str(error)
        else:
            assert (deviations(posterior) > 0).all()
        return
    with pytest.raises(ValueError, match=r"pl\.priors\.Normal\(\)"):
        pl.fit(model, sine(), method, **QUICK)


@pytest.mark.parametrize(
    "prior",
    [pl.priors.Cauchy(scale=5.0), pl.priors.StudentT(), pl.priors.Laplace(), pl.priors.fan_in(pl.priors.Normal())],
)
@every_structure
def test_other_priors_bring_their_own_curvature(structure, prior):
    network = mlp()
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(0.3)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.2), prior)
    wanted = pl.Laplace(structure=structure)
    if isinstance(prior, pl.priors.Laplace):  # flat but for its kink
        try:
            posterior = pl.fit(model, sine(200), wanted, **QUICK)
        except ValueError as error:
            assert "pl.priors.Normal()" in str(error)
            return
    else:
        posterior = pl.fit(model, sine(200), wanted, **QUICK)
    assert torch.isfinite(deviations(posterior)).all()


def test_yesterdays_diagonal_posterior_is_todays_prior():
    x, y = sine()
    first = pl.fit(regression_model(), (x[:20], y[:20]), pl.Laplace(structure="diagonal"), **QUICK)
    second = pl.BayesianModel(mlp(), pl.likelihoods.Normal(scale=0.2), prior=first)
    posterior = pl.fit(second, (x[20:], y[20:]), pl.Laplace(structure="diagonal"), **QUICK)
    both = pl.fit(regression_model(), (x, y), pl.Laplace(structure="diagonal"), **QUICK)
    for k, scale in both.scale.items():  # curvature adds up at the same weights
        torch.testing.assert_close(posterior.scale[k], scale, rtol=1e-9, atol=0)
    assert torch.isfinite(posterior.evidence().log_marginal_likelihood)


def test_a_correlated_posterior_as_the_prior_is_refused():
    x, y = sine()
    first = pl.fit(regression_model(), (x, y), pl.Laplace(structure="full"), **QUICK)
    second = pl.BayesianModel(mlp(), pl.likelihoods.Normal(scale=0.2), prior=first)
    with pytest.raises(pl.NotSupported, match="Diagonal"):
        pl.fit(second, (x, y), pl.Laplace(), **QUICK)


# --- size ---


def wide() -> nn.Module:
    """A million weights and a thousand classes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 640), nn.ReLU(), nn.Linear(640, 448), nn.ReLU(), nn.Linear(448, 1000))


def many_classes(n: int = 16):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, 64, generator=rng), torch.randint(1000, (n,), generator=rng)


def test_a_covariance_that_memory_cannot_hold_is_refused_before_it_is_asked_for():
    network = nn.Sequential(*wide(), nn.ReLU(), nn.Linear(1000, 400))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    x, y = many_classes()
    began = time.perf_counter()
    with pytest.raises(ValueError, match=r'structure="full" needs [\d,]+ bytes.*"kronecker".*subset="last-layer"'):
        pl.fit(model, (x, y % 400), pl.Laplace(structure="full"), **QUICK)
    assert time.perf_counter() - began < 5


def test_a_million_weights_and_a_thousand_classes_take_a_sampled_fisher():
    model = pl.BayesianModel(wide(), pl.likelihoods.Categorical())
    assert sum(p.numel() for p in wide().parameters()) > 750_000
    posterior = pl.fit(model, many_classes(), pl.Laplace(curvature="mc-fisher"), **QUICK)
    predictive = posterior.predict(many_classes()[0][:4], num_samples=4)
    assert torch.isfinite(predictive.probs).all() and predictive.probs.shape == (4, 1000)
    assert torch.isfinite(posterior.evidence().log_marginal_likelihood)


# --- networks ---


def small_resnet() -> nn.Module:
    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in "ab")
            self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x):
            return F.relu(x + self.norm_b(self.b(F.relu(self.norm_a(self.a(x))))))

    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(stem, Block(4), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class LowRankAdapter(nn.Module):
    """A frozen linear layer and a trained product of two thin ones beside it."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


def images():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(24, 1, 6, 6, generator=rng), torch.arange(24) % 3


def sentences():
    rng = torch.Generator().manual_seed(0)
    return torch.randint(11, (24, 5), generator=rng), torch.arange(24) % 3


def adapted():
    return nn.Sequential(LowRankAdapter(2, 6), nn.Tanh(), LowRankAdapter(6, 3))


NETWORKS = {
    "residual": (small_resnet, images, "all"),
    "transformer": (Encoder, sentences, "all"),
    "adapters": (adapted, lambda: classes(dtype=torch.float32), "*lora*"),
    "adapter's second half": (adapted, lambda: classes(dtype=torch.float32), "*lora_b*"),
}


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "low-rank"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_that_people_bring_are_fitted_predicted_and_saved(kind, structure, tmp_path):
    make, data, subset = NETWORKS[kind]
    torch.manual_seed(1)
    network = make()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    method = pl.Laplace(structure=structure, subset=subset, rank=3, base=pl.MAP(learning_rate=0.01))
    posterior = pl.fit(model, data(), method, steps=6, batch_size=8, progress=False, compile=False)
    x = data()[0]
    predictive = posterior.predict(x, num_samples=5)
    assert torch.isfinite(predictive.probs).all() and (deviations(posterior) > 0).all()
    assert torch.isfinite(posterior.evidence().log_marginal_likelihood)
    posterior.save(tmp_path / "a.plausible")
    torch.manual_seed(1)
    loaded = pl.load(tmp_path / "a.plausible", make())
    assert torch.equal(loaded.predict(x, num_samples=5).probs, predictive.probs)


@pytest.mark.parametrize("likelihood", [
    pl.likelihoods.Normal(scale="learn"), pl.likelihoods.StudentT(scale="learn"), pl.likelihoods.HeteroscedasticNormal(),
    pl.likelihoods.CensoredNormal(scale=0.2, lower=-0.5), pl.likelihoods.Poisson(), pl.likelihoods.Bernoulli(),
])  # fmt: skip
@every_structure
def test_every_likelihood_has_a_curvature(structure, likelihood):
    x, y = sine()
    y = y.clamp(min=-0.5)
    if isinstance(likelihood, pl.likelihoods.Poisson | pl.likelihoods.Bernoulli):
        y = (y > 0).double()
    outputs = 2 if isinstance(likelihood, pl.likelihoods.HeteroscedasticNormal) else 1
    posterior = pl.fit(pl.BayesianModel(mlp(outputs), likelihood), (x, y), pl.Laplace(structure=structure), **QUICK)
    assert_sane(posterior, x)


def test_hyperparameters_are_checked_when_a_method_is_made():
    for wrong in (
        {"structure": "block"}, {"curvature": "hessian"}, {"rank": 0}, {"per": "unit"}, {"prior_precision": 0.0},
        {"prior_precision": -1}, {"prior_precision": "evidence"}, {"prior_precision": float("nan")}, {"base": pl.HMC()},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            pl.Laplace(**wrong)
    with pytest.raises(ValueError, match="matches no"):
        pl.fit(class_model(), classes(), pl.Laplace(subset="head.*"), **QUICK)
    with pytest.raises(pl.NotSupported, match="ggn"):
        pl.fit(class_model(), classes(), pl.Laplace(structure="low-rank", curvature="mc-fisher"), **QUICK)
