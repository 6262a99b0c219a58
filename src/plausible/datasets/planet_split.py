"""A split of planetary systems that keeps copies of one system on one side."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plausible.datasets.planet_systems import ELEMENTS, PlanetSystems

_SHAPE = [ELEMENTS.index(name) for name in ("eccentricity", "inclination")]
_ANGLES = [ELEMENTS.index(name) for name in ("longitude_of_pericentre", "longitude_of_node", "true_anomaly")]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanetSplit:
    """Row numbers, in order, of the systems to train on, to tune by and to test with."""

    train: Tensor
    validation: Tensor
    test: Tensor


def planet_twins(systems: PlanetSystems, *, tolerance: float = 1e-6) -> Tensor:
    """A number for each system, the same for copies of one system and for nothing else.

    Two systems are twins if no mass and no period ratio differs by more than a share of `tolerance`, and no eccentricity and no
    angle, where these are known, by more than `tolerance`; so is whoever is the twin of a twin. Times are no sign of it:
    they are multiples of one step of the integrator, so many short-lived systems share theirs by chance.

    Args:
        systems: what to look through.
        tolerance: how far copies may lie apart, say by rounding.
    """
    # Here, since they are slow to import; they come with scikit-learn.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    if not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance}")
    sizes = torch.cat([systems.masses, systems.period_ratios], 1).log()
    pairs = cKDTree(sizes.numpy()).query_pairs(tolerance, p=np.inf, output_type="ndarray")
    if systems.elements.shape[2]:
        orbits = _orbits(systems.elements).numpy()
        pairs = pairs[(np.abs(orbits[pairs[:, 0]] - orbits[pairs[:, 1]]) <= tolerance).all(1)]
    links = coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(systems), len(systems)))
    return torch.from_numpy(connected_components(links, directed=False)[1].astype(np.int64))


def _orbits(elements: Tensor) -> Tensor:
    """What the orbits look like but for their sizes; angles as points on the circle, where 0 lies beside 2π."""
    angles = elements[:, :, _ANGLES]
    return torch.cat([elements[:, :, _SHAPE], angles.cos(), angles.sin()], 2).flatten(1)


def split_planets(
    systems: PlanetSystems,
    *,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    tolerance: float = 1e-6,
) -> PlanetSplit:
    """A random split in which twins (see `planet_twins`) are never on two sides.

    Whole groups are dealt out in random order, first to the test part until it has its share, then to validation; parts may be
    larger than asked by less than one group.

    Args:
        systems: what to split.
        validation: the share to tune by.
        test: the share to test with.
        seed: of the random order.
        tolerance: how far twins may lie apart.
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise ValueError(
            f"validation and test must be shares that leave something to train on, got {validation} and {test}"
        )
    groups = planet_twins(systems, tolerance=tolerance)
    sizes = groups.bincount()
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    before = sizes[order].cumsum(0) - sizes[order]  # how many systems were dealt out before each group
    ends = torch.tensor([round(test * len(systems)), round((test + validation) * len(systems))])
    part_of_group = torch.empty_like(order)
    part_of_group[order] = torch.bucketize(before, ends, right=True)
    part = part_of_group[groups]
    return PlanetSplit(
        test=(part == 0).nonzero().flatten(),
        validation=(part == 1).nonzero().flatten(),
        train=(part == 2).nonzero().flatten(),
    )
