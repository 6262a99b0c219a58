"""Gradient and squares from one pass, against plain autograd and the squares that have tests of their own."""

import pytest
import torch
from tests.curvature.networks import CASES, make
from tests.curvature.test_every_layer import LIKELIHOOD, batch_of, check_close, truth_of
from tests.curvature.test_training import case, gradients_of_copies
from tests.curvature.test_transforms import stacked, targets

import plausible as pl
from plausible.curvature import gradient_and_second_moments, second_moments


def plain_gradient(model, params, batch):
    leaves = {k: w.detach().clone().requires_grad_() for k, w in params.items()}
    value = (model._weighted_log_likelihoods(leaves, batch)).sum()
    own = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return value.detach(), dict(zip(leaves, own, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_both_moments_of_every_layer_are_those_of_plain_autograd(name):
    network, inputs = make(name)
    model, batch = pl.BayesianModel(network, LIKELIHOOD), batch_of(inputs)
    batch[2][0] = 0.0  # as the rows that fill up a last batch have
    found = gradient_and_second_moments(model, model.init(), batch)
    value, gradient = plain_gradient(model, model.init(), batch)
    torch.testing.assert_close(found.log_likelihood, value)
    assert found.gradient.keys() == found.squares.keys() == gradient.keys()
    check_close(found.gradient, gradient, tolerance=1e-8)
    check_close(found.squares, truth_of(network, batch), tolerance=1e-8)


@pytest.mark.parametrize("name", ["pictures", "strange"])
def test_both_moments_in_train_mode_are_those_of_one_copy_of_the_weights_per_example(name):
    network, model, (x, y, _) = case(name)
    weights = torch.full((5,), 20.0, dtype=torch.float64)
    leaves = [p for p in network.parameters()]
    value = (LIKELIHOOD.log_prob(network(x), y) * weights).sum()
    plain = dict(zip(model.init(), torch.autograd.grad(value, leaves), strict=True))

    def column(out):
        f = out.detach().requires_grad_()
        return torch.autograd.grad(LIKELIHOOD.log_prob(f, y).sum(), f)[0]

    copies = gradients_of_copies(network, (x, y, weights), column)
    found = gradient_and_second_moments(model, model.init(), (x, y, weights))
    check_close(found.gradient, plain, tolerance=1e-8)
    check_close(found.squares, {k: 20.0 * g.square().sum(0) for k, g in copies.items()}, tolerance=1e-8)


@pytest.mark.parametrize("name", ["linear on sequences", "conv2d", "group norm", "tied weights", "own layer"])
def test_all_modes_at_once_have_the_moments_of_each_by_itself(name):
    network, inputs = make(name)
    model = pl.BayesianModel(network, LIKELIHOOD)
    batch = (inputs, targets(inputs), None)

    def moments(params):
        found = gradient_and_second_moments(model, params, batch)
        return found.log_likelihood, found.gradient, found.squares

    params = stacked(model)
    values, gradients, squares = torch.vmap(moments, randomness="error")(params)
    for m in range(3):
        value, gradient, square = moments({k: w[m] for k, w in params.items()})
        torch.testing.assert_close(values[m], value)
        check_close({k: g[m] for k, g in gradients.items()}, gradient, tolerance=1e-9)
        check_close({k: s[m] for k, s in squares.items()}, square, tolerance=1e-9)


def test_an_unknown_noise_scale_has_moments_too():
    network = torch.nn.Linear(2, 1).double()
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=pl.hyperpriors.HalfNormal()))
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = (x, x.sum(1, keepdim=True).sin(), torch.linspace(0.5, 2.0, 7, dtype=torch.float64))
    params = model.init()
    found = gradient_and_second_moments(model, params, batch)
    check_close(found.gradient, plain_gradient(model, params, batch)[1], tolerance=1e-10)
    check_close(found.squares, second_moments(model, params, batch), tolerance=1e-10)


def test_a_loss_scale_for_half_precision_cancels():
    network, inputs = make("conv2d")
    model, batch = pl.BayesianModel(network, LIKELIHOOD), batch_of(inputs)
    scaled = type("Scaled", (type(model),), {"gradient_scale": 1024.0})
    other = model.bound()
    other.__class__ = scaled
    found, truth = (gradient_and_second_moments(m, model.init(), batch) for m in (other, model))
    check_close(found.gradient, truth.gradient, tolerance=1e-10)
    check_close(found.squares, truth.squares, tolerance=1e-10)
