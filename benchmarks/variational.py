"""An ADVI step beside a MAP step, Pyro's SVI and Bayesian-Torch's layers, on the same networks, batches and draws a step.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install -c constraints.txt torch numpy safetensors rich pyro-ppl bayesian-torch
    PYTHONPATH=src OMP_NUM_THREADS=1 /tmp/peers/bin/python benchmarks/variational.py --out results/variational-cpu.json

All ways take turns of a few steps, so that a machine that slows down slows all, and that what one step does for the next ones
counts. A peer that is not installed is left out. Each line has the milliseconds of a step (a turn's mean, of which the median)
and, as the ratio of a pair, the median over rounds.
"""

from __future__ import annotations

import importlib.util
import platform
import statistics
import threading
import time
from collections.abc import Callable

import torch
from result_file import measure, origin, parser_of_cases
from timing import DEVICE, seconds, sync
from torch import nn

import plausible as pl

BATCH, EXAMPLES, WARM_UP = 128, 4096, 3
TURN = 16  # steps: random numbers of short draws are made for as many at once
STEPS = 100_000  # of a run that is left after some hundred, so that what happens now and then in it is as rare as in long runs


class Fitted:
    """`pl.fit` in a thread that stops after every step and waits for its turn; what is timed is the loop's own step."""

    def __init__(self, model: pl.BayesianModel, data, method: pl.Method, **settings):
        self.go, self.done, self.milliseconds = threading.Event(), threading.Event(), 0.0
        self.left = time.perf_counter()

        def run() -> None:
            torch.set_num_threads(1)
            pl.fit(
                model, data, method, steps=STEPS, batch_size=BATCH, device=DEVICE, progress=False,
                callbacks=[self.pause], **settings,
            )  # fmt: skip

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        self.done.wait()

    def pause(self, event: dict) -> bool:
        sync()
        self.milliseconds = (time.perf_counter() - self.left) * 1e3
        self.done.set()
        self.go.wait()
        self.go.clear()
        self.left = time.perf_counter()
        return False

    def __call__(self) -> float:
        self.done.clear()
        self.go.set()
        self.done.wait()
        return self.milliseconds


def batches(x, y):
    """Shuffled batches without end, as a loop written by hand has them."""
    while True:
        order = torch.randperm(len(x), device=x.device)
        for low in range(0, len(x) - BATCH + 1, BATCH):
            chosen = order[low : low + BATCH]
            yield x[chosen], y[chosen]


def pyro_step(network: nn.Module, x, y, regression: bool) -> Callable[[], object]:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroSample
    from pyro.nn.module import to_pyro_module_

    pyro.enable_validation(False)
    pyro.clear_param_store()
    to_pyro_module_(network)
    for module in network.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, PyroSample(dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())))

    def model(inputs, targets):
        outputs = network(inputs)
        with pyro.plate("data", len(x), subsample_size=len(inputs)):
            law = dist.Normal(outputs, 0.5).to_event(1) if regression else dist.Categorical(logits=outputs)
            pyro.sample("y", law, obs=targets)

    svi = SVI(model, AutoNormal(model, init_scale=0.05), pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    source = batches(x, y)
    return lambda: svi.step(*next(source))


def bayesian_torch_step(network: nn.Module, x, y, regression: bool) -> Callable[[], object]:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    prior = {
        "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
        "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5,
    }  # fmt: skip
    dnn_to_bnn(network, prior)
    network.to(DEVICE)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    source = batches(x, y)

    def step() -> None:
        inputs, targets = next(source)
        optimiser.zero_grad()
        outputs = network(inputs)
        loss = (
            nn.functional.mse_loss(outputs, targets) * 2
            if regression
            else nn.functional.cross_entropy(outputs, targets)
        )
        (loss + get_kl_loss(network) / len(x)).backward()
        optimiser.step()

    return step


PEERS = {"pyro": ("pyro", pyro_step), "bayesian-torch": ("bayesian_torch", bayesian_torch_step)}


def compare(name: str, make: Callable[[], nn.Module], x, y, likelihood, rounds: int, **settings) -> dict:
    regression = y.is_floating_point()
    model = lambda: pl.BayesianModel(make(), likelihood)  # noqa: E731
    ways: dict[str, Callable[[], float]] = {
        "map": Fitted(model(), (x, y), pl.MAP(), **settings),
        "advi": Fitted(model(), (x, y), pl.ADVI(learning_rate=1e-3), **settings),
    }
    for peer, (package, step) in PEERS.items():
        if importlib.util.find_spec(package) is not None:
            theirs = step(make().to(DEVICE), x, y, regression)
            ways[peer] = lambda theirs=theirs: 1e3 * seconds(theirs)
    turn = lambda call: sum(call() for _ in range(TURN)) / TURN  # noqa: E731
    taken = [{way: turn(call) for way, call in ways.items()} for _ in range(WARM_UP + rounds)][WARM_UP:]
    ratios = {way: statistics.median(r[way] / r["advi"] for r in taken) for way in ways if way not in ("advi", "map")}
    row = {
        "case": name,
        "milliseconds": {way: statistics.median(r[way] for r in taken) for way in ways},
        "advi_over_map": statistics.median(r["advi"] / r["map"] for r in taken),
        "times_faster_than": ratios,
    }
    spent = ", ".join(f"{way} {ms:.3f} ms" for way, ms in row["milliseconds"].items())
    faster = ", ".join(f"{ratio:.1f} x faster than {way}" for way, ratio in ratios.items())
    print(f"{name}: {spent}; ADVI is {row['advi_over_map']:.2f} x a MAP step, {faster}", flush=True)
    return row


def mlp(rounds: int) -> list[dict]:
    torch.manual_seed(0)
    x, y = torch.randn(EXAMPLES, 13, device=DEVICE), torch.randn(EXAMPLES, 1, device=DEVICE)
    make = lambda: pl.networks.MLP(13, hidden=(50,), outputs=1)  # noqa: E731
    noise = pl.likelihoods.Normal(scale=0.5)
    ways = (
        {"as long runs go": {}}
        if DEVICE.type == "cuda"
        else {"eager": {"compile": False}, "compiled": {"compile": True}}
    )
    return [compare(f"13-50-1, batch {BATCH}, {how}", make, x, y, noise, rounds, **kw) for how, kw in ways.items()]


def lenet(rounds: int) -> list[dict]:
    torch.manual_seed(0)
    x, y = torch.randn(EXAMPLES, 1, 28, 28, device=DEVICE), torch.randint(0, 10, (EXAMPLES,), device=DEVICE)
    return [compare(f"LeNet-5, batch {BATCH}", pl.networks.LeNet5, x, y, pl.likelihoods.Categorical(), rounds // 3)]


CASES = {"mlp": mlp, "lenet": lenet}


def main() -> None:
    parser = parser_of_cases(CASES)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python benchmarks/variational.py --only {options.only} --rounds {options.rounds}"
    above = origin(command, options.commit, f"{platform.machine()}, 1 thread")
    measure(CASES, options, above, options.rounds)


if __name__ == "__main__":
    main()
