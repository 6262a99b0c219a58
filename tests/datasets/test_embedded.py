import numpy as np
import pytest
import sklearn.datasets
import torch

from plausible import datasets

TABLES = {
    "breast_cancer": (569, 30, 2),
    "wine": (178, 13, 3),
    "moons": (1000, 2, 2),
    "circles": (1000, 2, 2),
}
EVERY_NAME = [*TABLES, "digits", "diabetes"]


@pytest.mark.parametrize("name", TABLES)
def test_a_classification_table_has_its_published_size_and_both_parts_have_every_class(name):
    examples, columns, classes = TABLES[name]
    data = getattr(datasets, name)()
    assert data.name == name and data.task == "classification"
    assert len(data.x_train) + len(data.x_test) == examples
    assert abs(len(data.x_test) - examples / 5) < 1
    assert data.x_train.shape[1:] == data.x_test.shape[1:] == (columns,)
    assert len(data.feature_names) == columns and len(data.classes) == classes
    assert data.y_train.shape == (len(data.x_train),)
    assert set(data.y_train.tolist()) == set(data.y_test.tolist()) == set(range(classes))


@pytest.mark.parametrize("name", EVERY_NAME)
def test_inputs_are_float32_and_class_numbers_int64(name):
    data = getattr(datasets, name)()
    assert data.x_train.dtype == data.x_test.dtype == torch.float32
    assert data.y_train.dtype == data.y_test.dtype == (torch.float32 if data.task == "regression" else torch.int64)
    assert data.train[0] is data.x_train and data.test[1] is data.y_test


@pytest.mark.parametrize("name", [*TABLES, "diabetes"])
def test_columns_are_standardised_by_the_training_part_alone(name):
    data = getattr(datasets, name)()
    x = data.x_train.double()
    torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(x.shape[1]).double(), rtol=1e-5, atol=0)
    assert data.standardised
    assert data.x_test.double().mean(0).abs().max() > 1e-3  # the test part had no say


@pytest.mark.parametrize(
    ("name", "load"), [("wine", sklearn.datasets.load_wine), ("breast_cancer", sklearn.datasets.load_breast_cancer)]
)
def test_undoing_the_scaling_gives_every_original_row_once(name, load):
    data, original = getattr(datasets, name)(), load()
    x = torch.cat([data.x_train, data.x_test]).double() * data.input_scale + data.input_mean
    rows = np.column_stack([x.numpy(), torch.cat([data.y_train, data.y_test]).numpy()])
    expected = np.column_stack([original.data, original.target])
    order = np.lexsort(rows.round(3).T[::-1])
    expected_order = np.lexsort(expected.round(3).T[::-1])
    np.testing.assert_allclose(rows[order], expected[expected_order], rtol=1e-4, atol=1e-4)
    assert data.classes == tuple(original.target_names)


def test_diabetes_targets_are_standardised_columns_that_can_be_undone():
    data = datasets.diabetes()
    assert data.task == "regression" and data.classes == ()
    assert data.y_train.shape == (353, 1) and data.y_test.shape == (89, 1)
    assert data.y_train.double().mean().abs() < 1e-6
    y = torch.cat([data.y_train, data.y_test]).double().flatten() * data.target_scale + data.target_mean
    original = sklearn.datasets.load_diabetes().target
    np.testing.assert_allclose(np.sort(y.numpy()), np.sort(original), rtol=1e-5)


def test_digits_are_scikit_learns_images_between_zero_and_one():
    data, original = datasets.digits(), sklearn.datasets.load_digits()
    assert data.x_train.shape == (1437, 1, 8, 8) and data.x_test.shape == (360, 1, 8, 8)
    assert data.x_train.min() == 0 and data.x_train.max() == 1
    ours = torch.cat([data.x_train, data.x_test]).flatten(1).numpy() * 16
    labels = torch.cat([data.y_train, data.y_test]).numpy()
    seen = sorted(zip(ours.tolist(), labels.tolist(), strict=True))
    assert seen == sorted(zip(original.data.tolist(), original.target.tolist(), strict=True))


@pytest.mark.parametrize("name", EVERY_NAME)
def test_two_calls_agree_and_leave_the_global_generators_alone(name):
    make = getattr(datasets, name)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    first, second = make(), make()
    assert torch.equal(first.x_train, second.x_train) and torch.equal(first.y_test, second.y_test)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1]) and np.random.get_state()[2] == numpy_state[2]


@pytest.mark.parametrize("make", [datasets.moons, datasets.circles])
def test_another_seed_gives_other_examples(make):
    assert not torch.equal(make(seed=0).x_train, make(seed=1).x_train)


def test_without_noise_circles_have_their_two_radii():
    data = datasets.circles(n=100, noise=0.0, factor=0.25)
    x = torch.cat([data.x_train, data.x_test]) * data.input_scale + data.input_mean
    expected = torch.where(torch.cat([data.y_train, data.y_test]) == 1, 0.25, 1.0)
    torch.testing.assert_close(x.norm(dim=1), expected, rtol=1e-5, atol=1e-5)


def test_a_data_set_says_what_it_is():
    assert repr(datasets.wine()) == "Dataset('wine', classification, 142 + 36 examples of 13 inputs)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: datasets.moons(n=3), "n must be at least 10, .* got 3"),
        (lambda: datasets.moons(noise=-1.0), "noise must not be negative, got -1.0"),
        (lambda: datasets.circles(factor=2.0), "factor must be .* got 2.0"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
