"""Cost of second-order quantities, as multiples of a plain gradient taken in the same run.

    python benchmarks/curvature.py --out results/curvature-cpu.json
    python benchmarks/curvature.py --only mlp,lenet

Ways take turns, so that a machine that slows down slows all of them; a ratio is the median over the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from result_file import machine_and_threads, measure, origin, parser_of_cases
from timing import DEVICE, seconds
from torch import nn
from torch.func import functional_call, grad, vmap

import plausible as pl
from plausible.curvature import Curvature, second_moments
from plausible.curvature.diagonal import squares
from plausible.curvature.outputs import bound_likelihood, gradient
from plausible.curvature.passes import Plan, run
from plausible.weights.rng import Keys, run_key

BATCH = 128


def milliseconds(way: Callable[[], object]) -> float:
    clock = time.perf_counter if DEVICE.type == "cuda" else time.process_time  # others may compute on the same cores
    return 1e3 * seconds(way, clock)


def ways_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], object]]:
    network = network.to(DEVICE).eval()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    params = {k: v.to(DEVICE) for k, v in model.init().items()}
    weights = list(network.parameters())
    names = tuple(model.weight_names)
    nothing_known = Plan((), (), frozenset(names))

    def plain():
        return torch.autograd.grad(F.cross_entropy(network(x), y, reduction="sum"), weights)

    def loss(own, image, label):
        return F.cross_entropy(functional_call(network, own, (image[None],)), label[None])

    def vectorised():
        each = vmap(grad(loss), (None, 0, 0))(params, x, y)
        return {k: g.square().sum(0) for k, g in each.items()}

    def generic():
        traced = run(model, params, x, None, names, nothing_known)
        column = gradient(bound_likelihood(model, params), traced.outputs, y)
        return squares(traced, column.unsqueeze(0))

    def factors(kind):
        rng = Keys(run_key(0, device=DEVICE), torch.zeros((), dtype=torch.int64, device=DEVICE))
        return Curvature(model, params, (x, y, None), kind, rng).kronecker()

    return {
        "gradient": plain,
        "vmap(grad), squared": vectorised,
        "second moments": lambda: second_moments(model, params, (x, y, None)),
        "generic second moments": generic,
        "Kronecker, empirical Fisher": lambda: factors("empirical-fisher"),
        "Kronecker, simulated Fisher": lambda: factors("mc-fisher"),
    }


def compared(name: str, network: nn.Module, shape: tuple[int, ...], rounds: int) -> list[dict]:
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, *shape, device=DEVICE), torch.randint(0, 10, (BATCH,), device=DEVICE)
    ways = ways_of(network, x, y)
    for way in ways.values():
        way()
    times = [{key: milliseconds(way) for key, way in ways.items()} for _ in range(rounds)]
    rows = []
    for key in ways:
        base = "vmap(grad), squared" if key.startswith("generic") else "gradient"
        ratio = statistics.median(t[key] / t[base] for t in times)
        median = statistics.median(t[key] for t in times)
        rows.append({"case": f"{name}: {key}", "ms": median, "ratio": ratio, "beside": base})
        print(f"{name:10s} {key:30s} {median:10.2f} ms   {ratio:6.2f} × {base}", flush=True)
    return rows


class SmallResNet(nn.Module):
    """Three residual blocks with group norms."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
            )
            for _ in range(3)
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h.mean((2, 3)))


CASES = {
    "mlp": lambda: compared("MLP", pl.networks.MLP(784, (256, 256), 10), (784,), 40),
    "lenet": lambda: compared("LeNet-5", pl.networks.LeNet5(), (1, 28, 28), 15),
    "resnet": lambda: compared("ResNet", SmallResNet(), (3, 16, 16), 7),
}


def main() -> None:
    options = parser_of_cases(CASES).parse_args()
    command = f"python benchmarks/curvature.py --only {options.only}"
    measure(CASES, options, origin(command, options.commit, machine_and_threads()))


if __name__ == "__main__":
    main()
