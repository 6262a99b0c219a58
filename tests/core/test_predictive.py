"""The predictive is the true mixture: against torch's mixtures, scipy's inversion, scoringrules and plain sampling."""

import math

import numpy as np
import pytest
import scoringrules
import torch
from scipy import optimize, special, stats
from tests.core.seeded_draws import N, S, randn, shares
from torch.distributions import Categorical, MixtureSameFamily, Normal

import plausible as pl
from plausible import likelihoods


def torch_mixture(means, scales, weights):
    """The same mixture in torch, examples first."""
    return MixtureSameFamily(
        Categorical(weights.expand(*means.shape[1:], -1)), Normal(means.movedim(0, -1), scales.movedim(0, -1))
    )


def normals(scale=0.4, targets=(N, 1)):
    outputs, weights = 1.5 * randn(S, *targets), shares()
    predictive = pl.Predictive(outputs, likelihoods.Normal(scale=scale), weights=weights)
    return predictive, outputs, torch.full_like(outputs, scale), weights


# --- regression ---


def test_mean_and_variance_are_those_of_the_mixture():
    predictive, means, scales, weights = normals()
    truth = torch_mixture(means, scales, weights)
    torch.testing.assert_close(predictive.mean, truth.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(predictive.variance, truth.variance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(predictive.std, truth.variance.sqrt(), rtol=1e-12, atol=1e-12)


def test_total_variance_is_expected_variance_plus_variance_of_means():
    predictive, means, _, weights = normals()
    expected = torch.tensordot(weights, (means - torch.tensordot(weights, means, 1)) ** 2, 1)
    torch.testing.assert_close(predictive.epistemic, expected)
    torch.testing.assert_close(predictive.aleatoric, torch.full_like(expected, 0.16))
    assert torch.equal(predictive.total, predictive.aleatoric + predictive.epistemic)


def test_log_prob_is_the_log_of_the_mean_density_joint_over_an_examples_outputs():
    predictive, means, scales, weights = normals(targets=(N, 3))
    y = randn(N, 3, seed=2)
    each = Normal(means, scales).log_prob(y).sum(-1)  # (S, N): outputs of one draw are independent, of the mixture not
    expected = torch.logsumexp(each + weights.log()[:, None], 0)
    torch.testing.assert_close(predictive.log_prob(y), expected, rtol=1e-12, atol=1e-12)
    one = pl.Predictive(means[..., :1], likelihoods.Normal(scale=0.4), weights=weights)
    torch.testing.assert_close(
        one.log_prob(y[:, :1]), torch_mixture(means[..., 0], scales[..., 0], weights).log_prob(y[:, 0])
    )


def test_log_prob_does_not_underflow():
    predictive, means, _, weights = normals(scale=1e-3)
    y = torch.full((N, 1), 50.0, dtype=torch.float64)
    value = predictive.log_prob(y)
    assert torch.isfinite(value).all() and (value < -1e6).all()


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.9, 0.999])
def test_quantiles_invert_the_mixtures_distribution_function(q):
    predictive, means, scales, weights = normals(scale=0.15)
    found = predictive.quantile(q)
    for i in range(N):
        cdf = lambda y, i=i: float(weights.numpy() @ stats.norm.cdf(y, means[:, i, 0], scales[:, i, 0])) - q  # noqa: E731
        assert found[i].item() == pytest.approx(optimize.brentq(cdf, -50, 50, xtol=1e-13), abs=1e-9)


def test_several_quantiles_have_a_leading_axis_and_an_interval_is_two_of_them():
    predictive, *_ = normals()
    three = predictive.quantile([0.1, 0.5, 0.9])
    assert three.shape == (3, N, 1)
    assert torch.equal(three[1], predictive.quantile(0.5))
    low, high = predictive.interval(0.8)
    torch.testing.assert_close(low, three[0])
    torch.testing.assert_close(high, three[2])
    for wrong in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=str(wrong)):
            predictive.quantile(wrong)
        with pytest.raises(ValueError, match=str(wrong)):
            predictive.interval(wrong)


def test_an_interval_holds_its_share_of_draws_from_the_mixture():
    predictive, means, scales, weights = normals()
    torch.manual_seed(3)
    draws = torch_mixture(means, scales, weights).sample((100_000,))
    low, high = predictive.interval(0.9)
    inside = ((draws >= low) & (draws <= high)).double().mean(0)
    assert ((inside - 0.9).abs() < 4 * math.sqrt(0.09 / 100_000)).all()


def test_crps_of_equal_normals_is_scoringrules():
    outputs, scale = randn(S, N, 1), 0.5
    y = randn(N, 1, seed=4)
    predictive = pl.Predictive(outputs, likelihoods.Normal(scale=scale), weights=shares())
    weights = np.broadcast_to(shares().numpy(), (N, 1, S))
    scales = np.full((N, 1, S), scale)
    expected = scoringrules.crps_mixnorm(y.numpy(), outputs.movedim(0, -1).numpy(), scales, weights)
    np.testing.assert_allclose(predictive.crps(y), expected, rtol=1e-9)


def by_quadrature(cdf, y):
    """∫ (F(x) − 1{x ≥ y})² dx."""
    steps = np.linspace(0, 100, 200_001)[1:] - 2.5e-4  # midpoints; the distributions here have no weight further out
    below, above = cdf(y - steps) ** 2, (1 - cdf(y + steps)) ** 2
    return float(below.sum() + above.sum()) * 5e-4


@pytest.mark.parametrize("y", [-30.0, -0.3, 4.0, 60.0])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_crps_of_student_t_is_the_integral_of_its_mixture(scale, y):
    means = torch.tensor([-4.0, 0.0, 5.0], dtype=torch.float64)
    predictive = pl.Predictive(means.reshape(3, 1, 1), likelihoods.StudentT(df=4.0, scale=scale))
    truth = by_quadrature(lambda x: stats.t.cdf((x[:, None] - means.numpy()) / scale, 4.0).mean(1), y)
    assert predictive.crps(torch.tensor([[y]], dtype=torch.float64)).item() == pytest.approx(truth, rel=1e-4)


def test_crps_refuses_targets_of_another_shape():
    predictive, *_ = normals()
    with pytest.raises(ValueError, match=r"\(5, 1\)"):
        predictive.crps(torch.zeros(N, dtype=torch.float64))


def test_draws_have_the_mixtures_moments_and_are_joint_over_inputs():
    predictive, means, scales, weights = normals(scale=0.3)
    draws = predictive.sample(20_000, seed=1)[..., 0]
    truth = torch_mixture(means[..., 0], scales[..., 0], weights)
    assert draws.shape == (20_000, N)
    assert ((draws.mean(0) - truth.mean).abs() < 4 * (truth.variance / 20_000).sqrt()).all()
    centred = draws - truth.mean
    deviation = means[..., 0] - truth.mean
    # Inputs share the drawn network, so their targets covary by the networks' disagreement.
    covariance = (weights[:, None] * deviation).T @ deviation + torch.diag(scales[0, :, 0] ** 2)
    error = torch.stack([(centred * centred[:, [j]]).std(0) for j in range(N)]) / math.sqrt(20_000)
    assert ((centred.T @ centred / 20_000 - covariance).abs() < 4.5 * error).all()
    assert torch.equal(predictive.sample(3, seed=1), predictive.sample(3, seed=1))
    before = torch.get_rng_state()
    assert not torch.equal(predictive.sample(3), predictive.sample(3))
    assert torch.equal(before, torch.get_rng_state())


def test_an_unknown_scale_is_each_draws_own():
    outputs, scales = randn(S, N, 1), torch.linspace(0.1, 2.0, S, dtype=torch.float64)
    predictive = pl.Predictive(outputs, likelihoods.Normal(scale="learn"), weights=shares(), unknowns={"scale": scales})
    truth = torch_mixture(outputs, scales.reshape(S, 1, 1).expand_as(outputs), shares())
    y = randn(N, 1, seed=5)
    torch.testing.assert_close(predictive.mean, truth.mean)
    torch.testing.assert_close(predictive.variance, truth.variance)
    torch.testing.assert_close(predictive.log_prob(y), truth.log_prob(y)[:, 0])
    torch.testing.assert_close(predictive.aleatoric, (shares() @ scales**2).expand(N, 1))


def test_mc_error_is_the_spread_over_seeds():
    """Repeat the drawing: the mean over 50 draws scatters by what one predictive says of itself."""
    errors, means = [], []
    for seed in range(400):
        outputs = randn(50, 3, 1, seed=100 + seed) * torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)[:, None]
        predictive = pl.Predictive(outputs, likelihoods.Normal())
        errors.append(predictive.mc_error)
        means.append(predictive.mean)
    spread, told = torch.stack(means).std(0), torch.stack(errors).mean(0)
    assert ((told / spread - 1).abs() < 4 / math.sqrt(2 * 400)).all()


def test_mc_error_of_strata_adds_their_shares_and_is_less_than_of_a_plain_sample():
    """Two components far apart, each with half of the draws: their distance is no Monte Carlo error."""
    far = torch.cat([randn(40, 1, 1), 100 + 2 * randn(20, 1, 1, seed=2)])
    weights = torch.cat([torch.full((40,), 0.5 / 40), torch.full((20,), 0.5 / 20)]).double()
    owners = torch.cat([torch.zeros(40), torch.ones(20)]).long()
    predictive = pl.Predictive(far, likelihoods.Normal(), weights=weights, strata=owners)
    expected = (0.25 * far[:40].var(0) / 40 + 0.25 * far[40:].var(0) / 20).sqrt()
    torch.testing.assert_close(predictive.mc_error, expected)
    assert predictive.mc_error.item() < 1


# --- other noise ---


def test_two_outputs_for_mean_and_scale():
    outputs = randn(S, N, 4)
    predictive = pl.Predictive(outputs, likelihoods.HeteroscedasticNormal(), weights=shares())
    scales = torch.nn.functional.softplus(outputs[..., 2:])
    assert predictive.mean.shape == (N, 2)
    truth = torch_mixture(outputs[..., :2], scales, shares())
    torch.testing.assert_close(predictive.mean, truth.mean)
    torch.testing.assert_close(predictive.variance, truth.variance, rtol=1e-4, atol=1e-6)


def test_student_t_noise_has_its_own_variance_and_quantiles():
    means, weights = randn(S, N, 1), shares()
    predictive = pl.Predictive(means, likelihoods.StudentT(df=5.0, scale=0.5), weights=weights)
    torch.testing.assert_close(predictive.aleatoric, torch.full((N, 1), 0.25 * 5 / 3, dtype=torch.float64))
    found = predictive.quantile(0.95)
    for i in range(N):
        cdf = lambda y, i=i: float(weights.numpy() @ stats.t.cdf((y - means[:, i, 0].numpy()) / 0.5, 5.0)) - 0.95  # noqa: E731
        assert found[i].item() == pytest.approx(optimize.brentq(cdf, -50, 50, xtol=1e-13), abs=1e-8)


def test_counts_have_integer_quantiles_and_a_summed_crps():
    log_rates, weights = 1 + 0.5 * randn(S, N, 1), shares()
    rates = log_rates.exp()
    predictive = pl.Predictive(log_rates, likelihoods.Poisson(), weights=weights)
    mean = torch.tensordot(weights, rates, 1)
    torch.testing.assert_close(predictive.mean, mean)
    torch.testing.assert_close(predictive.variance, mean + torch.tensordot(weights, (rates - mean) ** 2, 1))
    y = torch.tensor([0.0, 1, 3, 7, 30], dtype=torch.float64)[:, None]
    for i in range(N):
        mixture = lambda k, i=i: float(weights.numpy() @ stats.poisson.cdf(k, rates[:, i, 0].numpy()))  # noqa: E731
        smallest = next(k for k in range(200) if mixture(k) >= 0.8)
        assert predictive.quantile(0.8)[i].item() == smallest
        score = sum((mixture(k) - (k >= y[i].item())) ** 2 for k in range(200))
        assert predictive.crps(y)[i].item() == pytest.approx(score, rel=1e-6)
        density = weights.numpy() @ stats.poisson.pmf(y[i].item(), rates[:, i, 0].numpy())
        assert predictive.log_prob(y)[i].item() == pytest.approx(math.log(density), rel=1e-9)


def test_a_censored_quantity_is_predicted_uncensored_but_scored_censored():
    means, weights = randn(S, N, 1), shares()
    predictive = pl.Predictive(means, likelihoods.CensoredNormal(scale=0.7, upper=1.0), weights=weights)
    torch.testing.assert_close(predictive.mean, torch.tensordot(weights, means, 1))
    y = torch.tensor([[0.2], [1.0], [1.0], [-1.0], [0.9]], dtype=torch.float64)
    density = stats.norm.pdf(y.numpy(), means.numpy(), 0.7)
    beyond = stats.norm.sf(1.0, means.numpy(), 0.7)
    expected = np.log(np.tensordot(weights.numpy(), np.where(y.numpy() >= 1.0, beyond, density), 1))[:, 0]
    np.testing.assert_allclose(predictive.log_prob(y), expected, rtol=1e-10)


def test_a_truncated_quantity_has_scipys_moments_and_quantiles():
    means, weights = randn(S, N, 1), shares()
    predictive = pl.Predictive(means, likelihoods.CensoredNormal(scale=0.7, truncate_below=0.0), weights=weights)
    laws = stats.truncnorm(-means.numpy() / 0.7, np.inf, loc=means.numpy(), scale=0.7)
    np.testing.assert_allclose(predictive.mean, np.tensordot(weights.numpy(), laws.mean(), 1), rtol=1e-8)
    low = predictive.quantile(0.1)
    np.testing.assert_allclose(np.tensordot(weights.numpy(), laws.cdf(low.numpy()), 1), 0.1, rtol=1e-8)
    y = torch.full((N, 1), 0.4, dtype=torch.float64)
    scores = predictive.crps(y)
    for i in range(N):
        own = means[:, i, 0].numpy()
        survival = lambda x, own=own: special.ndtr((own - np.maximum(x[:, None], 0)) / 0.7) / special.ndtr(own / 0.7)  # noqa: E731
        cdf = lambda x, survival=survival: (1 - survival(x)) @ weights.numpy()  # noqa: E731
        assert scores[i].item() == pytest.approx(by_quadrature(cdf, 0.4), rel=1e-5)


# --- what there is not ---


def test_labels_have_no_quantiles_and_numbers_no_probabilities():
    labels = pl.Predictive(randn(S, N, 3), likelihoods.Categorical())
    for ask in (
        lambda: labels.quantile(0.5),
        lambda: labels.interval(),
        lambda: labels.crps(torch.zeros(N)),
        lambda: labels.cdf(0.0),
    ):
        with pytest.raises(pl.NotSupported, match="probs"):
            ask()
    numbers, *_ = normals()
    for name in ("probs", "expected_error"):
        with pytest.raises(pl.NotSupported):
            getattr(numbers, name)


def gumbel_cdf(z):
    return np.exp(-np.exp(np.minimum(-z, 500.0)))


class Gumbel:
    """A user's own noise: the two functions that a likelihood needs, and nothing else."""

    def log_prob(self, outputs, y):
        return torch.distributions.Gumbel(outputs, 0.5).log_prob(y).sum(-1)

    def distribution(self, outputs):
        return torch.distributions.Gumbel(outputs, 0.5)


def test_a_users_own_likelihood_needs_log_prob_and_distribution_only():
    outputs, weights = randn(S, N, 1), shares()
    predictive = pl.Predictive(outputs, Gumbel(), weights=weights)
    law = stats.gumbel_r(outputs.numpy(), 0.5)
    np.testing.assert_allclose(predictive.mean, np.tensordot(weights.numpy(), law.mean(), 1), rtol=1e-6)
    y = randn(N, 1, seed=3)
    np.testing.assert_allclose(
        predictive.log_prob(y), np.log(np.tensordot(weights.numpy(), law.pdf(y.numpy()), 1))[:, 0], rtol=1e-9
    )
    median = predictive.quantile(0.5)
    np.testing.assert_allclose(np.tensordot(weights.numpy(), law.cdf(median.numpy()), 1), 0.5, rtol=1e-8)
    scores = predictive.crps(y)
    for i in range(N):
        cdf = lambda x, i=i: gumbel_cdf((x[:, None] - outputs[:, i, 0].numpy()) / 0.5) @ weights.numpy()  # noqa: E731
        assert scores[i].item() == pytest.approx(by_quadrature(cdf, y[i].item()), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept(dtype):
    numbers = pl.Predictive(randn(S, N, 1).to(dtype), likelihoods.Normal(scale=0.5))
    low, high = numbers.interval()
    found = [
        numbers.mean,
        numbers.variance,
        numbers.std,
        numbers.aleatoric,
        numbers.epistemic,
        numbers.total,
        numbers.mc_error,
    ]
    found += [low, high, numbers.crps(torch.zeros(N, 1, dtype=dtype)), numbers.log_prob(torch.zeros(N, 1, dtype=dtype))]
    found += [numbers.sample(2, seed=0)]
    labels = pl.Predictive(randn(S, N, 3).to(dtype), likelihoods.Categorical())
    found += [labels.probs, labels.total, labels.epistemic, labels.expected_error, labels.mc_error]
    assert {t.dtype for t in found} == {dtype}


def test_a_lone_draw_does_not_claim_to_be_precise():
    predictive = pl.Predictive(randn(1, N, 1), likelihoods.Normal())
    assert torch.isinf(predictive.mc_error).all()
    assert not predictive.epistemic.any()
