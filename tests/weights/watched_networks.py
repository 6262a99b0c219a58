"""Networks that use their weights in all the ways people do, each beside the same network with dropout written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Plain(nn.Module):
    """Layers, an activation by a function, a matrix by `F.linear` and a kernel by `@`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.matrix, self.kernel = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5, 2))

    def forward(self, x, drop=lambda x: x):
        x = torch.tanh(self.layer(drop(x)))
        return drop(F.linear(drop(x), self.matrix).relu()) @ self.kernel


class Tied(nn.Module):
    """Decodes with the encoder's own weight."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)
        self.head.weight = self.encoder.weight

    def forward(self, x, drop=lambda x: x):
        code = self.encoder(drop(x)).tanh()
        return F.linear(drop(drop(code) @ self.encoder.weight), self.head.weight)


class Attention(nn.Module):
    """Attention of a sequence to itself and to a shorter one, which splits the projection's weight."""

    def __init__(self):
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, drop=None):
        if drop is None:
            x, _ = self.attend(x, x, x, need_weights=False)
            x, _ = self.attend(x, x[:, :2], x[:, :2], need_weights=False)
            return self.head(x[:, 0])
        weight, bias = self.attend.in_proj_weight, self.attend.in_proj_bias
        x = x.transpose(0, 1)  # as torch's attention has it: positions first
        x = self.attended(*F.linear(drop(x), weight, bias).chunk(3, -1), drop)
        given = (x, x[:2], x[:2])
        parts = zip(given, weight.chunk(3), bias.chunk(3), strict=True)
        x = self.attended(*[F.linear(drop(g), w, b) for g, w, b in parts], drop)
        return self.head(drop(x.transpose(0, 1)[:, 0]))

    def attended(self, query, key, value, drop):
        query, key, value = (t.unflatten(-1, (2, 2)).permute(1, 2, 0, 3) for t in (query, key, value))
        shares = (query @ key.mT / 2**0.5).softmax(-1)
        found = (shares @ value).permute(2, 0, 1, 3).flatten(2)
        return self.attend.out_proj(drop(found.flatten(0, 1))).unflatten(0, found.shape[:2])


class Cell(nn.Module):
    """A recurrent cell, step by step."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 2)

    def forward(self, x, drop=lambda x: x):
        several = isinstance(self.cell, nn.LSTMCell)
        zero = x.new_zeros(x.shape[0], 4)
        state = (zero, zero) if several else zero
        for step in range(x.shape[1]):
            given = drop(x[:, step])
            state = self.cell(given, (drop(state[0]), state[1]) if several else drop(state))
        return self.head(drop(state[0] if several else state))


class Sequence(nn.Module):
    """A recurrent layer."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(3, 4, batch_first=True, bidirectional=True), nn.Linear(8, 2)

    def forward(self, x, drop=lambda x: x):
        return self.head(drop(self.memory(drop(x))[0][:, -1]))


class Images(nn.Module):
    """Convolutions there and back, a norm and a linear layer."""

    def __init__(self):
        super().__init__()
        self.into, self.norm, self.back = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 2, 2)
        self.head = nn.Linear(32, 2)

    def forward(self, x, drop=lambda x: x):
        x = self.norm(drop(self.into(x))).relu()
        return self.head(drop(drop(self.back(x)).flatten(1)))


class Words(nn.Module):
    """An embedding whose weight also decodes."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, x, drop=lambda x: x):
        return F.linear(drop(self.layer(drop(self.table(x))).tanh()), self.table.weight)


def seeded(make):
    def made():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            return make().eval()

    return made


def numbers(*shape):
    return lambda: (torch.randn(*shape, generator=torch.Generator().manual_seed(5)),)


recurrent = [("recurrent", "cell.weight_ih"), ("recurrent", "cell.weight_hh")]
# By kind: the network, its inputs, and the layers to be found in it.
NETWORKS = {
    "functional": (
        seeded(Plain), numbers(6, 3), [("linear", "layer.weight"), ("linear", "matrix"), ("linear", "kernel")]
    ),
    "tied": (seeded(Tied), numbers(6, 3), [("linear", "encoder.weight")] * 3),
    "attention": (
        seeded(Attention),
        numbers(6, 3, 4),
        [
            ("linear", "attend.in_proj_weight"),
            ("linear", "attend.out_proj.weight"),
            *[("linear", "attend.in_proj_weight")] * 3,
            ("linear", "attend.out_proj.weight"),
            ("linear", "head.weight"),
        ],
    ),
    "LSTM cell": (seeded(lambda: Cell(nn.LSTMCell(3, 4))), numbers(6, 2, 3), [*recurrent * 2, ("linear", "head.weight")]),
    "GRU cell": (seeded(lambda: Cell(nn.GRUCell(3, 4))), numbers(6, 2, 3), [*recurrent * 2, ("linear", "head.weight")]),
    "recurrent layer": (
        seeded(Sequence), numbers(6, 5, 3), [("recurrent", "memory.weight_ih_l0"), ("linear", "head.weight")]
    ),
    "convolutions": (
        seeded(Images),
        numbers(6, 1, 4, 4),
        [("convolution", "into.weight"), ("convolution", "back.weight"), ("linear", "head.weight")],
    ),
    "words": (
        seeded(Words),
        lambda: (torch.tensor([[0, 1], [2, 3], [4, 5]]),),
        [("embedding", "table.weight"), ("linear", "layer.weight"), ("linear", "table.weight")],
    ),
}  # fmt: skip
