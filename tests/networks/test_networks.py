import inspect
import json

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from plausible import networks
from plausible.networks import MLP, LeNet5, ResNet18, ResNet20

NORMS = ("batch", "group", "filter-response")


def number_of_weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def seeded(network_type, *args, seed=0, **options) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return network_type(*args, **options).double().eval()


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SMALL = {
    "mlp": (lambda seed=0: seeded(MLP, 5, (7, 6), 3, "tanh", seed=seed), (4, 5)),
    "mlp on images": (lambda seed=0: seeded(MLP, (1, 8, 8), (7,), 3, seed=seed), (4, 1, 8, 8)),
    "lenet": (lambda seed=0: seeded(LeNet5, 1, 3, 12, seed=seed), (4, 1, 12, 12)),
    "resnet20 batch": (lambda seed=0: seeded(ResNet20, 3, 1, "batch", width=4, seed=seed), (2, 1, 8, 8)),
    "resnet20 group": (lambda seed=0: seeded(ResNet20, 3, 1, "group", width=4, seed=seed), (2, 1, 8, 8)),
    "resnet20 frn tlu": (lambda seed=0: seeded(ResNet20, 3, 1, "filter-response", width=4, seed=seed), (2, 1, 8, 8)),
    "resnet20 frn swish": (
        lambda seed=0: seeded(ResNet20, 3, 1, "filter-response", activation="swish", width=4, seed=seed),
        (2, 1, 8, 8),
    ),
}
every_small_network = pytest.mark.parametrize(("make", "shape"), SMALL.values(), ids=SMALL)


@pytest.mark.parametrize(
    ("network", "published"),
    [
        (lambda: MLP(13, (50,), 10), 13 * 50 + 50 + 50 * 10 + 10),
        (lambda: LeNet5(), 61_706),
        (lambda: LeNet5(channels=3, size=32), 62_006),
        (lambda: ResNet18(), 11_173_962),
        (lambda: ResNet20(), 272_474),
        # He et al. count 269,722 with shortcuts that have no weights; the projections (and their norms) are the rest.
        (lambda: ResNet20(), 269_722 + (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)),
        (lambda: ResNet20(norm="group"), 272_474),
        (lambda: ResNet20(norm="filter-response", activation="swish"), 272_474),
        # A threshold for each channel of the stem and of two activations in each of three blocks a stage.
        (lambda: ResNet20(norm="filter-response"), 272_474 + 16 + 2 * 3 * (16 + 32 + 64)),
    ],
)
def test_the_number_of_weights_is_the_published_one(network, published):
    with torch.device("meta"):
        assert number_of_weights(network()) == published


@pytest.mark.parametrize(
    ("network", "shape", "outputs"),
    [
        (lambda: MLP(2), (5, 2), (5, 1)),
        (lambda: MLP(2, (), 3), (5, 2), (5, 3)),
        (lambda: MLP(64, (8, 8), 10), (5, 1, 8, 8), (5, 10)),
        (lambda: MLP((1, 8, 8), (8,), 10), (5, 1, 8, 8), (5, 10)),
        (lambda: MLP((1, 8, 8), (8,), 10), (1, 8, 8), (10,)),
        (lambda: LeNet5(), (5, 1, 28, 28), (5, 10)),
        (lambda: LeNet5(3, 7, 32), (5, 3, 32, 32), (5, 7)),
        (lambda: LeNet5(1, 10, 16), (5, 1, 16, 16), (5, 10)),
        (lambda: LeNet5(), (1, 28, 28), (10,)),
        (lambda: ResNet18(classes=4, channels=1), (2, 1, 16, 16), (2, 4)),
        (lambda: ResNet20(classes=4, width=8), (2, 3, 32, 32), (2, 4)),
    ],
)
def test_outputs_have_one_row_for_each_example(network, shape, outputs):
    assert network().eval()(images(*shape).float()).shape == outputs


def test_lenet_is_the_chain_of_its_layers():
    network = seeded(LeNet5)
    w = dict(network.named_parameters())
    x = images(3, 1, 28, 28)
    F = nn.functional
    h = F.max_pool2d(F.relu(F.conv2d(x, w["features.0.weight"], w["features.0.bias"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, w["features.3.weight"], w["features.3.bias"])), 2).flatten(1)
    h = F.relu(F.linear(h, w["classifier.0.weight"], w["classifier.0.bias"]))
    h = F.relu(F.linear(h, w["classifier.2.weight"], w["classifier.2.bias"]))
    expected = F.linear(h, w["classifier.4.weight"], w["classifier.4.bias"])
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-12)


@every_small_network
def test_stacked_weights_under_vmap_give_what_each_gives_alone(make, shape):
    members = [make(seed) for seed in range(3)]
    x = images(*shape)
    weights = {
        k: torch.stack([dict(m.named_parameters())[k].detach() for m in members])
        for k, _ in members[0].named_parameters()
    }
    together = vmap(lambda w: functional_call(members[0], w, (x,)))(weights)
    alone = torch.stack([member(x) for member in members])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(alone[0], alone[1])


@every_small_network
def test_slopes_under_vmap_equal_those_of_autograd(make, shape):
    members = [make(seed) for seed in range(2)]
    x = images(*shape)
    weights = {
        k: torch.stack([dict(m.named_parameters())[k].detach() for m in members])
        for k, _ in members[0].named_parameters()
    }
    together = vmap(grad(lambda w: functional_call(members[0], w, (x,)).square().sum()))(weights)
    for i, member in enumerate(members):
        names, leaves = zip(*member.named_parameters(), strict=True)
        for name, slope in zip(names, torch.autograd.grad(member(x).square().sum(), leaves), strict=True):
            torch.testing.assert_close(together[name][i], slope, rtol=1e-8, atol=1e-8)


@every_small_network
def test_a_network_is_traced_into_one_graph(make, shape):
    network, x = make(), images(*shape)
    traced = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(x), network(x), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet20 frn tlu"])
def test_a_compiled_network_equals_the_eager_one(name):
    make, shape = SMALL[name]
    network, x = make(), images(*shape)
    torch.testing.assert_close(torch.compile(network, fullgraph=True)(x), network(x), rtol=1e-8, atol=1e-8)


@every_small_network
def test_a_network_is_rebuilt_from_its_name_and_json(make, shape):
    network, x = make(), images(*shape)
    rebuilt = networks.build(type(network).__name__, json.loads(json.dumps(network.config))).double().eval()
    assert type(rebuilt) is type(network)
    assert rebuilt.config == network.config
    rebuilt.load_state_dict(network.state_dict())
    assert torch.equal(rebuilt(x), network(x))


def test_every_constructor_argument_is_in_the_configuration():
    required = {"MLP": {"inputs": 2}}
    for name, network_type in networks.registry.items():
        assert network_type.__name__ == name
        network = network_type(**required.get(name, {}))
        assert set(network.config) == set(inspect.signature(network_type).parameters)


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_last_norm_leaves_only_the_shortcut_also_after_a_reset(norm):
    network = seeded(ResNet20, 3, 1, norm, width=4, zero_init_last=True)
    block = network.trunk[1]  # the first block of the first stage, whose shortcut is the identity
    x = images(2, 4, 8, 8)
    for _ in range(2):
        torch.testing.assert_close(block(x), x.clamp(min=0), rtol=0, atol=0)
        with torch.random.fork_rng():
            for module in network.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()


@pytest.mark.parametrize("norm", NORMS)
def test_no_weight_is_out_of_reach_of_a_reset(norm):
    network = ResNet20(norm=norm, width=4)
    reached = {
        id(parameter)
        for module in network.modules()
        if hasattr(module, "reset_parameters")
        for parameter in module.parameters(recurse=False)
    }
    assert {id(parameter) for parameter in network.parameters()} == reached


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(0), "inputs must be at least 1, got 0"),
        (lambda: MLP(2, (3, -1)), "hidden must be at least 1, got -1"),
        (lambda: MLP(2, activation="rleu"), "activation must be one of relu, .* got 'rleu'"),
        (lambda: LeNet5(size=8), "size must be at least 12 .* got 8; use an MLP"),
        (lambda: ResNet20(norm="layer"), "norm must be one of batch, group, filter-response, got 'layer'"),
        (lambda: ResNet18(activation="tanh"), "activation must be one of relu, swish, got 'tanh'"),
        (lambda: networks.build("os.system", {}), "network must be one of MLP, .* got 'os.system'"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
