"""The same numbers as laplace-torch 0.3, at the same weights of the same networks.

Conventions that differ: there a layer's bias is independent of its weight in a Kronecker approximation, here it is one
more column, so the two are compared without biases; and there is no bias in the last layer of these either.
"""

import json
from pathlib import Path

import pytest
import torch
from tests.inference.laplace.networks import QUICK
from torch import nn

import plausible as pl
from plausible.core.linearised import output_moments

ANSWERS = json.loads(Path(__file__).with_name("laplace_torch.json").read_text())
CASES = [(kind, case) for kind, found in ANSWERS.items() for case in found if "/" in case]


def tensor(values):
    found = torch.tensor(values)
    return found.double() if found.is_floating_point() else found


def at_their_weights(found):
    biases = "0.bias" in found["weights"]
    weights = {k: torch.tensor(v, dtype=torch.float64) for k, v in found["weights"].items()}
    outputs = len(weights["2.weight"])
    network = nn.Sequential(nn.Linear(3, 5, bias=biases), nn.Tanh(), nn.Linear(5, outputs, bias=biases)).double()
    network.load_state_dict(weights)
    likelihood = pl.likelihoods.Normal(scale=found["noise"]) if outputs == 1 else pl.likelihoods.Categorical()
    return pl.BayesianModel(network, likelihood, pl.priors.Normal(scale=found["prior_precision"] ** -0.5))


@pytest.mark.parametrize("kind, case", CASES)
def test_variances_and_evidence_agree(kind, case, monkeypatch):
    found, truth = ANSWERS[kind], ANSWERS[kind][case]
    subset, structure = case.split("/")
    model = at_their_weights(found)
    # They expand where they are told to, so no Newton steps.
    monkeypatch.setattr("plausible.inference.laplace.laplace.climb", lambda place: place)
    data = torch.tensor(found["x"], dtype=torch.float64), torch.tensor(found["y"])
    data = (data[0], data[1].double() if data[1].is_floating_point() else data[1])
    method = pl.Laplace(structure=structure, subset=subset.replace("_", "-"))
    posterior = pl.fit(model, data, method, **QUICK)
    x = torch.tensor(found["x_new"], dtype=torch.float64)
    mean, variance = output_moments(posterior, x, 1 << 28)
    theirs = torch.tensor(truth["variance"], dtype=torch.float64)
    torch.testing.assert_close(mean, torch.tensor(truth["mean"], dtype=torch.float64), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance, theirs.diagonal(dim1=-2, dim2=-1), rtol=1e-6, atol=1e-8)
    own = float(posterior.evidence().log_marginal_likelihood)
    assert own == pytest.approx(truth["log_marginal_likelihood"], rel=1e-7)
