import numpy as np
import pytest
import torch

from plausible import datasets


def random_digits(n=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), np.array([3, 0, 9, 1, 0], np.uint8)[:n]


def check(data, limit):
    pixels, labels = random_digits()
    np.testing.assert_allclose(data.x_test.numpy(), np.moveaxis(pixels[:limit], 3, 1) / 255, rtol=1e-6)
    assert data.y_test.tolist() == labels[:limit].tolist()


@pytest.mark.parametrize("place", ["", "svhn"])
@pytest.mark.parametrize("limit", [None, 2])
def test_an_npz_file_in_the_root_or_in_its_folder_is_read(tmp_path, place, limit):
    pixels, labels = random_digits()
    (tmp_path / "svhn").mkdir()
    np.savez(tmp_path / place / "svhn_test_cropped_10000.npz", X=pixels, y=labels, source_image=np.arange(5))
    data = datasets.svhn(tmp_path, limit=limit)
    check(data, limit)
    assert data.x_train.shape == (0, 3, 32, 32)


@pytest.mark.parametrize("limit", [None, 2])
def test_the_published_mat_files_are_read_and_their_class_10_is_the_digit_0(tmp_path, limit):
    from scipy.io import savemat

    (tmp_path / "svhn").mkdir()
    pixels, labels = random_digits()
    numbers = np.where(labels == 0, 10, labels)[:, None]
    for part in ("train", "test"):
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": numbers})
    data = datasets.svhn(tmp_path, limit=limit)
    check(data, limit)
    assert torch.equal(data.x_train, data.x_test) and torch.equal(data.y_train, data.y_test)


def test_a_damaged_mat_file_is_refused(tmp_path):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"MATLAB 5.0 and no more" * 20)
    with pytest.raises(ValueError, match="test_32x32.mat cannot be read: .*; fetch it again"):
        datasets.svhn(tmp_path)


def test_packed_files_without_their_script_say_so(tmp_path):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "test_cropped_10000.medxz").write_bytes(b"")
    np.savez(tmp_path / "svhn" / "test_cropped_10000.labels.npz", y=np.zeros(1, np.uint8))
    with pytest.raises(FileNotFoundError, match="no file .*/unpack.py, which unpacks test_cropped_10000.medxz"):
        datasets.svhn(tmp_path)


def test_only_the_script_in_the_root_itself_is_run_and_nothing_is_written_there(tmp_path):
    root = tmp_path / "root"
    (root / "svhn").mkdir(parents=True)
    (root / "svhn" / "test_cropped_10000.medxz").write_bytes(b"")
    np.savez(root / "svhn" / "test_cropped_10000.labels.npz", y=random_digits()[1])
    (root / "svhn" / "unpack.py").write_text("raise RuntimeError('a script that nobody may run')")
    (root / "unpack.py").write_text(
        "import numpy as np\n"
        "def read_medxz(path):\n"
        "    return np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)\n"
    )
    before = sorted(root.rglob("*"))
    check(datasets.svhn(root), None)
    assert sorted(root.rglob("*")) == before


def test_a_damaged_packed_file_is_refused(tmp_path, data_dir):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "unpack.py").write_bytes((data_dir / "unpack.py").read_bytes())
    (tmp_path / "svhn" / "test_cropped_10000.medxz").write_bytes(b"nothing of the kind")
    np.savez(tmp_path / "svhn" / "test_cropped_10000.labels.npz", y=random_digits()[1])
    with pytest.raises(ValueError, match="test_cropped_10000.medxz is damaged .*; fetch it again"):
        datasets.svhn(tmp_path)


def test_the_real_packed_digits_are_read(data_dir):
    data = datasets.svhn(data_dir)
    assert data.x_test.shape == (10_000, 3, 32, 32) and 0 <= data.x_test.min() < 0.1 and 0.9 < data.x_test.max() <= 1
    assert data.y_test.bincount(minlength=10).min() > 500
    # Benford's law of house numbers: the digit 1 is the commonest.
    assert data.y_test.bincount().argmax() == 1
