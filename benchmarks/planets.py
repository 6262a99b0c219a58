"""Thirty SWAG modes of the planets study trained together, against one after another.

    python benchmarks/planets.py --out results/planets-h200.json          # on the best device there is
    python benchmarks/planets.py --modes 4 --steps 60                     # a small trial

Both ways take the same steps on data of the study's shape: 8,000 systems, its network, its likelihood, its batches. Only a few
modes are run one after another, and their mean is multiplied by the number of modes; so is that of the hand-written loop.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from dataclasses import replace

import torch
from result_file import add_file_options, commit, device_name, store
from timing import DEVICE, StepTimer

import plausible as pl
from plausible.experiments.planet_recorded_time import LONGEST, SHORTEST, time_likelihood
from plausible.experiments.planets import FIRST, planet_method, planet_model

SYSTEMS, INPUTS = 8000, 29


def systems() -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up systems: a quarter of them outlive the record, as in the real set."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SYSTEMS, INPUTS, generator=generator)
    y = (7.2 + 2 * torch.randn(SYSTEMS, 1, generator=generator) + x[:, :1]).clamp(SHORTEST + 0.01, LONGEST)
    return x.to(DEVICE), y.to(DEVICE)


def ours(x, y, modes: int, steps: int) -> float:
    """Milliseconds of a step of all modes."""
    timer = StepTimer(steps // 5, steps - 1)
    method = planet_method(replace(FIRST, snapshots=min(FIRST.snapshots, steps // 5))).base
    pl.fit(
        planet_model(FIRST, INPUTS), (x, y), method, num_modes=modes, steps=steps, batch_size=FIRST.batch_size,
        init="reset", device=DEVICE, callbacks=[timer], progress=False,
    )  # fmt: skip
    return timer.milliseconds


def hand_written(x, y, steps: int) -> float:
    """Milliseconds of a step of one network in the loop that everybody writes; without snapshots."""
    network = pl.networks.MLP(INPUTS, FIRST.hidden, 2, activation="silu").to(DEVICE)
    optimiser = torch.optim.Adam(network.parameters(), lr=FIRST.learning_rate)
    likelihood, timer = time_likelihood(), StepTimer(steps // 5, steps - 1)
    for step in range(steps):
        chosen = torch.randint(SYSTEMS, (FIRST.batch_size,), device=DEVICE)
        optimiser.zero_grad()
        decay = sum((w**2).sum() for w in network.parameters()) / (2 * FIRST.prior_scale**2 * SYSTEMS)
        loss = decay - likelihood.log_prob(network(x[chosen]), y[chosen]).mean()
        loss.backward()
        optimiser.step()
        timer({"step": step})
    return timer.milliseconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--modes", type=int, default=30)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--alone", type=int, default=3, help="how many modes are run one after another")
    add_file_options(parser)
    options = parser.parse_args()
    x, y = systems()
    together = ours(x, y, options.modes, options.steps)
    alone = statistics.mean(ours(x, y, 1, options.steps) for _ in range(options.alone)) * options.modes
    loop = statistics.mean(hand_written(x, y, options.steps) for _ in range(options.alone)) * options.modes
    device = device_name(f"{platform.machine()}, CPU")
    result = {
        "ratio": alone / together,
        "ratio_to_hand_written": loop / together,
        "together_ms": together,
        "one_after_another_ms": alone,
        "hand_written_ms": loop,
        "modes": options.modes,
        "measured_alone": options.alone,  # the rest is extrapolated
        "steps": options.steps,
        "batch_size": FIRST.batch_size,
        "weights": sum(w.numel() for w in planet_model(FIRST, INPUTS).init().values()),
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": commit(options.commit, "--short"),
    }
    print(
        f"{options.modes} modes, a step of all: together {together:.2f} ms, one after another {alone:.2f} ms "
        f"({result['ratio']:.1f} x, from {options.alone} modes), hand-written loop {loop:.2f} ms "
        f"({result['ratio_to_hand_written']:.1f} x) on {device}"
    )
    store(result, options.out)


if __name__ == "__main__":
    main()
