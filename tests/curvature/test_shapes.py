"""Linear layers and convolutions of drawn shapes against gradients of one example after the other."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.curvature.networks import chain
from tests.curvature.test_every_layer import check_second_moments
from torch import Tensor, nn


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.lists(st.integers(1, 4), max_size=2), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_linear_layers_of_any_shape(examples, positions, inputs, outputs, bias):
    torch.manual_seed(0)
    x = torch.randn(examples, *positions, inputs, dtype=torch.float64)
    network = chain(nn.Linear(inputs, outputs, bias=bias), like=x).double().eval()
    check_second_moments(network, x, 1e-8)


@st.composite
def convolutions(draw) -> tuple[nn.Module, Tensor]:
    dims, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, stride, dilation, padding = (
        [draw(st.integers(low, high)) for _ in range(dims)] for low, high in ((1, 3), (1, 3), (1, 2), (0, 2))
    )
    size = [d * (k - 1) + 1 + draw(st.integers(0, 2)) for k, d in zip(kernel, dilation, strict=True)]
    ins, outs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    options = {"stride": stride, "dilation": dilation, "groups": groups, "bias": draw(st.booleans())}
    torch.manual_seed(0)
    x = torch.randn(draw(st.integers(1, 4)), ins, *size)
    if draw(st.booleans()):
        layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](ins, outs, kernel, padding=padding, **options)
    else:
        extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
        padding = [min(p, d * (k - 1)) for p, d, k in zip(padding, dilation, kernel, strict=True)]
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        layer = kind(ins, outs, kernel, padding=padding, output_padding=extra, **options)
    return chain(layer, like=x).double().eval(), x.double()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(convolutions())
def test_convolutions_of_any_shape(case):
    check_second_moments(*case, tolerance=1e-8)
