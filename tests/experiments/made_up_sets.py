"""Small data sets in the formats of the published ones, for studies at toy size."""

import numpy as np

NOISE = 2.0


def write_uci_sets(root, names, examples=80, mean=lambda x: 3 + 10 * x[:, 0]):
    """Regression on three inputs with noise of deviation 2, in two splits with 20 test examples, under each name."""
    rng = np.random.default_rng(0)
    for name in names:
        folder = root / "uci" / name / "data"
        folder.mkdir(parents=True)
        x = rng.normal(size=(examples, 3))
        np.savetxt(folder / "data.txt", np.column_stack([x, mean(x) + NOISE * rng.normal(size=examples)]))
        np.savetxt(folder / "index_features.txt", [0, 1, 2])
        np.savetxt(folder / "index_target.txt", [3])
        np.savetxt(folder / "n_splits.txt", [2])
        for split in range(2):
            order = rng.permutation(examples)
            np.savetxt(folder / f"index_test_{split}.txt", order[:20])
            np.savetxt(folder / f"index_train_{split}.txt", order[20:])
    return root


def write_digits(root, images_to_train_on=300):
    """MNIST's one file, of images whose bright row is their class."""
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", images_to_train_on), ("test", 100)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 120, size=(count, 28, 28))
        images[np.arange(count), 2 * labels + 4] = 255
        parts |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels.astype(np.uint8)}
    (root / "mnist").mkdir()
    np.savez(root / "mnist" / "mnist.npz", **parts)
    return root
