"""What compiled moves are rewritten to: the same numbers, faster."""

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plausible.core.compilation import compiled_move
from plausible.core.rewrites import (
    SATURATION,
    Rewrites,
    after_fusion,
    before_fusion,
    quick_tanh,
    shared_gradient,
    shared_inputs,
)

aten = torch.ops.aten


def traced(function, *shapes, dtype=torch.float32):
    """The graph of a function as the compiler sees it."""
    with FakeTensorMode():
        return make_fx(function)(*(torch.zeros(s, dtype=dtype) for s in shapes))


def operations(graph: fx.Graph) -> list:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_the_quick_tanh_is_within_six_units_in_the_last_place_of_double_precision():
    x = np.concatenate([np.linspace(-12, 12, 400_001), np.geomspace(1e-30, 1, 100_001)]).astype("f4")
    exact = np.tanh(x.astype("f8"))
    found = quick_tanh(torch.as_tensor(x)).numpy()
    assert np.max(np.abs(found - exact) / np.spacing(np.abs(exact).astype("f4"))) < 6


def test_the_quick_tanh_is_odd_never_leaves_the_unit_interval_and_keeps_infinities_and_nan():
    x = torch.cat([torch.linspace(0, 2 * SATURATION, 100_001), torch.tensor([1e30, float("inf")])])
    assert torch.equal(quick_tanh(-x), -quick_tanh(x))
    assert quick_tanh(x).max() < 1
    assert quick_tanh(torch.tensor(float("nan"))).isnan()


def test_products_with_a_shared_factor_are_those_of_every_chain_alone():
    x, weights = torch.randn(30, 4, dtype=torch.float64), torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(shared_inputs(x, weights), torch.stack([x @ w for w in weights]))
    pull = torch.randn(3, 5, 30, dtype=torch.float64)
    torch.testing.assert_close(shared_gradient(pull, x), torch.stack([p @ x for p in pull]))


def shared_product(x, weights):
    return torch.bmm(x.expand(len(weights), *x.shape), weights)


def test_a_product_that_all_chains_share_a_factor_of_becomes_one_product():
    graph = traced(shared_product, (30, 4), (3, 4, 5)).graph
    assert operations(graph).count(aten.bmm.default) == 1
    Rewrites(before_fusion)(graph)
    graph.lint()
    assert operations(graph).count(aten.bmm.default) == 0
    assert operations(graph).count(aten.mm.default) == 1


@pytest.mark.parametrize(
    ("product", "shapes"), [(torch.mm, ((30, 1), (1, 5))), (torch.bmm, ((3, 30, 1), (3, 1, 5)))], ids=["one", "chains"]
)
def test_a_column_times_a_row_is_no_product_of_matrices_any_more(product, shapes):
    module = traced(product, *shapes, dtype=torch.float64)
    Rewrites(before_fusion)(module.graph)
    module.graph.lint()
    module.recompile()
    assert operations(module.graph) == [aten.mul.Tensor]
    column, row = (torch.randn(s, dtype=torch.float64) for s in shapes)
    assert torch.equal(module(column, row), product(column, row))


@pytest.mark.parametrize(
    ("product", "shapes"),
    [
        (torch.bmm, ((3, 30, 4), (3, 4, 5))),
        (shared_product, ((4, 3), (3, 3, 5))),
        (lambda row, weights: torch.bmm(row.expand(3, 30, 4), weights), ((1, 4), (3, 4, 5))),
    ],
    ids=["own-factors", "few-examples", "one-row-repeated"],
)
def test_other_products_are_left_alone(product, shapes):
    graph = traced(product, *shapes).graph
    before = operations(graph)
    Rewrites(before_fusion)(graph)
    assert operations(graph) == before


@pytest.mark.parametrize(("shape", "left"), [((5,), False), ((30, 5), True)], ids=["a-bias", "a-matrix"])
def test_a_bias_is_added_after_the_product_and_a_matrix_within_it(shape, left):
    graph = traced(torch.addmm, shape, (30, 4), (4, 5)).graph
    Rewrites(after_fusion)(graph)
    graph.lint()
    assert (aten.addmm.default in operations(graph)) == left


def test_a_tanh_in_double_precision_is_left_alone():
    graph = traced(torch.tanh, (3,), dtype=torch.float64).graph
    Rewrites(before_fusion)(graph)
    assert aten.tanh.default in operations(graph)


@pytest.mark.slow
def test_a_compiled_move_has_the_gradient_of_an_eager_one_in_a_network_of_two_hidden_layers():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float32)  # noqa: E731
    x = draw(40, 3)

    def value(first, second, last):
        return (torch.tanh(torch.tanh(x @ first.mT) @ second.mT) @ last).square().sum()

    gradients = torch.vmap(torch.func.grad(value, argnums=(0, 1, 2)))
    weights = draw(4, 6, 3), draw(4, 5, 6), draw(4, 5)
    for found, expected in zip(compiled_move(gradients)(*weights), gradients(*weights), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_two_moves_of_the_same_lines_are_compiled_apart():
    def times(factor):
        return compiled_move(lambda x: factor * x)

    x, twice, thrice = torch.ones(3), times(2.0), times(3.0)
    assert twice(x).tolist() == [2.0] * 3
    assert thrice(x).tolist() == [3.0] * 3
    assert twice(x).tolist() == [2.0] * 3
