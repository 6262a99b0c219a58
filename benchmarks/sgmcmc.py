"""Speed of the stochastic-gradient samplers, as ratios taken in the same run.

    python benchmarks/sgmcmc.py --out results/sgmcmc-h200.json

One row: an SGHMC step of `pl.fit` beside a hand-written step of SGD with momentum (which draws no noise). The other: 64 chains
of a small network together, beside one after another, both through `pl.fit`.
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F  # noqa: N812
from result_file import add_file_options, machine_and_threads, origin, store
from timing import DEVICE, Interleaved, StepTimer
from torch import nn

import plausible as pl


def hand_written(network: nn.Module, x, y, batch_size: int):
    """The plain eager loop: shuffled batches, SGD with momentum, cross entropy."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    place, order = [0], torch.randperm(x.shape[0], device=x.device)

    def step() -> None:
        low = place[0] % (x.shape[0] - batch_size)
        place[0] += batch_size
        chosen = order[low : low + batch_size]
        optimiser.zero_grad()
        F.cross_entropy(network(x[chosen]), y[chosen]).backward()
        optimiser.step()

    return step


def step_cost(name: str, make, shape: tuple[int, ...], steps: int = 600) -> dict:
    torch.manual_seed(0)
    x, y = torch.randn(4096, *shape, device=DEVICE), torch.randint(0, 10, (4096,), device=DEVICE)
    paired = Interleaved(hand_written(make().to(DEVICE), x, y, 128))
    model = pl.BayesianModel(make(), pl.likelihoods.Categorical())
    method = pl.SGHMC(burn_in=steps - 10)
    pl.fit(model, (x, y), method, steps=steps, batch_size=128, device=DEVICE, callbacks=[paired], progress=False)
    mine, theirs = paired.mine[100:], paired.theirs[101:]
    ratio = statistics.median(m / t for m, t in zip(mine, theirs, strict=True))
    row = {
        "case": f"SGHMC step, {name}, batch 128",
        "hand_written_ms": statistics.median(theirs),
        "plausible_ms": statistics.median(mine),
        "median_paired_ratio": ratio,
        "wanted": "at most 1.1",
    }
    print(f"{row['case']:44s} {row['plausible_ms']:.3f} ms, {ratio:.2f} × SGD with momentum", flush=True)
    return row


def together(chains: int = 64, steps: int = 2000) -> dict:
    """Seconds of 64 chains in one run, and of one chain times 64."""
    torch.manual_seed(0)
    x, y = torch.randn(4096, 13, device=DEVICE), torch.randint(0, 10, (4096,), device=DEVICE)
    model = pl.BayesianModel(pl.networks.MLP(13, hidden=(50,), outputs=10), pl.likelihoods.Categorical())

    def milliseconds(modes: int) -> float:
        timer = StepTimer(steps // 5, steps - 1)
        method = pl.SGHMC(burn_in=steps - 10)
        pl.fit(model, (x, y), method, steps=steps, num_modes=modes, device=DEVICE, callbacks=[timer], progress=False)
        return timer.milliseconds

    one, all_of_them = milliseconds(1), milliseconds(chains)
    row = {
        "case": f"{chains} SGHMC chains of an MLP 13-50-10",
        "one_ms": one,
        "together_ms": all_of_them,
        "times_faster": chains * one / all_of_them,
        "wanted": "at least 10 on a GPU",
    }
    print(f"{row['case']:44s} {row['times_faster']:.1f} × faster together than one after another", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    add_file_options(parser)
    options = parser.parse_args()
    gpu = DEVICE.type == "cuda"
    rows = [step_cost("LeNet-5", pl.networks.LeNet5, (1, 28, 28))]
    if gpu:
        rows.append(step_cost("ResNet-18", pl.networks.ResNet18, (3, 32, 32), steps=200))
    rows.append(together(steps=2000 if gpu else 300))
    above = origin("python benchmarks/sgmcmc.py", options.commit, machine_and_threads())
    store({**above, "rows": rows}, options.out)


if __name__ == "__main__":
    main()
