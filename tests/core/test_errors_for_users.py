"""What a user can get wrong: each mistake is one line with the value and the way out."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from tests.contract_cases import CASES, blobs, mlp, model
from torch import nn

import plausible as pl

X, Y = blobs()


def with_value(value, at=(3, 1)):
    x = X.clone()
    x[at] = value
    return x


def fit(data=(X, Y), method=None, of=None, **settings):
    settings = {"steps": 4, "batch_size": 16, "progress": False, "device": "cpu", **settings}
    return pl.fit(of or model(), data, method or pl.MAP(), **settings)


def regression(**settings):
    return pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=0.5), **settings)


class Anonymous(nn.Module):
    """Returns something that is no tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        return [self.layer(x)]


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.likelihood = nn.Linear(2, 3)


class Loose(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.shift = nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return self.layer(x) + self.shift


MISTAKES = {
    # name: (what is done, the error, what its line must hold: the value and the way out)
    "NaN inputs": (lambda: fit((with_value(float("nan")), Y)), ValueError, ["nan", "example 3", "impute"]),
    "infinite inputs": (lambda: fit((with_value(float("inf")), Y)), ValueError, ["inf", "example 3", "impute"]),
    "NaN targets": (
        lambda: fit((X, torch.full((50, 1), float("nan"))), of=regression()),
        ValueError,
        ["nan"],
    ),
    "infinite targets": (lambda: fit((X, torch.full((50, 1), float("inf"))), of=regression()), ValueError, ["inf"]),
    "labels too large": (lambda: fit((X, Y + 5)), ValueError, ["0 to 2", "5", "renumber"]),
    "labels below zero": (lambda: fit((X, Y - 1)), ValueError, ["-1", "ignore_index"]),
    "labels that are floats": (lambda: fit((X, Y.float())), ValueError, ["float32", ".long()"]),
    "labels with an axis too many": (lambda: fit((X, Y.unsqueeze(-1))), ValueError, ["(50, 1)", "squeeze"]),
    "empty data": (lambda: fit((X[:0], Y[:0])), ValueError, ["empty"]),
    "an empty data set": (lambda: fit(ListOf([])), ValueError, ["empty"]),
    "lengths that differ": (lambda: fit((X, Y[:40])), ValueError, ["50", "40"]),
    "inputs of two lengths": (lambda: fit(((X, X[:9]), Y)), ValueError, ["(50, 2)", "(9, 2)"]),
    "targets of another shape": (
        lambda: fit((X, Y.float()), of=regression()),
        ValueError,
        ["(50, 1)", "(50,)", "unsqueeze"],
    ),
    "inputs the network cannot take": (lambda: fit((torch.ones(50, 5), Y)), Exception, ["5"]),
    "data that are no data": (lambda: fit("data.csv"), TypeError, ["str", "Dataset"]),
    "data of one tensor": (lambda: fit((X,)), TypeError, ["length 1", "batch=function"]),
    "no data": (lambda: fit(None), TypeError, ["None", "LogDensity"]),
    "a dictionary without labels": (lambda: fit({"x": X, "y": Y}), ValueError, ["'x', 'y'", "labels"]),
    "strings in the data": (lambda: fit((np.array(["a"] * 50), Y)), (TypeError, ValueError), ["str"]),
    "double inputs for a float network": (lambda: fit((X.double(), Y)), ValueError, ["float64", "x.to(torch.float32)"]),
    "negative weights": (lambda: fit((X, Y, -torch.ones(50))), ValueError, ["50 finite, non-negative"]),
    "weights that are all zero": (lambda: fit((X, Y, torch.zeros(50))), ValueError, ["zero"]),
    "a network that is no module": (
        lambda: pl.BayesianModel(lambda x: x, pl.likelihoods.Categorical()),
        TypeError,
        ["function", "torch.nn.Module"],
    ),
    "a module given as model": (lambda: fit(of=mlp()), TypeError, ["Sequential", "pl.BayesianModel(network"]),
    "a likelihood that is none": (
        lambda: pl.BayesianModel(mlp(), "categorical"),
        TypeError,
        ["categorical", "log_prob"],
    ),
    "a likelihood class": (
        lambda: fit(of=pl.BayesianModel(mlp(), pl.likelihoods.Categorical)),
        TypeError,
        ["Categorical"],
    ),
    "a prior that is none": (
        lambda: pl.BayesianModel(mlp(), pl.likelihoods.Categorical(), 1.0),
        TypeError,
        ["float", "pl.priors.Normal"],
    ),
    "a pattern that matches nothing": (lambda: model(parameters="*lora_*"), ValueError, ["*lora_*", "0.weight"]),
    "a prior pattern that matches nothing": (
        lambda: model(prior={"head.*": pl.priors.Normal(), "*": pl.priors.Flat()}),
        ValueError,
        ["head.*", "0.weight"],
    ),
    "weights that no prior covers": (
        lambda: model(prior={"*.weight": pl.priors.Normal()}),
        ValueError,
        ["0.bias", '"*"'],
    ),
    "a network without free weights": (
        lambda: model(mlp().requires_grad_(False)),
        ValueError,
        ["requires_grad=True"],
    ),
    "a submodule with a reserved name": (lambda: model(Named()), ValueError, ["'likelihood'", "rename"]),
    "lazy layers": (lambda: model(nn.LazyLinear(3)), ValueError, ["forward pass"]),
    "a temperature of zero": (lambda: model(temperature=0.0), ValueError, ["0.0", "positive"]),
    "a network that returns a list": (lambda: fit(of=model(Anonymous())), TypeError, ["list", "wrap"]),
    "both epochs and steps": (lambda: fit(epochs=2), ValueError, ["epochs=2", "steps=4"]),
    "negative steps": (lambda: fit(steps=-1), ValueError, ["-1"]),
    "steps that are no integer": (lambda: fit(steps=2.5), ValueError, ["2.5"]),
    "a batch size of zero": (lambda: fit(batch_size=0), ValueError, ["0", "positive"]),
    "a batch size that is no integer": (lambda: fit(batch_size=16.0), ValueError, ["16.0"]),
    "num_data below zero": (lambda: fit(num_data=-3), ValueError, ["-3"]),
    "num_modes of zero": (lambda: fit(num_modes=0), ValueError, ["0"]),
    "num_modes twice": (lambda: fit(method=pl.DeepEnsemble(members=3), num_modes=2), ValueError, ["3", "num_modes=2"]),
    "a method by name": (lambda: fit(method="swag"), TypeError, ["'swag'", "pl.MAP()"]),
    "a method that was not called": (lambda: fit(method=pl.MAP), TypeError, ["MAP", "pl.MAP()"]),
    "an unknown optimizer": (lambda: pl.MAP(optimizer="lion"), pl.NotSupported, ["'lion'", "adamw"]),
    "an unknown schedule": (lambda: pl.MAP(schedule="linear"), pl.NotSupported, ["'linear'", "cosine"]),
    "a learning rate below zero": (lambda: pl.MAP(learning_rate=-1.0), ValueError, ["-1.0"]),
    "an unknown init": (lambda: fit(init="random"), ValueError, ["'random'", "reset"]),
    "an init of another model": (lambda: fit(init={"w": torch.ones(2)}), ValueError, ["w", "0.bias"]),
    "an init of another shape": (
        lambda: fit(init={k: torch.ones(2, 2) for k in model().start}),
        ValueError,
        ["(2, 2)", "(8, 2)"],
    ),
    "a bare random parameter in several modes": (
        lambda: fit(of=model(Loose()), num_modes=2),
        ValueError,
        ["shift", "reset_parameters"],
    ),
    "an unknown device": (lambda: fit(device="cuda"), ValueError, ["cuda", "device=None"]),
    "an unknown precision": (lambda: fit(precision="int8"), ValueError, ["'int8'", "bf16"]),
    "resuming nothing": (lambda: fit(resume=True), ValueError, ["checkpoint=path"]),
    "checkpoints every zero steps": (lambda: pl.Checkpoint("a", every_steps=0), ValueError, ["0"]),
    "too few steps for SWAG": (lambda: fit(method=pl.SWAG(), steps=4), ValueError, ["snapshots", "run longer"]),
    "a warm-up that leaves nothing": (lambda: fit(method=pl.HMC(warmup=4)), ValueError, ["4", "no draw"]),
    "no steps for a sampler": (lambda: fit(method=pl.HMC(), steps=0), ValueError, ["run more steps"]),
    "NaN at prediction": (lambda: fit().predict(with_value(float("nan"))), ValueError, ["nan", "example 3"]),
    "nothing to predict": (lambda: fit().predict(X[:0]), ValueError, ["no rows"]),
    "no samples to predict with": (lambda: fit().predict(X, num_samples=0), ValueError, ["0"]),
    "a log density with data": (
        lambda: fit(of=pl.LogDensity(lambda p: -p["w"].square().sum(), {"w": torch.ones(1)})),
        ValueError,
        ["data=None"],
    ),
    "one run for fit_many": (lambda: pl.fit_many(model(), (X, Y), pl.MAP()), ValueError, ["fit"]),
    "lists of two lengths for fit_many": (
        lambda: pl.fit_many(model(), (X, Y), [pl.MAP()] * 2, seed=[1, 2, 3]),
        ValueError,
        ["2", "3"],
    ),
    "methods that differ in kind for fit_many": (
        lambda: pl.fit_many(model(), (X, Y), [pl.MAP(), pl.HMC()]),
        ValueError,
        ["MAP", "HMC", "fit for each"],
    ),
    "data of two sizes for fit_many": (
        lambda: pl.fit_many(model(), [(X, Y), (X[:40], Y[:40])], pl.MAP()),
        ValueError,
        ["50", "40"],
    ),
}


class ListOf(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_the_value_and_the_way_out(mistake):
    do, kind, parts = MISTAKES[mistake]
    if mistake == "an unknown device" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU, so the device is known")
    with pytest.raises(kind) as caught:
        do()
    message = str(caught.value)
    assert "\n" not in message and 15 < len(message) < 400
    for part in parts:
        assert part in message, message


def test_nan_inputs_of_a_loader_are_found_too():
    data = torch.utils.data.DataLoader(ListOf(list(zip(with_value(float("nan")), Y, strict=True))), batch_size=10)
    with pytest.raises(ValueError, match="nan in example") as caught:
        fit(data)
    assert "\n" not in str(caught.value)


def test_labels_out_of_range_of_a_data_set_are_found_too():
    with pytest.raises(ValueError, match="labels must be 0 to 2") as caught:
        fit(ListOf(list(zip(X, Y + 2, strict=True))))
    assert "\n" not in str(caught.value)


# --- losses that turn NaN ---

HUGE = {
    "MAP": pl.MAP(optimizer="sgd", learning_rate=1e30, schedule="constant"),
    "SWAG": pl.SWAG(rank=2, start=0.0, base=pl.MAP(optimizer="sgd", learning_rate=1e30)),
    "DeepEnsemble": pl.DeepEnsemble(members=3, base=pl.MAP(optimizer="sgd", learning_rate=1e30)),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_learning_rate_stops_with_the_step_and_the_cause(name, tmp_path):
    path = tmp_path / "run.ckpt"
    with pytest.raises(FloatingPointError) as caught:
        fit(method=HUGE[name], steps=40, checkpoint=pl.Checkpoint(path, every_steps=1))
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"at step \d+", message) and "learning rate" in message
    if path.exists():
        assert str(path) in message
        assert_checkpoint_is_finite(path)
    else:
        assert "checkpoint" not in message


def assert_checkpoint_is_finite(path):
    from safetensors.torch import load_file

    stored = load_file(path)
    assert any("params" in k for k in stored)
    assert all(bool(torch.isfinite(v).all()) for k, v in stored.items() if "params" in k)


class Breaking(nn.Module):
    """Gives NaN from its k-th training pass on."""

    def __init__(self, good):
        super().__init__()
        self.layer, self.good, self.passes = nn.Linear(2, 3), good, 0

    def forward(self, x):
        out = self.layer(x)
        if not self.training or len(x) < 16:  # what looks at the network beforehand looks at few examples
            return out
        self.passes += 1
        return out * float("nan") if self.passes > self.good else out


def test_a_nan_at_step_k_names_step_k_and_keeps_the_last_good_checkpoint(tmp_path):
    path = tmp_path / "run.ckpt"
    of = model(Breaking(7))
    with pytest.raises(FloatingPointError, match="at step 7:") as caught:
        fit(of=of, steps=20, checkpoint=pl.Checkpoint(path, every_steps=3), compile=False)
    assert str(path) in str(caught.value)
    assert_checkpoint_is_finite(path)
    healthy = model(Breaking(10**9))
    healthy.network.parameters.update(of.network.parameters)
    seen = []
    fit(
        of=healthy,
        steps=20,
        checkpoint=pl.Checkpoint(path, every_steps=3),
        resume=True,
        callbacks=[lambda e: seen.append(e["step"])],
    )
    assert seen[0] == 6


def test_one_broken_mode_of_several_stops_the_run():
    start = {k: torch.stack([v, v * 1e38]) for k, v in model().start.items()}
    with pytest.raises(FloatingPointError, match="at step 0"):
        fit(num_modes=2, init=start, method=pl.MAP(optimizer="sgd", learning_rate=1.0))


def test_every_public_method_refuses_nan_data_before_the_first_step():
    for case in CASES.values():
        with pytest.raises(ValueError, match="nan in example 3"):
            fit((with_value(float("nan")), Y), method=case.method, steps=case.steps)


def test_inputs_of_the_wrong_width_are_named_in_one_line():
    model = pl.BayesianModel(torch.nn.Linear(3, 1), likelihood=pl.likelihoods.Normal())
    with pytest.raises(ValueError, match=r"cannot take these inputs, of shape \(8, 4\)") as caught:
        pl.fit(model, (torch.zeros(8, 4), torch.zeros(8, 1)), pl.MAP(), steps=1, progress=False)
    assert "\n" not in str(caught.value)
    posterior = pl.fit(model, (torch.zeros(8, 3), torch.zeros(8, 1)), pl.MAP(), steps=1, progress=False)
    with pytest.raises(ValueError, match="cannot take these inputs"):
        posterior.predict(torch.zeros(8, 5))
