"""SVHN (Netzer et al., 2011): digits of house numbers, 32 x 32 in colour, the usual stranger to CIFAR-10."""

from pathlib import Path

import numpy as np

from plausible.datasets.dataset import Dataset
from plausible.datasets.locations import Published, Root, checked_limit
from plausible.datasets.npz import read_npz
from plausible.datasets.packed import read_packed
from plausible.datasets.pixels import Part, empty_part, image_dataset, image_part

CLASSES = tuple("0123456789")
PACKED = "test_cropped_10000"
PUBLISHED = Published(
    files="test_32x32.mat (and train_32x32.mat to train on)",
    source="http://ufldl.stanford.edu/housenumbers/",
    place="svhn",
)


def svhn(root: Root = None, *, limit: int | None = None) -> Dataset:
    """SVHN's cropped digits in [0, 1], from `root/svhn`.

    Read from the published `train_32x32.mat` and `test_32x32.mat`; or the first 10,000 test digits from
    `svhn_test_cropped_10000.npz` (also in the root itself) or from `test_cropped_10000.medxz`, for which the root's own
    `unpack.py` is run (see `packed.read_packed`). The training part is empty where there is no file for it.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        limit: read only so many examples of each part.
    """
    checked_limit(limit)
    home = PUBLISHED.root(root)
    folder = home / PUBLISHED.place
    train_file = folder / "train_32x32.mat"
    train = _matlab(train_file, limit) if train_file.is_file() else empty_part(3, 32, 32)
    return image_dataset("svhn", train, _test_part(home, folder, limit), CLASSES)


def _test_part(home: Path, folder: Path, limit: int | None) -> Part:
    if (folder / "test_32x32.mat").is_file():
        return _matlab(folder / "test_32x32.mat", limit)
    for place in (folder, home):
        path = place / f"svhn_{PACKED}.npz"
        if path.is_file():
            pixels, labels = read_npz(path, "X", "y")
            return image_part(np.moveaxis(pixels[:limit], -1, 1), labels[:limit], len(CLASSES), path)
    path = folder / f"{PACKED}.medxz"
    if path.is_file():
        if not path.with_suffix(".labels.npz").is_file():
            raise PUBLISHED.missing(path.with_suffix(".labels.npz"))
        (labels,) = read_npz(path.with_suffix(".labels.npz"), "y")
        pixels = read_packed(home, path)
        if len(pixels) != len(labels):
            raise ValueError(f"{path}: {len(pixels)} images and {len(labels)} labels do not go together")
        return image_part(pixels[:limit], labels[:limit], len(CLASSES), path)
    raise PUBLISHED.missing(folder / "test_32x32.mat")


def _matlab(path: Path, limit: int | None) -> Part:
    # Here, since it is slow to import; it comes with scikit-learn.
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        file = loadmat(path, variable_names=("X", "y"))
        pixels, labels = file["X"], file["y"].flatten() % 10  # the files call the digit 0 class 10
    except Exception as error:  # noqa: BLE001 - a damaged file can fail in any way
        raise ValueError(f"{path} cannot be read: {error}; fetch it again") from None
    if pixels.ndim != 4 or pixels.shape[-1] != len(labels):
        raise ValueError(f"{path}: images {pixels.shape} and labels {labels.shape} do not go together")
    return image_part(pixels.transpose(3, 2, 0, 1)[:limit], labels[:limit], len(CLASSES), path)
