import gzip
import struct

import numpy as np
import pytest
import torch

from plausible import datasets
from plausible.datasets.files import read_idx


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def tiny_mnist(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, n in (("train", 6), ("t10k", 3)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


@pytest.fixture
def tiny_uci(tmp_path):
    folder = tmp_path / "uci" / "toy" / "data"
    folder.mkdir(parents=True)
    table = np.column_stack([np.arange(10.0), 5 * np.arange(10.0) + 2, np.arange(10.0) ** 2])
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 2])
    np.savetxt(folder / "index_target.txt", [1])
    np.savetxt(folder / "n_splits.txt", [2])
    for split, test in enumerate(([8, 9], [0, 5])):
        np.savetxt(folder / f"index_test_{split}.txt", test)
        np.savetxt(folder / f"index_train_{split}.txt", [i for i in range(10) if i not in test])
    return tmp_path


def test_bytes_become_images_between_zero_and_one(tiny_mnist):
    data = datasets.mnist(tiny_mnist)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, 6, dtype=np.uint8)
    assert data.x_train.shape == (6, 1, 28, 28) and data.x_test.shape == (3, 1, 28, 28)
    np.testing.assert_allclose(data.x_train[:, 0].numpy(), images / 255, rtol=1e-6)
    assert data.y_train.tolist() == labels.tolist() and data.y_train.dtype == torch.int64


def test_a_uci_split_is_its_listed_rows_standardised_by_the_training_ones(tiny_uci):
    data = datasets.uci("toy", split=1, root=tiny_uci)
    train = np.array([1, 2, 3, 4, 6, 7, 8, 9])
    assert data.x_train.shape == (8, 2) and data.y_train.shape == (8, 1)
    np.testing.assert_allclose(data.x_train[:, 1], (train**2 - (train**2).mean()) / (train**2).std(), rtol=1e-5)
    targets = data.y_test.flatten().double() * data.target_scale + data.target_mean
    np.testing.assert_allclose(targets, [2, 27], atol=1e-5)


def test_the_folder_comes_from_the_environment(tiny_uci, monkeypatch):
    monkeypatch.setenv("PLAUSIBLE_DATA", str(tiny_uci))
    assert len(datasets.uci("toy").x_train) == 8


@pytest.mark.parametrize(
    "read", [datasets.mnist, datasets.fashion_mnist, lambda root=None: datasets.uci("yacht", root=root)]
)
def test_a_missing_folder_is_named_with_the_way_out(read, tmp_path, monkeypatch):
    monkeypatch.delenv("PLAUSIBLE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set PLAUSIBLE_DATA"):
        read()
    with pytest.raises(FileNotFoundError, match=f"no folder {tmp_path}/.* set PLAUSIBLE_DATA"):
        read(tmp_path)


def test_a_missing_file_is_named(tiny_mnist):
    (tiny_mnist / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte.gz"):
        datasets.mnist(tiny_mnist)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text", "is damaged"),
        (gzip.compress(bytes(100))[:-12], "is damaged"),
        (gzip.compress(b"\x00\x00\x0d\x01" + bytes(8)), "is no IDX file of bytes"),
        (gzip.compress(b"\x00\x00\x08\x03\x00\x00"), "is no IDX file of bytes"),
        (gzip.compress(idx(np.zeros((3, 4), np.uint8))[:-1]), r"must hold \(3, 4\) values, got 11"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, message):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)


@pytest.mark.parametrize("name", ["../mnist", "Toy", ""])
def test_an_unknown_uci_name_lists_those_there_are(tiny_uci, name):
    with pytest.raises(ValueError, match="name must be one of toy, got"):
        datasets.uci(name, root=tiny_uci)


@pytest.mark.parametrize("split", [-1, 2])
def test_a_split_out_of_range_is_named(tiny_uci, split):
    with pytest.raises(ValueError, match=f"split must be from 0 to 1 for toy, got {split}"):
        datasets.uci("toy", split=split, root=tiny_uci)


# Mean and deviation of the training pixels as they stand in every MNIST recipe; the counts of digits are LeCun's.
@pytest.mark.parametrize(
    ("read", "mean", "deviation", "counts"),
    [
        (datasets.mnist, 0.1307, 0.3081, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        (datasets.fashion_mnist, 0.2860, 0.3530, [6000] * 10),
    ],
)
def test_the_real_images_have_their_published_statistics(data_dir, read, mean, deviation, counts):
    data = read(data_dir)
    assert data.x_train.shape == (60_000, 1, 28, 28) and data.x_test.shape == (10_000, 1, 28, 28)
    assert data.y_train.bincount().tolist() == counts
    assert abs(data.x_train.mean().item() - mean) < 1e-4
    assert abs(data.x_train.std().item() - deviation) < 1e-4


@pytest.mark.parametrize(
    ("name", "rows", "inputs"),
    [("bostonHousing", 506, 13), ("concrete", 1030, 8), ("kin8nm", 8192, 8), ("yacht", 308, 6)],
)
def test_the_real_uci_sets_have_their_published_sizes_and_hold_out_a_tenth(data_dir, name, rows, inputs):
    data = datasets.uci(name, 19, data_dir)
    assert len(data.x_train) + len(data.x_test) == rows
    assert data.x_train.shape[1] == inputs
    assert abs(len(data.x_test) - rows / 10) <= 1
