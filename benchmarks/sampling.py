"""Effective samples a second of HMC and NUTS beside NumPyro's and hamiltorch's, on the same cores.

    python benchmarks/sampling.py --numpyro-python /tmp/numpyro-venv/bin/python --out results/sampling-cpu.json
    python benchmarks/sampling.py --only nuts --chains 16 --transitions 100

A 13-50-1 tanh network on 455 examples of a teacher network with noise 0.3, priors N(0, 1). What counts is the smallest
bulk ESS over the predictions at 20 held-out inputs, per second of sampling after warm-up; the seconds of compiling and
of warm-up are listed apart. NumPyro and hamiltorch run in processes of their own with the Python that is named; one that
cannot be imported is skipped with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

INPUTS, HIDDEN, EXAMPLES, HELD_OUT, NOISE = 13, 50, 455, 20, 0.3


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


def ours(kind: str, chains: int, warmup: int, transitions: int) -> tuple[np.ndarray, dict[str, float]]:
    import torch

    import plausible as pl

    x, y, held_out = map(torch.as_tensor, problem())
    layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    model = pl.BayesianModel(layers, pl.likelihoods.Normal(scale=NOISE))
    method = pl.NUTS(warmup=warmup) if kind == "nuts" else pl.HMC(warmup=warmup, trajectory_length=1.0)
    marks, leapfrogs = [time.perf_counter()], []

    def note(event: dict[str, Any]) -> None:
        marks.append(time.perf_counter())
        leapfrogs.append(float(event["leapfrogs"].mean()) if "leapfrogs" in event else float("nan"))

    posterior = pl.fit(
        model, (x, y), method, steps=warmup + transitions, num_modes=chains, device="cpu", compile=True, callbacks=[note],
        progress=False,
    )  # fmt: skip
    members = posterior.components if chains > 1 else [posterior]
    draws = {k: torch.stack([m.draws[k] for m in members]) for k in members[0].draws}
    hidden = (held_out @ draws["0.weight"].mT + draws["0.bias"].unsqueeze(-2)).tanh()
    outputs = hidden @ draws["2.weight"].mT + draws["2.bias"].unsqueeze(-2)
    seconds = {"first": marks[1] - marks[0], "warmup": marks[warmup] - marks[1], "sampling": marks[-1] - marks[warmup]}
    return outputs.squeeze(-1).numpy(), {**seconds, "leapfrogs": float(np.mean(leapfrogs[warmup:]))}


def numpyro(kind: str, chains: int, warmup: int, transitions: int) -> tuple[np.ndarray, dict[str, float]]:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import HMC, MCMC, NUTS

    x, y, held_out = map(jnp.asarray, problem())

    def potential(w: dict[str, Any]) -> Any:
        prior = sum((v**2).sum() for v in w.values())
        return 0.5 * prior + 0.5 * ((y - network(w, x, jnp.tanh)) ** 2).sum() / NOISE**2

    kernel = NUTS(potential_fn=potential) if kind == "nuts" else HMC(potential_fn=potential, trajectory_length=1.0)
    keys = jax.random.split(jax.random.PRNGKey(1), len(SHAPES))
    start = {k: 0.2 * jax.random.normal(key, (chains, *s)) for key, (k, s) in zip(keys, SHAPES.items(), strict=True)}
    start = {k: v[0] if chains == 1 else v for k, v in start.items()}
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=transitions,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    begin = time.perf_counter()
    mcmc.warmup(jax.random.PRNGKey(0), init_params=start, extra_fields=("num_steps",))
    jax.block_until_ready(mcmc.post_warmup_state)
    warm = time.perf_counter()
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))  # compiles once more
    jax.block_until_ready(mcmc.get_samples())
    once = time.perf_counter()
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
    draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
    end = time.perf_counter()
    one = lambda w: network(w, held_out, jnp.tanh)[:, 0]  # noqa: E731
    outputs = np.asarray(jax.vmap(jax.vmap(one))(draws))
    seconds = {"first": max(0.0, (once - warm) - (end - once)), "warmup": warm - begin, "sampling": end - once}
    return outputs, {**seconds, "leapfrogs": float(np.mean(mcmc.get_extra_fields()["num_steps"]))}


def hamiltorch(kind: str, chains: int, warmup: int, transitions: int) -> tuple[np.ndarray, dict[str, float]]:
    import hamiltorch as peer
    import torch

    x, y, held_out = map(torch.as_tensor, problem())
    layers = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    step_size, leapfrogs = 0.012, 80  # a length of one; what our adaptation finds for this network is about this
    outputs, sampling = [], 0.0
    for chain in range(chains):
        peer.set_random_seed(chain)
        start = 0.2 * torch.randn(sum(p.numel() for p in layers.parameters()))
        begin = time.perf_counter()
        drawn = peer.sample_model(
            layers, x, y, params_init=start, num_samples=warmup + transitions, burn=warmup, step_size=step_size,
            num_steps_per_sample=leapfrogs, tau_out=1 / NOISE**2, tau_list=torch.ones(4), model_loss="regression",
        )  # fmt: skip
        sampling += (time.perf_counter() - begin) * transitions / (warmup + transitions)
        shapes = [p.shape for p in layers.parameters()]
        for draw in drawn[-transitions:]:
            pieces = [p.reshape(s) for p, s in zip(draw.split([s.numel() for s in shapes]), shapes, strict=True)]
            outputs.append(network(dict(zip(SHAPES, pieces, strict=True)), held_out, torch.tanh)[:, 0].numpy())
    shaped = np.stack(outputs).reshape(chains, -1, HELD_OUT)
    return shaped, {
        "first": 0.0,
        "warmup": sampling * warmup / transitions,
        "sampling": sampling,
        "leapfrogs": leapfrogs,
    }


LIBRARIES = {"plausible": ours, "numpyro": numpyro, "hamiltorch": hamiltorch}


# --- one line each ---


def measured(python: str, library: str, kind: str, chains: int, warmup: int, transitions: int) -> dict[str, Any]:
    """Run one case in a process of its own, and judge its predictions here."""
    import torch

    from plausible.core.diagnostics import ess, r_hat

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.npz"
        case = [library, kind, str(chains), str(warmup), str(transitions), str(path)]
        done = subprocess.run([python, __file__, "--case", *case], capture_output=True, text=True, env=dict(os.environ))
        if done.returncode:
            return {"library": library, "kind": kind, "chains": chains, "skipped": done.stderr.strip().splitlines()[-1]}
        found = dict(np.load(path))
    outputs = torch.as_tensor(found.pop("outputs")).double()
    seconds = {k: round(float(v), 4) for k, v in found.items()}
    worth, worst = float(ess(outputs).min()), float(r_hat(outputs).max())
    return {
        "library": library, "kind": kind, "chains": chains, "draws": outputs.shape[1], "ess": worth, "r_hat": worst,
        "ess_per_second": worth / seconds["sampling"], **seconds,
        "chain_leapfrogs_per_second": seconds["leapfrogs"] * chains * outputs.shape[1] / seconds["sampling"],
    }  # fmt: skip


def run_case(library: str, kind: str, chains: str, warmup: str, transitions: str, path: str) -> None:
    if library != "numpyro":
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    outputs, seconds = LIBRARIES[library](kind, int(chains), int(warmup), int(transitions))
    np.savez(path, outputs=outputs, **seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="hmc,nuts")
    parser.add_argument("--chains", default="1,16")
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--transitions", type=int, default=500)
    parser.add_argument("--numpyro-python", default=sys.executable)
    parser.add_argument("--hamiltorch-python", default=sys.executable)
    parser.add_argument("--out")
    parser.add_argument("--case", nargs=6)
    options = parser.parse_args()
    if options.case:
        run_case(*options.case)
        return
    pythons = {"numpyro": options.numpyro_python, "hamiltorch": options.hamiltorch_python}
    result: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "device": f"{platform.machine()}, {os.cpu_count()} cores",
        "rows": [],
    }
    for kind in options.only.split(","):
        for chains in map(int, options.chains.split(",")):
            for library in options.libraries.split(","):
                if library == "hamiltorch" and kind != "hmc":
                    continue
                python = pythons.get(library, sys.executable)
                row = measured(python, library, kind, chains, options.warmup, options.transitions)
                result["rows"].append(row)
                print(json.dumps(row), flush=True)
                if options.out:
                    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
                    Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
