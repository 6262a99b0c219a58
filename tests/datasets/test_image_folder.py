import numpy as np
import pytest
import torch
from PIL import Image

from plausible import datasets


def write(path, value, size=(4, 6), colour=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if colour else size
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)


@pytest.fixture
def split_pets(tmp_path):
    for part, start in (("train", 0), ("test", 100)):
        for i in range(3):
            write(tmp_path / "pets" / part / "cat" / f"{i}.png", start + i)
        write(tmp_path / "pets" / part / "dog" / "0.jpg", start + 50)
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("no picture")
    return tmp_path


def values(x: torch.Tensor) -> list[int]:
    return (x.mean((1, 2, 3)) * 255).round().int().tolist()


def test_classes_are_folders_and_take_turns(split_pets):
    data = datasets.image_folder("pets", split_pets)
    assert data.name == "pets" and data.classes == ("cat", "dog") and data.x_train.shape == (4, 3, 4, 6)
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 1, 0, 0]
    assert values(data.x_train) == [0, 50, 1, 2] and values(data.x_test) == [100, 150, 101, 102]


def test_a_limit_keeps_all_classes(split_pets):
    data = datasets.image_folder("pets", split_pets, limit=2)
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 1]


def test_without_two_parts_a_fifth_of_each_class_is_held_out_always_the_same(tmp_path):
    for label, start in (("a", 0), ("b", 100)):
        for i in range(10):
            write(tmp_path / "letters" / label / f"{i}.png", start + i, colour=False)
    data = datasets.image_folder("letters", tmp_path, colour="grey")
    assert data.x_train.shape == (16, 1, 4, 6)
    assert data.y_train.bincount().tolist() == [8, 8] and data.y_test.bincount().tolist() == [2, 2]
    assert sorted(values(data.x_train) + values(data.x_test)) == [*range(10), *range(100, 110)]
    assert [value // 100 for value in values(data.x_test)] == data.y_test.tolist()
    again = datasets.image_folder("letters", tmp_path, colour="grey")
    assert torch.equal(data.x_test, again.x_test)


def test_grey_and_rgb_are_converted(split_pets):
    grey = datasets.image_folder("pets", split_pets, colour="grey")
    assert grey.x_train.shape == (4, 1, 4, 6) and values(grey.x_test) == [100, 150, 101, 102]


def test_pictures_of_two_sizes_need_a_size(split_pets):
    write(split_pets / "pets" / "train" / "dog" / "1.png", 7, size=(8, 8))
    with pytest.raises(ValueError, match=r"one size, got \(8, 8\) for .*1.png and \(4, 6\) before; pass size="):
        datasets.image_folder("pets", split_pets)
    data = datasets.image_folder("pets", split_pets, size=(5, 3))
    assert data.x_train.shape == (5, 3, 5, 3) and values(data.x_train) == [0, 50, 1, 7, 2]


def test_a_class_that_training_lacks_is_named(split_pets):
    write(split_pets / "pets" / "test" / "fish" / "0.png", 1)
    with pytest.raises(ValueError, match="has the class 'fish', which .*train has not"):
        datasets.image_folder("pets", split_pets)


def test_a_folder_without_classes_or_without_pictures_says_what_is_missing(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no folders in .*empty; put the pictures of each class"):
        datasets.image_folder("empty", tmp_path)
    (tmp_path / "empty" / "cat").mkdir()
    with pytest.raises(FileNotFoundError, match="no pictures in .*empty"):
        datasets.image_folder("empty", tmp_path)


def test_an_unknown_colour_is_named(split_pets):
    with pytest.raises(ValueError, match="colour must be grey or rgb, got 'cmyk'"):
        datasets.image_folder("pets", split_pets, colour="cmyk")
