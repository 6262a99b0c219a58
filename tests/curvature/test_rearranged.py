"""Rows that go where the data say: the few examples of a plan then say nothing of where others are."""

import pytest
import torch
from tests.curvature.brute_force import flat, gap, gradients_of_each
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import plausible as pl
from plausible.core.errors import NotSupported
from plausible.curvature import second_moments

LENGTHS = [2, 2, 2, 1, 3, 1, 3, 1, 3, 1, 3, 2]  # as many tokens as if each had two


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.linear = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)


class WithoutPadding(Words):
    """Real tokens alone go through a layer, and back to where they were."""

    def forward(self, tokens):
        real = tokens != 0
        told = self.linear(self.words(tokens)[real]).tanh()
        return torch.zeros(*tokens.shape, 3, dtype=told.dtype).masked_scatter(real[..., None], told).sum(1)


class ByNumbers(Words):
    """The same by the numbers of the places."""

    def forward(self, tokens):
        rows, columns = (tokens != 0).nonzero(as_tuple=True)
        told = self.linear(self.words(tokens)[rows, columns]).tanh()
        out = torch.zeros(*tokens.shape, 3, dtype=told.dtype)
        out[rows, columns] = told
        return out.sum(1)


class Selected(Words):
    """The same with everything laid flat."""

    def forward(self, tokens):
        places = (tokens != 0).flatten().nonzero().squeeze(1)
        told = self.linear(self.words(tokens).flatten(0, 1).index_select(0, places)).tanh()
        out = torch.zeros(tokens.numel(), 3, dtype=told.dtype).index_add(0, places, told)
        return out.unflatten(0, tokens.shape).sum(1)


class Packed(Words):
    """A layer for the rows of a packed sequence."""

    def forward(self, tokens):
        lengths = (tokens != 0).sum(1)
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        told = packed._replace(data=self.linear(packed.data).tanh())
        return nn.utils.rnn.pad_packed_sequence(told, batch_first=True)[0].sum(1)


class Sorted(nn.Module):
    """The first three examples are in order already."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        order = x[:, 0].argsort()
        there = self.second(self.first(x)[order].tanh())
        return torch.zeros_like(there).index_copy(0, order, there)


class LastPlace(Words):
    """Every example picks one of its own rows, which moves none."""

    def forward(self, tokens):
        last = (tokens != 0).sum(1) - 1
        return self.linear(self.words(tokens).tanh()[torch.arange(len(tokens)), last])


def sentences():
    g = torch.Generator().manual_seed(0)
    tokens = torch.zeros(len(LENGTHS), 4, dtype=torch.long)
    for row, n in zip(tokens, LENGTHS, strict=True):
        row[:n] = torch.randint(1, 9, (n,), generator=g)
    return tokens


def numbers():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:3] = x[:3][x[:3, 0].argsort()] - 5  # before all others, too
    return x


CASES = [
    *((c, sentences) for c in (WithoutPadding, ByNumbers, Selected, Packed, LastPlace)),
    (Sorted, numbers),
]  # fmt: skip
each = pytest.mark.parametrize(("make", "inputs"), CASES, ids=[c.__name__ for c, _ in CASES])
LIKELIHOOD = pl.likelihoods.Categorical()


def case(make, inputs):
    torch.manual_seed(1)
    network, x = make().double(), inputs()
    y = torch.randint(3, (len(x),))
    each_one = gradients_of_each(network, LIKELIHOOD, x, y)
    return network, x, y, {k: g.square().sum(0) for k, g in each_one.items()}


@each
def test_squares_are_those_of_the_examples(make, inputs):
    network, x, y, truth = case(make, inputs)
    model = pl.BayesianModel(network, LIKELIHOOD)
    found = second_moments(model, model.init(), (x, y, None))
    assert gap(flat(found), flat(truth)) < 1e-10


@each
def test_an_optimiser_measures_the_same(make, inputs):
    network, x, y, truth = case(make, inputs)
    optimizer = pl.optim.OGN(network, num_data=len(x), lr=1e-12)
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()
    found = {k: optimizer.state[p]["curvature"] for k, p in network.named_parameters()}
    assert gap(flat(found), flat(truth) / len(x)) < 1e-10


def test_rows_that_pick_from_themselves_keep_their_fast_rule():
    from plausible.curvature.tracing import plan_for

    network, x, _, _ = case(LastPlace, sentences)
    model = pl.BayesianModel(network, LIKELIHOOD)
    assert not plan_for(model, model.init(), x, tuple(model.weight_names)).fallback


class Trimmed(Words):
    """The longest sentence of a batch says how many places there are, which the network reads back."""

    def forward(self, tokens):
        longest = int((tokens != 0).sum(1).max())
        tokens = tokens[:, :longest]
        told = self.linear(self.words(tokens).flatten(0, 1)).tanh().unflatten(0, tokens.shape)
        return (told * (tokens != 0)[..., None]).sum(1)


def test_another_number_of_places_than_on_the_first_examples():
    network, x, y, truth = case(Trimmed, sentences)
    model = pl.BayesianModel(network, LIKELIHOOD)
    found = second_moments(model, model.init(), (x, y, None))
    assert gap(flat(found), flat(truth)) < 1e-10


class Joined(Words):
    """Sentences one behind the other, cut by numbers that were read back."""

    def forward(self, tokens):
        lengths = (tokens != 0).sum(1).tolist()
        seen = self.words(tokens)
        told = self.linear(torch.cat([s[:n] for s, n in zip(seen, lengths, strict=True)])).tanh()
        return torch.stack([part.sum(0) for part in told.split(lengths)])


def test_as_many_rows_as_no_whole_number_of_places_makes():
    network, x, y, _ = case(Joined, sentences)
    x, y = x[:5], y[:5]  # 10 tokens, where the first three of the sentences have 6: two each
    x = torch.cat([x, x[4:5]])  # and 13 for six of them
    y = torch.cat([y, y[4:5]])
    truth = {k: g.square().sum(0) for k, g in gradients_of_each(network, LIKELIHOOD, x, y).items()}
    model = pl.BayesianModel(network, LIKELIHOOD)
    found = second_moments(model, model.init(), (x, y, None))
    assert gap(flat(found), flat(truth)) < 1e-10


def test_with_dropout_there_is_no_way():
    """An example by itself would have another mask."""
    torch.manual_seed(0)
    network = nn.Sequential(WithoutPadding(), nn.Dropout(0.5), nn.Linear(3, 3))
    optimizer = pl.optim.OGN(network, num_data=12)
    with pytest.raises(NotSupported, match="what is in them does not say where rows go"):
        network(sentences())
    assert not optimizer.ledger.now.examples
