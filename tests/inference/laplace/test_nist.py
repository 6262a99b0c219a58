"""Non-linear regression with certified results: NIST's Statistical Reference Datasets, itl.nist.gov/div898/strd.

Each file in `nist/` has two starting points, parameters and standard deviations to eleven digits, and the data.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import exp, nn

import plausible as pl

FILES = Path(__file__).parent / "nist"

CURVES = {
    "Misra1a": lambda x, b1, b2: b1 * (1 - exp(-b2 * x)),
    "Chwirut2": lambda x, b1, b2, b3: exp(-b1 * x) / (b2 + b3 * x),
    "DanWood": lambda x, b1, b2: b1 * x**b2,
    "MGH09": lambda x, b1, b2, b3, b4: b1 * (x**2 + x * b2) / (x**2 + x * b3 + b4),
    "MGH10": lambda x, b1, b2, b3: b1 * exp(b2 / (x + b3)),
    "MGH17": lambda x, b1, b2, b3, b4, b5: b1 + b2 * exp(-x * b4) + b3 * exp(-x * b5),
    "BoxBOD": lambda x, b1, b2: b1 * (1 - exp(-b2 * x)),
    "Rat43": lambda x, b1, b2, b3, b4: b1 / (1 + exp(b2 - b3 * x)) ** (1 / b4),
    "Thurber": lambda x, b1, b2, b3, b4, b5, b6, b7: (
        (b1 + b2 * x + b3 * x**2 + b4 * x**3) / (1 + b5 * x + b6 * x**2 + b7 * x**3)
    ),
    "Eckerle4": lambda x, b1, b2, b3: b1 / b2 * exp(-0.5 * ((x - b3) / b2) ** 2),
}


@dataclass(frozen=True)
class Certified:
    starts: np.ndarray  # (2, parameters)
    parameters: np.ndarray
    deviations: np.ndarray
    residual_deviation: float
    x: torch.Tensor
    y: torch.Tensor


def read(name: str) -> Certified:
    lines = (FILES / f"{name}.dat").read_text().splitlines()
    rows = [line.split("=")[1].split() for line in lines if re.match(r"\s*b\d+ =", line)]
    table = np.array(rows, dtype=float).T
    begin = max(i for i, line in enumerate(lines) if line.startswith("Data:"))
    data = torch.tensor(
        [[float(v) for v in line.split()] for line in lines[begin + 1 :] if line.strip()], dtype=torch.float64
    )
    squares = float(next(line for line in lines if "Residual Sum of Squares" in line).split(":")[1])
    deviation = (squares / (len(data) - table.shape[1])) ** 0.5
    return Certified(table[:2], table[2], table[3], deviation, data[:, 1:], data[:, :1])


class Curve(nn.Module):
    """A formula with bare parameters."""

    def __init__(self, name: str, start: np.ndarray):
        super().__init__()
        self.formula = CURVES[name]
        self.b = nn.ParameterList([nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in start])

    def forward(self, x):
        return self.formula(x, *self.b)


@pytest.mark.parametrize("name", CURVES)
def test_parameters_and_standard_deviations_are_the_certified_ones(name):
    truth = read(name)
    model = pl.BayesianModel(
        Curve(name, truth.starts[1]), pl.likelihoods.Normal(scale=truth.residual_deviation), pl.priors.Flat()
    )
    method = pl.Laplace(structure="full")
    posterior = pl.fit(model, (truth.x, truth.y), method, init="network", epochs=0, progress=False)
    found = np.array([float(b) for b in posterior.mean.values()])
    np.testing.assert_allclose(found, truth.parameters, rtol=1e-6)
    np.testing.assert_allclose(posterior.covariance.diagonal().sqrt(), truth.deviations, rtol=1e-6)
    assert posterior.diagnostics().ok
