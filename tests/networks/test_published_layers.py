"""Networks against the chain of their published layers, written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from plausible.networks import DSN, NIN, VGG16, AlexNet, PreResNet20, SegNet, WideResNet


def seeded(network_type, *args, **options) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network_type(*args, **options).double().eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def convolutions(network: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(m.weight, m.bias) for m in network.modules() if isinstance(m, nn.Conv2d)]


def test_alexnet_is_the_chain_of_its_layers():
    network = seeded(AlexNet)
    c = convolutions(network)
    x = images(2, 3, 32, 32)
    h = F.max_pool2d(F.relu(F.conv2d(x, *c[0], stride=4, padding=5)), 2)
    assert h.shape == (2, 64, 4, 4)
    h = F.max_pool2d(F.relu(F.conv2d(h, *c[1], padding=2)), 2)
    for layer in c[2:]:
        h = F.relu(F.conv2d(h, *layer, padding=1))
    h = F.linear(F.max_pool2d(h, 2).flatten(1), network.head.weight, network.head.bias)
    torch.testing.assert_close(network(x), h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network_type", [NIN, DSN])
def test_nin_and_dsn_are_the_chains_of_their_layers(network_type):
    network = seeded(network_type)
    c = convolutions(network)
    assert [len(weight) for weight, _ in c] == [192, 160, 96, 192, 192, 192, 192, 192, 10]
    second_pool = F.avg_pool2d if network_type is NIN else F.max_pool2d
    h = x = images(2, 3, 32, 32)
    for i, layer in enumerate(c):
        h = F.conv2d(h, *layer, padding=layer[0].shape[-1] // 2)
        h = h if network_type is DSN and i == 8 else F.relu(h)
        if i == 2:
            h = F.max_pool2d(h, 3, 2, ceil_mode=True)
        if i == 5:
            h = second_pool(h, 3, 2, ceil_mode=True)
    assert h.shape == (2, 10, 8, 8)
    torch.testing.assert_close(network(x), h.mean((2, 3)), rtol=1e-12, atol=1e-12)


def test_vgg16_is_the_chain_of_its_layers():
    network = seeded(VGG16, width=4)
    c = convolutions(network)
    assert [len(weight) // 4 for weight, _ in c] == [1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8]
    h = x = images(2, 3, 32, 32)
    for i, layer in enumerate(c):
        h = F.relu(F.conv2d(h, *layer, padding=1))
        if i in (1, 3, 6, 9, 12):
            h = F.max_pool2d(h, 2)
    h = h.flatten(1)
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    h = linear[2](F.relu(linear[1](F.relu(linear[0](h)))))
    torch.testing.assert_close(network(x), h, rtol=1e-12, atol=1e-12)


def test_a_pre_activation_block_adds_to_its_untouched_input():
    network = seeded(PreResNet20, width=4)
    block = network.trunk[1]
    x = images(2, 4, 8, 8)
    c = convolutions(block)
    # Batch norms in eval mode, fresh: x / sqrt(1 + 1e-5).
    norm = lambda h: h / (1 + 1e-5) ** 0.5  # noqa: E731
    h = F.conv2d(F.relu(norm(x)), c[0][0], padding=1)
    h = F.conv2d(F.relu(norm(h)), c[1][0], padding=1)
    torch.testing.assert_close(block(x), x + h, rtol=1e-10, atol=1e-10)


def test_a_block_that_changes_the_shape_projects_what_its_norm_made():
    block = seeded(WideResNet, 10, 1).trunk[2]
    x = images(2, 16, 8, 8)
    activated = F.relu(x / (1 + 1e-5) ** 0.5)
    shortcut = F.conv2d(activated, block.projection.weight, stride=2)
    torch.testing.assert_close(block(x), shortcut + block.residual(activated), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("where", "encoder", "decoder"),
    [
        ("none", [], []),
        ("encoder", [0, 1, 2, 3, 4], []),
        ("decoder", [], [1, 2, 3, 4]),
        ("encoder-decoder", [0, 1, 2, 3, 4], [1, 2, 3, 4]),
        ("central", [2, 3, 4], [2, 3, 4]),
        ("centre", [4], []),
        ("classifier", [], [0]),
    ],
)
def test_segnet_drops_where_it_is_told(where, encoder, decoder):
    network = SegNet(width=1, dropout=0.25, dropout_at=where)
    assert [i for i, layer in enumerate(network.encoder_dropout) if layer.p == 0.25] == encoder
    assert [i for i, stage in enumerate(network.decoder) if stage[-1].p == 0.25] == decoder
    network.train()
    x = images(2, 3, 33, 40).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        again = torch.equal(network(x), network(x))
    assert again == (where == "none")


def test_segnet_undoes_its_pools_at_their_own_places():
    network = seeded(SegNet, 2, 1, width=2, stages=(1, 1), dropout_at="none")
    x = images(1, 1, 8, 12)
    norm = lambda h: h / (1 + 1e-5) ** 0.5  # noqa: E731
    first, second, inner, last = convolutions(network)
    h, outer_places = F.max_pool2d(F.relu(norm(F.conv2d(x, *first, padding=1))), 2, return_indices=True)
    h, inner_places = F.max_pool2d(F.relu(norm(F.conv2d(h, *second, padding=1))), 2, return_indices=True)
    h = F.relu(norm(F.conv2d(F.max_unpool2d(h, inner_places, 2), *inner, padding=1)))
    h = F.conv2d(F.max_unpool2d(h, outer_places, 2), *last, padding=1)
    torch.testing.assert_close(network(x), h, rtol=1e-10, atol=1e-10)
