"""Plans of one network for inputs of many shapes: how many are kept, and what they share."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.curvature import recent

N = 4


class Words(nn.Module):
    """Sentences of any length, one weight in an operation that no rule knows, and a way to be told how to read them."""

    def __init__(self):
        super().__init__()
        self.words, self.odd = nn.Embedding(9, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, tokens, read="mean"):
        hidden = self.words(tokens).tanh()
        hidden = hidden.mean(1) if read == "mean" else hidden.amax(1)
        return torch.einsum("bi,oi->bo", hidden, self.odd)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Words().double()


def plans(network):
    return next(iter(network._forward_pre_hooks.values())).__self__._recordings._plans


def batch(length):
    g = torch.Generator().manual_seed(length)
    return torch.randint(9, (N, length), generator=g), torch.randint(3, (N,), generator=g)


def squares(network, x, y, **told):
    found = {k: torch.zeros_like(p) for k, p in network.named_parameters() if p.requires_grad}
    for i in range(N):
        loss = nn.functional.cross_entropy(network(x[i : i + 1], **told), y[i : i + 1])
        own = [p for p in network.parameters() if p.requires_grad]
        for k, g in zip(found, torch.autograd.grad(loss, own), strict=True):
            found[k] += g**2 / N
    return found


def assert_measured(optimizer, x, y, **told):
    network = optimizer.network
    expected = squares(copy.deepcopy(network), x, y, **told)
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x, **told), y).backward()
    optimizer._close_draw()
    for k, v in optimizer.ledger.now.tensors["squares"].items():
        torch.testing.assert_close(v, expected[k], rtol=1e-9, atol=1e-14)


def test_only_so_many_plans_are_kept_and_those_that_were_used_last(network, monkeypatch):
    monkeypatch.setattr(recent, "KEPT", 3)
    optimizer = pl.optim.OGN(network, num_data=N)
    made = {}
    for length in (2, 3, 4, 2, 5, 6):  # 2 is used again before there are too many
        assert_measured(optimizer, *batch(length))
        made[length] = next(reversed(plans(network).values()))[0]
    assert [p[0] for p in plans(network).values()] == [made[k] for k in (2, 5, 6)]
    assert_measured(optimizer, *batch(3))  # whose plan is made again
    assert len(plans(network)) == 3


def copies(network):
    """Modules like it that live."""
    gc.collect()
    return [m for m in gc.get_objects() if type(m) is type(network) and m is not network]


def test_no_copy_of_the_network_is_kept(network):
    optimizer = pl.optim.OGN(network, num_data=N)
    for length in (2, 3, 4):
        assert_measured(optimizer, *batch(length))
    assert len(plans(network)) == 3
    assert all(plan.fallback == {"odd"} for plan, _ in plans(network).values())
    assert not copies(network)


def test_a_pass_without_a_backward_goes_by_itself(network):
    optimizer = pl.optim.OGN(network, num_data=N)
    assert_measured(optimizer, *batch(3))
    gc.collect()
    gc.disable()
    try:
        watcher = next(iter(network._forward_pre_hooks.values())).__self__
        seen = []
        expect = watcher._expect
        watcher._expect = lambda current, output: (seen.append(weakref.ref(current)), expect(current, output))
        network(batch(3)[0])
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()


class Scaled(Words):
    def __init__(self):
        super().__init__()
        self.register_buffer("buffer", torch.ones(()))
        self.fixed = nn.Linear(4, 1, bias=False).requires_grad_(False)
        self.attribute = 1.0

    def forward(self, tokens, by=1.0):
        return self.buffer * self.attribute * by * self.fixed.weight.sum() * super().forward(tokens)


@pytest.mark.parametrize("what", ["buffer", "fixed", "attribute", "number"])
def test_examples_are_taken_one_by_one_in_the_network_as_it_is_now(what):
    torch.manual_seed(0)
    network, told = Scaled().double(), {}
    optimizer = pl.optim.OGN(network, num_data=N)
    assert_measured(optimizer, *batch(3))
    with torch.no_grad():
        if what == "buffer":
            network.buffer.mul_(3.0)
        elif what == "fixed":
            network.fixed.weight.mul_(3.0)
        elif what == "attribute":
            network.attribute = 3.0
        else:
            told["by"] = 3.0
    for length in (3, 4):
        assert_measured(optimizer, *batch(length), **told)


def test_curvature_of_inputs_of_many_shapes_keeps_as_few(network, monkeypatch):
    monkeypatch.setattr(recent, "KEPT", 2)
    from plausible.curvature import second_moments, tracing

    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(num_data=float(N))
    for length in (2, 3, 4):
        x, y = batch(length)
        found = second_moments(model, model.init(), (x, y, torch.ones(N, dtype=torch.float64)))
        expected = squares(network, x, y)
        for k, v in expected.items():
            torch.testing.assert_close(found[k] / N, v, rtol=1e-9, atol=1e-14)
    assert len(tracing._plans[model.network]) == 2
