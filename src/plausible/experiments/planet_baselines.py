"""What a network for planetary systems is measured against: trees, a formula, and another run of the integrator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..core.predictive import Predictive
from ..datasets import PlanetSystems
from .petit import petit_log10_time
from .planet_features import planet_columns
from .planet_recorded_time import LONGEST, SHORTEST, Forecast, time_likelihood

Baseline = Callable[[PlanetSystems], Forecast]


def trees_baseline(train: PlanetSystems, validation: PlanetSystems, seed: int) -> Baseline:
    """Gradient-boosted trees that read the same columns: one model of the recorded time, one of outliving the record.

    Trees take a missing value as it is. Their settings were chosen by the validation part.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings = {"learning_rate": 0.04, "max_leaf_nodes": 31, "l2_regularization": 1.0, "random_state": seed}
    x = planet_columns(train).numpy()
    times = HistGradientBoostingRegressor(max_iter=300, **settings).fit(x, train.log10_time.numpy())
    outliving = HistGradientBoostingClassifier(max_iter=300, **settings).fit(x, train.survived.numpy())

    def estimate(systems: PlanetSystems) -> Tensor:
        return torch.from_numpy(times.predict(planet_columns(systems).numpy())).clamp(SHORTEST, LONGEST)

    def stability(systems: PlanetSystems) -> Tensor:
        return torch.from_numpy(outliving.predict_proba(planet_columns(systems).numpy())[:, 1])

    return _with_residuals(estimate, stability, validation)


def petit_baseline(validation: PlanetSystems) -> Baseline:
    """The analytic estimate, held between both ends of the record as published; infinite ones are at its end."""

    def unbounded(systems: PlanetSystems) -> Tensor:
        return torch.from_numpy(petit_log10_time(systems.period_ratios.numpy(), systems.masses.numpy()))

    return _with_residuals(lambda systems: unbounded(systems).clamp(SHORTEST, LONGEST), unbounded, validation)


def shadow_baseline(validation: PlanetSystems) -> Baseline:
    """The integrator itself, run again on the same system nudged by 10⁻¹¹."""

    def estimate(systems: PlanetSystems) -> Tensor:
        return systems.shadow_log10_time.clamp(SHORTEST, LONGEST)

    return _with_residuals(estimate, estimate, validation)


def _with_residuals(
    estimate: Callable[[PlanetSystems], Tensor],
    stability: Callable[[PlanetSystems], Tensor],
    validation: PlanetSystems,
) -> Baseline:
    """A forecast around an estimate that has none of its own: normal, its line and width fitted to the validation part."""
    line = fit_residuals(estimate(validation), validation.log10_time)

    def forecast(systems: PlanetSystems) -> Forecast:
        found = estimate(systems)
        predictive = Predictive(_outputs(line, found)[None], time_likelihood())
        return Forecast(predictive=predictive, estimate=found, stability=stability(systems))

    return forecast


def fit_residuals(estimate: Tensor, log10_time: Tensor) -> Tensor:
    """(offset, slope, raw width) under which recorded times are most likely to scatter normally around offset + slope estimate.

    The offset is at the middle of the record.
    """
    from scipy.optimize import minimize

    likelihood, truth = time_likelihood(), log10_time.double()[:, None]

    def cost(values: np.ndarray) -> tuple[float, np.ndarray]:
        line = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        loss = -likelihood.log_prob(_outputs(line, estimate), truth).mean()
        (slope,) = torch.autograd.grad(loss, line)
        return float(loss.detach()), slope.numpy()

    found = minimize(cost, np.array([0.0, 1.0, 1.0]), jac=True, method="L-BFGS-B")
    return torch.tensor(found.x, dtype=torch.float64)


def _outputs(line: Tensor, estimate: Tensor) -> Tensor:
    """What a network would put out: (N, 2), the centre and the raw scale."""
    middle = (SHORTEST + LONGEST) / 2
    centre = middle + line[0] + line[1] * (estimate.double() - middle)
    return torch.stack([centre, line[2].expand_as(centre)], 1)
