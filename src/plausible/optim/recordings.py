"""The plans of the user's network, by which single examples' gradients are found in passes of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..core.errors import NotSupported
from ..core.likelihoods import Categorical
from ..core.model import BayesianModel
from ..curvature.passes import Plan
from ..curvature.recent import Recent
from ..curvature.tracing import plan_for
from .apart import apart

log = logging.getLogger("plausible")

Planned = tuple[Plan, list[list[str]]]


class Recordings:
    """The plans of a network, by kind of input and mode."""

    def __init__(self) -> None:
        self._plans = Recent()
        self.warned = False

    def plan(self, network: nn.Module, names: tuple[str, ...], inputs: Any, others: Mapping[str, Any]) -> Planned:
        """The plan, and for every use the weights that are used nowhere else."""
        leaves, spec = pytree.tree_flatten(inputs)
        like = next(network.parameters())
        shapes = tuple((tuple(t.shape[1:]), t.dtype) for t in leaves)
        # A number, such as how many items a loss is divided by, may change from pass to pass.
        told = tuple((k, v if isinstance(v, bool | str) else type(v)) for k, v in others.items())
        kind = (names, network.training, like.device, like.dtype, told)

        def make() -> Planned:
            _refuse_sparse(network, names)
            # The likelihood is never asked: a plan is about the network alone.
            model = BayesianModel(apart(network, names, others), Categorical(), parameters=lambda name: name in names)
            model = model.bound(training=network.training)
            model.network.spread = len({p.device for p in network.parameters()}) > 1
            params = {k: p.detach() for k, p in network.named_parameters() if k in names}
            with (
                torch.autocast(like.device.type, enabled=False),
                explained(),
                _out_of_checkpoints(),
            ):
                plan = plan_for(model, params, inputs, names)
            direct = {k: plan.direct(k) for k in names}
            return plan, [[k for k, d in direct.items() if d is not None and d[0] == i] for i in range(len(plan.calls))]

        return self._plans.get_or_make((*kind, shapes, str(spec)), make)

    def warn_of_numbers(self, another: str, name: str) -> None:
        """Say once that passes which take another way than the first of their kind are slow."""
        if not self.warned:
            log.warning(
                "%s, so those of single examples are taken one by one, which is slow; if %s chooses layers, give it as a str",
                another, name,
            )  # fmt: skip
        self.warned = True


@contextmanager
def _out_of_checkpoints() -> Iterator[None]:
    """Without the hooks of a checkpoint around the network, which counts what is saved in the pass."""
    hooks = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextmanager
def explained() -> Iterator[None]:
    """Say of an error where it comes from: the user has run the network on other inputs."""
    try:
        yield
    except (NotSupported, FloatingPointError):
        raise
    except Exception as error:
        error.add_note(
            "This is of a run on the first three examples alone, from which it is learnt how single examples have gradients: "
            "every input is cut along its first axis. What has none in front, such as a mask for all of them, can be "
            "a buffer or an attribute of the network; pl.optim.IVON cuts nothing."
        )
        raise


def _refuse_sparse(network: nn.Module, names: tuple[str, ...]) -> None:
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and f"{name}.weight" in names:
            raise RuntimeError(f"the gradient of {name}.weight is sparse; build the layer with sparse=False")
