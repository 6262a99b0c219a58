"""Fitting and predicting with Laplace beside laplace-torch, as ratios taken in one run.

    PYTHONPATH=carry/peers python benchmarks/laplace_fit.py --out results/laplace-cpu.json

Both approximate the same LeNet-5 on the same 5,120 images, with exact Gauss-Newton curvature and the same batches; ours
is called as a user calls it, so its checks, its evidence and its diagnostics are in the time. Factors are timed
against a plain gradient of the same batch.
"""

from __future__ import annotations

import argparse
import json
import platform
import warnings
from pathlib import Path

import torch
from result_file import commit, device_name, store
from timing import DEVICE, median_seconds
from torch.utils.data import DataLoader, TensorDataset

import plausible as pl
from plausible.core.model import InternalBatch
from plausible.curvature import Curvature, second_moments
from plausible.weights.rng import Keys, run_key

IMAGES, BATCH, PREDICTED = 5120, 128, 256


def problem(images: int = IMAGES):
    torch.manual_seed(0)
    network = pl.networks.LeNet5().to(DEVICE)
    x, y = torch.randn(images, 1, 28, 28, device=DEVICE), torch.randint(0, 10, (images,), device=DEVICE)
    return network, x, y


def ours(structure: str, repeats: int, images: int) -> tuple[float, float]:
    network, x, y = problem(images)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())

    def fit():
        return pl.fit(
            model, (x, y), pl.Laplace(structure=structure), init="network", epochs=0, batch_size=BATCH, progress=False
        )

    posterior = fit()
    return median_seconds(fit, repeats), median_seconds(
        lambda: posterior.predict(x[:PREDICTED], link="probit").probs, repeats
    )


def theirs(structure: str, repeats: int, images: int) -> tuple[float, float]:
    from laplace import Laplace

    network, x, y = problem(images)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)

    def fit():
        answer = Laplace(network, "classification", subset_of_weights="all", hessian_structure=structure)
        answer.fit(loader)
        return answer

    answer = fit()
    return median_seconds(fit, repeats), median_seconds(lambda: answer(x[:PREDICTED], link_approx="probit"), repeats)


def costs(repeats: int) -> dict[str, float]:
    """Curvature of one batch beside its gradient."""
    network, x, y = problem()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(num_data=float(BATCH))
    params = {k: v.to(DEVICE) for k, v in model.start.items()}
    batch = InternalBatch((x[:BATCH], y[:BATCH], torch.ones(BATCH, device=DEVICE)))
    rng = Keys(run_key(0, 0, device=DEVICE), torch.tensor(0, device=DEVICE))
    gradient = median_seconds(lambda: model.slope(params, batch), repeats)
    return {
        "gradient_ms": 1e3 * gradient,
        "kronecker_mc": median_seconds(lambda: Curvature(model, params, batch, "mc-fisher", rng).kronecker(), repeats)
        / gradient,
        "kronecker_ggn": median_seconds(lambda: Curvature(model, params, batch).kronecker(), repeats) / gradient,
        "diagonal_ggn": median_seconds(lambda: Curvature(model, params, batch).diagonal(), repeats) / gradient,
        "second_moments": median_seconds(lambda: second_moments(model, params, batch), repeats) / gradient,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=IMAGES, help="to approximate on; the peer needs minutes on a CPU")
    given = parser.parse_args()
    images = given.images
    warnings.filterwarnings("ignore")  # the peer's
    found: dict = {
        "device": device_name(f"{platform.processor()} CPU"),
        "threads": torch.get_num_threads(),
        "images": images,
        "torch": torch.__version__,
        "commit": commit(given.commit),
        "costs": costs(10 * given.repeats),
    }
    print(json.dumps(found["costs"], indent=1), flush=True)
    for name, theirs_name in (("diagonal", "diag"), ("kronecker", "kron")):
        mine, peers = ours(name, given.repeats, images), theirs(theirs_name, given.repeats, images)
        found[name] = {
            "fit_seconds": mine[0], "peer_fit_seconds": peers[0], "fit_ratio": peers[0] / mine[0],
            "predict_seconds": mine[1], "peer_predict_seconds": peers[1], "predict_ratio": peers[1] / mine[1],
        }  # fmt: skip
        print(name, json.dumps(found[name], indent=1), flush=True)
        store(found, given.out)


if __name__ == "__main__":
    main()
