"""MC dropout's passes, all at once, beside the loop over passes that people write.

    python benchmarks/dropout.py --device cuda --out results/dropout-gpu.json     # 100 passes over 10,000 images, LeNet-5
    python benchmarks/dropout.py --device cpu --images 2000 --passes 20 --out results/dropout-cpu.json

The loop is LeNet-5 with `torch.nn.functional.dropout` written into its forward pass, run in batches of 128, and of the size
that suits it best. `where` says where both drop: after convolutions and before linear layers ("all"), or before linear layers
only ("linear"). Images and weights are random numbers on the device: only time is measured, and that both have one law.
"""

from __future__ import annotations

import argparse
import platform
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from result_file import store
from timing import median_seconds
from torch import Tensor

import plausible as pl

RATE = 0.1
SMALL = 128
SIZES = (128, 512, 2048, 10_000)
CHECKED = 64  # images whose means and scatter are compared


class Loop:
    """LeNet-5 with its dropout written out."""

    def __init__(self, network: torch.nn.Module, where: str):
        features, classifier = network.features, network.classifier
        self.first, self.second = features[0], features[3]
        self.linear = [classifier[0], classifier[2], classifier[4]]
        self.after_convolutions = where == "all"

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.first, self.second):
            x = convolution(x)
            x = F.dropout(x, RATE, training=True) if self.after_convolutions else x
            x = F.max_pool2d(x.relu(), 2)
        x = x.flatten(1)
        for i, layer in enumerate(self.linear):
            x = layer(F.dropout(x if i == 0 else x.relu(), RATE, training=True))
        return x

    def passes(self, x: Tensor, count: int, size: int) -> Tensor:
        with torch.no_grad():
            return torch.stack([torch.cat([self.forward(part) for part in x.split(size)]) for _ in range(count)])


def study(where: str, options: argparse.Namespace) -> dict[str, Any]:
    """One place to drop at."""
    torch.manual_seed(0)
    network = pl.networks.LeNet5().to(options.device)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    rates = {k: RATE for k in model.weight_names if model.start[k].dim() > 1}
    params = {k: v.to(options.device) for k, v in model.start.items()}
    posterior = pl.posteriors.Dropout(model, params, rates, where)
    x = torch.randn(options.images, 1, 28, 28, device=options.device)
    loop = Loop(network, where)
    disagreement = _compared(posterior, loop, x[:CHECKED])
    sizes = sorted({min(s, options.images) for s in SIZES})
    ours = median_seconds(lambda: posterior.predict(x, num_samples=options.passes), options.repeats)
    theirs = {s: median_seconds(lambda s=s: loop.passes(x, options.passes, s), options.repeats) for s in sizes}
    best = min(theirs, key=theirs.__getitem__)
    return {
        "where": where,
        "plausible_seconds": ours,
        "loop_seconds": theirs,
        "best_batch": best,
        "times_faster_than_batches_of_128": theirs[min(SMALL, options.images)] / ours,
        "times_faster_than_the_best_batch": theirs[best] / ours,
        "largest_difference_in_standard_errors": disagreement,
    }


def _compared(posterior: pl.posteriors.Dropout, loop: Loop, x: Tensor, count: int = 400) -> float:
    """How far the two mean outputs are apart."""
    ours, theirs = posterior.predict(x, num_samples=count).outputs, loop.passes(x, count, SMALL)
    error = (ours.var(0) / count + theirs.var(0) / count).sqrt()
    return float(((ours.mean(0) - theirs.mean(0)).abs() / error).max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    results = {
        "device": f"{name}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "images": options.images,
        "passes": options.passes,
        "studies": [study(where, options) for where in ("all", "linear")],
    }
    for s in results["studies"]:
        print(
            f"{s['where']}: {s['plausible_seconds']:.3f} s; the loop {s['loop_seconds']} s; "
            f"{s['times_faster_than_batches_of_128']:.1f} times faster than batches of 128, "
            f"{s['times_faster_than_the_best_batch']:.2f} than the loop's best (batches of {s['best_batch']})"
        )
    store(results, options.out)


if __name__ == "__main__":
    main()
