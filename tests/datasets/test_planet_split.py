import math
from dataclasses import replace

import pytest
import torch

from plausible import datasets
from plausible.datasets.planet_systems import ELEMENTS, PlanetSystems


def made_up(n=200, seed=0):
    """Systems of three planets of which no two are alike."""
    g = torch.Generator().manual_seed(seed)
    elements = torch.rand(n, 3, len(ELEMENTS), generator=g, dtype=torch.float64)
    times = 4 + 6 * torch.rand(2, n, generator=g, dtype=torch.float64)
    return PlanetSystems(
        name="made up",
        runs=tuple(map(str, range(n))),
        masses=1e-6 * (1 + elements[:, :, 0]),
        period_ratios=1.1 + torch.rand(n, 2, generator=g, dtype=torch.float64),
        separations=torch.empty(n, 0),
        elements=elements,
        features=torch.empty(n, 0),
        feature_names=(),
        resonances=torch.empty(n, 0),
        log10_time=times[0].clamp(max=9),
        survived=times[0] >= 9,
        shadow_log10_time=times[1].clamp(max=9),
        shadow_survived=times[1] >= 9,
        censored_at=9.0,
    )


def with_copies(share=0.1, nudge=0.0, seed=0):
    """Systems and a tenth of them again, shuffled; who is whose copy is known."""
    systems = made_up(seed=seed)
    g = torch.Generator().manual_seed(seed + 1)
    copied = torch.randperm(len(systems), generator=g)[: int(share * len(systems))]
    rows = torch.cat([torch.arange(len(systems)), copied])[torch.randperm(len(systems) + len(copied), generator=g)]
    noise = 1 + nudge * (2 * torch.rand(len(rows), 3, generator=g, dtype=torch.float64) - 1)
    taken = systems.take(rows)
    return replace(taken, masses=taken.masses * noise), rows


@pytest.mark.parametrize("nudge", [0.0, 4e-7])
def test_twins_are_the_copies_and_nothing_else(nudge):
    systems, origin = with_copies(nudge=nudge)
    groups = datasets.planet_twins(systems)
    assert torch.equal(groups[:, None] == groups, origin[:, None] == origin)


def test_copies_further_apart_than_the_tolerance_are_different_systems():
    systems, _ = with_copies(nudge=1e-3)
    assert len(datasets.planet_twins(systems).unique()) == len(systems)


def test_a_chain_of_twins_is_one_group():
    systems = made_up().take(torch.zeros(3, dtype=torch.long))
    chain = replace(systems, masses=systems.masses * torch.tensor([[1.0], [1 + 8e-7], [1 + 16e-7]]).double())
    assert datasets.planet_twins(chain).tolist() == [0, 0, 0]
    assert len(datasets.planet_twins(chain.take(torch.tensor([0, 2]))).unique()) == 2


@pytest.mark.parametrize("element", ["eccentricity", "inclination", "longitude_of_node", "true_anomaly"])
def test_equal_masses_on_other_orbits_are_no_twins(element):
    systems = made_up().take(torch.tensor([5, 5]))
    systems.elements[1, 2, ELEMENTS.index(element)] += 1e-4
    assert len(datasets.planet_twins(systems).unique()) == 2


def test_a_whole_turn_makes_no_other_system():
    systems = made_up().take(torch.tensor([5, 5]))
    systems.elements[1, 0, ELEMENTS.index("true_anomaly")] += 2 * math.pi
    assert len(datasets.planet_twins(systems).unique()) == 1


def test_systems_without_orbits_are_compared_by_masses_and_periods():
    systems, origin = with_copies()
    bare = replace(systems, elements=torch.empty(len(systems), 3, 0))
    assert len(datasets.planet_twins(bare).unique()) == len(origin.unique())


@pytest.mark.parametrize("seed", range(5))
def test_a_split_has_each_row_once_and_no_copy_on_two_sides(seed):
    systems, origin = with_copies(nudge=4e-7)
    split = datasets.split_planets(systems, validation=0.2, test=0.25, seed=seed)
    parts = (split.train, split.validation, split.test)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(systems)))
    sides = [set(origin[part].tolist()) for part in parts]
    assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    # Groups have one or two members, so each border is overrun by at most one.
    assert 0 <= len(split.test) - 55 <= 1 and abs(len(split.validation) - 44) <= 1


def test_a_split_that_ignores_copies_would_leak_some():
    # That the test above can fail: rows dealt out one by one put copies on both sides.
    systems, origin = with_copies(nudge=4e-7)
    split = datasets.split_planets(systems, test=0.25, tolerance=0.0)
    assert set(origin[split.train].tolist()) & set(origin[split.test].tolist())


def test_a_seed_fixes_the_split_and_another_changes_it():
    systems = made_up()
    first, again, other = (datasets.split_planets(systems, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.test, again.test) and torch.equal(first.train, again.train)
    assert not torch.equal(first.test, other.test)


def test_a_part_may_be_empty():
    split = datasets.split_planets(made_up(), validation=0.0, test=0.5)
    assert (len(split.train), len(split.validation), len(split.test)) == (100, 0, 100)
    assert len(datasets.split_planets(made_up(), validation=0.0, test=0.0).train) == 200


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.1), (0.5, 0.5), (math.nan, 0.1)])
def test_shares_that_leave_nothing_to_train_on_are_refused(validation, test):
    with pytest.raises(ValueError, match=f"something to train on, got {validation} and {test}"):
        datasets.split_planets(made_up(), validation=validation, test=test)


def test_a_negative_tolerance_is_refused():
    with pytest.raises(ValueError, match="tolerance must not be negative, got -1"):
        datasets.planet_twins(made_up(), tolerance=-1)


@pytest.mark.parametrize("name", ["random", "resonant", "KOI-1576", "Kepler-431"])
def test_no_two_of_the_real_three_planet_systems_are_alike(data_dir, name):
    systems = datasets.three_planets(name, data_dir)
    assert len(datasets.planet_twins(systems, tolerance=1e-3).unique()) == len(systems)


def test_real_times_that_are_equal_are_so_by_chance(data_dir):
    # About a tenth of the random systems share their time with another. Times are multiples of a step of sqrt(3)/50 orbits;
    # moved by some per cent at random, which undoes any link between two systems, as many coincide.
    systems = datasets.three_planets("random", data_dir)
    steps = 10 ** systems.log10_time[~systems.survived] / (math.sqrt(3) / 50)
    assert (steps - steps.round())[steps < 1e5].abs().max() < 1e-3

    def shared(numbers):
        _, group, sizes = numbers.round().clamp(min=1).unique(return_inverse=True, return_counts=True)
        return int((sizes[group] > 1).sum())

    g = torch.Generator().manual_seed(0)
    moved = [shared(steps * (0.02 * torch.randn(len(steps), generator=g)).exp()) for _ in range(5)]
    assert 0.09 < shared(steps) / len(systems) < 0.1
    # A count of pairs by chance has about the deviation of a Poisson number; four of them.
    assert abs(shared(steps) - sum(moved) / 5) < 4 * math.sqrt(shared(steps))
