import os
import pickle
import struct

import numpy as np
import pytest
import torch

from plausible import datasets
from plausible.datasets.cifar10 import CHANNEL_MEAN, CHANNEL_SCALE
from plausible.datasets.cifar_pickle import read_batch

BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def random_batch(seed: int, n: int = 4):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), rng.integers(0, 10, n)


def short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def python_2_pickle(data: np.ndarray, labels: np.ndarray) -> bytes:
    """What Python 2 writes for {"data": array, "labels": list}, opcode by opcode."""
    dtype = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + short(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    shape = b"".join(b"M" + struct.pack("<H", size) for size in data.shape) + b"\x86"
    raw = data.tobytes()
    array += b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(b"labels") + numbers + b"u."


def write_binary(folder, seed, name):
    data, labels = random_batch(seed)
    (folder / f"{name}.bin").write_bytes(np.column_stack([labels.astype(np.uint8), data]).tobytes())


def write_python_2(folder, seed, name):
    (folder / name).write_bytes(python_2_pickle(*random_batch(seed)))


def write_python_3(folder, seed, name):
    data, labels = random_batch(seed)
    batch = {"batch_label": name, "labels": labels.tolist(), "data": data, "filenames": ["a.png"] * len(data)}
    (folder / name).write_bytes(pickle.dumps(batch, protocol=4))


WRITERS = {
    "binary": ("cifar-10-batches-bin", write_binary),
    "python 2": ("cifar-10-batches-py", write_python_2),
    "python 3": ("cifar10/cifar-10-batches-py", write_python_3),
}


@pytest.fixture(params=WRITERS)
def tiny_cifar(request, tmp_path):
    place, write = WRITERS[request.param]
    (tmp_path / place).mkdir(parents=True)
    for seed, name in enumerate(BATCHES):
        write(tmp_path / place, seed, name)
    return tmp_path


def test_every_version_gives_the_batches_one_after_another(tiny_cifar):
    data = datasets.cifar10(tiny_cifar)
    train = [random_batch(seed) for seed in range(5)]
    pixels = np.concatenate([pixels for pixels, _ in train])
    assert data.x_train.shape == (20, 3, 32, 32) and data.x_test.shape == (4, 3, 32, 32)
    np.testing.assert_allclose(data.x_train.flatten(1), pixels / 255, rtol=1e-6)
    assert data.y_train.tolist() == np.concatenate([labels for _, labels in train]).tolist()
    np.testing.assert_allclose(data.x_test.flatten(1), random_batch(5)[0] / 255, rtol=1e-6)


@pytest.mark.parametrize("limit", [3, 4, 6, 100])
def test_a_limit_keeps_the_first_across_batches(tiny_cifar, limit):
    everything, some = datasets.cifar10(tiny_cifar), datasets.cifar10(tiny_cifar, limit=limit)
    assert torch.equal(some.x_train, everything.x_train[:limit]) and torch.equal(
        some.y_train, everything.y_train[:limit]
    )
    assert torch.equal(some.x_test, everything.x_test[:limit]) and torch.equal(some.y_test, everything.y_test[:limit])


def test_normalising_is_undone_by_the_statistics_that_come_with_it(tiny_cifar):
    plain, normalised = datasets.cifar10(tiny_cifar), datasets.cifar10(tiny_cifar, normalised=True)
    assert normalised.standardised and not plain.standardised
    back = normalised.x_test * normalised.input_scale + normalised.input_mean
    torch.testing.assert_close(back, plain.x_test, rtol=0, atol=1e-6)
    expected = (plain.x_train[:, 2] - CHANNEL_MEAN[2]) / CHANNEL_SCALE[2]
    torch.testing.assert_close(normalised.x_train[:, 2], expected)


def test_a_missing_batch_is_named(tiny_cifar):
    (missing,) = tiny_cifar.rglob("data_batch_3*")
    missing.unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3.* is missing; download .* to cifar10/ in"):
        datasets.cifar10(tiny_cifar)


def test_a_cut_off_batch_is_refused(tiny_cifar):
    (damaged,) = tiny_cifar.rglob("data_batch_1*")
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with pytest.raises(ValueError, match="data_batch_1"):
        datasets.cifar10(tiny_cifar)


def test_the_written_python_2_pickle_is_one_that_numpy_reads():
    data, labels = random_batch(0)
    batch = pickle.loads(python_2_pickle(data, labels), encoding="latin1")
    assert np.array_equal(batch["data"], data) and batch["labels"] == labels.tolist()


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (lambda path: Calls(os.system, f"touch {path}"), "system"),
        (lambda path: Calls(eval, f"open({str(path)!r}, 'w')"), "eval"),
        (lambda path: Calls(open, str(path), "w"), "open"),
        (lambda path: Calls(np.save, str(path), 0), "numpy.save"),
        (lambda path: Calls(getattr, "", "upper"), "getattr"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_asks_for_anything_but_an_array_is_refused_and_not_run(tmp_path, attack, named, protocol):
    witness = tmp_path / "it_ran.npy"
    data, labels = random_batch(0)
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"labels": labels.tolist(), "data": data, "extra": attack(witness)}, protocol))
    with pytest.raises(ValueError, match="data_batch_1 is refused: it asks for "):
        read_batch(path)
    path.write_bytes(pickle.dumps(attack(witness), protocol))
    with pytest.raises(ValueError, match=f"is refused: it asks for .*{named}"):
        read_batch(path)
    assert not witness.exists()


def test_an_attack_would_have_worked_on_an_ordinary_unpickler(tmp_path):
    witness = tmp_path / "it_ran.npy"
    pickle.loads(pickle.dumps(Calls(np.save, str(witness), 0)))
    assert witness.exists()


@pytest.mark.parametrize(
    "batch",
    [
        {"labels": [0], "data": np.zeros((1, 3072), np.float32)},
        {"labels": [0], "data": np.zeros((1, 3071), np.uint8)},
        {"labels": [0], "data": [1, 2]},
        {"labels": [0]},
        {"labels": ["cat"], "data": np.zeros((1, 3072), np.uint8)},
        [1, 2],
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, batch):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(ValueError, match="data_batch_1 is refused: .*; fetch it again"):
        read_batch(path)


def test_the_packed_files_are_the_published_ones(data_dir):
    data = datasets.cifar10(data_dir, limit=10_000)
    assert data.x_train.shape == data.x_test.shape == (10_000, 3, 32, 32)
    # The first batch starts with a frog and two trucks, the test batch with a cat and two ships; 1,000 of each class.
    assert [data.classes[label] for label in data.y_train[:3]] == ["frog", "truck", "truck"]
    assert [data.classes[label] for label in data.y_test[:3]] == ["cat", "ship", "ship"]
    assert data.y_test.bincount().tolist() == [1000] * 10
    assert (data.x_train[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]
    # 10,000 images: the means scatter by about 0.25 / sqrt(10,000) around those of all 50,000, times a few for the
    # correlation of pixels within an image.
    torch.testing.assert_close(data.x_train.mean((0, 2, 3)), torch.tensor(CHANNEL_MEAN), rtol=0, atol=0.008)
    torch.testing.assert_close(data.x_train.std((0, 2, 3)), torch.tensor(CHANNEL_SCALE), rtol=0, atol=0.008)


@pytest.mark.slow
def test_all_training_images_have_the_published_statistics(data_dir):
    x = datasets.cifar10(data_dir).x_train
    assert len(x) == 50_000
    for channel in range(3):
        values = x[:, channel].double()
        assert abs(values.mean().item() - CHANNEL_MEAN[channel]) < 1e-4
        assert abs(values.std().item() - CHANNEL_SCALE[channel]) < 1e-4
