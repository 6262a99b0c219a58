import inspect
import json
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from plausible import networks
from plausible.networks import (
    DSN,
    MLP,
    NIN,
    VGG16,
    WRN16_4,
    AlexNet,
    LeNet5,
    PreResNet20,
    ResNet18,
    ResNet20,
    SegNet,
    WideResNet,
)

NORMS = ("batch", "group", "filter-response")


def number_of_weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def seeded(network_type, *args, seed=0, **options) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return network_type(*args, **options).double().eval()


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ALEXNET = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))

MLPCONVS = (
    ((3, 192, 5), (192, 160, 1), (160, 96, 1))
    + ((96, 192, 5), (192, 192, 1), (192, 192, 1))
    + ((192, 192, 3), (192, 192, 1), (192, 10, 1))
)


def convolution(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel**2 + outputs


def segnet_weights(classes: int) -> int:
    encoder = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    decoder = (512, 512, 512, 512, 512, 512, 256, 256, 256, 128, 128, 64, 64)
    norms = 2 * (sum(encoder[1:]) + sum(decoder[1:]))
    chains = sum(convolution(a, b, 3) for chain in (encoder, decoder) for a, b in pairwise(chain))
    total = chains + norms + convolution(64, classes, 3)
    assert round(total / 1e6, 2) == 29.45
    return total


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
    "alexnet": (lambda seed=0: seeded(AlexNet, 3, 1, seed=seed), (1, 1, 32, 32)),
    "nin": (lambda seed=0: seeded(NIN, 3, 1, seed=seed), (1, 1, 8, 8)),
    "dsn": (lambda seed=0: seeded(DSN, 3, 1, seed=seed), (1, 1, 8, 8)),
    "vgg16": (lambda seed=0: seeded(VGG16, 3, 1, width=4, seed=seed), (2, 1, 32, 32)),
    "vgg16 batch": (lambda seed=0: seeded(VGG16, 3, 1, "batch", width=4, seed=seed), (2, 1, 32, 32)),
    "preresnet20": (lambda seed=0: seeded(PreResNet20, 3, 1, width=4, seed=seed), (2, 1, 8, 8)),
    "wideresnet": (lambda seed=0: seeded(WideResNet, 10, 1, 3, 1, seed=seed), (2, 1, 8, 8)),
    "segnet": (lambda seed=0: seeded(SegNet, 3, 1, width=2, seed=seed), (2, 1, 11, 13)),
}
every_small_network = pytest.mark.parametrize(("make", "shape"), SMALL.values(), ids=SMALL)
SAME_PARTS = ("dsn", "vgg16 batch", "wideresnet")  # as a network that is traced already
TRACED = {name: case for name, case in SMALL.items() if name not in SAME_PARTS}


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
        (lambda: AlexNet(), sum(convolution(*sizes) for sizes in ALEXNET) + 2_570),
        (lambda: NIN(), sum(convolution(*sizes) for sizes in MLPCONVS)),
        (lambda: DSN(), sum(convolution(*sizes) for sizes in MLPCONVS)),
        (lambda: NIN(), 966_986),
        # VGG-16's thirteen convolutions have 14,714,688 weights whatever the head.
        (lambda: VGG16(), 14_714_688 + 2 * (512 * 512 + 512) + 512 * 10 + 10),
        (lambda: VGG16(norm="batch"), 15_245_130 + 2 * (2 * 64 + 2 * 128 + 3 * 256 + 6 * 512)),
        # Norms move from after to before, at the cost of none; only the projections lose theirs.
        (lambda: PreResNet20(), 272_474 - 2 * (32 + 64)),
        (lambda: PreResNet20(), 272_282),
        # Zagoruyko & Komodakis: 2.7, 11.0 (WRN-16-8), 8.9 and 36.5 million.
        (lambda: WRN16_4(), 2_748_890),
        (lambda: WideResNet(16, 8), 10_961_370),
        (lambda: WideResNet(40, 4), 8_949_210),
        (lambda: WideResNet(28, 10), 36_479_194),
        # Badrinarayanan et al. state 29.45 million: VGG-16 twice, the last convolution of which has 11 outputs.
        (lambda: SegNet(), segnet_weights(11)),
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
        (lambda: AlexNet(), (2, 3, 32, 32), (2, 10)),
        (lambda: NIN(classes=4, channels=1), (2, 1, 32, 32), (2, 4)),
        (lambda: NIN(), (2, 3, 15, 17), (2, 10)),
        (lambda: DSN(), (2, 3, 32, 32), (2, 10)),
        (lambda: VGG16(classes=4, width=8), (2, 3, 32, 32), (2, 4)),
        (lambda: PreResNet20(classes=4), (2, 3, 32, 32), (2, 4)),
        (lambda: WRN16_4(classes=4, channels=1), (2, 1, 16, 16), (2, 4)),
        (lambda: SegNet(classes=4, width=4), (2, 3, 45, 60), (2, 4, 45, 60)),
        (lambda: SegNet(width=4), (1, 3, 1, 33), (1, 11, 1, 33)),
        (lambda: SegNet(width=4, stages=(1, 2)), (2, 3, 7, 5), (2, 11, 7, 5)),
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
def test_a_slope_reaches_every_weight(make, shape):
    network = make().train()
    x = images(4, *shape[1:])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network(x).square().sum().backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None and weight.grad.abs().max() > 0, name


@pytest.mark.parametrize(("make", "shape"), TRACED.values(), ids=TRACED)
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
        with torch.device("meta"):
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
@pytest.mark.parametrize(
    "make",
    [
        lambda norm: ResNet20(norm=norm, width=4),
        lambda norm: VGG16(norm=norm, width=4),
        lambda norm: PreResNet20(norm=norm, width=4),
        lambda norm: SegNet(norm=norm, width=4),
    ],
)
def test_no_weight_is_out_of_reach_of_a_reset(make, norm):
    network = make(norm)
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
        (lambda: AlexNet(dropout=1.0), "dropout must be at least 0 and less than 1, got 1.0"),
        (lambda: AlexNet()(images(1, 3, 28, 28)), "images must be 32 x 32, got 28 x 28"),
        (lambda: VGG16(width=1)(images(1, 3, 64, 64)), "images must be 32 x 32, got 64 x 64"),
        (lambda: VGG16(norm="layer"), "norm must be one of batch, group, filter-response, got 'layer'"),
        (lambda: WideResNet(depth=18), "depth must be 4 [+] 6 x the blocks of a stage, .* got 18"),
        (lambda: SegNet(dropout_at="centra"), "dropout_at must be one of none, .* got 'centra'"),
        (lambda: SegNet(stages=()), "stages must have at least one number"),
        (lambda: networks.build("os.system", {}), "network must be one of MLP, .* got 'os.system'"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
