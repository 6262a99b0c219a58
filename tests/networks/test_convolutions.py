import math

import pytest
import torch
from torch import nn
from torch.func import vmap

from plausible.networks.convolutions import HeConv2d, max_pool_with_places, unpool
from plausible.weights.algebra import slow_vmap_is_an_error


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_unpooling_is_torchs_own():
    x = images(2, 3, 8, 10)
    pooled, places = max_pool_with_places(x)
    expected, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(pooled, expected)
    assert torch.equal(unpool(pooled, places, x.shape[-2:]), nn.functional.max_unpool2d(expected, indices, 2))


@pytest.mark.parametrize("size", [(7, 5), (1, 1), (1, 6), (9, 8)])
def test_odd_images_keep_their_size_and_their_largest_values(size):
    x = images(2, 3, *size)
    pooled, places = max_pool_with_places(x)
    assert pooled.shape[-2:] == (math.ceil(size[0] / 2), math.ceil(size[1] / 2))
    back = unpool(pooled, places, x.shape[-2:])
    kept = back != 0
    assert back.shape == x.shape and torch.equal(back[kept], x[kept])
    assert kept.sum() == pooled.numel()
    again, _ = max_pool_with_places(torch.where(kept, x, -math.inf))
    assert torch.equal(again, pooled)


def test_unpooling_is_vectorised_without_a_loop():
    x = images(4, 2, 3, 7, 5)

    def there_and_back(one):
        return unpool(*max_pool_with_places(one), one.shape[-2:])

    with slow_vmap_is_an_error():
        together = vmap(there_and_back)(x)
    assert torch.equal(together, torch.stack([there_and_back(one) for one in x]))


def test_a_convolution_starts_at_its_stated_scale_also_after_a_reset():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = HeConv2d(64, 32, 5)
        for _ in range(2):
            # 51,200 weights: the relative error of a deviation is 1 / sqrt(2 n) = 0.3 %; five of them are allowed.
            assert abs(layer.weight.std().item() / math.sqrt(2 / (32 * 25)) - 1) < 0.016
            assert layer.bias.abs().max() == 0
            nn.init.ones_(layer.bias)
            layer.reset_parameters()


def test_the_signal_keeps_its_scale_through_many_layers():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [module for _ in range(13) for module in (HeConv2d(64, 64, 3, padding=1), nn.ReLU())]
        x = images(4, 64, 16, 16).float()
        ratio = nn.Sequential(*layers)(x).square().mean() / x.square().mean()
    assert 0.02 < ratio < 10  # the padding costs some at each layer; torch's own start would leave 6 ** -13
