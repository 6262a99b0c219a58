"""The no-U-turn sampler (Hoffman & Gelman, 2014) with multinomial draws (Betancourt, 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.method import Trajectory, require
from ...weights.algebra import Weights, from_vector, to_vector
from ...weights.rng import Keys
from .adaptation import TREES, Search
from .leapfrog import DIVERGENT, Phase, energy_change, leapfrog
from .local_steps import drawn, log_chance, log_pull, nothing_seen, seen, usual_pull, wanted_halvings
from .sampler import MASSES, Sampler
from .tree import Leaf, Rows, toss

DEEPEST = 20  # a million leapfrogs
# The numbers that move and those that stay are a tensor each: in a leapfrog of a small network, memory for thirty tensors
# of one number takes as long as the bookkeeping itself.
MOVING = ("status", "uniform", "weight", "subtree_weight", "acceptance", *Leaf._fields)
FIXED = ("energy", "directions", "step_size")
LOCAL = ("longest_step", "pull", "usual_pull", "halvings", "chance")  # where the step size was found by itself
GROWING, DIVERGED = 1, -1  # a status; one that has turned back has none
POINT, MOMENTUM, SLOPE = 0, 1, 2  # in the vector of a phase, before its log joint and its energy


@dataclass(frozen=True, kw_only=True)
class NUTS(Sampler, Trajectory):
    """Double a trajectory forwards or backwards until it turns back, and draw one of its points by their densities.

    A doubling adds a subtree of 2ᵈ leapfrogs. Leaves weigh exp(−H); inside a subtree the draw is multinomial, and a whole
    subtree takes over with min(1, its weight / the tree's), which favours points far away. A tree ends where the momenta
    at its ends oppose their sum, where a part of it does so, as a whole or across the seam of its halves (as in Stan),
    where the energy error exceeds 1,000, and at `max_depth`.

    All chains make one leapfrog at a time together, and one whose tree has ended waits for the others.

    A step size that was adapted is right nearly everywhere; where the posterior is stiffer, a tree's steps are halved up to
    three times, and its leaves weigh also by the chance that they would have led to the same step size (Bou-Rabee et al.,
    2024): the posterior stays what it is. One that is given is left alone.

    Args:
        step_size: ε; None adapts it.
        max_depth: Doublings at most.
        mass: "diagonal", "full" or "identity".
        warmup: Steps of adaptation, which are not kept.
        thin: Keep every so many-th draw.
        target_acceptance: What ε is adapted to: the average over a tree of min(1, exp(H₀ − H)).
    """

    slopes_per_step: ClassVar[int] = 64
    search: ClassVar[Search] = TREES

    step_size: float | None = None
    max_depth: int = 10
    mass: str = "diagonal"
    warmup: int | None = None
    thin: int = 1
    target_acceptance: float = 0.8

    def __post_init__(self):
        step, depth = self.step_size, self.max_depth
        require(step is None or 0 < step < math.inf, f"step_size must be positive and finite, got {step}")
        require(
            isinstance(depth, int) and 1 <= depth <= DEEPEST,
            f"max_depth must be an integer from 1 to {DEEPEST}, got {depth}",
        )
        require(self.mass in MASSES, f'mass must be "diagonal", "full" or "identity", got {self.mass!r}')
        require(0 < self.target_acceptance < 1, f"target_acceptance must lie in (0, 1), got {self.target_acceptance}")
        self.check_course()

    @property
    def given_step(self) -> float | None:
        """As told."""
        return self.step_size

    @property
    def target(self) -> float:
        """As told."""
        return self.target_acceptance

    @property
    def kind(self) -> str:
        """As told."""
        return self.mass

    @property
    def noted_names(self) -> tuple[str, ...]:
        """What is noted beside every draw."""
        return ("log_joint", "acceptance", "divergent", *self.energy_names, "depth", "leapfrogs")

    def first_step(self, unknowns: int) -> float:
        """Small for any posterior that is not very narrow."""
        return 0.1 * unknowns**-0.25

    # --- shorter steps, after a warm-up that found the usual one ---

    def init(self, model: Any, params: Weights) -> dict[str, Any]:
        """A sampler's state, and what pulls are usual: any, until it is known."""
        state = super().init(model, params)
        if self.step_size is not None:
            return state
        zero = state["log_joint"]
        return {**state, "pulls": nothing_seen(zero), "usual_pull": torch.full_like(zero, math.inf)}

    def adapted_steps(self, num_steps: int) -> Sequence[int]:
        """The ends of the windows and of warm-up."""
        ends = super().adapted_steps(num_steps)
        return [*ends, self.warm_up - 1] if self.warm_up and self.step_size is None else ends

    def adapt(self, model: Any, state: dict[str, Any], step: int) -> dict[str, Any]:
        """What every sampler adapts; in another mass, pulls are seen anew."""
        adapted = super().adapt(model, state, step)
        if self.step_size is not None:
            return adapted
        if step == self.warm_up - 1:
            return {**adapted, "usual_pull": usual_pull(state["pulls"], state["slope"])}
        return adapted if adapted is state else {**adapted, "pulls": nothing_seen(state["log_joint"])}

    def _steps(self, state: dict[str, Any], step: Tensor, uniform: Tensor) -> tuple[Tensor, ...]:
        """The step size of a tree, and where it was found by itself also how it follows from the tree's first point."""
        step_size = self.step_size_now(state, step)
        if self.step_size is not None:
            return (step_size,)
        pull, usual = log_pull(state["slope"], step_size), state["usual_pull"]
        halvings, chance = drawn(wanted_halvings(pull, usual), uniform)
        return step_size * 0.5**halvings, step_size, pull, usual, halvings, chance

    @property
    def _fixed_names(self) -> tuple[str, ...]:
        return FIXED if self.step_size is not None else (*FIXED, *LOCAL)

    def _leaf_weight(self, fixed: dict[str, Tensor], slope: Tensor, weight: Tensor) -> Tensor:
        """A leaf's density relative to the first one's, the chance of this step size included."""
        if self.step_size is not None:
            return weight
        wanted = wanted_halvings(log_pull(slope, fixed["longest_step"]), fixed["usual_pull"])
        whole = weight + log_chance(fixed["halvings"], wanted) - fixed["chance"]
        return whole.masked_fill(whole.isnan(), -math.inf)  # without a slope there is no energy either

    def _learned(
        self, state: dict[str, Any], point: Tensor, fixed: dict[str, Tensor], acceptance: Tensor, step: Tensor
    ) -> dict[str, Any]:
        """What every sampler learns from a transition, and which pulls it accepts."""
        learned = self.learned(state, point, acceptance, step)
        if self.step_size is not None:
            return learned
        active = (step < self.warm_up) & self.settled(step)
        pulls = seen(state["pulls"], fixed["pull"], acceptance, active)
        return {**learned, "pulls": pulls, "usual_pull": state["usual_pull"]}

    # --- a tree ---

    @property
    def num_moves(self) -> int:
        """The leapfrogs of the deepest tree."""
        return 2**self.max_depth - 1

    def unfinished(self, walk: dict[str, Any]) -> Tensor:
        """Whether the tree still grows."""
        return walk["moving"][..., MOVING.index("status")] == GROWING

    def seen(self, walk: dict[str, Any]) -> dict[str, Any]:
        """The leaf that grew last."""
        parts = walk["leaf"].split(_sizes(walk["leaf"]), -1)
        return {"point": parts[POINT], "slope": parts[SLOPE], "log_joint": parts[-2].squeeze(-1)}

    def begin(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """A tree of one leaf. Which way it doubles is drawn now, all at once."""
        point = to_vector(state["params"])
        here = Phase(point, rng.normal_like(point), state["slope"], state["log_joint"])
        chance = rng.uniform(2, torch.float64)
        scaled, uniform = (chance * 2**self.max_depth)[0], chance[1]
        directions = scaled.floor()  # a bit for each doubling
        steps = self._steps(state, rng.step, scaled - directions)  # what is left of a uniform number is one
        leaf, zero, growing = _flat(here), torch.zeros_like(uniform), torch.full_like(uniform, GROWING)
        return {
            "leaf": leaf,  # the last that grew: one end of the tree, where no subtree is under way
            "far": leaf,  # the other end
            "draw": leaf,
            "subtree_draw": leaf,
            "total": here.momentum,  # summed over the last subtree
            "rows": Rows.empty(here.momentum, self.max_depth).tree(),
            "moving": torch.stack([growing, uniform, zero, zero, zero, *Leaf.zeroth(zero)]),
            "fixed": torch.stack([leaf[-1], directions, *steps]),  # the directions make them all doubles
            "mass": self.mass_rule.in_use(state["mass"]),
        }

    def move(self, model: Any, walk: dict[str, Any], batch: Any) -> dict[str, Any]:
        """Grow one leaf; then close the subtrees that end with it, and the tree if it must end."""
        now, fixed = _named(MOVING, walk["moving"]), _named(self._fixed_names, walk["fixed"])
        growing, leaf = now["status"] == GROWING, _leaf(now)
        directions, size = fixed["directions"].to(torch.int64), leaf.size.to(torch.int64)
        forwards = directions & size != 0
        about = leaf.first & (forwards ^ (directions & (size >> 1) != 0))  # now it grows at the other end
        at, far = torch.where(about, walk["far"], walk["leaf"]), torch.where(about, walk["leaf"], walk["far"])
        epsilon = (torch.where(forwards, fixed["step_size"], -fixed["step_size"]) * growing).to(at.dtype)
        parts, other = at.split(_sizes(at)), far.split(_sizes(far))
        new = leapfrog(model, self.mass_rule, walk["mass"], parts[:3], epsilon, batch)
        here, momentum = _flat(new), new.momentum
        weight = energy_change(new.energy, fixed["energy"])
        divergent = weight < -DIVERGENT

        total = walk["total"].masked_fill(leaf.first, 0.0) + momentum
        rows = Rows(**walk["rows"]).with_tree(leaf.first, other[MOMENTUM], walk["total"])
        rows = rows.with_leaf(leaf, momentum, total, parts[MOMENTUM])
        part, whole = rows.turning(leaf, momentum, total)
        failed = divergent | part
        ended = failed | (leaf.last & (whole | (leaf.size == 2 ** (self.max_depth - 1))))
        joined = growing & leaf.last & ~failed

        before = now["subtree_weight"].masked_fill(leaf.first, -math.inf)
        subtree_weight, share = _with_leaf(before, self._leaf_weight(fixed, new.slope, weight))
        taken, uniform = toss(now["uniform"], share)
        subtree_draw = torch.where(taken, here, walk["subtree_draw"])
        taken_over, rest = toss(uniform, (subtree_weight - now["weight"]).clamp(max=0.0).exp())
        moving = {
            "status": now["status"] * ~(growing & ended) + (growing & divergent) * DIVERGED,
            "uniform": torch.where(joined, rest, uniform),
            "weight": torch.where(joined, torch.logaddexp(now["weight"], subtree_weight), now["weight"]),
            "subtree_weight": subtree_weight,
            "acceptance": now["acceptance"] + growing * weight.clamp(max=0.0).exp(),
            **leaf.next(growing)._asdict(),
        }
        return {
            **walk,
            "leaf": here,
            "far": far,
            "draw": torch.where(joined & taken_over, subtree_draw, walk["draw"]),
            "subtree_draw": subtree_draw,
            "total": total,
            "rows": rows.tree(),
            "moving": torch.stack([moving[k] for k in MOVING]),
        }

    def end(
        self, model: Any, state: dict[str, Any], walk: dict[str, Any], rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Go to the draw, and learn from the tree while warming up."""
        point, _, slope, *ends = walk["draw"].split(_sizes(walk["draw"]))
        log_joint, energy = (number.squeeze() for number in ends)
        now = _named(MOVING, walk["moving"].to(slope.dtype))
        fixed = _named(self._fixed_names, walk["fixed"].to(slope.dtype))
        leapfrogs = _leaf(now).leapfrogs
        acceptance, divergent = now["acceptance"] / leapfrogs, (now["status"] == DIVERGED).to(slope.dtype)
        noted = {
            "log_joint": log_joint,
            "acceptance": acceptance,
            "divergent": self.since_kept("divergent", divergent, state, rng.step),
            **self.energy_noted(-energy, state, rng.step),
            "depth": (leapfrogs + 1).log2().ceil(),
            "leapfrogs": leapfrogs,
        }
        state = {
            "params": from_vector(point, model.start),
            "log_joint": log_joint.clone(),
            "slope": slope,
            "noted": noted,
            **self._learned(state, point, fixed, acceptance, rng.step),
        }
        shown = {"log_joint": log_joint, "acceptance": acceptance, "leapfrogs": leapfrogs}
        return state, {**shown, "step_size": fixed["step_size"]}


def _flat(phase: Phase) -> Tensor:
    """A phase and its energy as one vector."""
    return torch.cat([*phase[:3], phase.log_joint.unsqueeze(0), phase.energy.unsqueeze(0)])


def _sizes(phases: Tensor) -> list[int]:
    """Of the parts of a phase's vector."""
    unknowns = phases.shape[-1] // 3
    return [unknowns, unknowns, unknowns, 1, 1]


def _named(names: tuple[str, ...], numbers: Tensor) -> dict[str, Tensor]:
    return dict(zip(names, numbers.unbind(), strict=True))


def _leaf(numbers: dict[str, Tensor]) -> Leaf:
    return Leaf(*(numbers[name] for name in Leaf._fields))


def _with_leaf(before: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The log weight of a subtree with one more leaf, and the share of that leaf."""
    both = torch.logaddexp(before, weight)
    return both, (weight - both).exp().nan_to_num(0.0)  # 0 / 0 where no leaf of it weighs anything yet
