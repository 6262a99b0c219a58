"""Data that comes with scikit-learn: nothing is downloaded.

Each is split 80 / 20 with a fixed seed, so that any two runs are judged on the same examples.
"""

import numpy as np
import torch

from plausible.datasets.dataset import Dataset, standardised_table

# scikit-learn is imported inside the functions: it takes longer than the rest of this package together.

SPLIT_SEED = 0


def moons(n: int = 1000, noise: float = 0.2, seed: int = 0) -> Dataset:
    """Two interleaved half circles."""
    from sklearn.datasets import make_moons

    _check_toy(n, noise)
    x, y = make_moons(n_samples=n, noise=noise, random_state=seed)
    return _classification_table("moons", x, y, classes=("upper", "lower"), feature_names=("x1", "x2"), seed=seed)


def circles(n: int = 1000, noise: float = 0.1, factor: float = 0.5, seed: int = 0) -> Dataset:
    """A circle inside another, smaller by the factor."""
    from sklearn.datasets import make_circles

    _check_toy(n, noise)
    if not 0 <= factor < 1:
        raise ValueError(f"factor must be at least 0 and less than 1, got {factor}")
    x, y = make_circles(n_samples=n, noise=noise, factor=factor, random_state=seed)
    return _classification_table("circles", x, y, classes=("outer", "inner"), feature_names=("x1", "x2"), seed=seed)


def digits() -> Dataset:
    """1,797 handwritten digits, 8 x 8 grey in [0, 1] (UCI, Alpaydin & Kaynak, 1998)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.images[:, None] / 16.0
    x_train, y_train, x_test, y_test = _split(images, data.target, SPLIT_SEED, stratify=True)
    return Dataset(
        name="digits",
        task="classification",
        x_train=torch.tensor(x_train, dtype=torch.float32),
        y_train=torch.tensor(y_train, dtype=torch.int64),
        x_test=torch.tensor(x_test, dtype=torch.float32),
        y_test=torch.tensor(y_test, dtype=torch.int64),
        classes=tuple(str(name) for name in data.target_names),
    )


def diabetes() -> Dataset:
    """Progression of diabetes in 442 patients from 10 measurements (Efron et al., 2004)."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)  # the scaled copy was scaled with the test part
    x_train, y_train, x_test, y_test = _split(data.data, data.target, SPLIT_SEED, stratify=False)
    names = tuple(data.feature_names)
    return standardised_table("diabetes", "regression", (x_train, y_train), (x_test, y_test), feature_names=names)


def breast_cancer() -> Dataset:
    """569 tumours, malignant or benign, from 30 measurements (Wolberg, Street & Mangasarian, 1995)."""
    from sklearn.datasets import load_breast_cancer

    return _loaded_classification("breast_cancer", load_breast_cancer())


def wine() -> Dataset:
    """178 wines of three growers from 13 measurements (UCI, Forina et al., 1991)."""
    from sklearn.datasets import load_wine

    return _loaded_classification("wine", load_wine())


def _loaded_classification(name: str, data) -> Dataset:
    classes = tuple(str(label) for label in data.target_names)
    names = tuple(str(feature) for feature in data.feature_names)
    return _classification_table(name, data.data, data.target, classes=classes, feature_names=names, seed=SPLIT_SEED)


def _classification_table(
    name: str, x: np.ndarray, y: np.ndarray, *, classes: tuple[str, ...], feature_names: tuple[str, ...], seed: int
) -> Dataset:
    x_train, y_train, x_test, y_test = _split(x, y, seed, stratify=True)
    return standardised_table(
        name, "classification", (x_train, y_train), (x_test, y_test), classes=classes, feature_names=feature_names
    )


def _split(x: np.ndarray, y: np.ndarray, seed: int, *, stratify: bool) -> tuple[np.ndarray, ...]:
    from sklearn.model_selection import train_test_split

    labels = y if stratify else None
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=seed, stratify=labels)
    return x_train, y_train, x_test, y_test


def _check_toy(n: int, noise: float) -> None:
    if n < 10:
        raise ValueError(f"n must be at least 10, so that both parts have both classes, got {n}")
    if noise < 0:
        raise ValueError(f"noise must not be negative, got {noise}")
