"""A network that reads the time series of a planetary system (after Cranmer et al., 2021), and what it is given of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..datasets import PlanetSeries
from ..datasets.planet_integration import CHANNELS

_PLACE = {name: i for i, name in enumerate(CHANNELS)}
_SMALLEST = 1e-8  # of whatever a logarithm is taken: rounding of float32 series, and planets that are exactly coplanar
MIDDLE, WIDTH = 7.0, 2.0  # the network's first output times WIDTH plus MIDDLE is log10 of a time


def series_inputs(series: PlanetSeries) -> Tensor:
    """(N, steps, inputs), float32: what the network reads at each time, free of units and of the origin of angles.

    Of each planet: mass, eccentricity, and how far its semimajor axis has moved. Of both pairs of neighbours: period ratio;
    separation in Hill radii; the length of the difference of eccentricity vectors, in units of the one at which orbits
    cross; the same for inclinations, in Hill radii; the angles between pericentres and between planets; where the
    period ratio lies between two first-order resonances; and how far it has moved, in Hill radii. And the time.
    """
    n, steps, _ = series.values.shape
    values = series.values.double().reshape(n, steps, 3, len(CHANNELS))
    axis, eccentricity, inclination, pericentre, node, longitude = (values[..., _PLACE[name]] for name in CHANNELS)
    masses = series.masses.double()[:, None, :].expand(n, steps, 3)
    ratio = axis[..., 1:] / axis[..., :-1]
    period_ratio = ratio**1.5
    hill = ((masses[..., 1:] + masses[..., :-1]) / 3) ** (1 / 3)
    crossing = (ratio - 1).clamp(min=1e-3)
    apart_eccentricity = _distance(eccentricity, pericentre) / crossing
    apart_inclination = _distance(inclination, node) / hill
    moved = (axis / axis[:, :1]).log().abs()
    drift = (period_ratio / period_ratio[:, :1] - 1) / hill
    between = 2 * math.pi / (period_ratio - 1).clamp(min=1e-2)  # a whole turn from j + 1 : j to j : j - 1
    pericentres, longitudes = pericentre[..., 1:] - pericentre[..., :-1], longitude[..., 1:] - longitude[..., :-1]
    time = torch.linspace(0, 1, steps, dtype=values.dtype)[None, :, None].expand(n, steps, 1)
    parts = [
        time, _log10(masses), _log10(eccentricity + 1e-4), _log10(moved), period_ratio.log(), _log10(crossing / hill),
        apart_eccentricity.clamp(max=3), _log10(apart_eccentricity + 1e-4), _log10(apart_inclination + 0.1),
        pericentres.cos(), pericentres.sin(), longitudes.cos(), longitudes.sin(), between.cos(), between.sin(),
        drift.clamp(-3, 3),
    ]  # fmt: skip
    return torch.cat(parts, -1).float()


INPUTS = 1 + 3 * 3 + 2 * 12


class SeriesNetwork(nn.Module):
    """An encoder of each time step, mean and deviation over time, and a head that gives centre and raw scale of log10 T.

    Inputs are standardised by `centre` and `spread`, which are saved with the weights; see `standardise`.

    Args:
        inputs: numbers a step.
        hidden: the width of the hidden layers, two in the encoder and two in the head.
        latent: how many numbers of each step are averaged.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, inputs: int = INPUTS, hidden: int = 40, latent: int = 20):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, latent)
        )
        self.head = nn.Sequential(
            nn.Linear(2 * latent, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2)
        )
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("spread", torch.ones(inputs))

    def standardise(self, x: Tensor) -> None:
        """Take centre and spread of the inputs from training data (N, steps, inputs)."""
        flat = x.flatten(0, 1).double()
        spread = flat.std(0)
        self.centre.copy_(flat.mean(0))
        self.spread.copy_(torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 2) of (N, steps, inputs)."""
        # Far outside of what was seen, a network's guess should not depend on how far.
        encoded = self.encoder(((x - self.centre) / self.spread).clamp(-8, 8))
        mean = encoded.mean(-2)
        # The root's slope is infinite at zero, where a step never changes.
        deviation = (encoded.var(-2, correction=0) + 1e-6).sqrt()
        centre, raw_scale = self.head(torch.cat([mean, deviation], -1)).split(1, -1)
        return torch.cat([MIDDLE + WIDTH * centre, raw_scale], -1)


def _distance(length: Tensor, angle: Tensor) -> Tensor:
    """Between the vectors of neighbouring planets in the plane."""
    x, y = length * angle.cos(), length * angle.sin()
    return torch.hypot(x[..., 1:] - x[..., :-1], y[..., 1:] - y[..., :-1])


def _log10(values: Tensor) -> Tensor:
    return values.clamp(min=_SMALLEST).log10()
