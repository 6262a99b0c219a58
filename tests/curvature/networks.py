"""Small networks of every kind, each with inputs for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Last(nn.Module):
    """Whatever comes in, two numbers come out."""

    def __init__(self, width: int):
        super().__init__()
        self.head = nn.Linear(width, 2)

    def forward(self, h: Tensor) -> Tensor:
        return self.head(torch.tanh(h.flatten(1)))


def chain(*layers: nn.Module, like: Tensor) -> nn.Module:
    body = nn.Sequential(*layers)
    with torch.no_grad():
        width = body(like.to(torch.get_default_dtype()) if like.is_floating_point() else like)[:1].numel()
    return nn.Sequential(*layers, Last(width))


class Tied(nn.Module):
    """A table that also decodes, a layer that is used twice, and a position that is added."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.position = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(self.table(x) + self.position))
        return (torch.tanh(self.layer(h)) @ self.table.weight.T).mean(1)


class LowRank(nn.Module):
    """A fixed weight and a low-rank correction, half of which starts at zero."""

    def __init__(self):
        super().__init__()
        self.fixed = nn.Parameter(torch.randn(5, 4), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(5, 2))
        self.left, self.right = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.fixed) + F.linear(F.linear(x, self.down), self.up)
        return F.linear(torch.tanh(h), self.left @ self.right)


class Own(nn.Module):
    """A user's layer: einsum, bare parameters that are added, multiplied and divided by, a dead branch."""

    def __init__(self):
        super().__init__()
        self.mix, self.gain = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))
        self.shift, self.scale = nn.Parameter(torch.randn(3)), nn.Parameter(torch.rand(3) + 1)
        self.idle, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.3))
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("ni,oi->no", x * self.gain, self.mix)
        self.idle(x)
        h = (h - self.shift) / self.scale
        h = 2 * torch.tanh(h * self.temperature)
        h += self.shift
        return self.head(h)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, batch_first: bool = True):
        super().__init__()
        self.layer, self.head, self.batch_first = layer, nn.Linear(4, 2), batch_first

    def forward(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        h, _ = self.layer(x)
        return self.head(h[:, -1] if self.batch_first else h[-1])


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0])


class Transformer(nn.Module):
    def __init__(self, batch_first: bool):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
        self.head, self.batch_first = nn.Linear(8, 2), batch_first

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x if self.batch_first else x.transpose(0, 1))
        return self.head(h.mean(1 if self.batch_first else 0))


class Attention(nn.Module):
    """Queries from one place, keys and values from another, of other widths."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.head(self.attention(query, key, value)[0].mean(1))


class Film(nn.Module):
    """Frames of a film as images of one batch."""

    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.convolution(x.flatten(0, 1))).mean((2, 3))
        return self.head(h.unflatten(0, x.shape[:2])).mean(1)


def _tokens(*shape: int) -> Tensor:
    return torch.randint(0, 7, shape)


def _image(*layers: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, Any]:
    x = torch.randn(4, *shape)
    return chain(*[layer() for layer in layers], like=x), x


CASES: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "linear": lambda: _image(lambda: nn.Linear(3, 4), shape=(3,)),
    "linear on sequences": lambda: _image(lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Linear(4, 2), shape=(5, 3)),
    "linear without bias": lambda: _image(lambda: nn.Linear(3, 4, bias=False), shape=(2, 2, 3)),
    "bilinear": lambda: (nn.Bilinear(3, 4, 2), (torch.randn(4, 3), torch.randn(4, 4))),
    "conv1d same dilated": lambda: _image(lambda: nn.Conv1d(2, 4, 4, padding="same", dilation=2), shape=(2, 7)),
    "conv1d circular": lambda: _image(lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), shape=(2, 6)),
    "conv2d": lambda: _image(
        lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2), shape=(2, 6, 5)
    ),
    "conv2d reflecting": lambda: _image(lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), shape=(1, 4, 4)),
    "conv2d of a film": lambda: (Film(), torch.randn(4, 3, 1, 4, 4)),
    "conv3d": lambda: _image(lambda: nn.Conv3d(2, 2, 2, stride=2, padding=1, groups=2), shape=(2, 3, 3, 3)),
    "transposed conv1d": lambda: _image(lambda: nn.ConvTranspose1d(2, 3, 3, dilation=2, padding=1), shape=(2, 4)),
    "transposed conv2d": lambda: _image(
        lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2), shape=(4, 3, 4)
    ),
    "transposed conv3d": lambda: _image(lambda: nn.ConvTranspose3d(1, 2, 2, stride=2), shape=(1, 2, 2, 2)),
    "batch norm": lambda: _image(
        lambda: nn.Conv2d(1, 3, 2), lambda: nn.BatchNorm2d(3), nn.ReLU, lambda: nn.Flatten(), lambda: nn.BatchNorm1d(27),
        shape=(1, 4, 4),
    ),
    "instance norm": lambda: _image(lambda: nn.Conv1d(1, 3, 2), lambda: nn.InstanceNorm1d(3, affine=True), shape=(1, 5)),
    "instance norm with statistics": lambda: _image(
        lambda: nn.Conv1d(1, 3, 2), lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), shape=(1, 5)
    ),
    "layer norm": lambda: _image(lambda: nn.Linear(3, 4), lambda: nn.LayerNorm((2, 4)), shape=(5, 2, 3)),
    "group norm": lambda: _image(lambda: nn.Conv2d(1, 4, 2), lambda: nn.GroupNorm(2, 4), shape=(1, 4, 4)),
    "RMS norm": lambda: _image(lambda: nn.Linear(3, 4), lambda: nn.RMSNorm(4), shape=(5, 3)),
    "embedding": lambda: (chain(nn.Embedding(7, 3), like=_tokens(4, 6)), _tokens(4, 6)),
    "embedding with padding": lambda: (chain(nn.Embedding(7, 3, padding_idx=2), like=_tokens(4, 6)), _tokens(4, 6)),
    "embedding bag": lambda: (chain(nn.EmbeddingBag(7, 3), like=_tokens(4, 6)), _tokens(4, 6)),
    "tied weights": lambda: (Tied(), _tokens(4, 5)),
    "weight norm": lambda: _image(
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh,
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), shape=(3,),
    ),
    "low rank": lambda: (LowRank(), torch.randn(4, 4)),
    "own layer": lambda: (Own(), torch.randn(4, 4)),
    "LSTM": lambda: (Recurrent(nn.LSTM(3, 4, batch_first=True)), torch.randn(4, 5, 3)),
    "LSTM time first": lambda: (Recurrent(nn.LSTM(3, 4, num_layers=2), batch_first=False), torch.randn(4, 3, 3)),
    "GRU": lambda: (Recurrent(nn.GRU(3, 2, batch_first=True, bidirectional=True)), torch.randn(4, 5, 3)),
    "RNN": lambda: (Recurrent(nn.RNN(3, 4, batch_first=True)), torch.randn(4, 5, 3)),
    "LSTM cell": lambda: (Cell(), torch.randn(4, 3, 3)),
    "transformer": lambda: (Transformer(True), torch.randn(4, 3, 8)),
    "transformer time first": lambda: (Transformer(False), torch.randn(4, 3, 8)),
    "attention by dictionary": lambda: (
        Attention(), {"query": torch.randn(4, 2, 4), "key": torch.randn(4, 3, 3), "value": torch.randn(4, 3, 5)},
    ),
}  # fmt: skip


def make(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[nn.Module, Any]:
    """The network in eval mode with weights that are nothing special, and its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, inputs = CASES[name]()
        for key, buffer in network.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_()
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
        for parameter in network.parameters():
            if parameter.dim() == 1 and parameter.requires_grad:  # norms start at one and zero
                parameter.data += 0.3 * torch.randn(parameter.shape)
    as_dtype = lambda t: t.to(dtype) if t.is_floating_point() else t  # noqa: E731
    inputs = torch.utils._pytree.tree_map(as_dtype, inputs)
    return network.to(dtype).eval(), inputs
