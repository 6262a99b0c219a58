"""Loops of moves that are compiled as a whole."""

import logging
import math

import pytest
import torch

import plausible as pl
from plausible.core import walk

SPREADS = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
TARGET = pl.LogDensity(lambda w: -0.5 * ((w["x"] / SPREADS) ** 2).sum(), {"x": SPREADS.clone()})


def chains(method, compile):
    return pl.fit(TARGET, None, method, steps=14, num_modes=4, seed=2, device="cpu", compile=compile, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pl.HMC(warmup=6, step_size=0.2, trajectory_length=1.0), pl.NUTS(warmup=6)], ids=["HMC", "NUTS"]
)
def test_a_compiled_loop_makes_the_moves_of_an_eager_one_and_ends_where_it_does(method, caplog):
    with caplog.at_level(logging.WARNING, logger="plausible"):
        fast, plain = chains(method, True), chains(method, False)
    assert not caplog.records
    for a, b in zip(fast.components, plain.components, strict=True):
        torch.testing.assert_close(a.draws["x"], b.draws["x"], rtol=1e-9, atol=1e-9)
        for name in set(a.statistics) & {"leapfrogs", "depth", "divergent"}:
            assert torch.equal(a.statistics[name], b.statistics[name])


@pytest.mark.slow
def test_where_loops_cannot_be_compiled_single_moves_are(monkeypatch, caplog):
    def refuses(*arguments):
        raise RuntimeError("no loops here")

    monkeypatch.setattr(walk, "CompiledMoves", refuses)
    method = pl.HMC(warmup=2, step_size=0.2, trajectory_length=0.4)
    with caplog.at_level(logging.WARNING, logger="plausible"):
        fast, plain = chains(method, True), chains(method, False)
    assert not caplog.records
    torch.testing.assert_close(fast.components[0].draws["x"], plain.components[0].draws["x"], rtol=1e-9, atol=1e-9)


def test_threads_are_as_many_as_before_after_a_compiled_run():
    before = torch.get_num_threads()
    with walk.held_to(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("fallen", [math.nan, math.inf])
def test_a_first_move_over_a_cliff_says_nothing_against_a_fast_way(fallen):
    expected, found = torch.tensor([fallen, 1.0, 2.0]), torch.tensor([math.nan, 1.0, 2.0])
    assert walk._relative(*walk._comparable(found, expected)) == 0
    assert walk._relative(*walk._comparable(2 * found, expected)) == 1
    assert not walk._relative(*walk._comparable(torch.full((3,), math.nan), expected)) < 1e-3


@pytest.mark.parametrize(("examples", "few"), [(100, True), (100_000, False)])
@pytest.mark.parametrize("own_data", [False, True], ids=["shared-data", "own-data"])
def test_how_many_threads_run_a_loop_follows_from_its_examples_and_not_from_its_chains(own_data, examples, few):
    data = torch.zeros(4, examples, 2) if own_data else torch.zeros(examples, 2)
    with walk.held_to(2):
        threads = walk._threads(torch.zeros(4, 50), (data, None), axis=1 if own_data else 0)
    assert threads == (1 if few else 2)
