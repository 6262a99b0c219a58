"""Comparing on sets of images that lie in a folder."""

import gzip
import struct

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import plausible as pl
from plausible import cli
from plausible.report import images, pictures
from plausible.report.page import page


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_set(folder, sizes) -> None:
    """A tiny set in the shape of MNIST: class k is bright in row 2 k."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for prefix, count in sizes.items():
        labels = np.arange(count, dtype=np.uint8) % 10
        pixels = generator.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        pixels[np.arange(count), 2 * labels] = 250
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx(labels))


@pytest.fixture
def folder(tmp_path):
    write_set(tmp_path / "mnist", {"train": 80, "t10k": 40})
    return tmp_path


def test_so_many_examples_are_trained_on_and_a_fifth_as_many_judged(folder):
    setting = images.image_setting("mnist", 50, folder)
    data = setting.load()
    assert len(data.x_train) == 50 and len(data.x_test) == 10 and setting.partial
    everything = images.image_setting("mnist", None, folder)
    assert len(everything.load().x_train) == 80 and not everything.partial


def test_without_the_other_set_there_is_no_column_for_outliers_and_a_note_says_why(folder):
    found = pl.compare("mnist", ["map"], seeds=1, epochs=1, data_dir=folder, progress=False)
    assert "ood" not in found.columns
    assert "no OOD column, since fashion-mnist is not in the folder" in found.notes[0]


def test_outliers_are_the_other_set(folder):
    write_set(folder / "fashion_mnist", {"train": 10, "t10k": 30})
    outliers, words = images.image_setting("mnist", 50, folder).outliers(None)
    assert torch.equal(outliers, pl.datasets.fashion_mnist(folder).x_test[:10])
    assert words == "test images against 10 of fashion-mnist"


def test_a_set_with_a_test_part_only_is_split_and_a_note_says_so(tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "kmnist").mkdir()
    pixels = generator.integers(0, 255, (50, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "kmnist" / "kmnist-test-imgs.npz", arr_0=pixels)
    np.savez(tmp_path / "kmnist" / "kmnist-test-labels.npz", arr_0=np.arange(50, dtype=np.uint8) % 10)
    setting = images.image_setting("kmnist", None, tmp_path)
    data = setting.load()
    assert len(data.x_train) == 40 and len(data.x_test) == 10
    every = torch.cat([data.x_train, data.x_test]).flatten(1).sort(0).values
    assert torch.allclose(every, torch.tensor(pixels / 255.0, dtype=torch.float32).flatten(1).sort(0).values)
    assert "only the published test part is here" in setting.remarks[0]


@pytest.mark.parametrize("arguments", [{"examples": 5}, {"data_dir": "."}])
def test_what_is_for_images_is_refused_for_others(arguments):
    with pytest.raises(
        ValueError, match="examples and data_dir are for mnist, fashion-mnist, kmnist, cifar10, got 'moons'"
    ):
        pl.compare("moons", ["map"], progress=False, **arguments)


def test_pictures_of_standardised_colours_have_the_colours_they_were_read_with():
    original = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))
    mean, scale = torch.tensor([0.5, 0.4, 0.3])[:, None, None], torch.tensor([0.2, 0.3, 0.1])[:, None, None]
    shown = pictures.pixels((original - mean) / scale, mean, scale)
    assert shown.shape == (4, 4, 3)
    np.testing.assert_allclose(shown, original.permute(1, 2, 0).numpy(), atol=1e-6)


REAL = ["mnist", "fashion-mnist", "kmnist", pytest.param("cifar10", marks=pytest.mark.slow)]  # slow to unpack


@pytest.mark.parametrize("name", REAL)
def test_real_images_are_compared_and_shown(name, data_dir, tmp_path):
    place = tmp_path / "report.html"
    arguments = ["compare", name, "--methods", "map,swag", "--seeds", "1", "--epochs", "4", "--examples", "300"]
    arguments += ["--data-dir", str(data_dir), "--report", str(place)]
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    assert (
        f"{name.replace('-', '_')}: the first 300 training and 60 test examples, LeNet-5, 4 epochs, 1 seed"
        in result.output
    )
    assert images.IMAGES[name].strangers_are in result.output and "AUROC" in result.output
    text = place.read_text()
    assert "Most uncertain" in text and "Most confidently wrong" in text and text.count("<img ") >= 16


def test_the_report_of_grey_images_shows_them(folder):
    found = pl.compare("mnist", ["map"], seeds=1, epochs=1, data_dir=folder, progress=False)
    assert page([found]).count("<img ") >= pictures.SHOWN_IMAGES
