"""Squares of single examples' gradients, from the user's own backward pass, beside one backward pass per example."""

import gc
import weakref

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import plausible as pl
from plausible.curvature import second_moments

N = 6


class Einsum(nn.Module):
    """A weight in an operation that no rule knows."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.odd = nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        return torch.einsum("bi,oi->bo", self.inner(x).tanh(), self.odd)


class Recurrent(nn.Module):
    """No weight meets data in an operation that a rule knows."""

    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(2, 2, batch_first=True)

    def forward(self, x):
        return self.cells(x.reshape(-1, 2, 2))[0][:, -1]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(4, 2)

    def forward(self, tokens, scale=1.0):
        return scale * self.last(self.layer(self.embedding(tokens)).mean(1))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2))

    def forward(self, x):
        return self.body(x.reshape(-1, 1, 2, 2))


NETWORKS = {
    "linear layers": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
    "a layer used twice": Tied,
    "an operation without a rule": Einsum,
    "no operation with a rule": Recurrent,
    "a convolution and an activation in place": InPlace,
    "attention": Attention,
}


def made(name):
    torch.manual_seed(0)
    network = NETWORKS[name]().double()
    x = torch.randint(7, (N, 5)) if name == "attention" else torch.randn(N, 4, dtype=torch.float64)
    return network, x, torch.randint(2, (N,))


def brute_force(network, x, y):
    """Σᵢ gᵢ² / N."""
    found = {k: torch.zeros_like(p) for k, p in network.named_parameters()}
    for i in range(N):
        loss = nn.functional.cross_entropy(network(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        for (k, _), g in zip(network.named_parameters(), gradients, strict=True):
            found[k] += g**2 / N
    return found


def curvature(optimizer):
    """After the first step s is the mean square of its batch."""
    return {k: optimizer.state[p]["curvature"] for k, p in optimizer.weights().items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for k, v in expected.items():
        torch.testing.assert_close(found[k], v, rtol=1e-9, atol=1e-14, msg=lambda m, k=k: f"{k}: {m}")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_squares_are_those_of_one_example_after_the_other(name, reduction):
    network, x, y = made(name)
    expected = brute_force(network, x, y)
    optimizer = pl.optim.OGN(network, num_data=N, reduction=reduction)
    nn.functional.cross_entropy(network(x), y, reduction=reduction).backward()
    optimizer.step()
    assert_same(curvature(optimizer), expected)


@pytest.mark.parametrize("name", ["linear layers", "an operation without a rule", "no operation with a rule"])
def test_micro_batches_have_the_squares_of_the_whole(name):
    network, x, y = made(name)
    expected = brute_force(network, x, y)
    optimizer = pl.optim.OGN(network, num_data=N)
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        (nn.functional.cross_entropy(network(x[rows]), y[rows]) / 3).backward()
    optimizer.step()
    assert_same(curvature(optimizer), expected)


def test_a_batch_norm_in_training_and_dropout_have_the_squares_of_the_engine():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()
    x, y = torch.randn(N, 1, 4, 4, dtype=torch.float64), torch.randint(2, (N,))
    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(training=True, num_data=float(N))
    expected = {
        k: v / N for k, v in second_moments(model, model.init(), (x, y, torch.ones(N, dtype=torch.float64))).items()
    }
    optimizer = pl.optim.OGN(network, num_data=N)
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()
    assert_same(curvature(optimizer), expected)
    assert network[1].num_batches_tracked == 1


def test_dropout_is_the_users_own():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    x, y = torch.randn(N, 4, dtype=torch.float64), torch.randint(2, (N,))
    optimizer = pl.optim.OGN(network, num_data=N)
    seen = []
    network[1].register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    out = network(x)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    residual = out.detach().softmax(1) - nn.functional.one_hot(y, 2)
    expected = torch.einsum("no,ni->oi", residual**2, seen[0] ** 2) / N
    torch.testing.assert_close(curvature(optimizer)["2.weight"], expected)


def test_arguments_without_examples_and_by_name_are_passed_on():
    network, x, y = made("attention")
    optimizer = pl.optim.OGN(network, num_data=N)
    expected = brute_force(network, x, y)
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(tokens=x, scale=1.0), y).backward()
    optimizer.step()
    assert_same(curvature(optimizer), expected)


def test_passes_that_cannot_be_differentiated_are_not_recorded():
    network, x, y = made("linear layers")
    optimizer = pl.optim.OGN(network, num_data=N)
    with torch.no_grad():
        network(x)
    with torch.inference_mode():
        network(x)
    network(x)  # and no backward pass
    expected = brute_force(network, x, y)
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x), y).backward()
    assert optimizer.ledger.now.examples == N
    optimizer.step()
    assert_same(curvature(optimizer), expected)


def test_what_a_pass_recorded_is_let_go_of():
    network, x, y = made("linear layers")
    optimizer = pl.optim.OGN(network, num_data=N)
    seen = []
    network[1].register_forward_hook(lambda module, args, out: seen.append(weakref.ref(out)))
    for backward in (True, False):
        loss = nn.functional.cross_entropy(network(x), y)
        if backward:
            loss.backward()
        del loss
        gc.collect()
        assert seen[-1]() is None
    assert optimizer.ledger.now.examples == N


def test_an_exception_in_the_network_stops_the_recording():
    network, x, y = made("linear layers")
    optimizer = pl.optim.OGN(network, num_data=N)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        network(torch.randn(N, 5, dtype=torch.float64))
    expected = brute_force(network, x, y)
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()
    assert_same(curvature(optimizer), expected)


@pytest.mark.parametrize("name", ["linear layers", "no operation with a rule"])
def test_going_back_twice_through_a_pass_is_refused(name):
    network, x, y = made(name)
    pl.optim.OGN(network, num_data=N)  # gone at once, and its hooks with it
    optimizer = pl.optim.OGN(network, num_data=N)
    loss = nn.functional.cross_entropy(network(x), y)
    loss.backward(retain_graph=True)
    with pytest.raises(pl.NotSupported, match="twice"):
        loss.backward()
    assert optimizer.ledger.now.examples == N


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else self.other(x)


def test_a_network_that_branches_is_refused_where_it_takes_another_way():
    network = Branching()
    optimizer = pl.optim.OGN(network, num_data=N)
    network(torch.ones(N, 4)).sum().backward()
    with pytest.raises(pl.NotSupported, match="branch"):
        network(-torch.ones(N, 4))
    optimizer.zero_grad()


class Repeating(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, times):
        for _ in range(times):
            x = torch.tanh(self.layer(x))
        return x


def test_a_number_that_chooses_layers_makes_a_pass_slow_and_not_wrong(caplog):
    network = Repeating()
    optimizer = pl.optim.OGN(network, num_data=N, lr=1e-12)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, 4, generator=g), torch.randint(4, (N,), generator=g)
    for times in (1, 2, 3, 1):
        expected = {k: torch.zeros_like(p) for k, p in network.named_parameters()}
        for i in range(N):
            loss = nn.functional.cross_entropy(network(x[i : i + 1], times), y[i : i + 1])
            for k, own in zip(expected, torch.autograd.grad(loss, list(network.parameters())), strict=True):
                expected[k] += own**2 / N
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x, times), y).backward()
        optimizer._close_draw()
        for k, v in optimizer.ledger.now.tensors["squares"].items():
            torch.testing.assert_close(v, expected[k], rtol=1e-4, atol=1e-7)
    (said,) = caplog.records  # once
    assert "if times chooses layers, give it as a str" in said.getMessage()


def test_with_dropout_a_number_that_chooses_layers_is_refused():
    network = Repeating()
    network.drop = nn.Dropout(0.5)
    optimizer = pl.optim.OGN(network, num_data=N)
    network(torch.ones(N, 4), 1).sum().backward()
    with pytest.raises(pl.NotSupported, match="if times chooses layers"):
        network(torch.ones(N, 4), 2)
    optimizer.zero_grad()


def test_a_pass_with_a_use_more_than_the_plan_has_is_refused():
    class Counting(Repeating):
        def forward(self, x):
            return super().forward(x, 1 if x.sum() > 0 else 2)

    network = Counting()
    optimizer = pl.optim.OGN(network, num_data=N)
    network(torch.ones(N, 4)).sum().backward()
    with pytest.raises(pl.NotSupported, match="branch"):
        network(-torch.ones(N, 4))
    optimizer.zero_grad()


def test_a_layer_that_mixes_examples_is_named():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            out = self.layer(x)
            return out - out.mean(0)

    network = Mixing()
    optimizer = pl.optim.OGN(network, num_data=N)
    with pytest.raises(pl.NotSupported, match=r"layer\.weight"):
        network(torch.randn(N, 4))
    assert optimizer.ledger.now.examples == 0


def test_running_the_layers_behind_the_networks_back_is_an_error_that_says_so():
    network, x, y = made("linear layers")
    optimizer = pl.optim.OGN(network, num_data=N)
    nn.functional.cross_entropy(network[2](network[1](network[0](x))), y).backward()
    with pytest.raises(RuntimeError, match=r"network\(inputs\)"):
        optimizer.step()


class Checkpointed(nn.Module):
    """The first layer's gradients come from another pass than the one that was seen."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=True))


@pytest.mark.parametrize("kind", [pl.optim.OGN, pl.optim.VOGN, pl.optim.KFAC, pl.optim.NoisyKFAC])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradients_that_came_another_way_than_through_the_pass_are_no_zeros(kind):
    network, x = Checkpointed(), torch.randn(N, 4, requires_grad=True)
    optimizer = kind(network, num_data=N)
    with optimizer.sampled():
        nn.functional.cross_entropy(network(x), torch.randint(2, (N,))).backward()
    assert network.first.weight.grad.abs().max() > 0
    with pytest.raises(pl.NotSupported, match=r"first\.weight.*checkpoint"):
        optimizer.step()


@pytest.mark.parametrize("kind", [pl.optim.OGN, pl.optim.VOGN, pl.optim.KFAC, pl.optim.NoisyKFAC])
def test_a_layer_that_is_dead_on_the_first_examples_can_be_trained(kind):
    network = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0], [0.7]]))
        network[0].bias.copy_(torch.tensor([0.1, -0.2]))
    x = torch.linspace(-3, 3, N).double().unsqueeze(1)
    optimizer = kind(network, num_data=N)
    with optimizer.sampled():
        (0.5 * (network(x) - x).square()).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("same", [False, True])
def test_gradients_of_the_inputs_alone_are_not_measured(same):
    """As an attack on the inputs takes them, inside a draw or between two micro-batches."""
    network, x, y = made("linear layers")
    expected = brute_force(network, x, y)
    optimizer = pl.optim.OGN(network, num_data=N)
    for part in (slice(0, N // 2), slice(N // 2, N)):
        attacked = x[part].clone().requires_grad_()
        loss = nn.functional.cross_entropy(network(attacked), y[part])
        torch.autograd.grad(loss, attacked, retain_graph=same)
        if not same:
            loss = nn.functional.cross_entropy(network(x[part]), y[part])
        (loss / 2).backward()
    optimizer.step()
    assert_same(curvature(optimizer), expected)


def test_a_loss_of_gradients_of_the_inputs_is_refused():
    network, x, _ = made("linear layers")
    optimizer = pl.optim.OGN(network, num_data=N)
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(network(x).square().sum(), x, create_graph=True)
    with pytest.raises(pl.NotSupported, match="twice"):
        slope.square().sum().backward()
    assert optimizer.param_groups[0]["step"] == 0


def test_activation_checkpointing_is_named():
    class Recomputed(Checkpointed):
        def forward(self, x):
            return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False))

    network = Recomputed()
    optimizer = pl.optim.OGN(network, num_data=N)
    with pytest.raises(pl.NotSupported, match="checkpointing"):
        network(torch.randn(N, 4))
    assert optimizer.ledger.now.examples == 0


def test_a_weight_that_only_a_penalty_uses_is_named():
    layers, x, y = made("linear layers")

    class Sparing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.spare = layers, nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x):
            return self.layers(x)

    network = Sparing()
    optimizer = pl.optim.OGN(network, num_data=N)
    (nn.functional.cross_entropy(network(x), y) + network.spare.square().sum()).backward()
    with pytest.raises(pl.NotSupported, match=r"^spare: a gradient came back"):
        optimizer.step()


@pytest.mark.parametrize("kind", [pl.optim.OGN, pl.optim.KFAC])
def test_an_empty_batch_is_named(kind):
    network, x, _ = made("linear layers")
    optimizer = kind(network, num_data=N)
    with pytest.raises(ValueError, match="batch is empty"):
        network(x[:0])
    assert optimizer.ledger.now.examples == 0


def test_a_network_that_returns_its_loss_is_told_what_to_return():
    class Loss(nn.Linear):
        def forward(self, x, y):
            return nn.functional.cross_entropy(super().forward(x), y)

    network = Loss(4, 2)
    optimizer = pl.optim.OGN(network, num_data=N)
    with pytest.raises(pl.NotSupported, match="one row for every example"):
        network(torch.randn(N, 4), torch.randint(2, (N,)))
    assert optimizer.ledger.now.examples == 0


class Heads(nn.Module):
    """Several outputs, each with a loss of its own."""

    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 3)

    def forward(self, x):
        hidden = self.body(x).tanh()
        return {"class": self.one(hidden), "rest": (self.other(hidden), torch.zeros(len(x), dtype=torch.long))}


class WithAnOperationOfItsOwn(Heads):
    def __init__(self):
        super().__init__()
        self.odd = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        out = super().forward(x)
        return out["class"], torch.einsum("bi,oi->bo", out["rest"][0], self.odd)


def both(output, y):
    first, second = (output["class"], output["rest"][0]) if isinstance(output, dict) else output
    return nn.functional.cross_entropy(first, y, reduction="none") + second.square().sum(1)


@pytest.mark.parametrize("make", [Heads, WithAnOperationOfItsOwn])
@pytest.mark.parametrize("part", ["both", "first"])
def test_a_network_may_return_several_tensors(make, part):
    torch.manual_seed(0)
    network = make().double()
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(N, 4, generator=g).double(), torch.randint(2, (N,), generator=g)

    def losses(output, y):
        if part == "both":
            return both(output, y)
        first = output["class"] if isinstance(output, dict) else output[0]
        return nn.functional.cross_entropy(first, y, reduction="none")

    expected = {k: torch.zeros_like(p) for k, p in network.named_parameters()}
    for i in range(N):
        own = torch.autograd.grad(
            losses(network(x[i : i + 1]), y[i : i + 1]).sum(), list(network.parameters()), allow_unused=True
        )
        for k, found in zip(expected, own, strict=True):
            expected[k] += 0.0 if found is None else found**2 / N
    optimizer = pl.optim.OGN(network, num_data=N, lr=1e-12)
    losses(network(x), y).mean().backward()
    optimizer._close_draw()
    for k, v in expected.items():
        found = optimizer.ledger.now.tensors["squares"].get(k, torch.zeros_like(v))
        torch.testing.assert_close(found, v, rtol=1e-9, atol=1e-14, msg=k)


def test_several_tensors_must_all_have_examples_in_front():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(4, 3, num_layers=2, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    optimizer = pl.optim.OGN(Recurrent(), num_data=N)
    with pytest.raises(pl.NotSupported, match=r"one row for every example.*\(3, 5, 3\), \(2, 3, 3\)"):
        optimizer.network(torch.randn(N, 5, 4))


class ListOfImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3)

    def forward(self, images):
        return torch.stack([self.layer(i[None]).mean((-1, -2))[0] for i in images])


@pytest.mark.parametrize("kind", [pl.optim.IVON, pl.optim.SGLD])
def test_channels_of_images_in_a_list_are_no_examples(kind):
    optimizer = kind(ListOfImages(), num_data=12, reduction="sum")
    with pytest.raises(ValueError, match=r"here 3, and the network returned 12.*torch\.stack"), optimizer.sampled():
        optimizer.network([torch.randn(3, 8, 8) for _ in range(12)])


def test_entries_of_one_example_are_no_examples():
    optimizer = pl.optim.IVON(nn.Linear(4, 2), num_data=12, reduction="sum")
    with pytest.raises(ValueError, match=r"here 4, and the network returned 2.*unsqueeze"), optimizer.sampled():
        optimizer.network(torch.randn(4))


def test_a_mask_without_examples_is_explained():
    class Masked(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x @ mask)

    optimizer = pl.optim.OGN(Masked(4, 2), num_data=12)
    with pytest.raises(RuntimeError) as error:
        optimizer.network(torch.randn(4, 4), torch.ones(4, 4))
    assert any("every input is cut along its first axis" in note for note in error.value.__notes__)
