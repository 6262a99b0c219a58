"""Kernels of per-example gradients on a GPU, against the plain path in double precision."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import plausible as pl
from plausible.curvature import gradient_and_second_moments
from plausible.curvature.fused import convolution, linear, norms
from plausible.curvature.layouts import Layout
from plausible.curvature.rules import find
from plausible.curvature.streaming import stream

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels run on a GPU, and there is none here")

# channels, outs, (height, width), kernel, stride, padding, dilation
SHAPES = {
    "LeNet-5, first": (1, 6, (28, 28), 5, 1, 2, 1),
    "LeNet-5, second": (6, 16, (14, 14), 5, 1, 0, 1),
    "ResNet-18, stem": (3, 64, (32, 32), 3, 1, 1, 1),
    "ResNet-18, 32 x 32": (64, 64, (32, 32), 3, 1, 1, 1),
    "ResNet-18, by two": (64, 128, (16, 16), 3, 2, 1, 1),
    "ResNet-18, shortcut": (64, 128, (16, 16), 1, 2, 0, 1),
    "ResNet-18, 4 x 4": (256, 512, (4, 4), 3, 1, 1, 1),
    "AlexNet, 2 x 2": (192, 384, (2, 2), 3, 1, 1, 1),
    "four places, by two": (70, 33, (4, 3), 3, 2, 1, 1),
    "ImageNet's stem": (3, 64, (37, 41), 7, 2, 3, 1),
    "spread": (18, 21, (13, 11), 3, 1, 2, 2),
    "odd": (17, 33, (9, 7), (3, 2), (1, 2), (2, 1), (2, 1)),
}


def given(name, examples=9, columns=1):
    channels, outs, size, kernel, stride, padding, dilation = SHAPES[name]
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    rng = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=rng, dtype=torch.float64).cuda()  # noqa: E731
    x, weight = draw(examples, channels, *size), draw(outs, channels, *kernel)
    out = F.conv2d(x, weight, None, stride, padding, dilation)
    rule = find(torch.conv2d, (x, weight, None, stride, padding, dilation), {}, lambda t: t is weight)[0]
    return rule, x, draw(columns, *out.shape), torch.rand(examples, generator=rng, dtype=torch.float64).cuda()


def truth(rule, x, slope, factors):
    each = rule.weight_gradients(x, slope, Layout(), x.shape[0])
    return each.sum((0, 1)), torch.einsum("rn...,n->...", each.square(), factors)


def off(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.fixture(params=["ieee", "tf32"])
def precision(request):
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = request.param
    yield {"ieee": 1e-5, "tf32": 2e-3}[request.param]
    torch.backends.cudnn.conv.fp32_precision = before


@cuda
@pytest.mark.parametrize("name", SHAPES)
def test_sums_and_squares_of_float32_are_those_of_the_plain_path(name, precision):
    rule, x, slope, factors = given(name)
    assert convolution.usable(rule, x.float(), slope.float(), Layout())
    sums, squares = convolution.moments(rule, x.float(), slope.float(), factors.float())
    expected = truth(rule, x, slope, factors)
    assert off(sums, expected[0]) < precision
    assert off(squares, expected[1]) < precision


@cuda
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_products_of_half_precision_are_exact_and_added_up_in_float32(name, dtype):
    rule, x, slope, factors = given(name)
    x, slope = x.to(dtype), slope.to(dtype)
    sums, squares = convolution.moments(rule, x, slope, factors.float())
    expected = truth(rule, x.double(), slope.double(), factors)
    assert off(sums, expected[0]) < 1e-5
    assert off(squares, expected[1]) < 1e-5


@cuda
def test_squares_of_several_columns_add_up():
    rule, x, slope, _ = given("ResNet-18, by two", columns=3)
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        found = rule.weight_squares(x.float(), slope.float(), Layout(), 9)
    finally:
        torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert off(found, rule.weight_squares(x, slope, Layout(), 9)) < 1e-5


@cuda
@pytest.mark.parametrize("name", ["ResNet-18, by two", "AlexNet, 2 x 2", "ResNet-18, stem"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_images_may_lie_in_memory_in_any_order(name, dtype):
    rule, x, slope, factors = given(name)
    x, slope = x.to(dtype), slope.to(dtype)
    plain = convolution.moments(rule, x, slope, factors.float())
    last = torch.channels_last
    turned = slope[0].contiguous(memory_format=last).unsqueeze(0)
    assert torch.equal(convolution.moments(rule, x.contiguous(memory_format=last), turned, factors.float()), plain)
    other = convolution.moments(rule, x.mT.contiguous().mT, slope.mT.contiguous().mT, factors.float())
    assert torch.equal(other, plain)


@cuda
def test_the_same_sums_come_out_every_time():
    rule, x, slope, factors = given("ResNet-18, 32 x 32", examples=50)
    first, second = (convolution.moments(rule, x.float(), slope.float(), factors.float()) for _ in range(2))
    assert torch.equal(first, second)


@cuda
def test_a_convolution_along_one_axis_is_one_of_an_image_of_one_row():
    rng = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 20, 31, generator=rng).cuda(), torch.randn(24, 20, 3, generator=rng).cuda()
    rule = find(torch.conv1d, (x, weight, None, 2, 1), {}, lambda t: t is weight)[0]
    slope = torch.randn(1, *F.conv1d(x, weight, None, 2, 1).shape, generator=rng).bfloat16().cuda()
    sums, squares = convolution.moments(rule, x.bfloat16(), slope)
    expected = truth(rule, x.bfloat16().double(), slope.double(), torch.ones(5, dtype=torch.float64).cuda())
    assert off(sums, expected[0]) < 1e-5
    assert off(squares, expected[1]) < 1e-5


@cuda
def test_groups_and_double_precision_take_the_plain_path():
    rule, x, slope, _ = given("ResNet-18, by two")
    assert not convolution.usable(rule, x, slope, Layout())
    weight = torch.randn(64, 32, 3, 3).cuda()
    grouped = find(torch.conv2d, (x, weight, None, 1, 1, 1, 2), {}, lambda t: t is weight)[0]
    assert not convolution.usable(grouped, x.float(), slope.float(), Layout())


@cuda
@pytest.mark.parametrize("shape", [(7, 20, 5, 6), (9, 64, 32, 32), (130, 96, 4, 4), (6, 33)])
def test_moments_of_a_batch_norm_are_those_of_double_precision(shape):
    rng = torch.Generator().manual_seed(0)
    x, slope = (torch.randn(shape, generator=rng, dtype=torch.float64).cuda() for _ in range(2))
    axes = [a for a in range(len(shape)) if a != 1]
    places = tuple(range(2, len(shape)))
    factors = torch.rand(shape[0], generator=rng, dtype=torch.float64).cuda()
    variance, mean = torch.var_mean(x, axes, correction=0)
    wide = (1, -1, *[1] * len(places))
    each = [slope * (x - mean.reshape(wide)) * variance.rsqrt().reshape(wide), slope]
    each = [e.sum(places) if places else e for e in each]
    found = norms.moments(x.float(), mean.float(), variance.rsqrt().float(), slope.float(), factors.float())
    for pair, own in zip(found, each, strict=True):
        assert off(pair[0], own.sum(0)) < 1e-5
        assert off(pair[1], (own.square() * factors[:, None]).sum(0)) < 1e-5


@cuda
@pytest.mark.parametrize("shape", [(7, 20, 5, 6), (9, 64, 32, 32), (5, 17, 2, 2)])
def test_channels_may_be_neighbours_in_the_memory_of_a_batch_norm(shape):
    rng, last = torch.Generator().manual_seed(0), torch.channels_last
    x, slope = (torch.randn(shape, generator=rng).cuda() for _ in range(2))
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    rest = mean, variance.rsqrt(), torch.rand(shape[0], generator=rng).cuda()
    turned, steep = (t.contiguous(memory_format=last) for t in (x, slope))
    expected = torch.stack(norms.moments(x, rest[0], rest[1], slope, rest[2]))
    assert off(torch.stack(norms.moments(turned, rest[0], rest[1], steep, rest[2])), expected) < 1e-6
    assert off(torch.stack(norms.moments(x, rest[0], rest[1], steep, rest[2])), expected) < 1e-6
    assert off(norms.bias_moments(steep, rest[2]), expected[1]) < 1e-6


@cuda
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
def test_a_deep_network_has_a_plan_although_gpus_round_products():
    torch.manual_seed(0)
    model = pl.BayesianModel(pl.networks.ResNet18(), pl.likelihoods.Categorical()).bound(training=True)
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.enabled
    params = {k: w.cuda() for k, w in model.init().items()}
    batch = torch.randn(8, 3, 32, 32).cuda(), torch.arange(8).cuda(), torch.ones(8).cuda()
    assert gradient_and_second_moments(model, params, batch).log_likelihood.isfinite()
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.enabled) == before


@cuda
@pytest.mark.parametrize("shape", [(128, 400, 120), (37, 70, 45), (5, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_moments_of_a_small_linear_layer_are_those_of_double_precision(shape, dtype):
    examples, ins, outs = shape
    rng = torch.Generator().manual_seed(0)
    x, slope = (torch.randn(examples, n, generator=rng).to(dtype).cuda() for n in (ins, outs))
    factors = torch.rand(examples, generator=rng).cuda()
    assert linear.usable(x, slope.unsqueeze(0), Layout())
    weight, bias = linear.moments(x, slope.unsqueeze(0), factors)
    wide, steep = x.double(), slope.double()
    weighted = steep.square() * factors.double()[:, None]
    assert off(weight[0], steep.T @ wide) < 1e-5
    assert off(weight[1], weighted.T @ wide.square()) < 1e-5
    assert off(bias[0], steep.sum(0)) < 1e-5
    assert off(bias[1], weighted.sum(0)) < 1e-5


@cuda
def test_moments_of_a_bias_per_channel_are_those_of_double_precision():
    rng = torch.Generator().manual_seed(0)
    slope, factors = torch.randn(70, 6, 28, 28, generator=rng).cuda(), torch.rand(70, generator=rng).cuda()
    found, each = norms.bias_moments(slope, factors), slope.double().sum((2, 3))
    assert off(found[0], each.sum(0)) < 1e-5
    assert off(found[1], (each.square() * factors[:, None]).sum(0)) < 1e-5


@cuda
# The first product of a process may run in autograd's own thread, where the library says so.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.parametrize("name", ["LeNet-5", "ResNet-20"])
def test_a_whole_network_has_the_moments_it_has_on_a_cpu(name):
    torch.manual_seed(0)
    network = pl.networks.LeNet5() if name == "LeNet-5" else pl.networks.ResNet20(width=16)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical()).bound(training=True)
    x, y = torch.randn(12, *((1, 28, 28) if name == "LeNet-5" else (3, 32, 32))), torch.arange(12) % 10
    weights = torch.full((12,), 5.0)
    double = pl.BayesianModel(network.double(), pl.likelihoods.Categorical()).bound(training=True)
    expected = gradient_and_second_moments(double, double.init(), (x.double(), y, weights.double()))
    params, batch = {k: w.cuda() for k, w in model.init().items()}, (x.cuda(), y.cuda(), weights.cuda())
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        assert stream(model, params, batch[0]) is not None
        found = gradient_and_second_moments(model, params, batch)
    finally:
        torch.backends.cudnn.conv.fp32_precision = "tf32"
    for k in params:
        assert off(found.gradient[k].cpu(), expected.gradient[k]) < 1e-4
        assert off(found.squares[k].cpu(), expected.squares[k]) < 1e-4


@cuda
def test_a_step_can_be_captured_and_replayed():
    rule, x, slope, factors = (t.float() if isinstance(t, torch.Tensor) else t for t in given("LeNet-5, second"))
    expected = convolution.moments(rule, x, slope, factors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = convolution.moments(rule, x, slope, factors)
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)
