"""Speed of the loop and of prediction, as ratios to hand-written PyTorch taken in the same run.

    python benchmarks/spine.py --out results/spine-cpu.json            # everything that fits this device
    python benchmarks/spine.py --only mlps,map                         # some of it

Each case prints one line: milliseconds of the hand-written way, of ours, and their ratio.
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F  # noqa: N812
from result_file import machine_and_threads, measure, origin, parser_of_cases
from timing import DEVICE, Interleaved, StepTimer, median_seconds, seconds
from torch import nn

import plausible as pl


def hand_written(networks: list[nn.Module], x, y, batch_size: int = 128):
    """The plain eager loop: one network after another, shuffled batches, Adam, cross entropy."""
    optimisers = [torch.optim.Adam(n.parameters(), lr=1e-3) for n in networks]
    place, order = [0], torch.randperm(x.shape[0], device=x.device)

    def step() -> None:
        low = place[0] % (x.shape[0] - batch_size)
        place[0] += batch_size
        chosen = order[low : low + batch_size]
        inputs, targets = x[chosen], y[chosen]
        for network, optimiser in zip(networks, optimisers, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(network(inputs), targets).backward()
            optimiser.step()

    return step


def ours(network: nn.Module, x, y, modes: int, steps: int, **options) -> float:
    """Milliseconds a step of `pl.fit`."""
    timer = StepTimer(steps // 5, steps - 1)
    model = pl.BayesianModel(network, likelihood=pl.likelihoods.Categorical())
    pl.fit(
        model, (x, y), pl.MAP(), steps=steps, batch_size=128, num_modes=modes, device=DEVICE, callbacks=[timer],
        progress=False, **options,
    )  # fmt: skip
    return timer.milliseconds


def data(shape: tuple[int, ...], count: int = 4096):
    torch.manual_seed(0)
    return torch.randn(count, *shape, device=DEVICE), torch.randint(0, 10, (count,), device=DEVICE)


def case(name: str, base: float, mine: float, **more) -> dict:
    row = {
        "case": name,
        "hand_written_ms": base,
        "plausible_ms": mine,
        "times_faster": base / mine,
        "ratio": mine / base,
        **more,
    }
    print(
        f"{name:44s} hand-written {base:9.3f} ms   plausible {mine:9.3f} ms   {base / mine:7.2f} x faster", flush=True
    )
    return row


def mlps() -> list[dict]:
    x, y = data((13,))
    make = lambda: pl.networks.MLP(13, hidden=(50,), outputs=10)  # noqa: E731
    base = 1e3 * median_seconds(hand_written([make().to(DEVICE) for _ in range(64)], x, y), 20, warm_up=3)
    rows = [case("64 MLPs 13-50-10, batch 128", base, ours(make(), x, y, 64, 3000))]
    return rows


def lenets() -> list[dict]:
    if DEVICE.type != "cuda":
        return []
    x, y = data((1, 28, 28))
    base = 1e3 * median_seconds(hand_written([pl.networks.LeNet5().to(DEVICE) for _ in range(30)], x, y), 10, warm_up=3)
    return [case("30 LeNet-5, batch 128", base, ours(pl.networks.LeNet5(), x, y, 30, 300))]


def resnets() -> list[dict]:
    if DEVICE.type != "cuda":
        return []
    x, y = data((3, 32, 32))
    base = 1e3 * median_seconds(
        hand_written([pl.networks.ResNet18().to(DEVICE).train() for _ in range(5)], x, y), 10, warm_up=3
    )
    return [case("5 ResNet-18, batch 128", base, ours(pl.networks.ResNet18(), x, y, 5, 60))]


def map_step() -> list[dict]:
    x, y = data((1, 28, 28))
    paired = Interleaved(hand_written([pl.networks.LeNet5().to(DEVICE)], x, y))
    model = pl.BayesianModel(pl.networks.LeNet5(), likelihood=pl.likelihoods.Categorical())
    pl.fit(model, (x, y), pl.MAP(), steps=600, batch_size=128, device=DEVICE, callbacks=[paired], progress=False)
    mine, theirs = statistics.median(paired.mine[100:]), statistics.median(paired.theirs[100:])
    ratios = [m / t for m, t in zip(paired.mine[100:], paired.theirs[101:], strict=True)]
    row = case("LeNet-5 MAP step, batch 128, interleaved", theirs, mine, median_paired_ratio=statistics.median(ratios))
    print(
        f"    ratio of medians {mine / theirs:.3f}, median of {len(ratios)} paired ratios {statistics.median(ratios):.3f}"
    )
    return [row]


def predict() -> list[dict]:
    x, _ = data((1, 28, 28), count=10_000)
    network = pl.networks.LeNet5()
    model = pl.BayesianModel(network, likelihood=pl.likelihoods.Categorical())
    mean = {k: v.to(DEVICE) for k, v in model.init().items()}
    scale = {k: torch.full_like(v, 1e-2) for k, v in mean.items()}
    posterior = pl.posteriors.Diagonal(model, mean, scale)
    draws = posterior.sample(64, seed=0)
    plain = pl.networks.LeNet5().to(DEVICE).eval()

    def loop(batch: int) -> None:
        with torch.no_grad():
            total = torch.zeros(x.shape[0], 10, device=DEVICE)
            for s in range(64):
                plain.load_state_dict({k: v[s] for k, v in draws.items()})
                for low in range(0, x.shape[0], batch):
                    total[low : low + batch] += plain(x[low : low + batch]).softmax(-1)

    # Rounds in turn, so that a machine that slows down slows all; the least of each is its own speed.
    sizes = (128, 512, 2048, 10_000) if DEVICE.type == "cuda" else (128, 512)
    ways = {b: (lambda b=b: loop(b)) for b in sizes} | {"ours": lambda: posterior.predict(x, num_samples=64).mean}
    rounds = [
        {name: 1e3 * seconds(way) for name, way in ways.items()} for _ in range(6 if DEVICE.type == "cuda" else 3)
    ]
    least = {name: min(r[name] for r in rounds) for name in ways}
    mine, by_batch = least["ours"], {b: least[b] for b in sizes}
    best = min(by_batch, key=by_batch.__getitem__)
    return [
        case("64 draws of LeNet-5 on 10,000 images, loop at 128", by_batch[128], mine),
        case(f"the same, loop at its best batch ({best})", by_batch[best], mine, loop_ms=by_batch),
    ]


def hmc() -> list[dict]:
    """Leapfrogs a second of a 13-50-1 tanh network on 455 examples, beside the eager loop of our own step."""
    torch.manual_seed(0)
    x, y = torch.randn(455, 13, device=DEVICE), torch.randn(455, 1, device=DEVICE)
    rows = []
    for chains in (1, 16, 64):
        model = pl.BayesianModel(pl.networks.MLP(13, (50,), 1, activation="tanh"), pl.likelihoods.Normal(scale=0.5))
        method = pl.HMC(step_size=0.01, trajectory_length=0.32, warmup=1, mass="identity")
        speeds = {}
        for name, compiled in (("plain", False), ("fast", None if DEVICE.type == "cuda" else True)):
            if name == "plain" and DEVICE.type == "cuda":
                continue  # on a GPU the rule always captures
            timer = StepTimer(20, 59)
            pl.fit(
                model, (x, y), method, steps=60, num_modes=chains, device=DEVICE, callbacks=[timer], progress=False,
                compile=compiled,
            )  # fmt: skip
            speeds[name] = 32 * chains / timer.milliseconds * 1e3
        rows.append({"case": f"HMC, {chains} chains", "chain_leapfrogs_per_second": speeds})
        print(f"HMC 13-50-1, {chains} chains: chain-leapfrogs a second {speeds}", flush=True)
    return rows


CASES = {"mlps": mlps, "map": map_step, "predict": predict, "lenets": lenets, "resnets": resnets, "hmc": hmc}


def main() -> None:
    options = parser_of_cases(CASES).parse_args()
    command = f"python benchmarks/spine.py --only {options.only}"
    measure(CASES, options, origin(command, options.commit, machine_and_threads()))


if __name__ == "__main__":
    main()
