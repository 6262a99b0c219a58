"""What the tests of several studies need."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def made_up_digits(tmp_path_factory):
    """Images in MNIST's format whose bright row is their class."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 300), ("test", 100)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 120, size=(count, 28, 28))
        images[np.arange(count), 2 * labels + 4] = 255
        parts |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels.astype(np.uint8)}
    (root / "mnist").mkdir()
    np.savez(root / "mnist" / "mnist.npz", **parts)
    return root
