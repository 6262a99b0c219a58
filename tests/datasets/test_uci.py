import numpy as np
import pytest

from plausible import datasets


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


@pytest.mark.parametrize("limit", [None, 4])
def test_a_split_is_its_listed_rows_standardised_by_the_training_ones(tiny_uci, limit):
    data = datasets.uci("toy", split=1, root=tiny_uci, limit=limit)
    train = np.array([1, 2, 3, 4, 6, 7, 8, 9])[:limit]
    assert data.x_train.shape == (len(train), 2) and data.y_train.shape == (len(train), 1)
    np.testing.assert_allclose(data.x_train[:, 1], (train**2 - (train**2).mean()) / (train**2).std(), rtol=1e-5)
    targets = data.y_test.flatten().double() * data.target_scale + data.target_mean
    np.testing.assert_allclose(targets, [2, 27], atol=1e-5)


def test_the_number_of_splits_is_that_of_its_file(tiny_uci):
    assert datasets.uci_splits("toy", tiny_uci) == 2


@pytest.mark.parametrize("name", ["../mnist", "Toy", ""])
def test_an_unknown_name_lists_those_there_are(tiny_uci, name):
    with pytest.raises(ValueError, match="name must be one of toy, got"):
        datasets.uci(name, root=tiny_uci)


@pytest.mark.parametrize("split", [-1, 2])
def test_a_split_out_of_range_is_named(tiny_uci, split):
    with pytest.raises(ValueError, match=f"split must be from 0 to 1 for toy, got {split}"):
        datasets.uci("toy", split=split, root=tiny_uci)


def test_an_empty_folder_says_what_to_download(tmp_path):
    (tmp_path / "uci").mkdir()
    with pytest.raises(FileNotFoundError, match="uci/yacht/data/data.txt is missing; download"):
        datasets.uci("yacht", root=tmp_path)


def test_a_missing_index_is_named(tiny_uci):
    (tiny_uci / "uci/toy/data/index_test_1.txt").unlink()
    with pytest.raises(FileNotFoundError, match="index_test_1.txt is missing; download"):
        datasets.uci("toy", 1, tiny_uci)


@pytest.mark.parametrize(("content", "message"), [("7 10", "numbers from 0 to 9"), ("seven", "cannot be read")])
def test_a_damaged_index_is_refused(tiny_uci, content, message):
    (tiny_uci / "uci/toy/data/index_test_0.txt").write_text(content)
    with pytest.raises(ValueError, match=f"index_test_0.txt .*{message}.*; fetch the file again"):
        datasets.uci("toy", 0, tiny_uci)


@pytest.mark.parametrize(
    ("name", "rows", "inputs", "splits"),
    [
        ("bostonHousing", 506, 13, 20),
        ("concrete", 1030, 8, 20),
        ("kin8nm", 8192, 8, 20),
        ("yacht", 308, 6, 20),
        ("protein-tertiary-structure", 45_730, 9, 5),
    ],
)
def test_the_real_sets_have_their_published_sizes_and_hold_out_a_tenth(data_dir, name, rows, inputs, splits):
    assert datasets.uci_splits(name, data_dir) == splits
    data = datasets.uci(name, splits - 1, data_dir)
    assert len(data.x_train) + len(data.x_test) == rows
    assert data.x_train.shape[1] == inputs
    assert abs(len(data.x_test) - rows / 10) <= 1
