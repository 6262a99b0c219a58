"""What IVON starts from where nobody says: a run of the defaults ends at the best independent normal, however sharp it is."""

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient.sharpness import sharpness

QUIET = {"progress": False, "compile": False}


def quadratic(precision: torch.Tensor) -> pl.LogDensity:
    """N(1, precision⁻¹), from zero."""
    count = len(precision)
    return pl.LogDensity(
        lambda p: -0.5 * (p["w"] - 1) @ precision @ (p["w"] - 1), {"w": torch.zeros(count, dtype=torch.float64)}
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", [1.0, 10.0, 100.0, 1e4])
def test_a_quadratic_of_any_sharpness_is_found(precision, seed):
    found = pl.fit(
        quadratic(precision * torch.eye(2, dtype=torch.float64)), None, pl.IVON(), steps=1500, seed=seed, **QUIET
    )
    off = (found.mean["w"] - 1).abs().max() * precision**0.5
    # The average of ĥ over a memory of 375 steps deviates by about √(2 / 750) of itself.
    assert float(off) < 0.4 and 0.8 < float(found.scale["w"].pow(-2).mean() / precision) < 1.25


@pytest.mark.parametrize("seed", range(3))
def test_a_narrow_valley_is_found(seed):
    precision = torch.tensor([[30.0, 20.0, 5.0], [20.0, 20.0, 3.0], [5.0, 3.0, 2.0]], dtype=torch.float64)
    found = pl.fit(quadratic(precision), None, pl.IVON(), steps=3000, seed=seed, **QUIET)
    assert float(((found.mean["w"] - 1).abs() * precision.diag().sqrt()).max()) < 0.4
    torch.testing.assert_close(found.scale["w"].pow(-2), precision.diag(), rtol=0.25, atol=0.0)


@pytest.mark.parametrize("unit", [1.0, 10.0, 30.0])
def test_a_regression_s_inputs_may_have_any_unit(unit):
    generator = torch.Generator().manual_seed(0)
    mixed = torch.tensor([[1.0, 0.9, -0.7], [0.0, 0.5, 0.3], [0.0, 0.0, 0.6]], dtype=torch.float64)
    x = unit * torch.randn(35, 3, generator=generator, dtype=torch.float64) @ mixed
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) / unit
    y = y + 0.7 * torch.randn(35, 1, generator=generator, dtype=torch.float64)
    precision = x.T @ x / 0.49 + 2 * torch.eye(3, dtype=torch.float64)
    exact = torch.linalg.solve(precision, x.T @ y / 0.49).flatten()
    model = pl.BayesianModel(
        nn.Linear(3, 1, bias=False).double(), pl.likelihoods.Normal(scale=0.7), pl.priors.Normal(scale=0.5**0.5)
    )
    found = pl.fit(model, (x, y), pl.IVON(), steps=4000, batch_size=8, **QUIET)
    assert float(((found.mean["weight"].flatten() - exact).abs() * precision.diag().sqrt()).max()) < 0.4
    torch.testing.assert_close(found.scale["weight"].flatten().pow(-2), precision.diag(), rtol=0.2, atol=0.0)


def test_sharpness_is_the_largest_eigenvalue():
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    hessian = root @ root.T - 2 * torch.eye(6, dtype=torch.float64)
    gradient = lambda w: {"w": hessian @ w["w"] + 3.0}  # noqa: E731
    here = {"w": torch.randn(6, generator=generator, dtype=torch.float64)}
    found = sharpness(gradient, here, {"w": torch.randn(6, generator=generator, dtype=torch.float64)})
    largest = torch.linalg.eigvalsh(hessian).abs().max()
    assert 0.9 * float(largest) < float(found) <= 1.0001 * float(largest)


def test_a_start_that_is_given_is_kept():
    target = quadratic(100 * torch.eye(2, dtype=torch.float64))
    start = lambda **own: pl.fit(target, None, pl.IVON(curvature_decay=0.9999, **own), steps=1, **QUIET)  # noqa: E731
    for method in ({"initial_curvature": 0.3}, {"learning_rate": 0.1}):
        assert float(start(**method).scale["w"].pow(-2).max()) < 1
    torch.testing.assert_close(
        start().scale["w"].pow(-2), torch.full((2,), 50.0, dtype=torch.float64), rtol=0.02, atol=0.0
    )


class Dropped(nn.Module):
    """Inputs are dropped by a layer, or by numbers from the global generator."""

    def __init__(self, by):
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(4, 50), nn.Dropout(0.1), nn.Linear(50, 1)
        self.by = by

    def forward(self, x):
        hidden = self.first(x).relu()
        if self.by == "layer":
            hidden = self.drop(hidden)
        elif self.training:
            hidden = hidden * (torch.rand_like(hidden) > 0.1) / 0.9
        return self.second(hidden)


@pytest.mark.parametrize("by", ["layer", "numbers"])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_a_regression_with_dropout_is_found(by, noise):
    """Gradients are compared under the same mask, and the first steps are no longer than without dropout."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 4, generator=g)
    y = (x @ torch.randn(4, 1, generator=g)).sin() + 0.3 * x[:, :1] + 0.05 * torch.randn(600, 1, generator=g)
    torch.manual_seed(1)
    model = pl.BayesianModel(Dropped(by), pl.likelihoods.Normal(scale=noise))
    for seed in range(2):
        found = pl.fit(model, (x[:500], y[:500]), pl.IVON(), epochs=40, batch_size=64, seed=seed, **QUIET)
        off = (found.predict(x[500:]).mean - y[500:]).square().mean().sqrt()
        assert float(off) < 0.5  # the targets' own deviation is .9; 10 and more where steps were too long


@pytest.mark.parametrize("sharp", [1.0, 30.0])
def test_a_classifier_s_start_bears_its_first_batch(sharp):
    """Inputs that are 30 times as large bend log likelihoods 900 times as sharply."""
    g = torch.Generator().manual_seed(0)
    x = sharp * torch.randn(64, 3, generator=g, dtype=torch.float64)
    network = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        network.weight.zero_()  # where the Hessian of a class is a quarter of the inputs' second moments, and their opposites
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    found = pl.fit(model, (x, (x[:, 0] > 0).long()), pl.IVON(curvature_decay=0.9999), steps=1, batch_size=64, **QUIET)
    largest = 2 * float(torch.linalg.eigvalsh(x.T @ x / 64)[-1]) / 4
    started = (float(found.scale["weight"].pow(-2).mean()) - 1.0) / 64
    # Eight rounds of a power iteration stay a little below the largest eigenvalue.
    assert 0.75 < started / max(0.3, largest / 8) < 1.05
