"""Layers are found by the weights they use, whatever the network's code looks like, and can be run otherwise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.weights.watched_networks import NETWORKS
from torch import nn
from torch.func import functional_call

from plausible.weights.layer_calls import LayerCall, LayerCalls


def weights_of(network):
    return {k: v.detach().clone() for k, v in network.named_parameters()}


def calls_of(network, *inputs):
    weights, calls = weights_of(network), []

    def handle(call):
        calls.append(call)
        return call.run()

    with LayerCalls(weights, handle):
        out = functional_call(network, weights, inputs)
    return calls, out, weights


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_watched_pass_gives_what_an_unwatched_one_gives_and_finds_the_layers(kind):
    make, inputs, expected = NETWORKS[kind]
    network = make()
    calls, out, weights = calls_of(network, *inputs())
    torch.testing.assert_close(out, functional_call(network, weights, inputs()))
    assert [(c.kind, c.name) for c in calls if c.kind != "other"] == expected


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_pass_with_every_weight_replaced_is_the_pass_of_the_other_weights(kind):
    make, inputs, _ = NETWORKS[kind]
    network = make()
    weights, others = weights_of(network), {k: v + 0.3 for k, v in weights_of(network).items()}

    def handle(call):
        if call.kind in ("other", "recurrent"):
            return call.run(weights=others)
        bias = call.bias_from(others)
        return call.run(weight=call.weight_from(others), **({} if bias is None else {"bias": bias}))

    with LayerCalls(weights, handle):
        out = functional_call(network, weights, inputs())
    torch.testing.assert_close(out, functional_call(network, others, inputs()))


def test_a_call_says_how_its_weight_lies():
    class Ways(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix, self.offset = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))
            self.convolution, self.back = nn.Conv2d(1, 5, 2), nn.ConvTranspose2d(5, 2, 2)

        def forward(self, x, image):
            return torch.addmm(self.offset, x @ self.matrix @ self.matrix.T, self.matrix), self.back(
                self.convolution(image)
            )

    calls, _, weights = calls_of(Ways(), torch.randn(2, 3), torch.randn(2, 1, 4, 4))
    assert [c.transposed for c in calls] == [True, True, True, False, True]
    assert calls[2].bias is weights["offset"] and calls[2].names == ("matrix", "offset")
    assert [c.channels for c in calls[3:]] == [-3, -3]
    assert torch.equal(calls[1].weight, weights["matrix"].T)


def doubled(network, weights, x):
    def handle(call: LayerCall):
        return call.run(input=2 * call.input) if call.kind == "linear" else call.run()

    with LayerCalls(weights, handle):
        return functional_call(network, weights, (x,)).square().sum()


def doubled_by_hand(weights, x):
    hidden = torch.tanh(F.linear(2 * x, weights["0.weight"], weights["0.bias"]))
    return F.linear(2 * hidden, weights["2.weight"], weights["2.bias"]).square().sum()


def test_layers_are_changed_inside_gradients_vmap_and_a_compiler():
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    weights = weights_of(network)
    slope = torch.func.grad(lambda w, x: doubled(network, w, x))
    expected = torch.func.grad(doubled_by_hand)(weights, x)
    torch.testing.assert_close(slope(weights, x), expected)
    compiled = torch.compile(slope, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(weights, x), expected)
    stacked = {k: torch.stack([v, 2 * v]) for k, v in weights.items()}
    second = torch.func.grad(doubled_by_hand)({k: 2 * v for k, v in weights.items()}, x)
    rows = torch.vmap(slope, in_dims=(0, None))(stacked, x)
    torch.testing.assert_close({k: v[1] for k, v in rows.items()}, second)


def test_own_dropouts_are_handed_over_in_eval_mode_too():
    seen = []

    def handle(x, rate, function):
        seen.append((rate, function))
        return x

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.channels = nn.Dropout(0.2), nn.Dropout2d(0.3)

        def forward(self, x):
            return F.dropout(self.channels(self.layer(x)), p=0.4, training=self.training)

    x = torch.ones(2, 3, 2, 2)
    with LayerCalls({}, LayerCall.run, dropouts=handle):
        assert Own().eval()(x) is x
    assert seen == [(0.2, F.dropout), (0.3, F.dropout2d), (0.4, F.dropout)]
