"""Train mode: example i's gradient is that in its own copy of the weights, in a batch whose examples meet in norms."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.curvature.brute_force import gap
from torch import Tensor, nn

import plausible as pl
from plausible.curvature import Curvature, second_moments
from plausible.curvature.tracing import plan_for
from plausible.weights.rng import run_key

LIKELIHOOD = pl.likelihoods.Categorical()
Copies = dict[str, Tensor]  # (N, shape): every example's own


def each(function, count: int) -> Tensor:
    return torch.cat([function(i) for i in range(count)])


def normed(h: Tensor, copies: Copies, name: str) -> Tensor:
    shape = (len(h), -1, *[1] * (h.dim() - 2))
    plain = F.batch_norm(h, None, None, training=True)
    return plain * copies[f"{name}.weight"].reshape(shape) + copies[f"{name}.bias"].reshape(shape)


class Pictures(nn.Module):
    """Convolutions and batch norms."""

    def __init__(self, track: bool = True):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, track_running_stats=track)
        self.second, self.second_norm = nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2, track_running_stats=track)
        self.plain_norm = nn.BatchNorm1d(18, affine=False, track_running_stats=track)
        self.head = nn.Linear(18, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first_norm(self.first(x)))
        h = torch.tanh(self.second_norm(self.second(h)))
        return self.head(self.plain_norm(h.flatten(1)))

    def with_copies(self, copies: Copies, x: Tensor) -> Tensor:
        n = len(x)
        h = each(lambda i: F.conv2d(x[i : i + 1], copies["first.weight"][i], copies["first.bias"][i]), n)
        h = torch.relu(normed(h, copies, "first_norm"))
        h = each(lambda i: F.conv2d(h[i : i + 1], copies["second.weight"][i], copies["second.bias"][i]), n)
        h = torch.tanh(normed(h, copies, "second_norm"))
        h = F.batch_norm(h.flatten(1), None, None, training=True)
        return each(lambda i: F.linear(h[i : i + 1], copies["head.weight"][i], copies["head.bias"][i]), n)


class Strange(nn.Module):
    """Operations without a rule around a batch norm: recurrence, einsum, a quotient."""

    def __init__(self):
        super().__init__()
        self.memory, self.norm = nn.LSTM(3, 4, num_layers=2), nn.BatchNorm1d(4)
        self.mix, self.scale = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.rand(5) + 1)
        self.head = nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, (last, cell) = self.memory(x.transpose(0, 1))
        h = self.norm(h[-1] + last[0] * cell[1])
        return self.head(torch.cat([torch.tanh(torch.einsum("ni,oi->no", h, self.mix) / self.scale), h], 1))

    def with_copies(self, copies: Copies, x: Tensor) -> Tensor:
        rows = []
        for i in range(len(x)):
            own = {k.removeprefix("memory."): w[i] for k, w in copies.items() if k.startswith("memory.")}
            h, (last, cell) = torch.func.functional_call(self.memory, own, (x[i : i + 1].transpose(0, 1),))
            rows.append(h[-1] + last[0] * cell[1])
        h = normed(torch.cat(rows), copies, "norm")
        mixed = torch.einsum("ni,noi->no", h, copies["mix"]) / copies["scale"]
        h = torch.cat([torch.tanh(mixed), h], 1)
        return torch.einsum("ni,noi->no", h, copies["head.weight"]) + copies["head.bias"]


NETWORKS = {
    "pictures": (Pictures, (1, 5, 5), True),
    "norms without statistics, in eval mode": (lambda: Pictures(track=False), (1, 5, 5), False),
    "strange": (Strange, (4, 3), True),
}


def case(name: str):
    make, shape, training = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make().double().train(training)
        x, y, weights = torch.randn(5, *shape).double(), torch.randint(2, (5,)), torch.rand(5).double() + 0.5
    model = pl.BayesianModel(network, LIKELIHOOD).bound(training=training)
    return network, model, (x, y, weights)


def gradients_of_copies(network, batch, column) -> Copies:
    x, y, _ = batch
    copies = {k: p.detach().expand(len(x), *p.shape).clone().requires_grad_() for k, p in network.named_parameters()}
    out = network.with_copies(copies, x)
    torch.testing.assert_close(out, network(x))  # the copies are the network
    found = torch.autograd.grad((out * column(out)).sum(), list(copies.values()))
    return dict(zip(copies, found, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_second_moments_in_train_mode_are_those_of_one_copy_of_the_weights_per_example(name):
    network, model, batch = case(name)
    x, y, weights = batch

    # A weighted example is one whose gradient has the root of its weight in front.
    def column(out):
        f = out.detach().requires_grad_()
        (slope,) = torch.autograd.grad(LIKELIHOOD.log_prob(f, y).sum(), f)
        return slope * weights.sqrt()[:, None]

    truth = gradients_of_copies(network, batch, column)
    found = second_moments(model, model.init(), batch)
    assert found.keys() == truth.keys()
    largest = max(float(g.square().sum(0).max()) for g in truth.values())
    for k, g in truth.items():
        square = g.square().sum(0)
        # A bias in front of a batch norm cancels to rounding.
        assert float((found[k] - square).abs().max()) < 1e-8 * max(float(square.max()), 1e-4 * largest), k


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_matrix_in_train_mode_is_the_sum_of_outer_products_of_the_copies(name):
    network, model, batch = case(name)
    x, y, weights = batch
    truth = 0.0
    with torch.no_grad():
        probs = torch.softmax(network(x), 1)
    for c in range(2):
        root = torch.zeros_like(probs)
        root[:, c] = probs[:, c].sqrt()
        root = (root - probs * probs[:, c : c + 1].sqrt()) * weights.sqrt()[:, None]
        g = gradients_of_copies(network, batch, lambda out, root=root: root)
        rows = torch.cat([t.flatten(1) for t in g.values()], 1)
        truth = truth + rows.T @ rows
    assert gap(Curvature(model, model.init(), batch).dense(), truth) < 1e-8


def test_a_network_in_training_leaves_its_statistics_alone():
    network, model, batch = case("pictures")
    before = {k: v.clone() for k, v in model.network.buffers.items()}
    second_moments(model, model.init(), batch)
    assert all(torch.equal(v, model.network.buffers[k]) for k, v in before.items())


class Forgetful(nn.Module):
    """Dropout on activations, whole channels and a weight, around layers with and without rules."""

    def __init__(self):
        super().__init__()
        self.convolution, self.channels = nn.Conv2d(1, 4, 2), nn.Dropout2d(0.3)
        self.memory, self.units = nn.GRU(4, 3, batch_first=True), nn.Dropout(0.4)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.channels(torch.tanh(self.convolution(x))).flatten(2).mT
        h = self.units(self.memory(h)[0]).sum(1)
        return F.linear(self.units(h), self.units(self.head.weight), self.head.bias)


def test_dropout_has_the_masks_of_its_key():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network, x, y = Forgetful().double(), torch.randn(5, 1, 4, 4).double(), torch.randint(2, (5,))
    model, key = pl.BayesianModel(network, LIKELIHOOD).bound(training=True), run_key(7)
    params = {k: w.requires_grad_() for k, w in model.init().items()}
    values = LIKELIHOOD.log_prob(model.outputs(params, x, key), y)
    truth = [torch.autograd.grad(v, list(params.values()), retain_graph=True) for v in values]
    found = second_moments(model, model.init(), (x, y, None), key)
    other = second_moments(model, model.init(), (x, y, None), run_key(8))
    for k, *g in zip(params, *truth, strict=True):
        assert gap(found[k], torch.stack(g).square().sum(0)) < 1e-8, k
    assert gap(other["head.weight"], found["head.weight"]) > 0.01


def test_dropout_by_a_function_draws_as_one_plain_pass_does():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(F.dropout(torch.tanh(self.first(x)), 0.5, self.training))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        network, x, y = Drawing().double(), torch.randn(5, 3).double(), torch.randint(2, (5,))
        model = pl.BayesianModel(network, LIKELIHOOD).bound(training=True)
        model.network.draws = True  # as `fit` finds out
        torch.manual_seed(3)
        found = second_moments(model, model.init(), (x, y, None))
        torch.manual_seed(3)
        params = {k: w.requires_grad_() for k, w in model.init().items()}
        values = LIKELIHOOD.log_prob(model.outputs(params, x), y)
    truth = [torch.autograd.grad(v, list(params.values()), retain_graph=True) for v in values]
    for k, *g in zip(params, *truth, strict=True):
        assert gap(found[k], torch.stack(g).square().sum(0)) < 1e-8, k


def test_a_network_that_does_other_things_in_training_has_a_plan_for_each_mode():
    class Twofold(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(3, 4), nn.Linear(3, 4), nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            h = self.a(x) if self.training else self.a(x) + self.b(x)
            return self.head(torch.tanh(self.norm(h)))

    torch.manual_seed(0)
    model = pl.BayesianModel(Twofold().double(), LIKELIHOOD)
    x, params = torch.randn(5, 3).double(), model.init()
    plans = [plan_for(model.bound(training=t), params, x, tuple(model.weight_names)) for t in (False, True)]
    assert [len(p.calls) for p in plans] == [4, 3]
    found = second_moments(model.bound(training=True), params, (x, torch.tensor([0, 1, 0, 1, 1]), None))
    assert not found["b.weight"].any()
    assert found["head.weight"].all()


def test_examples_that_meet_outside_a_norm_are_refused_by_name():
    class Meeting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.first(x)
            return self.head(torch.tanh(h - h.mean(0)))

    model = pl.BayesianModel(Meeting(), LIKELIHOOD)
    with pytest.raises(pl.NotSupported, match=r"first.weight.*batch norm.*parameters="):
        second_moments(model, model.init(), (torch.randn(5, 3), torch.zeros(5, dtype=torch.long), None))
