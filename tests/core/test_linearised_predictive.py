"""What a linearised prediction is made of: noise, the parts of its variance, and the probit link."""

import math

import pytest
import torch
from tests.core.dense_gaussians import SHAPES, a_gaussian, a_model, dense_jacobian, randn
from tests.oracles import anisotropic_covariance

import plausible as pl
from plausible import posteriors
from plausible.core.linearised import output_moments


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
