"""Noisy moons and circles, and how well anybody could tell their classes apart."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

FACTOR = 0.5  # the inner circle's radius
ARC = 100  # nodes along a half circle: their distance is half of the smallest noise
OPTIMUM_DRAWS = 100_000
GRID = 161  # places along an axis, where the boundary is looked for
EDGE = 3.0  # deviations of noise that a picture shows around the curves
SETS = ("moons", "circles")
FRESH_SEED, OPTIMUM_SEED = 1_000_003, 1_000_033  # of points that no seed of a training draws


def drawn_points(name: str, noise: float, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (count, 2) and their classes, in random order."""
    from sklearn.datasets import make_circles, make_moons  # slow to import

    if name == "moons":
        x, y = make_moons(n_samples=count, noise=noise, random_state=seed)
    else:
        x, y = make_circles(n_samples=count, noise=noise, factor=FACTOR, random_state=seed)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)


def log_densities(name: str, noise: float, x: Tensor) -> Tensor:
    """log p(x | class) of both classes (N, 2), in double precision: a curve, blurred by normal noise."""
    x = x.double()
    return _moons(noise, x) if name == "moons" else _circles(noise, x)


def _moons(noise: float, x: Tensor) -> Tensor:
    """The blur is averaged over each half circle, all angles being evenly likely, by Gauss and Legendre's rule."""
    nodes, weights = (torch.from_numpy(v).to(x.device) for v in np.polynomial.legendre.leggauss(ARC))
    angle, log_share = math.pi * (nodes + 1) / 2, (weights / 2).log()
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    found = [torch.logsumexp(log_share - torch.cdist(x, arc) ** 2 / (2 * noise**2), 1) for arc in (upper, lower)]
    return torch.stack(found, 1) - math.log(2 * math.pi * noise**2)


def _circles(noise: float, x: Tensor) -> Tensor:
    """In closed form: the angles of a circle of radius R integrate to a Bessel function, I₀(rR / noise²)."""
    r = x.norm(dim=1)
    found = []
    for radius in (1.0, FACTOR):
        product = r * radius / noise**2
        found.append(-((r - radius) ** 2) / (2 * noise**2) + torch.special.i0e(product).log())
    return torch.stack(found, 1) - math.log(2 * math.pi * noise**2)


def best_guess(name: str, noise: float, x: Tensor) -> Tensor:
    """The more probable class of each point: no rule is right more often."""
    blocks = [log_densities(name, noise, block).argmax(1) for block in x.split(20_000)]
    return torch.cat(blocks)


@functools.cache
def _class_probabilities(name: str, noise: float) -> Tensor:
    """Of both classes at many fresh points."""
    x, _ = drawn_points(name, noise, OPTIMUM_DRAWS, OPTIMUM_SEED)
    return torch.cat([log_densities(name, noise, block).softmax(1) for block in x.split(20_000)])


def optimal_accuracy(name: str, noise: float) -> float:
    """How often the best guess is right: the mean over fresh points of the larger class probability."""
    return float(_class_probabilities(name, noise).amax(1).mean())


def optimal_nll(name: str, noise: float) -> float:
    """The mean entropy of the class: no forecast has a smaller negative log likelihood."""
    shares = _class_probabilities(name, noise)
    return -float(torch.xlogy(shares, shares).sum(1).mean())


def picture_bounds(name: str, noise: float) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of where the points are."""
    low, high = ((-1.0, -0.5), (2.0, 1.0)) if name == "moons" else ((-1.0, -1.0), (1.0, 1.0))
    return low[0] - EDGE * noise, high[0] + EDGE * noise, low[1] - EDGE * noise, high[1] + EDGE * noise


def picture_places(name: str, noise: float, count: int) -> Tensor:
    """A grid (count · count, 2) over the picture, row by row from its bottom."""
    left, right, bottom, top = picture_bounds(name, noise)
    across, up = torch.linspace(left, right, count), torch.linspace(bottom, top, count)
    return torch.stack([across.repeat(count), up.repeat_interleave(count)], 1)


@functools.cache
def boundary(name: str, noise: float) -> Tensor:
    """Points (B, 2) between neighbours of a fine grid whose best guesses differ."""
    places = picture_places(name, noise, GRID)
    guess = best_guess(name, noise, places).reshape(GRID, GRID)
    places = places.reshape(GRID, GRID, 2)
    beside, above = guess[:, 1:] != guess[:, :-1], guess[1:] != guess[:-1]
    middles = [
        (places[:, 1:][beside] + places[:, :-1][beside]) / 2,
        (places[1:][above] + places[:-1][above]) / 2,
    ]
    return torch.cat(middles)


def distance_from_boundary(name: str, noise: float, x: Tensor) -> Tensor:
    """Of each point from where the best guess changes."""
    return torch.cdist(x.cpu(), boundary(name, noise)).amin(1)
