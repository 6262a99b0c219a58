"""CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 colour photographs of 32 x 32 in ten classes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from plausible.datasets.cifar_pickle import read_batch
from plausible.datasets.dataset import Dataset
from plausible.datasets.locations import Published, Root, checked_limit
from plausible.datasets.packed import read_packed
from plausible.datasets.pixels import Part, image_dataset, image_part

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCHES = ("test_batch",)
# Of red, green and blue over the 50,000 training images in [0, 1].
CHANNEL_MEAN = (0.4914, 0.4822, 0.4465)
CHANNEL_SCALE = (0.2470, 0.2435, 0.2616)

PUBLISHED = Published(
    files="the binary version (cifar-10-batches-bin) or the python version (cifar-10-batches-py)",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    place="cifar10",
)

Reader = Callable[[str, int | None], tuple[np.ndarray, np.ndarray, Path]]


def cifar10(root: Root = None, *, normalised: bool = False, limit: int | None = None) -> Dataset:
    """CIFAR-10 in [0, 1], from its binary version, its python version or packed files.

    It is looked for as `cifar-10-batches-bin` and `cifar-10-batches-py` in the root or in `root/cifar10`, then as
    `root/cifar10/*.medxz`, for which the root's own `unpack.py` is run (see `packed.read_packed`).

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        normalised: give each channel mean 0 and deviation 1 over the whole training part. To put other images on the
            same scale, subtract the result's `input_mean` and divide by its `input_scale`.
        limit: read only so many examples of each part.
    """
    checked_limit(limit)
    reader = _reader(PUBLISHED.root(root))
    data = image_dataset("cifar10", _part(reader, TRAIN_BATCHES, limit), _part(reader, TEST_BATCHES, limit), CLASSES)
    return _normalised(data) if normalised else data


def _normalised(data: Dataset) -> Dataset:
    mean = torch.tensor(CHANNEL_MEAN)[:, None, None]
    scale = torch.tensor(CHANNEL_SCALE)[:, None, None]
    for x in (data.x_train, data.x_test):
        x.sub_(mean).div_(scale)  # in place: nobody else has seen these tensors
    return replace(data, standardised=True, input_mean=mean, input_scale=scale)


def _part(reader: Reader, batches: tuple[str, ...], limit: int | None) -> Part:
    images, labels, wanted = [], [], limit
    for batch in batches:
        pixels, numbers, path = reader(batch, wanted)
        if len(pixels) != len(numbers):
            raise ValueError(f"{path}: {len(pixels)} images and {len(numbers)} labels do not go together")
        images.append(pixels[:wanted])
        labels.append(numbers[:wanted])
        if wanted is not None:
            wanted -= len(images[-1])
            if wanted == 0:
                break
    pixels = np.concatenate(images).reshape(-1, 3, 32, 32)
    return image_part(pixels, np.concatenate(labels), len(CLASSES), path)


def _reader(root: Path) -> Reader:
    places = (root, root / PUBLISHED.place)
    for name, read in (("cifar-10-batches-bin", _binary), ("cifar-10-batches-py", _python)):
        for place in places:
            if (place / name).is_dir():
                return read(place / name)
    if any((root / PUBLISHED.place).glob("*.medxz")):
        return _packed(root)
    raise PUBLISHED.missing(root / PUBLISHED.place / "cifar-10-batches-bin")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise PUBLISHED.missing(path)
    return path


def _binary(folder: Path) -> Reader:
    record = 1 + 3 * 32 * 32  # a label, then the planes of red, green and blue

    def read(batch: str, limit: int | None) -> tuple[np.ndarray, np.ndarray, Path]:
        path = _existing(folder / f"{batch}.bin")
        if path.stat().st_size % record:
            raise ValueError(f"{path} must hold whole records of {record} bytes, got {path.stat().st_size} bytes")
        count = -1 if limit is None else limit * record
        rows = np.fromfile(path, np.uint8, count).reshape(-1, record)
        return rows[:, 1:], rows[:, 0], path

    return read


def _python(folder: Path) -> Reader:
    def read(batch: str, limit: int | None) -> tuple[np.ndarray, np.ndarray, Path]:
        path = _existing(folder / batch)
        return *read_batch(path), path

    return read


def _packed(root: Path) -> Reader:
    folder = root / PUBLISHED.place

    def read(batch: str, limit: int | None) -> tuple[np.ndarray, np.ndarray, Path]:
        path = _existing(folder / f"{batch}.medxz")
        labels = np.load(_existing(folder / f"{batch}.labels.npy"), allow_pickle=False)
        return read_packed(root, path), labels, path

    return read
