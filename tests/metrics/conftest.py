"""Random predictions that are wrong often enough to be worth scoring."""

import pytest
import torch


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def classified(dtype):
    """(probs, y) of 500 examples in 4 classes."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    y = torch.distributions.Categorical(logits=logits * 0.6).probs.multinomial(1, generator=generator).squeeze(1)
    return logits.softmax(1).to(dtype), y


@pytest.fixture
def segmented():
    """(probs, y) of 3 images of 6 x 5 pixels in 4 classes, where about a tenth of the pixels is labelled 255."""
    generator = torch.Generator().manual_seed(2)
    probs = (2 * torch.randn(3, 4, 6, 5, generator=generator)).softmax(1)
    y = torch.randint(4, (3, 6, 5), generator=generator)
    y[torch.rand(3, 6, 5, generator=generator) < 0.1] = 255
    return probs, y
