import gzip
import struct

import numpy as np
import pytest
import torch

from plausible import datasets
from plausible.datasets.idx import read_idx


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def random_parts(sizes=(6, 3)):
    rng = np.random.default_rng(0)
    return {
        prefix: (rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8))
        for prefix, n in zip(("train", "t10k"), sizes, strict=True)
    }


@pytest.fixture
def tiny_mnist(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, (images, labels) in random_parts().items():
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


def test_bytes_become_images_between_zero_and_one(tiny_mnist):
    data = datasets.mnist(tiny_mnist)
    images, labels = random_parts()["train"]
    assert data.x_train.shape == (6, 1, 28, 28) and data.x_test.shape == (3, 1, 28, 28)
    np.testing.assert_allclose(data.x_train[:, 0].numpy(), images / 255, rtol=1e-6)
    assert data.y_train.tolist() == labels.tolist() and data.y_train.dtype == torch.int64


def test_a_limit_keeps_the_first_of_each_part(tiny_mnist):
    everything, some = datasets.mnist(tiny_mnist), datasets.mnist(tiny_mnist, limit=4)
    assert torch.equal(some.x_train, everything.x_train[:4]) and torch.equal(some.y_train, everything.y_train[:4])
    assert torch.equal(some.x_test, everything.x_test) and torch.equal(some.y_test, everything.y_test)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_keeps_nothing_is_named(tiny_mnist, limit):
    with pytest.raises(ValueError, match=f"limit must be at least 1, got {limit}"):
        datasets.mnist(tiny_mnist, limit=limit)


def test_unpacked_files_and_npz_files_give_the_same_images(tiny_mnist, tmp_path):
    expected = datasets.mnist(tiny_mnist, limit=5)
    parts = random_parts()
    unpacked, pairs, keras = (tmp_path / form / "mnist" for form in ("unpacked", "pairs", "keras"))
    for folder in (unpacked, pairs, keras):
        folder.mkdir(parents=True)
    for prefix, (images, labels) in parts.items():
        part = {"train": "train", "t10k": "test"}[prefix]
        (unpacked / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (unpacked / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
        np.savez(pairs / f"mnist-{part}-imgs.npz", images)
        np.savez(pairs / f"mnist-{part}-labels.npz", labels)
    x_train, y_train, x_test, y_test = (*parts["train"], *parts["t10k"])
    np.savez(keras / "mnist.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    for folder in (unpacked, pairs, keras):
        found = datasets.mnist(folder.parent, limit=5)
        for field in ("x_train", "y_train", "x_test", "y_test"):
            assert torch.equal(getattr(found, field), getattr(expected, field)), (folder, field)


@pytest.mark.parametrize("read", [datasets.kmnist, datasets.notmnist])
def test_a_set_to_be_strange_on_needs_no_training_part(tmp_path, read):
    folder = tmp_path / read.__name__
    folder.mkdir()
    images, labels = random_parts()["t10k"]
    np.savez(folder / f"{read.__name__}-test-imgs.npz", images)
    np.savez(folder / f"{read.__name__}-test-labels.npz", labels)
    data = read(tmp_path)
    assert data.x_train.shape == (0, 1, 28, 28) and data.y_train.shape == (0,)
    assert data.y_test.tolist() == labels.tolist()


def test_training_images_without_labels_are_an_error_even_where_no_training_part_is_needed(tmp_path):
    folder = tmp_path / "kmnist"
    folder.mkdir()
    np.savez(folder / "kmnist-train-imgs.npz", random_parts()["train"][0])
    with pytest.raises(FileNotFoundError, match="kmnist-train-labels.npz is missing"):
        datasets.kmnist(tmp_path)


@pytest.mark.parametrize(
    ("name", "part"),
    [("t10k-labels-idx1-ubyte.gz",) * 2, ("t10k-images-idx3-ubyte.gz",) * 2, ("train-images-idx3-ubyte.gz",) * 2],
)
def test_a_missing_file_is_named_with_what_to_download_and_where_to_put_it(tiny_mnist, name, part):
    (tiny_mnist / "mnist" / name).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"{part} is missing; download .* from https://.* to mnist/ in the folder"
    ):
        datasets.mnist(tiny_mnist)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text", "is damaged"),
        (gzip.compress(bytes(100))[:-12], "is damaged"),
        (gzip.compress(idx(np.zeros((3, 4), np.uint8)))[:-12], "is damaged"),
        (gzip.compress(b"\x00\x00\x0d\x01" + bytes(8)), "is no IDX file of bytes"),
        (gzip.compress(b"\x00\x00\x08\x03\x00\x00"), "is no IDX file of bytes"),
        (gzip.compress(idx(np.zeros((3, 4), np.uint8))[:-1]), r"must hold \(3, 4\) values, got 11"),
        (gzip.compress(idx(np.zeros((3, 4), np.uint8)) + b"!"), r"must hold \(3, 4\) values, got 13"),
    ],
    # Names of their own: gzip notes the time, and two workers must collect the same tests.
    ids=["no gzip", "cut zeros", "cut images", "another type", "a short header", "a value short", "a value long"],
)
def test_a_damaged_idx_file_is_refused(tmp_path, content, message):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((3, 28, 28), np.uint8), np.zeros(2, np.uint8), "do not go together"),
        (np.zeros((3, 28, 28), np.uint8), np.full(3, 10, np.uint8), "labels must be from 0 to 9, got 10"),
        (np.zeros((3, 28, 28), np.float32), np.zeros(3, np.uint8), "images must be bytes"),
        (np.array([None]), np.zeros(1, np.uint8), "cannot be read: .*allow_pickle=False"),
    ],
)
def test_an_npz_file_that_is_no_mnist_is_refused(tmp_path, images, labels, message):
    folder = tmp_path / "kmnist"
    folder.mkdir()
    np.savez(folder / "kmnist-test-imgs.npz", images)
    np.savez(folder / "kmnist-test-labels.npz", labels)
    with pytest.raises(ValueError, match=message):
        datasets.kmnist(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"plain text"])
def test_a_damaged_npz_file_is_refused(tmp_path, content):
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "mnist.npz").write_bytes(content)
    with pytest.raises(ValueError, match="mnist.npz cannot be read: .* fetch it again"):
        datasets.mnist(tmp_path)


def test_an_npz_file_without_an_array_says_which_it_has(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    np.savez(folder / "mnist.npz", pictures=np.zeros(3))
    with pytest.raises(ValueError, match="has no array 'x_train', only pictures"):
        datasets.mnist(tmp_path)


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


@pytest.mark.parametrize("read", [datasets.kmnist, datasets.notmnist])
def test_the_real_strange_sets_have_a_thousand_of_each_class(data_dir, read):
    data = read(data_dir)
    assert data.x_test.shape == (10_000, 1, 28, 28) and data.x_test.max() == 1 and data.x_test.min() == 0
    assert data.y_test.bincount().tolist() == [1000] * 10
