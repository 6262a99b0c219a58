"""What a compiled move is rewritten to before C++ is made of it, where the compiler's own choice is slow.

Networks of a few thousand weights spend their time in two places. A tanh that is exact to the last bit costs as much as
the matrix products around it. And `vmap` turns the first layer, in which all chains see the same inputs, into one small
product per chain: as one large product it is faster, and its result has the examples next to each other in memory, which
fill vector registers better than the few units of a layer do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

# tanh(x) ≈ x P(x²) / Q(x²) for |x| ≤ 7.9, where tanh is 1 − 3e-7: a minimax fit of relative error 6e-9.
SATURATION = 7.9
TOP = (0.999999994355647, 0.13450622284633104, 0.0035789940462466535, 2.2023278156245757e-05, 1.5428019092808398e-08)
BOTTOM = (1.0, 0.4678395028669392, 0.02619224566307623, 0.00034236538427864067, 8.59879887623984e-07)


def quick_tanh(x: Tensor) -> Tensor:
    """Tanh in float32 within 6 units in the last place."""
    x = x.clamp(-SATURATION, SATURATION)  # which keeps nan
    square = x * x
    top, bottom = TOP[-1] * square + TOP[-2], BOTTOM[-1] * square + BOTTOM[-2]
    for p, q in zip(TOP[-3::-1], BOTTOM[-3::-1], strict=True):
        top, bottom = top * square + p, bottom * square + q
    return x * top / bottom


def shared_inputs(x: Tensor, weights: Tensor) -> Tensor:
    """x (n, h) times weights (chains, h, k), as one product with the examples last."""
    chains, _, units = weights.shape
    flat = weights.mT.reshape(chains * units, -1)
    return (flat @ x.mT).reshape(chains, units, -1).mT


def shared_gradient(pull: Tensor, x: Tensor) -> Tensor:
    """`pull` (chains, k, n) times x (n, h), as one product."""
    chains, units, examples = pull.shape
    return (pull.reshape(chains * units, examples) @ x).reshape(chains, units, -1)


def product_then_sum(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """bias + left @ right, where the sum is a part of whatever comes next."""
    return left @ right + bias


def outer(column: Tensor, row: Tensor) -> Tensor:
    """column @ row without a sum in it, which becomes a part of whatever comes next."""
    return column * row


class Rewrites(CustomGraphPass):
    """Rewrites the graph of a compiled move in place.

    Args:
        faster: The faster form of a node and what it takes, if there is one.
    """

    def __init__(self, faster: Callable[[fx.Node], Iterator[tuple[Callable[..., Tensor], list[fx.Node]]]]):
        self.faster = faster

    def __call__(self, graph: fx.Graph) -> None:
        """Replace each node that has a faster form."""
        for node in list(graph.nodes):
            for form, arguments in self.faster(node):
                _replace(graph, node, form, arguments)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Names compiled code in the compiler's cache."""
        return get_hash_for_files((__file__,), self.faster.__name__)


def after_fusion(node: fx.Node) -> Iterator[tuple[Callable[..., Tensor], list[fx.Node]]]:
    """What the compiler has put together and is faster apart: a bias is copied over all examples before the product."""
    if node.target is aten.addmm.default and not node.kwargs and node.args[0].meta["val"].dim() == 1:  # type: ignore[union-attr]
        yield product_then_sum, list(node.args)  # type: ignore[arg-type]


def before_fusion(node: fx.Node) -> Iterator[tuple[Callable[..., Tensor], list[fx.Node]]]:
    """Exact functions, products of a column and a row (the slope of a last layer of one unit), and of what all chains share."""
    if node.target is aten.tanh.default and node.meta["val"].dtype == torch.float32:
        yield quick_tanh, [node.args[0]]  # type: ignore[list-item]
    elif node.target in (aten.mm.default, aten.bmm.default) and node.args[0].meta["val"].shape[-1] == 1:  # type: ignore[union-attr]
        yield outer, list(node.args)  # type: ignore[arg-type]
    elif node.target is aten.bmm.default:
        left, right = (_unexpanded(a) for a in node.args)  # type: ignore[arg-type]
        rows, columns = node.meta["val"].shape[1:]
        if _is_shared(left) and not _is_shared(right) and rows >= columns > 1:
            yield shared_inputs, [left.args[0], right]  # type: ignore[list-item]
        elif _is_shared(right) and not _is_shared(left) and left.meta["val"].shape[2] >= rows > 1:
            yield shared_gradient, [left, right.args[0]]  # type: ignore[list-item]


def _unexpanded(node: fx.Node) -> fx.Node:
    """The node before expansions that change nothing."""
    while node.target is aten.expand.default and node.args[0].meta["val"].shape == node.meta["val"].shape:  # type: ignore[union-attr]
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_shared(node: fx.Node) -> bool:
    """Whether all chains have the same matrix here, whole: one row that is repeated has another shape."""
    expanded = node.target is aten.expand.default and node.meta["val"].dim() == 3
    return expanded and node.args[0].meta["val"].shape == node.meta["val"].shape[1:]  # type: ignore[union-attr]


def _replace(graph: fx.Graph, node: fx.Node, form: Callable[..., Tensor], arguments: list[fx.Node]) -> None:
    values = [a.meta["val"] for a in arguments]
    with values[0].fake_mode:
        traced = make_fx(form, decomposition_table=select_decomp_table())(*values)
    copies: dict[fx.Node, Any] = {}
    inputs = iter(arguments)
    with graph.inserting_before(node):
        for part in traced.graph.nodes:
            if part.op == "placeholder":
                copies[part] = next(inputs)
            elif part.op == "output":
                node.replace_all_uses_with(copies[part.args[0]])
            else:
                copies[part] = graph.node_copy(part, copies.__getitem__)
    graph.erase_node(node)
