"""Dropout put into a network from outside is dropout written into its code."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.weights.watched_networks import NETWORKS
from torch import nn
from torch.func import functional_call

from plausible.weights.masked_layers import Site, masking

RATE = 0.3


def dropped(x, rate=RATE):
    return F.dropout(x, rate, training=True)


def masked_pass(network, inputs, where="all", rates=None, met=None):
    weights = {k: v.detach().clone() for k, v in network.named_parameters()}
    rates = dict.fromkeys(weights, RATE) if rates is None else rates
    torch.manual_seed(1)
    with masking(weights, rates, where, dropped, met):
        return functional_call(network, weights, inputs)


@pytest.mark.parametrize("kind", NETWORKS)
def test_masks_from_outside_are_those_written_out_by_hand(kind):
    make, inputs, _ = NETWORKS[kind]
    network = make()
    found = masked_pass(network, inputs())
    torch.manual_seed(1)  # the same coins in the same order
    by_hand = network(*inputs(), drop=dropped)
    torch.testing.assert_close(found, by_hand)
    assert not torch.allclose(found, network(*inputs()))


def test_masks_come_only_where_they_are_wanted():
    network = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(27, 4), nn.Tanh(), nn.Linear(4, 2))
    met: dict[str, Site] = {}
    masked_pass(network, (torch.randn(2, 1, 4, 4),), met=met)
    assert met == {
        "0.weight": Site(3, ("0.weight", "0.bias")),
        "2.weight": Site(27, ("2.weight",)),
        "4.weight": Site(4, ("4.weight",)),
    }
    for where, names in (("linear", {"2.weight", "4.weight"}), ("convolution", {"0.weight"})):
        met.clear()
        masked_pass(network, (torch.randn(2, 1, 4, 4),), where, met=met)
        assert met.keys() == names
    met.clear()
    masked_pass(network, (torch.randn(2, 1, 4, 4),), rates={"4.weight": 0.5}, met=met)
    assert met.keys() == {"4.weight"}


def test_a_mask_of_a_layer_that_reads_both_ways_switches_both_of_its_weights():
    make, inputs, _ = NETWORKS["recurrent layer"]
    met: dict[str, Site] = {}
    masked_pass(make(), inputs(), met=met)
    assert met["memory.weight_ih_l0"] == Site(3, ("memory.weight_ih_l0", "memory.weight_ih_l0_reverse"))


def test_buffers_are_left_alone():
    network = NETWORKS["convolutions"][0]()
    before = {k: v.clone() for k, v in network.named_buffers()}
    masked_pass(network, NETWORKS["convolutions"][1]())
    assert all(torch.equal(v, before[k]) for k, v in network.named_buffers())
