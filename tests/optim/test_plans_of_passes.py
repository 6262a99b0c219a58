"""Plans of one network for inputs of many shapes: how many are kept, and what they share."""

import copy

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
    found = {k: torch.zeros_like(p) for k, p in network.named_parameters()}
    for i in range(N):
        loss = nn.functional.cross_entropy(network(x[i : i + 1], **told), y[i : i + 1])
        for k, g in zip(found, torch.autograd.grad(loss, list(network.parameters())), strict=True):
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


def test_plans_share_one_copy_of_the_network(network):
    optimizer = pl.optim.OGN(network, num_data=N)
    for length in (2, 3, 4):
        assert_measured(optimizer, *batch(length))
    copies = {id(model.network) for plan, model, _ in plans(network).values() if plan.fallback}
    assert len(plans(network)) == 3
    assert len(copies) == 1


def test_a_network_that_is_told_something_else_has_another_copy(network):
    optimizer = pl.optim.OGN(network, num_data=N)
    for read in ("mean", "largest", "mean", "largest"):
        assert_measured(optimizer, *batch(5), read=read)
    assert len({id(model.network) for _, model, _ in plans(network).values()}) == 2


def test_no_copy_is_kept_where_rules_do_it_all():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    optimizer = pl.optim.OGN(network, num_data=N)
    nn.functional.cross_entropy(network(torch.randn(N, 3).double()), batch(2)[1]).backward()
    watcher = next(iter(network._forward_pre_hooks.values())).__self__
    assert not watcher._recordings._models
    assert optimizer.ledger.now.examples == N


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
