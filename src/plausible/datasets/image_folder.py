"""Pictures sorted into one folder for each class."""

from itertools import zip_longest
from pathlib import Path

import numpy as np

from plausible.datasets.dataset import Dataset
from plausible.datasets.image_file import Colour, read_image
from plausible.datasets.locations import Published, Root, checked_limit
from plausible.datasets.pixels import Part, image_dataset, image_part

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
SPLIT_SEED = 0
TEST_SHARE = 0.2
FILES = "pictures, sorted into one folder for each class,"

Example = tuple[Path, int]


def image_folder(
    name: str | Path,
    root: Root = None,
    *,
    colour: Colour = "rgb",
    size: tuple[int, int] | None = None,
    limit: int | None = None,
) -> Dataset:
    """Pictures in [0, 1] from `root/NAME/train/CLASS/*` and `root/NAME/test/CLASS/*`.

    Without folders called train and test, `root/NAME/CLASS/*` is split 80 / 20 within each class, with a fixed seed.
    Classes are in the order of their folders' names. Examples take turns: the first of each class, the second of each
    class and so on, so that a limit keeps all classes.

    Args:
        name: the folder, relative to the root.
        root: the folder of data sets; PLAUSIBLE_DATA if not given.
        colour: "rgb" for three channels, "grey" for one.
        size: (height, width) to scale all pictures to; without it they must have one size.
        limit: read only so many examples of each part.
    """
    checked_limit(limit)
    if colour not in ("grey", "rgb"):
        raise ValueError(f"colour must be grey or rgb, got {colour!r}")
    published = Published(files=FILES, source="their publisher", place=str(name))
    folder = published.folder(root)
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        classes = _classes(folder / "train")
        strangers = sorted(set(_classes(folder / "test")) - set(classes))
        if strangers:
            raise ValueError(f"{folder / 'test'} has the class {strangers[0]!r}, which {folder / 'train'} has not")
        parts = [[_pictures(folder / part / label) for label in classes] for part in ("train", "test")]
    else:
        classes = _classes(folder)
        parts = _split([_pictures(folder / label) for label in classes])
    train, test = (_read(_in_turns(part)[:limit], colour, size, len(classes), folder) for part in parts)
    return image_dataset(Path(name).name, train, test, tuple(classes))


def _classes(folder: Path) -> list[str]:
    classes = sorted(child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not classes:
        raise FileNotFoundError(f"no folders in {folder}; put the pictures of each class in a folder of its own there")
    return classes


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []  # a class that the test part lacks
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _split(pictures: list[list[Path]]) -> list[list[list[Path]]]:
    train, test = [], []
    for found in pictures:
        order = np.random.default_rng(SPLIT_SEED).permutation(len(found))
        held_out = set(order[: round(TEST_SHARE * len(found))].tolist())
        train.append([path for i, path in enumerate(found) if i not in held_out])
        test.append([path for i, path in enumerate(found) if i in held_out])
    return [train, test]


def _in_turns(pictures: list[list[Path]]) -> list[Example]:
    rounds = zip_longest(*pictures)
    return [(path, label) for one_round in rounds for label, path in enumerate(one_round) if path is not None]


def _read(examples: list[Example], colour: Colour, size: tuple[int, int] | None, classes: int, folder: Path) -> Part:
    if not examples:
        raise FileNotFoundError(
            f"no pictures in {folder} for one of its parts; put png or jpeg files in the folders of its classes, at "
            f"least three in one of them"
        )
    images = []
    for path, _ in examples:
        images.append(read_image(path, colour, size))
        if images[-1].shape != images[0].shape:
            shape, first = images[-1].shape[:2], images[0].shape[:2]
            raise ValueError(
                f"pictures must have one size, got {shape} for {path} and {first} before; pass size=(height, width)"
            )
    pixels = np.stack(images)
    pixels = pixels[:, None] if colour == "grey" else pixels.transpose(0, 3, 1, 2)
    return image_part(pixels, np.array([label for _, label in examples]), classes, folder)
