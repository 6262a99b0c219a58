import numpy as np
import torch

from plausible.datasets.dataset import standardised_table


def test_a_constant_column_is_centred_and_not_blown_up():
    x = np.array([[1.0, 0.1], [2.0, 0.1], [3.0, 0.1]])
    y = np.array([1.0, 2.0, 6.0])
    data = standardised_table("toy", "regression", (x, y), (np.array([[2.0, 0.3]]), np.array([3.0])))
    scale = np.sqrt(2 / 3)
    torch.testing.assert_close(data.x_train[:, 0], torch.tensor([-1 / scale, 0, 1 / scale], dtype=torch.float32))
    torch.testing.assert_close(data.x_train[:, 1], torch.zeros(3))
    torch.testing.assert_close(data.x_test, torch.tensor([[0.0, 0.2]]))
    assert data.target_mean == 3.0 and data.y_test.item() == 0.0
    np.testing.assert_allclose(data.target_scale, np.sqrt(14 / 3))
