"""How images lie in memory changes nothing but the speed."""

import pytest
import torch

import plausible as pl
from plausible.networks.memory import channels_last

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU's convolutions ask for another order")


def test_images_stay_as_they_are_on_a_cpu():
    images = torch.randn(2, 3, 8, 8)
    assert channels_last(images) is images


@cuda
def test_a_gpu_gets_channels_side_by_side_and_anything_else_as_it_is():
    images = torch.randn(2, 3, 8, 8).cuda()
    assert channels_last(images).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(channels_last(images), images)
    assert channels_last(images[0]).data_ptr() == images.data_ptr()


@cuda
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
def test_a_network_is_the_same_function_inside_a_transform():
    torch.manual_seed(0)
    network = pl.networks.ResNet20().cuda().eval()
    images = torch.randn(4, 3, 32, 32).cuda()
    with torch.no_grad():
        each = torch.func.vmap(lambda image: network(image.unsqueeze(0)).squeeze(0))(images)
        assert torch.allclose(network(images), each, rtol=1e-2, atol=1e-2)
