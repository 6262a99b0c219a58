"""Networks that turn autocast on in their own forward pass, or cast there by hand, as wrappers of training loops make them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import plausible as pl

N = 12
RECORDING = ["KFAC", "NoisyKFAC", "OGN", "VOGN"]
HALF = torch.bfloat16


class Autocast(nn.Module):
    """A network whose forward pass is in bfloat16."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x):
        with torch.autocast("cpu", dtype=HALF):
            return self.body(x).float()


class Casts(nn.Module):
    """Casts by hand: without autocast its operations would meet two types."""

    def __init__(self, meets: float = 0.0):
        super().__init__()
        self.first, self.last, self.meets = nn.Linear(6, 16), nn.Linear(16, 3), meets

    def forward(self, x):
        hidden = F.linear(x.to(HALF), self.first.weight.to(HALF), self.first.bias.to(HALF)).relu()
        hidden = hidden + self.meets * hidden.mean(0)
        with torch.autocast("cpu", dtype=HALF):
            return self.last(hidden).float()


class Centred(nn.Module):
    """Examples meet."""

    def forward(self, x):
        return x - x.mean(0)


class Shared(nn.Module):
    """Every example is seen with a part of what its neighbour is: for each a small error, and no plan."""

    def __init__(self, part: float = 0.2):
        super().__init__()
        self.part = part

    def forward(self, x):
        return x + self.part * x.roll(1, 0)


def mlp(*middle):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), *middle, nn.Linear(16, 3))


class Tokens(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.cut = nn.Linear(6, 24)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.layer(self.cut(x).unflatten(1, (3, 8))).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.last = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.cells(x.unflatten(1, (3, 2)))[0][:, -1])


NETWORKS = {
    "linear layers": lambda: Autocast(mlp()),
    "attention": lambda: Autocast(Tokens()),
    "a recurrent layer": lambda: Autocast(Recurrent()),
    "casts by hand": Casts,
}


def data():
    g = torch.Generator().manual_seed(1)
    return torch.randn(N, 6, generator=g), torch.randint(3, (N,), generator=g)


def made(name):
    torch.manual_seed(0)
    return NETWORKS[name]()


def squares(network, x, y):
    """Σᵢ gᵢ² / N, one example after the other, in the network's own precision."""
    found = {k: torch.zeros_like(p) for k, p in network.named_parameters()}
    for i in range(N):
        gradients = torch.autograd.grad(
            F.cross_entropy(network(x[i : i + 1]), y[i : i + 1]), list(network.parameters())
        )
        for k, g in zip(found, gradients, strict=True):
            found[k] += g**2 / N
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_squares_are_those_of_one_example_after_the_other(name):
    network, (x, y) = made(name), data()
    expected = squares(network, x, y)
    optimizer = pl.optim.OGN(network, num_data=N)
    F.cross_entropy(network(x), y).backward()
    optimizer.step()
    largest = max(float(v.max()) for v in expected.values())
    for k, p in optimizer.weights().items():
        # Both are of gradients in bfloat16, with rounding of 2⁻⁸ at every operation.
        gap = (optimizer.state[p]["curvature"] - expected[k]).abs().max()
        assert gap < 0.05 * expected[k].max() + 1e-3 * largest, k


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", RECORDING)
def test_every_optimiser_takes_steps(name, method):
    network, (x, y) = made(name), data()
    optimizer = getattr(pl.optim, method)(network, num_data=N)
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.sampled():
            F.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in network.parameters())


def test_no_gradient_is_taken_example_by_example_where_rules_do():
    network, (x, y) = made("attention"), data()
    optimizer = pl.optim.OGN(network, num_data=N)
    F.cross_entropy(network(x), y).backward()
    watcher = next(iter(network._forward_pre_hooks.values())).__self__
    assert all(not plan.fallback for plan, *_ in watcher._recordings._plans.values())
    optimizer.step()


class LossInside(nn.Module):
    """Returns a copy of the logits in another type, and a loss of those that it did not return."""

    def __init__(self):
        super().__init__()
        self.inner, self.odd = nn.Linear(6, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x, y):
        logits = torch.einsum("bi,oi->bo", self.inner(x).tanh(), self.odd)
        return SimpleNamespace(loss=F.cross_entropy(logits, y), logits=logits.float())


@pytest.mark.parametrize("which", ["the loss inside", "a loss of what is returned"])
def test_outputs_may_be_copied_to_another_type_after_the_loss(which):
    torch.manual_seed(0)
    network, (x, y) = LossInside().double(), data()
    x = x.double()

    def loss(rows):
        out = network(x[rows], y[rows])
        return out.loss if which == "the loss inside" else F.cross_entropy(out.logits, y[rows])

    expected = {k: torch.zeros_like(p) for k, p in network.named_parameters()}
    for i in range(N):
        for k, g in zip(expected, torch.autograd.grad(loss([i]), list(network.parameters())), strict=True):
            expected[k] += g**2 / N
    optimizer = pl.optim.OGN(network, num_data=N)
    loss(list(range(N))).backward()
    optimizer.step()
    for k, p in optimizer.weights().items():
        torch.testing.assert_close(optimizer.state[p]["curvature"], expected[k], rtol=1e-5, atol=1e-9)


MEETING = {
    "their mean under autocast": lambda: Autocast(mlp(Centred())),
    "a neighbour under autocast": lambda: Autocast(mlp(Shared())),
    # A hundredth is less than what bfloat16 rounds: plans are checked without autocast.
    "a hundredth of a neighbour under autocast": lambda: Autocast(mlp(Shared(0.01))),
    "a part of their mean, cast by hand": lambda: Casts(0.5),
}


@pytest.mark.parametrize("name", MEETING)
@pytest.mark.parametrize("method", ["KFAC", "OGN"])
def test_examples_that_meet_are_still_refused(name, method):
    torch.manual_seed(0)
    network, (x, _) = MEETING[name](), data()
    optimizer = getattr(pl.optim, method)(network, num_data=N)
    with pytest.raises(pl.NotSupported, match="examples meet"):
        network(x)
    assert not optimizer.ledger.now.examples


@pytest.mark.parametrize("name", ["linear layers", "casts by hand"])
@pytest.mark.parametrize("method", RECORDING)
def test_fit_takes_such_a_network(name, method):
    network, (x, y) = made(name), data()
    posterior = pl.fit(
        pl.BayesianModel(network, pl.likelihoods.Categorical()), (x, y), getattr(pl, method)(), steps=3, batch_size=6
    )
    assert posterior.predict(x).probs.isfinite().all()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("method", RECORDING)
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_a_trainer_of_hugging_face_with_bf16(method, dropout, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate, which is not installed")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "num_labels": 3,
    }
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    network = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=11, max_position_embeddings=8, **sizes, **rates)
    )
    tokens, labels = torch.randint(11, (8, 6)), torch.randint(3, (8,))
    rows = [
        {"input_ids": t, "attention_mask": torch.ones(6, dtype=torch.long), "labels": y}
        for t, y in zip(tokens, labels, strict=True)
    ]
    optimizer = getattr(pl.optim, method)(network, num_data=8)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        bf16=True, per_device_train_batch_size=4, lr_scheduler_type="constant",
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    trainer = transformers.Trainer(network, arguments, train_dataset=rows, optimizers=(optimizer, schedule))
    trainer.train()
    optimizer.eval()
    assert optimizer.param_groups[0]["step"] == 2
    assert all(p.isfinite().all() for p in network.parameters())
