"""The pass that takes moments while it runs backwards, on a CPU, against the one that has tests of its own."""

import weakref

import pytest
import torch
from tests.curvature.networks import CASES, make
from tests.curvature.test_every_layer import LIKELIHOOD, batch_of, check_close
from tests.curvature.test_training import case

import plausible as pl
from plausible.curvature import gradient_and_second_moments
from plausible.curvature.outputs import bound_likelihood, gradient
from plausible.curvature.streaming import Normalised, Stream, stream, streams
from plausible.curvature.tracing import plan_for

# With weights that have several uses, or none that has a rule.
KEPT = {
    "GRU", "LSTM cell", "LSTM time first", "LSTM", "RNN", "attention by dictionary", "bilinear", "embedding bag",
    "low rank", "own layer", "tied weights", "weight norm",
}  # fmt: skip


def streamed(model, params, batch):
    """Moments by a stream, or None where the network has no such pass."""
    inputs, y, weights = batch
    plan = plan_for(model, params, inputs, tuple(model.weight_names))
    if not streams(plan, model.weight_names):
        return None
    passed = Stream(model, params, inputs, None, plan)
    assert passed.as_planned
    column = gradient(bound_likelihood(model, params), passed.outputs, y)
    column = column * weights.reshape(-1, *[1] * (column.dim() - 1))
    watched = passed.recorder
    found = passed.moments(column, weights.reciprocal().masked_fill(weights == 0, 0.0))
    assert not watched.inputs  # nothing recorded outlives its use
    return found


@pytest.mark.parametrize("name", CASES)
def test_moments_of_every_layer_are_those_of_a_pass_that_keeps_everything(name):
    network, inputs = make(name)
    model, batch = pl.BayesianModel(network, LIKELIHOOD), batch_of(inputs)
    batch[2][0] = 0.0
    found = streamed(model, model.init(), batch)
    if name in KEPT:
        assert found is None
        return
    truth = gradient_and_second_moments(model, model.init(), batch)
    check_close(found[0], truth.gradient, tolerance=1e-9)
    check_close(found[1], truth.squares, tolerance=1e-9)


def test_moments_in_train_mode_are_those_of_a_pass_that_keeps_everything():
    _, model, (x, y, _) = case("pictures")
    batch = (x, y, torch.full((5,), 20.0, dtype=torch.float64))
    found = streamed(model, model.init(), batch)
    truth = gradient_and_second_moments(model, model.init(), batch)
    check_close(found[0], truth.gradient, tolerance=1e-9)
    check_close(found[1], truth.squares, tolerance=1e-9)


def test_a_batch_norm_in_training_is_left_in_one_piece():
    _, model, (x, _, _) = case("pictures")
    plan = plan_for(model, model.init(), x, tuple(model.weight_names))
    passed = Stream(model, model.init(), x, None, plan)
    assert any(isinstance(given, Normalised) for given in passed.recorder.inputs.values())


def test_a_pass_leaves_no_tensor_for_the_collector_of_cycles():
    model = pl.BayesianModel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), LIKELIHOOD)
    params, x = model.init(), torch.randn(5, 3)
    passed = Stream(model, params, x, None, plan_for(model, params, x, tuple(model.weight_names)))
    held = [weakref.ref(t) for t in (*passed.params.values(), *passed.leaves.values())]
    assert held
    passed.moments(torch.ones(5, 2), torch.ones(5))
    assert not any(ref() is not None for ref in held)


def test_nothing_is_streamed_on_a_cpu():
    model = pl.BayesianModel(torch.nn.Linear(3, 1), pl.likelihoods.Normal(scale=1.0))
    assert stream(model, model.init(), torch.randn(4, 3)) is None


class Told(torch.nn.Module):
    """Uses its layer as often as an attribute says."""

    def __init__(self):
        super().__init__()
        self.layers, self.count = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)]), 2

    def forward(self, x):
        for layer in self.layers[: self.count]:
            x = layer(x.flatten(0, -2)).tanh().unflatten(0, x.shape[:-1])
        return x.flatten(1)


def test_a_pass_that_does_not_follow_its_plan_is_not_streamed():
    network = Told()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    names, params = tuple(model.weight_names), model.init()
    x = torch.randn(6, 3, 4)
    plan = plan_for(model, params, x, names)
    for many in (6, 7):  # other numbers of examples have the same plan
        assert Stream(model, params, x[:1].expand(many, -1, -1), None, plan).as_planned
    other = Stream(model, params, torch.randn(6, 5, 4), None, plan)  # other numbers of places have not
    assert not other.as_planned
    model.network.module(torch.device("cpu"), "eval").count = 1
    assert not Stream(model, params, x, None, plan).as_planned
