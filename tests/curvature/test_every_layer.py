"""Every kind of layer against gradients of one example after the other."""

import pytest
import torch
from tests.curvature.brute_force import flat, gap, gradients_of_each, jacobians, output_hessians, outputs_of
from tests.curvature.networks import CASES, make
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import plausible as pl
from plausible.curvature import Curvature, gauss_newton_product, second_moments

LIKELIHOOD = pl.likelihoods.Categorical()


def batch_of(inputs, seed: int = 5) -> tuple:
    count = pytree.tree_leaves(inputs)[0].shape[0]
    rng = torch.Generator().manual_seed(seed)
    return (
        inputs,
        torch.randint(2, (count,), generator=rng),
        torch.rand(count, generator=rng, dtype=torch.float64) + 0.5,
    )


def truth_of(network: nn.Module, batch: tuple) -> dict[str, Tensor]:
    inputs, y, weights = batch
    each = gradients_of_each(network, LIKELIHOOD, inputs, y)
    learn = {k for k, p in network.named_parameters() if p.requires_grad}
    return {k: torch.einsum("n,n...->...", weights.to(g.dtype), g**2) for k, g in each.items() if k in learn}


def check_close(found: dict[str, Tensor], truth: dict[str, Tensor], tolerance: float) -> None:
    largest = max(float(t.abs().max()) for t in truth.values())
    for name, value in truth.items():
        # Where terms cancel, as for a bias in front of a norm, what is left is rounding of much larger ones.
        scale = max(float(value.abs().max()), 1e-4 * largest)
        assert found[name].shape == value.shape
        assert float((found[name] - value).abs().max()) < tolerance * scale, name


def check_second_moments(network: nn.Module, inputs, tolerance: float) -> None:
    model, batch = pl.BayesianModel(network, LIKELIHOOD), batch_of(inputs)
    found, truth = second_moments(model, model.init(), batch), truth_of(network, batch)
    assert found.keys() == truth.keys()
    check_close(found, truth, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_second_moments_are_the_squares_of_gradients_taken_one_by_one(name):
    check_second_moments(*make(name), tolerance=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_second_moments_in_single_precision(name):
    network, inputs = make(name, torch.float32)
    model, batch = pl.BayesianModel(network, LIKELIHOOD), batch_of(inputs)
    found = second_moments(model, model.init(), batch)
    wide, truth_inputs = make(name)
    check_close(found, truth_of(wide, batch_of(truth_inputs)), tolerance=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_every_weight_has_its_curvature_in_every_form(name):
    network, inputs = make(name)
    model, batch = pl.BayesianModel(network, LIKELIHOOD), batch_of(inputs)
    params = model.init()
    curvature = Curvature(model, params, batch)
    learn = [k for k, p in network.named_parameters() if p.requires_grad]
    shapes = {k: p.shape for k, p in network.named_parameters()}
    diagonal = curvature.diagonal()
    assert list(diagonal) == learn
    assert all(diagonal[k].shape == shapes[k] for k in learn)

    x, y, weights = batch
    keep = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in network.parameters()])
    j = jacobians(network, x, len(y))[:, :, keep]
    outputs = outputs_of(network, dict(network.named_parameters()), x).detach()
    truth = torch.einsum("n,nkp,nkl,nlq->pq", weights, j, output_hessians(LIKELIHOOD, outputs, y), j)
    dense = curvature.dense()
    assert gap(dense, truth) < 1e-8
    assert gap(torch.cat([diagonal[k].flatten() for k in learn]), truth.diagonal()) < 1e-8

    vector = {k: torch.randn(shapes[k], dtype=torch.float64, generator=torch.Generator().manual_seed(3)) for k in learn}
    product = gauss_newton_product(model, params, batch, vector)
    assert gap(flat(product), truth @ flat(vector)) < 1e-8

    kronecker = curvature.kronecker()
    covered = {*kronecker["blocks"], *kronecker["diagonal"]}
    for weight, block in kronecker["blocks"].items():
        groups, rows, columns = block["rows"].shape[0], block["rows"].shape[-1], block["columns"].shape[-1]
        size = shapes[weight].numel()
        if size != groups * rows * columns and block["columns"].shape[-2] != 1:
            bias = weight.removesuffix("weight") + "bias"
            bias = bias if bias in shapes else weight.replace("weight", "bias")
            assert size + shapes[bias].numel() == groups * rows * columns
            covered.add(bias)
    assert covered == set(learn)
    for name_, values in kronecker["diagonal"].items():
        assert gap(values, diagonal[name_]) < 1e-12
