import pytest
import torch
from torch import nn

from plausible.networks.norms import FilterResponseNorm, ThresholdedLinear, norm_named


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_filter_response_norm_is_torch_rms_norm_over_the_image():
    x = images(3, 4, 5, 6)
    norm = FilterResponseNorm(4).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 0.25]))
    scaled = nn.functional.rms_norm(x, (5, 6), eps=1e-6)
    expected = scaled * norm.weight.view(1, 4, 1, 1) + norm.bias.view(1, 4, 1, 1)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


def test_a_fresh_filter_response_norm_gives_channels_of_unit_mean_square():
    y = FilterResponseNorm(4).double()(7.0 * images(3, 4, 16, 16))
    torch.testing.assert_close(y.square().mean((-2, -1)), torch.ones(3, 4, dtype=torch.float64), rtol=1e-6, atol=0)


def test_filter_response_norm_keeps_examples_apart():
    x = images(3, 4, 5, 5)
    norm = FilterResponseNorm(4).double()
    torch.testing.assert_close(norm(x)[1:2], norm(x[1:2]), rtol=0, atol=0)


def test_the_thresholded_unit_starts_as_relu_and_has_one_threshold_a_channel():
    x = images(2, 3, 4, 4)
    unit = ThresholdedLinear(3).double()
    assert torch.equal(unit(x), nn.functional.relu(x))
    thresholds = torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)
    with torch.no_grad():
        unit.threshold.copy_(thresholds)
    for channel, threshold in enumerate(thresholds):
        assert torch.equal(unit(x)[:, channel], x[:, channel].clamp(min=threshold.item()))


@pytest.mark.parametrize(
    ("channels", "groups"), [(16, 4), (32, 8), (64, 16), (128, 32), (512, 32), (4, 1), (3, 1), (10, 2)]
)
def test_groups_divide_the_channels_and_number_at_most_32(channels, groups):
    assert norm_named("group", channels).num_groups == groups
