"""MNIST and the sets in its shape: grey images of 28 x 28 in [0, 1], ten classes.

Each is looked for in its folder as the gzipped (or unpacked) IDX files of MNIST, as the pairs of .npz files that KMNIST
is published in, and as the one .npz file (`x_train`, `y_train`, `x_test`, `y_test`) that Keras keeps.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plausible.datasets.dataset import Dataset
from plausible.datasets.idx import read_idx
from plausible.datasets.locations import Published, Root, checked_limit
from plausible.datasets.npz import read_npz
from plausible.datasets.pixels import Part, empty_part, image_dataset, image_part

IDX_PREFIX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True, kw_only=True)
class _Set:
    """One data set.

    Attributes:
        name: its own name, its folder's and that of its .npz files.
        classes: the name of each class.
        files: what to download.
        source: the page that has it.
        example: the file to name if no test images are found.
        train_needed: whether it is an error if no training images are found.
    """

    name: str
    classes: tuple[str, ...]
    files: str
    source: str
    example: str = "t10k-images-idx3-ubyte.gz"
    train_needed: bool = True

    @property
    def published(self) -> Published:
        return Published(files=self.files, source=self.source, place=self.name)

    def read(self, root: Root, limit: int | None) -> Dataset:
        checked_limit(limit)
        folder = self.published.folder(root)
        train, test = self._part(folder, "train", limit), self._part(folder, "test", limit)
        if test is None:
            raise self.published.missing(folder / self.example)
        if train is None and self.train_needed:
            raise self.published.missing(folder / self.example.replace("t10k", "train"))
        return image_dataset(self.name, train or empty_part(1, 28, 28), test, self.classes)

    def _part(self, folder: Path, part: str, limit: int | None) -> Part | None:
        """The first form of this part that the folder has."""
        prefix = IDX_PREFIX[part]
        for suffix in (".gz", ""):
            images = folder / f"{prefix}-images-idx3-ubyte{suffix}"
            if images.is_file():
                labels = self._existing(folder / f"{prefix}-labels-idx1-ubyte{suffix}")
                return self._checked(read_idx(images, limit), read_idx(labels, limit), images, limit)
        images = folder / f"{self.name}-{part}-imgs.npz"
        if images.is_file():
            labels = self._existing(folder / f"{self.name}-{part}-labels.npz")
            return self._checked(read_npz(images, "arr_0")[0], read_npz(labels, "arr_0")[0], images, limit)
        both = folder / f"{self.name}.npz"
        if both.is_file():
            pixels, numbers = read_npz(both, f"x_{part}", f"y_{part}")
            return self._checked(pixels, numbers, both, limit)
        return None

    def _existing(self, path: Path) -> Path:
        if not path.is_file():
            raise self.published.missing(path)
        return path

    def _checked(self, images: np.ndarray, labels: np.ndarray, path: Path, limit: int | None) -> Part:
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(f"{path}: images {images.shape} and labels {labels.shape} do not go together")
        return image_part(images[:limit, None], labels[:limit], len(self.classes), path)


MNIST = _Set(
    name="mnist",
    classes=tuple("0123456789"),
    files="the four files *-ubyte.gz",
    source="https://ossci-datasets.s3.amazonaws.com/mnist/",
)
FASHION_MNIST = _Set(
    name="fashion_mnist",
    classes=(
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
    ),
    files="the four files *-ubyte.gz",
    source="https://github.com/zalandoresearch/fashion-mnist",
)
KMNIST = _Set(
    name="kmnist",
    classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    files="the files kmnist-*.npz",
    source="https://codh.rois.ac.jp/kmnist/",
    example="kmnist-test-imgs.npz",
    train_needed=False,
)
NOTMNIST = _Set(
    name="notmnist",
    classes=tuple("ABCDEFGHIJ"),
    files="the files *-ubyte.gz",
    source="https://github.com/davidflanagan/notMNIST-to-MNIST",
    train_needed=False,
)


def mnist(root: Root = None, *, limit: int | None = None) -> Dataset:
    """MNIST (LeCun, Cortes & Burges): 60,000 + 10,000 digits, from `root/mnist`.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        limit: read only so many examples of each part.
    """
    return MNIST.read(root, limit)


def fashion_mnist(root: Root = None, *, limit: int | None = None) -> Dataset:
    """Fashion-MNIST (Xiao, Rasul & Vollgraf, 2017): 60,000 + 10,000 pictures of clothes, from `root/fashion_mnist`.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        limit: read only so many examples of each part.
    """
    return FASHION_MNIST.read(root, limit)


def kmnist(root: Root = None, *, limit: int | None = None) -> Dataset:
    """KMNIST (Clanuwat et al., 2018): cursive Japanese characters, from `root/kmnist`.

    The training part is empty where only the test files are there, which is enough for out-of-distribution tests.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        limit: read only so many examples of each part.
    """
    return KMNIST.read(root, limit)


def notmnist(root: Root = None, *, limit: int | None = None) -> Dataset:
    """notMNIST (Bulatov, 2011): letters A to J of computer fonts, from `root/notmnist`.

    The training part is empty where only the test files are there, which is enough for out-of-distribution tests.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        limit: read only so many examples of each part.
    """
    return NOTMNIST.read(root, limit)
