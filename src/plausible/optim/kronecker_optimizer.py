"""What K-FAC and noisy K-FAC share as optimisers: factors from the user's own backward passes, and the step by them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Kronecker
from ..curvature import kronecker
from ..curvature.passes import Traced
from ..inference.natural_gradient.answer import checked
from ..inference.natural_gradient.kronecker_method import looks_at
from ..inference.natural_gradient.kronecker_preconditioner import (
    JOINED,
    Factors,
    Inverse,
    Roots,
    averaged,
    block_key,
    gaussian,
    precondition,
    roots,
    squared,
)
from ..weights import tree
from ..weights.algebra import Weights, scale_, wide_zeros
from .checks import number, whole
from .measured import averages, require_measured
from .optimizer import BayesianOptimizer, Part
from .parts import require_examples

log = logging.getLogger("plausible")


class KroneckerOptimizer(BayesianOptimizer):
    """Natural gradients whose metric is Kronecker factors of the examples' own gradients, renewed now and then.

    What it remembers is in `state[weight]`: "first" (momentum), and "rows" and "columns" of a block or "diagonal", of the log
    likelihood of all N examples; which bias is one more column of which weight is in the groups, under "joined".
    """

    def __init__(
        self, network: nn.Module, *, num_data: float, lr: float, momentum: float, curvature_decay: float, damping: float,
        update_every: int, trust: float | None, prior_precision: float | Mapping[str, float], num_samples: int, reduction: str,
        seed: int,
    ):  # fmt: skip
        momentum, curvature_decay = number("momentum", momentum), number("curvature_decay", curvature_decay)
        damping, update_every = number("damping", damping), whole("update_every", update_every)
        trust = None if trust is None else number("trust", trust)
        require(0 <= momentum < 1, f"momentum must lie in [0, 1), got {momentum}")
        require(0 <= curvature_decay < 1, f"curvature_decay must lie in [0, 1), got {curvature_decay}")
        require(damping >= 0, f"damping must not be negative, got {damping}")
        require(update_every >= 1, f"update_every must be a positive integer, got {update_every}")
        require(trust is None or trust > 0, f"trust must be positive, got {trust}")
        self._forget_metric()
        numbers: dict[str, Any] = {
            "lr": lr, "momentum": momentum, "curvature_decay": curvature_decay, "damping": damping,
            "update_every": update_every, "trust": trust, "looks": 0, "seen": 0.0, "largest": 0.0, "joined": {},
        }  # fmt: skip
        super().__init__(
            network, numbers, num_data=num_data, prior_precision=prior_precision, reduction=reduction,
            num_samples=num_samples, seed=seed,
        )  # fmt: skip

    @property
    def measures(self) -> bool:  # type: ignore[override]
        """Whether this step looks at the curvature: the first few, then every `update_every`-th."""
        if not getattr(self, "param_groups", None):
            return True  # while it is made
        first = self.param_groups[0]
        return looks_at(first["step"], first["update_every"])

    # --- what backward passes tell ---

    def measure(self, traced: Traced, columns: Tensor, names: Sequence[str]) -> None:
        """Factors of the gradients on the scale of the loss, and of the inputs."""
        found = kronecker.factors(traced, [columns], None)
        keys = {b.weight: block_key(b.weight, b.bias) for b in kronecker.blocks(traced.plan, traced.names)}
        for what in ("rows", "columns", "count"):
            self.ledger.now.add(what, {keys[k]: own[what] for k, own in found["blocks"].items()})
        self.ledger.now.add("diagonal", {k: v for k, v in found["diagonal"].items() if k in traced.plan.reached})

    def _close_draw(self) -> None:
        """With a mean loss of B examples, gᵢ is B times what backward brings; Σᵢ gᵢ gᵢᵀ / B is B times Σᵢ of its products."""
        now = self.ledger.now
        for what in ("rows", "diagonal"):
            if self.reduction == "mean" and now.tensors.get(what):
                scale_(now.tensors[what], float(now.examples))

    def _look(self) -> None:
        """Bring the factors up to date."""
        done = self.ledger.done
        require_examples(self)
        parts = {what: done.tensors.get(what, {}) for what in ("rows", "columns", "count", "diagonal")}
        seen = {k for key in parts["rows"] for k in key.split(JOINED)} | parts["diagonal"].keys()
        require_measured(self, (k for k in self.weights() if k not in seen))
        rows = self._sums("rows", parts["rows"])
        blocks = {k: {"rows": r, "columns": parts["columns"][k] / parts["count"][k]} for k, r in rows.items()}
        diagonal = self._sums("diagonal", parts["diagonal"])
        found: Factors = {"blocks": blocks, "diagonal": diagonal}
        if not all(bool(t.isfinite().all()) for _, t in tree.leaves(found)):
            step = self.param_groups[0]["step"]
            log.warning("the curvature of step %d is not finite and was left out; is the loss, or lr too large?", step)
            return
        first = self.param_groups[0]
        self._set("looks", first["looks"] + 1)
        self._set("seen", first["seen"] + done.examples)
        self._set("largest", max(first["largest"], done.examples))
        self._remember(found, done.examples)
        self._forget_metric()

    def _remember(self, found: Factors, examples: float) -> None:
        """Average with what is known, by numbers of examples, since an epoch's last batch may have few.

        Of a weight that no gradient came to, such as another task's, that stays as it is.
        """
        first, known, weights = self.param_groups[0], self.factors(), self.weights()
        share = examples * max(1 / first["seen"], (1 - first["curvature_decay"]) / first["largest"])
        joined = dict(first["joined"])
        for key, own in found["blocks"].items():
            weight, _, bias = key.partition(JOINED)
            if weights[weight].grad is None:
                continue
            before = known["blocks"].get(key)
            self.state[weights[weight]].update(own if before is None else averaged(before, own, share))
            joined.pop(weight, None)
            if bias:
                joined[weight] = bias
        for k, own in found["diagonal"].items():
            if weights[k].grad is not None:
                before = known["diagonal"].get(k)
                self.state[weights[k]]["diagonal"] = own if before is None else averaged(before, own, share)
        self._set("joined", joined)

    def _sums(self, what: str, found: Weights) -> Weights:
        """Over all N examples."""
        return scale_(averages(self, what, 2, found), float(self.num_data)) if found else {}

    def factors(self) -> Factors:
        """As `inference.natural_gradient.kronecker_preconditioner` has them; empty before the first look."""
        found: Factors = {"blocks": {}, "diagonal": {}}
        joined = self.param_groups[0]["joined"]
        for k, p in self.weights().items():
            own = self.state[p]
            if "rows" in own:
                found["blocks"][block_key(k, joined.get(k))] = {x: own[x] for x in ("rows", "columns")}
            elif "diagonal" in own and k not in joined.values():
                found["diagonal"][k] = own["diagonal"]
        return found

    def roots(self) -> Roots:
        """Of the inverse of factors and prior."""
        if "roots" not in self._made:
            self._made["roots"] = roots(self._all_factors(), self._prior(), self.weights())
        return self._made["roots"]

    def _inverse(self, damping: float) -> Inverse:
        """Of factors, prior and damping."""
        name = repr(damping)
        if name not in self._made:
            damped = roots(self._all_factors(), self._prior(), self.weights(), damping * self.num_data)
            self._made[name] = squared(damped)
        return self._made[name]

    def _all_factors(self) -> Factors:
        """With zeros for weights that no gradient ever came to."""
        found = self.factors()
        covered = {k for key in found["blocks"] for k in key.split(JOINED)} | found["diagonal"].keys()
        rest = {k: wide_zeros(p) for k, p in self.weights().items() if k not in covered}
        return {"blocks": found["blocks"], "diagonal": {**found["diagonal"], **rest}}

    def _prior(self) -> dict[str, float]:
        return {k: g["prior_precision"] for g in self.param_groups for k in g["param_names"]}

    def _forget_metric(self) -> None:
        """It follows from the factors, so that no state need hold it."""
        self._made: dict[str, Roots | Inverse] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_metric()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on as the optimiser did whose state it is."""
        super().load_state_dict(state_dict)
        self._forget_metric()

    # --- the step ---

    def _update(self, parts: list[Part]) -> None:
        if self.measures:
            self._look()
        weights, first = self.weights(), self.param_groups[0]
        uphill: Weights = {k: wide_zeros(p) for k, p in weights.items()}
        for part in parts:
            pull = part.prior.pull(part.params)
            uphill.update({k: -(g * self.num_data + pull[k]) for k, g in part.gradient.items()})
        beta, count = first["momentum"], first["step"] + 1
        momentum: Weights = {}
        for k, p in weights.items():
            before = self.state[p].get("first", wide_zeros(p))
            momentum[k] = self.state[p]["first"] = before * beta + (1 - beta) * uphill[k]
        step = precondition(self._inverse(first["damping"]), momentum)
        home = next(iter(step.values())).device
        change = sum((momentum[k] * s).sum().to(home, torch.float64) for k, s in step.items())
        for part in parts:
            rate = part.group["lr"] / (1 - beta**count)
            rate = rate * self._shortening(rate * rate * change)
            for k, w in part.params.items():
                w.add_(step[k] * rate.to(step[k].device, step[k].dtype))

    def _shortening(self, change: Any) -> Tensor:
        """What brings twice the nats by which predictions would change down to what is trusted."""
        trust = self.param_groups[0]["trust"]
        if trust is None:
            return torch.ones_like(change)
        return (2 * trust * self.num_data / change.clamp(min=torch.finfo(torch.float32).tiny)).sqrt().clamp(max=1.0)

    def _posterior(self, model: BayesianModel, mean: Weights) -> Kronecker:
        if not self.param_groups[0]["looks"]:
            raise RuntimeError(
                f"{type(self).__name__} has made no step yet, so there is no curvature to make a posterior of"
            )
        return checked(gaussian(model, mean, tree.clone(self._all_factors()), self._prior()))
