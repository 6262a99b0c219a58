"""What the contract test runs: every public method at toy size, and the data and networks it meets.

Also a small program: `python contract_cases.py CASE CHECKPOINT` fits one case slowly, for tests that kill it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

import plausible as pl
from plausible.weights import tree


@dataclass(frozen=True)
class Case:
    """A method with numbers that make it quick, and how many steps it takes."""

    method: pl.Method
    steps: int = 20
    rejects: bool = False  # whether it accepts or rejects, so that one last bit can change a whole draw
    masks: bool = False  # whether it drops from layers, so that what it climbs is no log joint of any weights


# The first case of a method is its plainest; further ones are other code paths of the same method.
CASES = {
    "MAP": Case(pl.MAP(learning_rate=0.02)),
    "MAP-sgd": Case(pl.MAP(optimizer="sgd", learning_rate=0.05, clip_norm=1.0, schedule="one-cycle")),
    "MAP-adamw": Case(pl.MAP(optimizer="adamw", learning_rate=0.02, schedule="warm-up")),
    "DeepEnsemble": Case(pl.DeepEnsemble(members=3, base=pl.MAP(learning_rate=0.02))),
    "SWAG": Case(pl.SWAG(rank=3, start=0.5, base=pl.MAP(optimizer="sgd", learning_rate=0.05))),
    "MultiSWAG": Case(pl.MultiSWAG(modes=3, base=pl.SWAG(rank=8, start=0.4))),
    "Laplace": Case(pl.Laplace(base=pl.MAP(learning_rate=0.02))),
    "Laplace-diagonal": Case(pl.Laplace(structure="diagonal", curvature="mc-fisher", base=pl.MAP(learning_rate=0.02))),
    "Laplace-low-rank": Case(pl.Laplace(structure="low-rank", rank=3, base=pl.MAP(learning_rate=0.02))),
    "Laplace-full": Case(pl.Laplace(structure="full", subset="last-layer", base=pl.MAP(learning_rate=0.02))),
    "SGLD": Case(pl.SGLD(step_size=2e-3)),
    "SGLD-preconditioned": Case(pl.SGLD(step_size=1e-4, preconditioned=True, schedule="cosine", thin=2)),
    "SGHMC": Case(pl.SGHMC(step_size=0.02)),
    "SGHMC-svrg": Case(pl.SGHMC(step_size=0.02, variance_reduction="svrg")),
    "SGHMC-saga": Case(pl.SGHMC(step_size=0.02, variance_reduction="saga")),
    "CyclicalSGMCMC": Case(pl.CyclicalSGMCMC(base=pl.SGHMC(step_size=0.02), cycles=2, exploration=0.5)),
    "HMC": Case(pl.HMC(trajectory_length=0.3, warmup=12), rejects=True),
    "NUTS": Case(pl.NUTS(max_depth=3, warmup=12), rejects=True),
    "MALA": Case(pl.MALA(warmup=12), rejects=True),
    "Metropolis": Case(pl.Metropolis(warmup=12), rejects=True),
    "HMC-full": Case(pl.HMC(mass="full", trajectory_length=0.3, warmup=22), steps=28, rejects=True),
    "ADVI": Case(pl.ADVI(learning_rate=0.02)),
    "ADVI-low-rank": Case(pl.ADVI(family="low-rank", rank=3, num_samples=2, learning_rate=0.02)),
    "ADVI-full": Case(pl.ADVI(family="full", num_samples=2, estimator="sticking-the-landing", learning_rate=0.02)),
    "ADVI-adaptive": Case(pl.ADVI(optimizer="adaptive"), steps=24),
    "BayesByBackprop": Case(pl.BayesByBackprop(learning_rate=0.02)),
    "BayesByBackprop-flipout": Case(pl.BayesByBackprop(estimator="flipout", learning_rate=0.02)),
    "MCDropout": Case(pl.MCDropout(rate=0.2, base=pl.MAP(learning_rate=0.02)), masks=True),
    "MCDropout-linear": Case(
        pl.MCDropout(rate={"2": 0.3}, where="linear", base=pl.MAP(optimizer="adamw", learning_rate=0.02)), masks=True
    ),
    "VOGN": Case(pl.VOGN()),
    "VOGN-tempered": Case(
        pl.VOGN(
            num_samples=2, tempering=0.5, tempering_start=0.1, tempering_warmup=9, augmentation_factor=2.0, damping=1e-3
        )
    ),
    "OGN": Case(pl.OGN(schedule="constant", learning_rate=5e-3)),
    "IVON": Case(pl.IVON()),
    "NaturalGradientVI": Case(pl.NaturalGradientVI()),
    "ConcreteDropout": Case(pl.ConcreteDropout(base=pl.MAP(learning_rate=0.02)), masks=True),
    "KFAC": Case(pl.KFAC(update_every=4)),
    "NoisyKFAC": Case(pl.NoisyKFAC(update_every=4)),
}
PLAIN = [name for name in CASES if "-" not in name]
ONE_MODE = [name for name, case in CASES.items() if case.method.unfold()[1] is None]


def public_methods() -> list[type]:
    """Every method that `plausible` exports."""
    found = [getattr(pl, name) for name in pl.__all__]
    return [c for c in found if isinstance(c, type) and issubclass(c, pl.Method) and c is not pl.Method]


def blobs(count: int = 50, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Three overlapping clouds in the plane; 50 is no multiple of the batch size, so that the last batch is ragged."""
    rng = torch.Generator().manual_seed(7)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[0.0, 1.5], [1.5, -1.0], [-1.5, -1.0]])
    return (centres[labels] + torch.randn(count, 2, generator=rng)).to(dtype), labels


def seeded(network: Any, seed: int = 3) -> nn.Module:
    """A network made under a seed, with the global generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network()


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))).to(dtype)


def model(network: nn.Module | None = None, **settings: Any) -> pl.BayesianModel:
    return pl.BayesianModel(network or mlp(), pl.likelihoods.Categorical(), **settings)


def fit(name: str, own_model: Any = None, data: Any = None, **settings: Any) -> Any:
    """Fit a case; whatever is not said is at its default here."""
    case = CASES[name]
    settings = {"steps": case.steps, "batch_size": 16, "progress": False, "device": "cpu", **settings}
    return pl.fit(own_model or model(), blobs() if data is None else data, case.method, **settings)


def tensors(posterior: Any) -> Iterator[tuple[str, Tensor]]:
    """All numbers of a posterior, its members' norm statistics among them."""
    yield from tree.leaves(posterior.tensors)
    for i, member in enumerate(posterior.components):
        if member.bank is not None:
            yield from ((f"bank {i}/{k}", v) for k, v in tree.leaves(member.bank))


def assert_same_bits(a: Any, b: Any) -> None:
    mine, theirs = dict(tensors(a)), dict(tensors(b))
    assert mine.keys() == theirs.keys()
    for k, v in mine.items():
        assert v.dtype == theirs[k].dtype and torch.equal(v, theirs[k]), f"{k} differs"


def differ(a: Any, b: Any) -> bool:
    theirs = dict(tensors(b))
    return any(not torch.equal(v, theirs[k]) for k, v in tensors(a))


def furthest(a: Any, b: Any) -> float:
    """The largest difference between two posteriors, relative to the size of the tensor it is in."""
    theirs = dict(tensors(b))
    gaps = [
        (float((v - theirs[k]).abs().max()), float(theirs[k].abs().max()))
        for k, v in tensors(a)
        if v.is_floating_point()
    ]
    return max(gap / max(size, 1e-6) for gap, size in gaps)


def pairwise_different(members: list[Any]) -> bool:
    return all(differ(a, b) for a, b in combinations(members, 2))


# --- networks that people bring ---


class Tied(nn.Module):
    """Decodes with the encoder's own weight."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(2, 3), nn.Linear(2, 3, bias=False)
        self.head.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x).tanh() @ self.encoder.weight @ self.head.weight.T


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(1, 6), nn.Linear(1, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out((self.left(left) + self.right(right)).tanh())


class FunctionalDropout(nn.Module):
    """Draws its masks from the global generator; `always` also in eval mode."""

    def __init__(self, always: bool = False):
        super().__init__()
        self.a, self.b, self.always = nn.Linear(2, 8), nn.Linear(8, 3), always

    def forward(self, x: Tensor) -> Tensor:
        return self.b(nn.functional.dropout(self.a(x).tanh(), 0.3, training=self.training or self.always))


def frozen() -> nn.Module:
    network = mlp()
    network[0].requires_grad_(False)
    return network


NETWORKS = {
    "batch norm": lambda: seeded(lambda: nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))),
    "dropout": lambda: seeded(lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))),
    "tied weights": lambda: seeded(Tied),
    "frozen weights": frozen,
    "dict inputs": lambda: seeded(TwoInputs),
}


def data_for(kind: str) -> Any:
    x, y = blobs()
    return {"left": x[:, :1], "right": x[:, 1:], "labels": y} if kind == "dict inputs" else (x, y)


def inputs_for(kind: str) -> Any:
    x, _ = blobs()
    return {"left": x[:9, :1], "right": x[:9, 1:]} if kind == "dict inputs" else x[:9]


class Stop(Exception):
    """What a test's callback raises in place of a kill."""


def stop_at(step: int) -> Any:
    def callback(event: dict[str, Any]) -> None:
        if event["step"] == step:
            raise Stop

    return callback


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, path = sys.argv[1:]
    slowly = [lambda event: time.sleep(0.05)]  # so that a kill meets a run that is under way
    fit(name, checkpoint=pl.Checkpoint(path, every_steps=1), callbacks=slowly)
