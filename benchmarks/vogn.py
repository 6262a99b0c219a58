"""Cost of natural-gradient steps beside Adam's, in one run on one GPU.

    python benchmarks/vogn.py --out results/vogn-h200.json
    python benchmarks/vogn.py --only lenet,resnet,memory
    python benchmarks/vogn.py --only ivon                       # both networks, IVON beside MAP and AdamW alone

Adam and AdamW are written by hand, fused and captured as CUDA graphs; all methods run through `pl.fit`, which captures them,
too. Both sides have the same network, data, batch size and precision. Ways take turns in rounds, since a machine that slows
down should slow all of them; a row has the median over the rounds.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from result_file import add_file_options, measure, origin
from timing import DEVICE, StepTimer, sync
from torch import nn

import plausible as pl

NETWORKS = {
    "LeNet-5": (lambda: pl.networks.LeNet5(channels=3, size=32), 400),
    "ResNet-18": (lambda: pl.networks.ResNet18(), 60),
}
PRECISIONS = (None, "bf16")
WANTED = {"VOGN": ("Adam, by hand", 1.5), "IVON": ("AdamW, by hand", 1.08)}


def data(count: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 3, 32, 32, device=DEVICE), torch.randint(0, 10, (count,), device=DEVICE)


class ByHand:
    """Shuffled batches, cross entropy, a fused optimiser; the step is a CUDA graph where there is a GPU."""

    def __init__(self, make: Callable[[], nn.Module], optimiser: type, batch_size: int, precision: str | None):
        self.network = make().to(DEVICE).train()
        options = {"capturable": True, "fused": True} if DEVICE.type == "cuda" else {}
        self.optimiser = optimiser(self.network.parameters(), lr=1e-3, **options)
        self.x, self.y = data()
        self.order, self.place, self.batch_size = torch.randperm(len(self.y), device=DEVICE), 0, batch_size
        self.precision = precision
        self.inputs, self.targets = self.x[:batch_size].clone(), self.y[:batch_size].clone()
        self.replay: Callable[[], object] = self._captured() if DEVICE.type == "cuda" else self._step

    def _autocast(self) -> AbstractContextManager:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(DEVICE.type, dtype=torch.bfloat16, cache_enabled=False)

    def _step(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        with self._autocast():
            loss = F.cross_entropy(self.network(self.inputs).float(), self.targets)
        loss.backward()
        self.optimiser.step()

    def _captured(self) -> Callable[[], object]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def milliseconds(self, steps: int) -> float:
        sync()
        start = time.perf_counter()
        for _ in range(steps):
            low = self.place % (len(self.y) - self.batch_size)
            self.place += self.batch_size
            chosen = self.order[low : low + self.batch_size]
            self.inputs.copy_(self.x[chosen])
            self.targets.copy_(self.y[chosen])
            self.replay()
        sync()
        return (time.perf_counter() - start) / steps * 1e3


def fitted(make: Callable[[], nn.Module], method: object, steps: int, batch_size: int, precision: str | None) -> float:
    """Milliseconds a step of `pl.fit`."""
    timer = StepTimer(steps // 3, steps - 1)
    model = pl.BayesianModel(make(), pl.likelihoods.Categorical(), prior=pl.priors.Normal(scale=0.1))
    pl.fit(
        model, data(), method, steps=steps, batch_size=batch_size, device=DEVICE, precision=precision, callbacks=[timer],
        progress=False,
    )  # fmt: skip
    return timer.milliseconds


def methods() -> dict[str, object]:
    return {"MAP": pl.MAP(learning_rate=1e-3), "VOGN": pl.VOGN(), "IVON": pl.IVON()}


def steps_of(name: str, rounds: int, asked: tuple[str, ...] = tuple(WANTED)) -> list[dict]:
    """A row for every precision, with the methods that were asked for, MAP, and what they are wanted beside."""
    make, steps = NETWORKS[name]
    rows, wanted = [], {way: WANTED[way] for way in asked}
    beside = {opponent for opponent, _ in wanted.values()}
    chosen = {way: method for way, method in methods().items() if way in (*wanted, "MAP")}
    for precision in PRECISIONS if DEVICE.type == "cuda" else PRECISIONS[:1]:
        optimisers = {"Adam, by hand": torch.optim.Adam, "AdamW, by hand": torch.optim.AdamW}
        hands = {way: ByHand(make, kind, 128, precision) for way, kind in optimisers.items() if way in beside}
        for hand in hands.values():
            hand.milliseconds(10)
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for way, hand in hands.items():
                times.setdefault(way, []).append(hand.milliseconds(steps))
            for way, method in chosen.items():
                times.setdefault(way, []).append(fitted(make, method, steps, 128, precision))
        middle = {way: statistics.median(t) for way, t in times.items()}
        row = {
            "case": f"{name}, batch 128",
            "precision": precision or "float32",
            "milliseconds": middle,
            "rounds": times,
        }
        for way, (opponent, most) in wanted.items():
            ratio = statistics.median(m / t for m, t in zip(times[way], times[opponent], strict=True))
            row[way] = {"ratio": ratio, "beside": opponent, "wanted": f"at most {most}"}
            row[way]["beside_map"] = middle[way] / middle["MAP"]
        rows.append(row)
        shown = ", ".join(f"{way} {t:.3f} ms" for way, t in middle.items())
        told = ", ".join(f"{way} {row[way]['ratio']:.2f} ({row[way]['beside_map']:.2f} × MAP)" for way in wanted)
        print(f"{row['case']}, {row['precision']}: {shown}\n    {told}", flush=True)
    return rows


def peak(way: Callable[[], object]) -> float:
    """Megabytes, the data included."""
    sync()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    way()
    sync()
    return torch.cuda.max_memory_allocated() / 1e6


def memory(rounds: int) -> list[dict]:
    """Peaks of ResNet-18 at batch 256, the same in every round."""
    if DEVICE.type != "cuda":
        return []
    make, rows = NETWORKS["ResNet-18"][0], []
    for precision in PRECISIONS:
        found = {"Adam, by hand": peak(lambda p=precision: ByHand(make, torch.optim.Adam, 256, p).milliseconds(3))}
        for way, method in methods().items():
            found[way] = peak(lambda m=method, p=precision: fitted(make, m, 30, 256, p))
        row = {"case": "ResNet-18, batch 256: peak of memory", "precision": precision or "float32", "megabytes": found}
        for beside in ("Adam, by hand", "MAP"):
            row[f"VOGN beside {beside}"] = found["VOGN"] / found[beside]
        row["wanted"] = "at most 1.5"
        rows.append(row)
        shown = ", ".join(f"{way} {m:.0f} MB" for way, m in found.items())
        print(
            f"{row['case']}, {row['precision']}: {shown}; VOGN {found['VOGN'] / found['Adam, by hand']:.2f}", flush=True
        )
    return rows


CASES = {
    "lenet": lambda rounds: steps_of("LeNet-5", rounds),
    "resnet": lambda rounds: steps_of("ResNet-18", rounds),
    "memory": memory,
    "ivon": lambda rounds: [row for name in NETWORKS for row in steps_of(name, rounds, ("IVON",))],
}
USUAL = ("lenet", "resnet", "memory")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(USUAL))
    parser.add_argument("--rounds", type=int, default=3)
    add_file_options(parser)
    options = parser.parse_args()
    command = f"python benchmarks/vogn.py --only {options.only} --rounds {options.rounds}"
    measure(CASES, options, origin(command, options.commit, platform.machine()), options.rounds)


if __name__ == "__main__":
    main()
