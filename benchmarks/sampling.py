"""Effective samples a second of HMC and NUTS beside NumPyro's and hamiltorch's, on the same cores.

    python benchmarks/sampling.py --numpyro-python /tmp/numpyro-venv/bin/python --out results/sampling-cpu.json
    python benchmarks/sampling.py --only nuts --chains 16 --threads 1
    python benchmarks/sampling.py --only nuts --chains 1 --transitions 800 --seeds 4

A 13-50-1 tanh network on 455 examples of a teacher network with noise 0.3, priors N(0, 1). What counts is the smallest
bulk ESS over the predictions at 20 held-out inputs, per second of sampling after warm-up; the seconds of compiling and
of warm-up are listed apart, and beside each wall second the CPU seconds of all threads. Every library adapts step size
and diagonal mass by itself, over as many transitions, from starts of the same width, to an acceptance of 0.8; HMC's
trajectories have length π/2. Since 16 chains of NumPyro would take most of the minutes to warm up, it warms up one: the others
get its step size and mass and start from its draws, which leaves none behind and none waiting for a smaller step. All
libraries are held to as many cores as there are threads. NumPyro and hamiltorch run in processes of their own with the
Python that is named; one that cannot be imported is skipped with a line that says so. With several seeds the libraries take
turns, and what a row has of effective samples, leapfrogs and seconds is summed over them: of one chain the effective samples
alone differ by a third from seed to seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

INPUTS, HIDDEN, EXAMPLES, HELD_OUT, NOISE = 13, 50, 455, 20, 0.3
LENGTH = math.pi / 2  # of HMC's trajectories
START = 0.2  # the width of the normal that chains start from
TRANSITIONS = {1: 400}  # after warm-up; of more chains fewer are enough for as many effective samples
TRANSITIONS_OF_MANY = 100


class Clock:
    """Wall and CPU seconds between marks."""

    def __init__(self) -> None:
        self.marks = [(time.perf_counter(), time.process_time())]

    def mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def between(self, first: int, last: int, name: str) -> dict[str, float]:
        wall, cpu = (b - a for a, b in zip(self.marks[first], self.marks[last], strict=True))
        return {name: wall, f"{name}_cpu": cpu}


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and held-out inputs: the same numbers for every library."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((EXAMPLES + HELD_OUT, INPUTS))
    hidden = np.tanh(x @ rng.standard_normal((INPUTS, 8)) / INPUTS**0.5)
    y = hidden @ rng.standard_normal((8, 1)) + NOISE * rng.standard_normal((len(x), 1))
    return x[:EXAMPLES].astype("f4"), y[:EXAMPLES].astype("f4"), x[EXAMPLES:].astype("f4")


def network(weights: dict[str, Any], x: Any, tanh: Any) -> Any:
    """The network's outputs for weights in torch's layout."""
    return tanh(x @ weights["0.weight"].T + weights["0.bias"]) @ weights["1.weight"].T + weights["1.bias"]


SHAPES = {"0.weight": (HIDDEN, INPUTS), "0.bias": (HIDDEN,), "1.weight": (1, HIDDEN), "1.bias": (1,)}


# --- the libraries: each returns predictions (chains, draws, held out) and seconds ---


def ours(kind: str, chains: int, warmup: int, transitions: int, seed: int) -> tuple[np.ndarray, dict[str, float]]:
    import torch

    import plausible as pl

    x, y, held_out = map(torch.as_tensor, problem())
    layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    model = pl.BayesianModel(layers, pl.likelihoods.Normal(scale=NOISE), pl.priors.Normal(scale=1.0))
    method = pl.NUTS(warmup=warmup) if kind == "nuts" else pl.HMC(warmup=warmup, trajectory_length=LENGTH)
    generator = torch.Generator().manual_seed(seed + 1)
    starts = {k: START * torch.randn(chains, *p.shape, generator=generator) for k, p in layers.named_parameters()}
    clock, leapfrogs = Clock(), []

    def note(event: dict[str, Any]) -> None:
        clock.mark()
        leapfrogs.append((float(event["leapfrogs"].mean()), float(event["leapfrogs"].max())))

    posterior = pl.fit(
        model, (x, y), method, steps=warmup + transitions, num_modes=chains, device="cpu", compile=True, callbacks=[note],
        seed=seed, progress=False, init=starts if chains > 1 else {k: v[0] for k, v in starts.items()},
    )  # fmt: skip
    members = posterior.components if chains > 1 else [posterior]
    draws = {k: torch.stack([m.draws[k] for m in members]) for k in members[0].draws}
    hidden = (held_out @ draws["0.weight"].mT + draws["0.bias"].unsqueeze(-2)).tanh()
    outputs = hidden @ draws["2.weight"].mT + draws["2.bias"].unsqueeze(-2)
    seconds = {**clock.between(0, 1, "first"), **clock.between(1, warmup, "warmup")}
    seconds |= clock.between(warmup, -1, "sampling")
    mean, longest = np.mean(leapfrogs[warmup:], axis=0)
    return outputs.squeeze(-1).numpy(), {**seconds, "leapfrogs": mean, "longest": longest}


def numpyro(kind: str, chains: int, warmup: int, transitions: int, seed: int) -> tuple[np.ndarray, dict[str, float]]:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import HMC, MCMC, NUTS

    x, y, held_out = map(jnp.asarray, problem())

    def potential(w: dict[str, Any]) -> Any:
        prior = sum((v**2).sum() for v in w.values())
        return 0.5 * prior + 0.5 * ((y - network(w, x, jnp.tanh)) ** 2).sum() / NOISE**2

    kernel = {"nuts": NUTS, "hmc": partial(HMC, trajectory_length=LENGTH)}[kind]
    running = {"progress_bar": False, "num_samples": transitions, "chain_method": "vectorized"}
    keys = jax.random.split(jax.random.PRNGKey(3 * seed + 1), len(SHAPES))
    start = {k: START * jax.random.normal(key, s) for key, (k, s) in zip(keys, SHAPES.items(), strict=True)}
    clock, extra = Clock(), ("num_steps",)
    mcmc = MCMC(kernel(potential_fn=potential), num_warmup=warmup, **running)
    mcmc.warmup(jax.random.PRNGKey(3 * seed), init_params=start, extra_fields=extra)
    jax.block_until_ready(mcmc.post_warmup_state)
    if chains > 1:
        mcmc.run(mcmc.post_warmup_state.rng_key)
        start = {k: v[np.linspace(0, transitions - 1, chains).astype(int)] for k, v in mcmc.get_samples().items()}
        found = mcmc.post_warmup_state.adapt_state
        adapted = {"step_size": found.step_size, "inverse_mass_matrix": found.inverse_mass_matrix}
        told = kernel(potential_fn=potential, adapt_step_size=False, adapt_mass_matrix=False, **adapted)
        mcmc = MCMC(told, num_warmup=0, num_chains=chains, **running)
    clock.mark()
    for _ in range(2):  # from the same state: the first compiles, and is not counted
        if chains > 1:
            mcmc.run(jax.random.PRNGKey(3 * seed + 2), init_params=start, extra_fields=extra)
        else:
            mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=extra)
        draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
        clock.mark()
    one = lambda w: network(w, held_out, jnp.tanh)[:, 0]  # noqa: E731
    outputs = np.asarray(jax.vmap(jax.vmap(one))(draws))
    seconds = {**clock.between(0, 1, "warmup"), **clock.between(2, 3, "sampling")}
    seconds["first"] = max(0.0, clock.between(1, 2, "once")["once"] - seconds["sampling"])
    leapfrogs = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    return outputs, {**seconds, "leapfrogs": leapfrogs.mean(), "longest": leapfrogs.max(0).mean()}


def hamiltorch(kind: str, chains: int, warmup: int, transitions: int, seed: int) -> tuple[np.ndarray, dict[str, float]]:
    import hamiltorch as peer
    import torch

    x, y, held_out = map(torch.as_tensor, problem())
    layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    step_size = 0.012  # what our adaptation finds for this network without a mass is about this
    leapfrogs = round(LENGTH / step_size)
    outputs, clock = [], Clock()
    for chain in range(chains):
        peer.set_random_seed(chains * seed + chain)
        start = START * torch.randn(sum(p.numel() for p in layers.parameters()))
        drawn = peer.sample_model(
            layers, x, y, params_init=start, num_samples=warmup + transitions, burn=warmup, step_size=step_size,
            num_steps_per_sample=leapfrogs, tau_out=1 / NOISE**2, tau_list=torch.ones(4), model_loss="regression",
        )  # fmt: skip
        shapes = [p.shape for p in layers.parameters()]
        for draw in drawn[-transitions:]:
            pieces = [p.reshape(s) for p, s in zip(draw.split([s.numel() for s in shapes]), shapes, strict=True)]
            outputs.append(network(dict(zip(SHAPES, pieces, strict=True)), held_out, torch.tanh)[:, 0].numpy())
    clock.mark()
    share = {"warmup": warmup / (warmup + transitions), "sampling": transitions / (warmup + transitions)}
    seconds = {k: v * part for name, part in share.items() for k, v in clock.between(0, 1, name).items()}
    shaped = np.stack(outputs).reshape(chains, -1, HELD_OUT)
    return shaped, {**seconds, "first": 0.0, "leapfrogs": leapfrogs, "longest": leapfrogs}


LIBRARIES = {"plausible": ours, "numpyro": numpyro, "hamiltorch": hamiltorch}


# --- one line each ---


def measured(
    python: str, library: str, kind: str, chains: int, warmup: int, transitions: int, seed: int
) -> dict[str, Any]:
    """Run one case in a process of its own, and judge its predictions here."""
    import torch

    from plausible.core.diagnostics import ess, r_hat

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.npz"
        case = [library, kind, *map(str, (chains, warmup, transitions, seed)), str(path)]
        done = subprocess.run([python, __file__, "--case", *case], capture_output=True, text=True)
        if done.returncode:
            return {"skipped": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
        found = dict(np.load(path))
    outputs = torch.as_tensor(found.pop("outputs")).double()
    seconds = {k: round(float(v), 4) for k, v in found.items()}
    return {
        "draws": outputs.shape[1],
        "ess": float(ess(outputs).min()),
        "r_hat": float(r_hat(outputs).max()),
        **seconds,
    }


def pooled(case: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of a case whose seeds have been run."""
    failed = [run for run in runs if "skipped" in run]
    if failed:
        return {**case, **failed[0]}
    total = {k: sum(run[k] for run in runs) for k in ("ess", "sampling", "sampling_cpu")}
    made = case["chains"] * sum(run["leapfrogs"] * run["draws"] for run in runs)
    return {
        **case, "ess_per_second": total["ess"] / total["sampling"], "ess_per_cpu_second": total["ess"] / total["sampling_cpu"],
        "ess_per_thousand_leapfrogs": 1000 * total["ess"] / made, "chain_leapfrogs_per_second": made / total["sampling"],
        "runs": runs,
    }  # fmt: skip


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times a peer's effective samples a second are ours."""
    told = {(r["library"], r["kind"], r["chains"]): r for r in rows if "skipped" not in r}
    return [
        {"kind": kind, "chains": chains, "beside": library}
        | {k: round(mine[k] / theirs[k], 2) for k in ("ess_per_second", "ess_per_cpu_second", "chain_leapfrogs_per_second")}
        for (library, kind, chains), theirs in told.items()
        if library != "plausible" and (mine := told.get(("plausible", kind, chains))) is not None
    ]  # fmt: skip


def hold_to(threads: int) -> None:
    """The cores and the threads of this process and of those that it starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def run_case(library: str, kind: str, chains: str, warmup: str, transitions: str, seed: str, path: str) -> None:
    outputs, found = LIBRARIES[library](kind, int(chains), int(warmup), int(transitions), int(seed))
    np.savez(path, outputs=outputs, **found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="hmc,nuts")
    parser.add_argument("--chains", default="1,16")
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--transitions", type=int, help="after warm-up; by default fewer of many chains")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--numpyro-python", default=sys.executable)
    parser.add_argument("--hamiltorch-python", default=sys.executable)
    parser.add_argument("--out")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--case", nargs=7, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run_case(*options.case)
        return
    hold_to(options.threads)
    pythons = {"numpyro": options.numpyro_python, "hamiltorch": options.hamiltorch_python}
    result: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "device": f"{platform.machine()}, {options.threads} of {os.cpu_count()} cores",
        "rows": [],
    }
    for kind in options.only.split(","):
        for chains in map(int, options.chains.split(",")):
            transitions = options.transitions or TRANSITIONS.get(chains, TRANSITIONS_OF_MANY)
            libraries = [lib for lib in options.libraries.split(",") if lib != "hamiltorch" or kind == "hmc"]
            runs: dict[str, list[dict[str, Any]]] = {library: [] for library in libraries}
            for seed in range(options.seeds):
                for library in libraries:
                    python = pythons.get(library, sys.executable)
                    runs[library].append(measured(python, library, kind, chains, options.warmup, transitions, seed))
                    print(library, json.dumps(runs[library][-1]), flush=True)
            case = {"kind": kind, "chains": chains, "warmup_transitions": options.warmup}
            result["rows"] += [pooled({"library": library, **case}, told) for library, told in runs.items()]
            result["ratios"] = ratios(result["rows"])
            if options.out:
                Path(options.out).parent.mkdir(parents=True, exist_ok=True)
                Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    for row in result["ratios"]:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
