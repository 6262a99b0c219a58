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
from .tree import Slots, toss, turns

DEEPEST = 20  # a million leapfrogs


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

    def _steps(self, state: dict[str, Any], step: Tensor, uniform: Tensor) -> dict[str, Tensor]:
        """The step size of a tree, and where it was found by itself also how it follows from the tree's first point."""
        step_size = self.step_size_now(state, step)
        if self.step_size is not None:
            return {"step_size": step_size}
        pull, usual = log_pull(state["slope"], step_size), state["usual_pull"]
        halvings, chance = drawn(wanted_halvings(pull, usual), uniform)
        return {
            "step_size": step_size * 0.5**halvings,
            "longest_step": step_size,
            "pull": pull,
            "usual_pull": usual,
            "halvings": halvings,
            "chance": chance,
        }

    def _leaf_weight(self, walk: dict[str, Any], slope: Tensor, weight: Tensor) -> Tensor:
        """A leaf's density relative to the first one's, the chance of this step size included."""
        if self.step_size is not None:
            return weight
        wanted = wanted_halvings(log_pull(slope, walk["longest_step"]), walk["usual_pull"])
        whole = weight + log_chance(walk["halvings"], wanted) - walk["chance"]
        return whole.masked_fill(whole.isnan(), -math.inf)  # without a slope there is no energy either

    def _learned(self, state: dict[str, Any], walk: dict[str, Any], acceptance: Tensor, step: Tensor) -> dict[str, Any]:
        """What every sampler learns from a transition, and which pulls it accepts."""
        learned = self.learned(state, walk["draw"]["point"], acceptance, step)
        if self.step_size is not None:
            return learned
        active = (step < self.warm_up) & self.settled(step)
        pulls = seen(state["pulls"], walk["pull"], acceptance, active)
        return {**learned, "pulls": pulls, "usual_pull": walk["usual_pull"]}

    # --- a tree ---

    @property
    def num_moves(self) -> int:
        """The leapfrogs of the deepest tree."""
        return 2**self.max_depth - 1

    def unfinished(self, walk: dict[str, Any]) -> Tensor:
        """Whether the tree still grows."""
        return walk["growing"]

    def begin(self, model: Any, state: dict[str, Any], batch: Any, rng: Keys) -> dict[str, Any]:
        """A tree of one leaf. Which way it doubles is drawn now, all at once."""
        point = to_vector(state["params"])
        here = Phase(point, rng.normal_like(point), state["slope"], state["log_joint"])
        chance = rng.uniform(2, torch.float64)
        scaled = (chance * 2**self.max_depth)[0]
        directions = scaled.to(torch.int64)  # a bit for each doubling
        edge = {"point": here.point, "momentum": here.momentum, "slope": here.slope}
        zero, energy = torch.zeros_like(here.log_joint), here.energy
        draw = {"point": here.point, "slope": here.slope, "log_joint": here.log_joint, "energy": energy}
        return {
            **edge,  # the leaf that grows next
            "log_joint": here.log_joint,
            "left": edge,
            "right": edge,
            "draw": draw,
            "weight": zero,  # of all leaves, as a log, relative to the first
            "total": here.momentum,  # the sum of the tree's momenta
            "subtree": {"draw": draw, "weight": zero, "total": torch.zeros_like(here.momentum)},
            "slots": Slots.empty(here.momentum, self.max_depth).tree(),
            "depth": torch.zeros_like(directions),
            "leaf": torch.zeros_like(directions),  # of the subtree
            "directions": directions,
            "uniform": chance[1],
            "growing": zero == 0,
            "acceptance": zero,  # summed over leaves
            "leapfrogs": zero,
            "divergent": zero,
            "energy": energy,
            "mass": state["mass"],
            **self._steps(state, rng.step, scaled - directions),  # what is left of a uniform number is one
        }

    def move(self, model: Any, walk: dict[str, Any], batch: Any) -> dict[str, Any]:
        """Grow one leaf; then close the subtrees that end with it, and the tree if it must end."""
        growing, leaf, depth = walk["growing"], walk["leaf"], walk["depth"]
        first = leaf == 0
        forwards = (walk["directions"] >> depth) & 1 == 1
        edge = _chosen(forwards, walk["right"], walk["left"])
        at = _chosen(first, edge, walk)
        epsilon = torch.where(forwards, walk["step_size"], -walk["step_size"]) * growing
        new = leapfrog(model, self.mass_rule, walk["mass"], (at["point"], at["momentum"], at["slope"]), epsilon, batch)
        weight = energy_change(new.energy, walk["energy"])
        divergent = weight < -DIVERGENT

        leaf_weight = self._leaf_weight(walk, new.slope, weight)
        subtree, uniform = _with_leaf(walk["subtree"], new, leaf_weight, first, walk["uniform"])
        slots = Slots(**walk["slots"]).with_leaf(leaf, new.momentum, subtree["total"], at["momentum"])
        failed = divergent | slots.turning(leaf, new.momentum, subtree["total"])

        full = leaf + 1 == torch.ones_like(depth) << depth
        joined = growing & full & ~failed
        taken, rest = toss(uniform, (subtree["weight"] - walk["weight"]).clamp(max=0.0).exp())
        far = torch.where(forwards, walk["left"]["momentum"], walk["right"]["momentum"])
        turned = _turned(far, walk["total"], edge["momentum"], slots.momenta[0], subtree["total"], new.momentum)
        here = {"point": new.point, "momentum": new.momentum, "slope": new.slope}
        ended = failed | (full & (turned | (depth + 1 == self.max_depth)))
        return {
            **walk,
            **here,
            "log_joint": new.log_joint,
            "left": _chosen(joined & ~forwards, here, walk["left"]),
            "right": _chosen(joined & forwards, here, walk["right"]),
            "draw": _chosen(joined & taken, subtree["draw"], walk["draw"]),
            "weight": torch.where(joined, torch.logaddexp(walk["weight"], subtree["weight"]), walk["weight"]),
            "total": torch.where(joined, walk["total"] + subtree["total"], walk["total"]),
            "subtree": subtree,
            "slots": slots.tree(),
            "depth": depth + (growing & full),
            "leaf": (leaf + 1) * ~full,
            "uniform": torch.where(joined, rest, uniform),
            "growing": growing & ~ended,
            "acceptance": walk["acceptance"] + growing * weight.clamp(max=0.0).exp(),
            "leapfrogs": walk["leapfrogs"] + growing,
            "divergent": walk["divergent"] + (growing & divergent),
        }

    def end(
        self, model: Any, state: dict[str, Any], walk: dict[str, Any], rng: Keys
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Go to the draw, and learn from the tree while warming up."""
        draw, acceptance = walk["draw"], walk["acceptance"] / walk["leapfrogs"]
        noted = {
            "log_joint": draw["log_joint"],
            "acceptance": acceptance,
            "divergent": self.since_kept("divergent", walk["divergent"], state, rng.step),
            **self.energy_noted(-draw["energy"], state, rng.step),
            "depth": (walk["leapfrogs"] + 1).log2().ceil(),
            "leapfrogs": walk["leapfrogs"],
        }
        state = {
            "params": from_vector(draw["point"], model.start),
            "log_joint": draw["log_joint"].clone(),
            "slope": draw["slope"],
            "noted": noted,
            **self._learned(state, walk, acceptance, rng.step),
        }
        shown = {
            "log_joint": draw["log_joint"],
            "acceptance": acceptance,
            "step_size": walk["step_size"],
            "leapfrogs": walk["leapfrogs"],
        }
        return state, shown


def _chosen(condition: Tensor, yes: dict[str, Tensor], no: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: torch.where(condition, v, no[k]) for k, v in yes.items()}


def _with_leaf(
    subtree: dict[str, Any], new: Phase, weight: Tensor, first: Tensor, uniform: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """The subtree with one more leaf, which becomes its draw by its share of the weight."""
    before = subtree["weight"].masked_fill(first, -float("inf"))
    both = torch.logaddexp(before, weight)
    share = (weight - both).exp().nan_to_num(0.0)  # 0 / 0 where no leaf of it weighs anything yet
    taken, uniform = toss(uniform, share)
    leaf = {"point": new.point, "slope": new.slope, "log_joint": new.log_joint, "energy": new.energy}
    total = subtree["total"].masked_fill(first, 0.0) + new.momentum
    return {"draw": _chosen(taken, leaf, subtree["draw"]), "weight": both, "total": total}, uniform


def _turned(far: Tensor, old: Tensor, near: Tensor, start: Tensor, added: Tensor, end: Tensor) -> Tensor:
    """Whether a tree and the subtree that was added beyond `near` turn back, together or across their seam."""
    return turns(far, end, old + added) | turns(far, start, old + start) | turns(near, end, added + near)
