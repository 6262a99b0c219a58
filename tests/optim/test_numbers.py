"""Numbers that no optimiser can be made of are errors that name them, and those of numpy become Python's."""

import io

import numpy as np
import pytest
import torch
from tests.optim.cases import CASES, data, every, losses, make, mlp, stepped
from torch import nn

import plausible as pl

NAN, INF = float("nan"), float("inf")
WRONG = {
    "num_data": ["60000", None, INF, NAN, True, 0, -3],
    "lr": ["0.1", None, NAN, INF, True, -1.0],
    "seed": [None, "a", 0.5],
    "prior_precision": [INF, NAN, "1", None, -1.0],
}
OWN = {
    "IVON": {"betas": [0.9, (0.9,), (0.9, 0.9, 0.9), None, ("a", "b"), (0.9, NAN)], "hess_init": [NAN, None, "x", 0.0],
             "clip_radius": ["1", NAN, 0.0], "num_samples": [1.5, None, 0, "2", True]},
    "KFAC": {"momentum": [1.0, NAN, "0.9"], "curvature_decay": [1.0, None], "damping": [NAN, -1.0, "0"],
             "update_every": [2.5, 0, None, "10"], "trust": [0.0, NAN, "1"]},
    "NoisyKFAC": {"num_samples": [1.5, 0], "update_every": [2.5]},
    "OGN": {"betas": [0.9, (0.9, 1.0)], "damping": [NAN, None]},
    "SGHMC": {"momentum": [1.0, NAN, None], "temperature": [0.0, NAN, "1"], "thin": [0, 1.5], "max_draws": [1, 2.5],
              "burn_in": [-1, 0.5, "3"]},
    "SGLD": {"temperature": [INF, None]},
    "VOGN": {"betas": [0.9, (1.0, 0.9)], "tempering": [NAN, 0.0, "1"], "augmentation_factor": [0.0, None, INF],
             "num_samples": [1.5, 0], "damping": [INF]},
}  # fmt: skip
CASES_OF = [(n, k, v) for n in CASES for k, vs in {**WRONG, **OWN[n]}.items() for v in vs]


@pytest.mark.parametrize(("name", "number", "value"), CASES_OF)
def test_a_number_that_is_none_is_an_error_that_names_it(name, number, value):
    with pytest.raises((TypeError, ValueError), match=number) as caught:
        CASES[name][0](mlp(), **{"num_data": 24, **CASES[name][1], number: value})
    assert repr(value) in str(caught.value) or str(value) in str(caught.value)


def test_values_are_value_errors_and_types_are_type_errors():
    for value, error in (("0.1", TypeError), (NAN, ValueError), (None, TypeError)):
        with pytest.raises(error, match="lr must be"):
            make("VOGN", mlp(), lr=value)


@every
def test_numbers_of_numpy_and_tensors_become_pythons(name):
    own = {k: np.float64(v) if isinstance(v, float) else v for k, v in CASES[name][1].items()}
    optimizer = CASES[name][0](
        mlp(), num_data=torch.tensor(24), seed=np.int64(3), prior_precision=np.float32(2.0), **own
    )
    assert type(optimizer.num_data) in (int, float) and optimizer.num_data == 24
    optimizer.train()
    losses(optimizer.network, *data()).mean().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)


@every
def test_parameters_in_the_place_of_the_network_are_refused_in_words(name):
    for given in (mlp().parameters(), list(mlp().parameters()), mlp().named_parameters()):
        with pytest.raises(TypeError, match=r"network itself.*not its parameters"):
            CASES[name][0](given, num_data=24)


@pytest.mark.parametrize("name", ["KFAC", "NoisyKFAC", "OGN", "VOGN"])
def test_a_step_without_a_backward_pass_is_told_so(name):
    optimizer = stepped(name)
    optimizer.zero_grad()
    with optimizer.sampled():
        losses(optimizer.network, *data()).mean()
    with pytest.raises(RuntimeError, match=r"no weight has a gradient.*backward"):
        optimizer._set("step", 0)  # where K-FAC looks at the curvature
        optimizer.step()


@pytest.mark.parametrize("name", ["KFAC", "NoisyKFAC", "OGN", "VOGN"])
def test_a_gradient_that_did_not_come_through_the_network_is_told_so(name):
    network = nn.Sequential(mlp())
    optimizer = make(name, network)
    with optimizer.sampled():
        losses(network[0], *data()).mean().backward()
    with pytest.raises(RuntimeError, match=r"not its layers"):
        optimizer.step()


def test_a_seed_may_be_negative():
    assert pl.optim.IVON(mlp(), num_data=24, seed=-1).param_groups[0]["seed"] == -1
