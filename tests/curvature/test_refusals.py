"""What is said of networks and data that no curvature can be had of."""

import pytest
import torch
from torch import nn

import plausible as pl

N = 6


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Root(nn.Module):
    """Finite, with slopes that are not."""

    def forward(self, x):
        return (0.0 * x).sqrt()


def batch(bad=None):
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(N, 4, generator=g), torch.randint(3, (N,), generator=g)
    if bad is not None:
        x[0, 0] = bad
    return x, y


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["KFAC", "OGN"])
def test_a_first_batch_that_is_not_finite_is_called_so(method, bad):
    own, (x, _) = network(), batch(bad)
    optimizer = getattr(pl.optim, method)(own, num_data=N)
    with pytest.raises(FloatingPointError, match="the inputs have values that are nan or infinite"):
        own(x)
    assert not optimizer.ledger.now.examples


def test_weights_that_are_not_finite_show_in_the_outputs():
    own, (x, _) = network(), batch()
    with torch.no_grad():
        own[0].weight[0, 0] = torch.nan
    optimizer = pl.optim.OGN(own, num_data=N)
    with pytest.raises(FloatingPointError, match="the network's outputs have values that are nan"):
        own(x)
    assert not optimizer.ledger.now.examples


def test_slopes_that_are_not_finite_are_called_so():
    own, (x, _) = nn.Sequential(*network(), Root(), nn.Linear(3, 3)), batch()
    optimizer = pl.optim.OGN(own, num_data=N)
    with pytest.raises(FloatingPointError, match="the network's gradients have values that are nan"):
        own(x)
    assert not optimizer.ledger.now.examples


def test_outputs_that_are_infinite_by_design_are_fine():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x):
            return self.body(x).masked_fill(torch.tensor([True, False, False]), -torch.inf)

    own, (x, y) = Masked(), batch()
    optimizer = pl.optim.OGN(own, num_data=N)
    nn.functional.cross_entropy(own(x), y.clamp(min=1)).backward()
    optimizer.step()
    assert all(p.isfinite().all() for p in own.parameters())


def test_examples_on_another_axis_are_told_where_they_belong():
    torch.manual_seed(0)
    own = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)  # sequences first
    optimizer = pl.optim.OGN(own, num_data=N)
    with pytest.raises(pl.NotSupported, match=r"examples are along the first axis .*batch_first=True"):
        own(torch.randn(5, N, 4))
    assert not optimizer.ledger.now.examples


class Replacing(nn.Module):
    """A buffer that every pass replaces, instead of writing into it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("by", torch.ones(3))

    def forward(self, x):
        out = self.layer(x) * self.by
        self.by = self.by * 1.7
        return out


@pytest.mark.parametrize("method", ["KFAC", "OGN"])
def test_a_buffer_that_passes_replace_is_no_reason_to_refuse(method):
    """It is put back between the passes that a plan is made of, or they would be of different networks."""
    torch.manual_seed(0)
    own, (x, y) = Replacing(), batch()
    optimizer = getattr(pl.optim, method)(own, num_data=N)
    nn.functional.cross_entropy(own(x), y).backward()
    optimizer.step()
    torch.testing.assert_close(own.by, torch.full((3,), 1.7))  # of one pass
