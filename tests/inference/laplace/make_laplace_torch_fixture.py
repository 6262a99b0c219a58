"""What laplace-torch 0.3 says of two small networks, written to laplace_torch.json.

Run it in an environment of its own: pip install laplace-torch==0.3, then python make_laplace_torch_fixture.py.
"""

import json
from pathlib import Path

import torch
from laplace import Laplace
from laplace.curvature import CurvlinopsGGN
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PRIOR_PRECISION, NOISE = 0.7, 0.3
STRUCTURES = {"diagonal": "diag", "kronecker": "kron", "full": "full"}


def network(outputs: int, bias: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5, bias=bias), nn.Tanh(), nn.Linear(5, outputs, bias=bias))


def data(outputs: int):
    torch.manual_seed(1)
    x = torch.randn(30, 3)
    y = torch.randint(outputs, (30,)) if outputs > 1 else x[:, :1].sin() + NOISE * torch.randn(30, 1)
    return x, y, torch.randn(6, 3)


def answers(kind: str, outputs: int, bias: bool) -> dict:
    net, (x, y, x_new) = network(outputs, bias), data(outputs)
    found = {
        "weights": {k: v.tolist() for k, v in net.state_dict().items()},
        "x": x.tolist(), "y": y.tolist(), "x_new": x_new.tolist(),
        "prior_precision": PRIOR_PRECISION, "noise": NOISE,
    }  # fmt: skip
    for subset in ("all", "last_layer"):
        for ours, theirs in STRUCTURES.items():
            if (
                bias and ours == "kronecker"
            ):  # there a bias is independent of its weight, here it is one more column of it
                continue
            settings = {"sigma_noise": NOISE} if kind == "regression" else {}
            laplace = Laplace(
                net, kind, subset_of_weights=subset, hessian_structure=theirs, prior_precision=PRIOR_PRECISION,
                backend=CurvlinopsGGN, **settings,
            )  # fmt: skip
            # One batch: the Kronecker factors of several are summed by other rules in each library.
            laplace.fit(DataLoader(TensorDataset(x, y), batch_size=30))
            mean, variance = laplace._glm_predictive_distribution(x_new)
            found[f"{subset}/{ours}"] = {
                "mean": mean.tolist(), "variance": variance.tolist(),
                "log_marginal_likelihood": float(laplace.log_marginal_likelihood()),
            }  # fmt: skip
    return found


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    kinds = {"regression": 1, "classification": 3}
    both = {
        f"{kind}/{'biases' if bias else 'no biases'}": answers(kind, outputs, bias)
        for kind, outputs in kinds.items()
        for bias in (True, False)
    }
    path = Path(__file__).with_name("laplace_torch.json")
    path.write_text(json.dumps(both, indent=None, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)
