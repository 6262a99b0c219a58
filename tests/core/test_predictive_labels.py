"""Predictions of labels: mean probabilities, entropies that add up, votes, pixels and binary labels."""

import pytest
import torch
from tests.core.seeded_draws import N, S, randn, shares

import plausible as pl
from plausible import likelihoods


def logits(*shape):
    outputs = 2 * randn(S, *shape)
    return outputs, pl.Predictive(outputs, likelihoods.Categorical(), weights=shares())


def entropy(p, axis):
    return -(p * p.log()).sum(axis)


def test_class_probabilities_are_the_mean_softmax_and_entropies_add_up():
    outputs, predictive = logits(N, 3)
    each, weights = outputs.softmax(-1), shares()
    mean = torch.tensordot(weights, each, 1)
    torch.testing.assert_close(predictive.probs, mean)
    assert torch.equal(predictive.probs, predictive.mean)
    torch.testing.assert_close(predictive.variance, mean * (1 - mean))
    torch.testing.assert_close(predictive.total, entropy(mean, -1))
    torch.testing.assert_close(predictive.aleatoric, torch.tensordot(weights, entropy(each, -1), 1))
    assert torch.equal(predictive.total, predictive.aleatoric + predictive.epistemic)
    assert (predictive.epistemic > 0).all()
    y = torch.tensor([0, 1, 2, 0, 1])
    torch.testing.assert_close(predictive.log_prob(y), mean[range(N), y].log())
    votes = (each.argmax(-1) != mean.argmax(-1)).double()
    torch.testing.assert_close(predictive.expected_error, weights @ votes)


def test_agreeing_draws_have_no_epistemic_part_and_it_is_never_negative():
    outputs = randn(1, N, 4).expand(S, N, 4)
    predictive = pl.Predictive(outputs, likelihoods.Categorical())
    assert (predictive.epistemic >= 0).all() and predictive.epistemic.max() < 1e-12
    assert not predictive.expected_error.any()


def test_certain_labels_have_finite_entropies():
    outputs = torch.tensor([[[800.0, 0.0, -800.0]]], dtype=torch.float64)
    predictive = pl.Predictive(outputs, likelihoods.Categorical())
    assert predictive.total.item() == pytest.approx(0.0, abs=1e-12)


def test_a_class_per_pixel_keeps_the_class_axis_second():
    outputs, predictive = logits(N, 3, 4, 2)
    mean = torch.tensordot(shares(), outputs.softmax(2), 1)
    assert predictive.probs.shape == (N, 3, 4, 2)
    torch.testing.assert_close(predictive.probs, mean)
    assert predictive.total.shape == predictive.expected_error.shape == (N, 4, 2)
    torch.testing.assert_close(predictive.total, entropy(mean, 1))
    y = torch.randint(3, (N, 4, 2), generator=torch.Generator().manual_seed(0))
    each = -torch.nn.functional.cross_entropy(outputs.flatten(0, 1), y.repeat(S, 1, 1), reduction="none")
    each = each.reshape(S, N, -1).sum(-1)
    torch.testing.assert_close(predictive.log_prob(y), torch.logsumexp(each + shares().log()[:, None], 0))


def test_binary_labels_have_a_probability_each():
    outputs = 2 * randn(S, N)
    predictive = pl.Predictive(outputs, likelihoods.Bernoulli(), weights=shares())
    p = shares() @ outputs.sigmoid()
    torch.testing.assert_close(predictive.probs, p)
    torch.testing.assert_close(predictive.variance, p * (1 - p))
    torch.testing.assert_close(predictive.total, entropy(torch.stack([p, 1 - p]), 0))
    each = outputs.sigmoid()
    torch.testing.assert_close(predictive.aleatoric, shares() @ entropy(torch.stack([each, 1 - each]), 0))
    y = torch.tensor([1.0, 0, 0, 1, 1], dtype=torch.float64)
    torch.testing.assert_close(predictive.log_prob(y), torch.where(y > 0, p, 1 - p).log())
    votes = ((each > 0.5) != (p > 0.5)).double()
    torch.testing.assert_close(predictive.expected_error, shares() @ votes)


def test_drawn_labels_come_with_the_mean_probabilities():
    _, predictive = logits(N, 3)
    draws = predictive.sample(20_000, seed=0)
    seen = torch.nn.functional.one_hot(draws, 3).double().mean(0)
    p = predictive.probs
    assert ((seen - p).abs() < 4.5 * (p * (1 - p) / 20_000).sqrt()).all()
