"""Readers of public formats, from the folder in the environment variable PLAUSIBLE_DATA."""

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plausible.datasets.dataset import Dataset, standardised_table

FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def mnist(root: str | Path | None = None) -> Dataset:
    """MNIST (LeCun, Cortes & Burges): 60,000 + 10,000 digits, 28 x 28 in [0, 1], from `root/mnist`."""
    return _idx_images("mnist", root, classes=tuple(str(digit) for digit in range(10)))


def fashion_mnist(root: str | Path | None = None) -> Dataset:
    """Fashion-MNIST (Xiao, Rasul & Vollgraf, 2017), in the layout of MNIST, from `root/fashion_mnist`."""
    return _idx_images("fashion_mnist", root, classes=FASHION_CLASSES)


def uci(name: str, split: int = 0, root: str | Path | None = None) -> Dataset:
    """A UCI regression set with a split of Hernandez-Lobato & Adams (2015), standardised, from `root/uci/NAME/data`."""
    sets = _data_folder(root, "uci")
    names = sorted(folder.name for folder in sets.iterdir() if (folder / "data" / "data.txt").is_file())
    if name not in names:  # compared with what is there, so that no name can lead out of the folder
        raise ValueError(f"name must be one of {', '.join(names)}, got {name!r}")
    folder = sets / name / "data"
    num_splits = int(np.loadtxt(folder / "n_splits.txt"))
    if not 0 <= split < num_splits:
        raise ValueError(f"split must be from 0 to {num_splits - 1} for {name}, got {split}")
    table = np.loadtxt(folder / "data.txt", ndmin=2)
    features = _indices(folder / "index_features.txt", table.shape[1])
    (target,) = _indices(folder / "index_target.txt", table.shape[1])
    train = _indices(folder / f"index_train_{split}.txt", len(table))
    test = _indices(folder / f"index_test_{split}.txt", len(table))
    x, y = table[:, features], table[:, target]
    columns = tuple(f"column {i}" for i in features)
    return standardised_table(name, "regression", (x[train], y[train]), (x[test], y[test]), feature_names=columns)


def _indices(path: Path, length: int) -> np.ndarray:
    indices = np.loadtxt(path, ndmin=1).astype(int)  # some files write their integers as floats
    if indices.size == 0 or indices.min() < 0 or indices.max() >= length:
        raise ValueError(f"{path} must hold numbers from 0 to {length - 1}; fetch the file again")
    return indices


def _data_folder(root: str | Path | None, name: str) -> Path:
    given = os.environ.get("PLAUSIBLE_DATA", "") if root is None else root
    if not str(given):
        raise FileNotFoundError(
            f"no folder of data sets; pass root= or set PLAUSIBLE_DATA to one that has {name}/ in it"
        )
    folder = Path(given) / name
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; pass root= or set PLAUSIBLE_DATA to one that has {name}/ in it")
    return folder


def _idx_images(name: str, root: str | Path | None, *, classes: tuple[str, ...]) -> Dataset:
    folder = _data_folder(root, name)
    x_train, y_train = _idx_part(folder, "train")
    x_test, y_test = _idx_part(folder, "t10k")
    return Dataset(
        name=name,
        task="classification",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=classes,
    )


def _idx_part(folder: Path, prefix: str) -> tuple[Tensor, Tensor]:
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(f"{folder}: {prefix} images {images.shape} and labels {labels.shape} do not go together")
    return torch.from_numpy(images).unsqueeze(1).float() / 255, torch.from_numpy(labels).long()


def read_idx(path: Path) -> np.ndarray:
    """A gzipped IDX file of bytes: two zeros, the type 8, the number of axes, big-endian sizes, the values."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; the folder must hold the four gzipped files of the original")
    try:
        raw = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None
    if raw[:3] != b"\x00\x00\x08" or len(raw) < 4 or len(raw) < 4 + 4 * raw[3]:
        raise ValueError(f"{path} is no IDX file of bytes, it starts with {raw[:4]!r}; fetch it again")
    axes = raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", count=axes, offset=4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"{path} must hold {shape} values, got {values.size}; fetch it again")
    return values.reshape(shape).copy()
