"""Several processes that each have a part of the batch, and gradients that DistributedDataParallel averages over them."""

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from tests.optim.cases import CASES, data, losses, mlp, weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel

METHODS = ["IVON", "KFAC", "NoisyKFAC", "OGN", "VOGN"]
TYPES = {"float64": (torch.float64, 1e-9), "float32": (torch.float32, 1e-5)}
REMEMBERED = ("curvature", "momentum", "first", "rows", "columns", "diagonal")
N, STEPS, SECONDS = 16, 4, 60
HALVES, UNEQUAL = [(0, 8), (8, 16)], [(0, 12), (12, 16)]


class Sides(nn.Module):
    """Uses one layer or the other, by what it is told."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.sides, self.last = nn.ModuleList([nn.Linear(3, 4), nn.Linear(3, 4)]), nn.Linear(4, 1)
        self.double()

    def forward(self, x, side):
        return self.last(self.sides[int(side)](x).tanh())


def steps(name, network, call, rows, reduction="mean", dtype=torch.float64, count=STEPS, given=None, parts=1):
    """The optimiser after a few steps on some rows, in `parts` micro-batches."""
    constructor, numbers = CASES[name]
    optimizer = constructor(network if given is None else given, num_data=N, reduction=reduction, **numbers)
    x, y = (t[rows[0] : rows[1]] for t in data(dtype, N))
    for _ in range(count):
        optimizer.zero_grad()
        with optimizer.sampled():
            for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
                share = parts if reduction == "mean" else 1
                (getattr(losses(call, a, b), reduction)() / share).backward()
        optimizer.step()
    return optimizer


def seen(network, optimizer):
    """All that must be the same everywhere."""
    state = {
        f"{k} of {name}": optimizer.state[p][k].clone()
        for name, p in network.named_parameters()
        for k in REMEMBERED
        if k in optimizer.state[p]
    }
    return {**weights(network), **state}


def in_each(rank):
    """Everything that the tests look at, in one process of two: starting them is what takes time."""
    found = {}
    for dtype, (kind, _) in TYPES.items():
        for name in METHODS:
            network = mlp(kind)
            wrapped = DistributedDataParallel(network)
            found[name, dtype] = seen(network, steps(name, network, wrapped, HALVES[rank], dtype=kind))
    for name in METHODS:
        for what, options in {
            "wrapped": {}, "accumulated": {"parts": 2}, "sum": {"reduction": "sum"},
        }.items():  # fmt: skip
            network = mlp()
            wrapped = DistributedDataParallel(network)
            given = wrapped if what == "wrapped" else None
            rows = UNEQUAL[rank] if what == "sum" else HALVES[rank]
            found[name, what] = seen(network, steps(name, network, wrapped, rows, given=given, **options))
    for name in ("OGN", "KFAC"):
        network = mlp()
        wrapped = DistributedDataParallel(network)
        found[name, "unequal"] = seen(network, steps(name, network, wrapped, UNEQUAL[rank], count=1))
        network = Sides()
        wrapped = DistributedDataParallel(network, find_unused_parameters=True)
        call = lambda x, wrapped=wrapped: wrapped(x, side=str(rank))  # noqa: E731
        found[name, "sides"] = seen(network, steps(name, network, call, HALVES[rank]))
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meeting")
    try:
        torch.save(in_each(rank), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """What both processes found."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("processes")
    started = torch.multiprocessing.spawn(work, (str(folder),), nprocs=2, join=False)
    until = time.monotonic() + SECONDS
    while not started.join(timeout=max(0.1, until - time.monotonic())):
        if time.monotonic() > until:
            for process in started.processes:
                process.kill()
            pytest.fail(f"the processes have not ended after {SECONDS} s")
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def alone(name, reduction="mean", dtype=torch.float64, count=STEPS):
    network = mlp(dtype)
    return seen(network, steps(name, network, network, (0, N), reduction, dtype, count))


def assert_near(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for k, v in expected.items():
        torch.testing.assert_close(found[k], v, rtol=tolerance, atol=tolerance, msg=lambda m, k=k: f"{k}: {m}")


def test_replicas_stay_equal_to_the_last_bit(replicas):
    first, second = replicas
    assert first.keys() == second.keys()
    for case, own in first.items():
        assert own.keys() == second[case].keys(), case
        for k, v in own.items():
            assert torch.equal(v, second[case][k]), (case, k)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", METHODS)
def test_they_make_the_steps_of_one_process_with_all_the_rows(replicas, name, dtype):
    kind, tolerance = TYPES[dtype]
    assert_near(replicas[0][name, dtype], alone(name, dtype=kind), tolerance)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("what", ["wrapped", "accumulated"])
def test_so_does_an_optimiser_of_the_wrapper_and_one_of_micro_batches(replicas, name, what):
    assert_near(replicas[0][name, what], alone(name), 1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_losses_that_are_sums_may_be_of_unequal_batches(replicas, name):
    assert_near(replicas[0][name, "sum"], alone(name, "sum"), 1e-9)


@pytest.mark.parametrize("name", ["OGN", "KFAC"])
def test_curvature_is_the_mean_over_all_examples_where_batches_are_unequal(replicas, name):
    """The gradient is not: that is the mean of the processes' means, which the others do not know how to weigh."""
    found, expected = replicas[0][name, "unequal"], alone(name, count=1)
    kinds = ("curvature of", "rows of", "columns of", "diagonal of")
    curvature = {k: v for k, v in expected.items() if k.startswith(kinds)}
    assert curvature
    assert_near({k: found[k] for k in curvature}, curvature, 1e-9)


@pytest.mark.parametrize("name", ["OGN", "KFAC"])
def test_weights_that_only_some_processes_used_have_the_curvature_of_all_examples(replicas, name):
    network, sides = Sides(), itertools.cycle("01")  # for the first and the second of two micro-batches
    optimizer = steps(name, network, lambda x: network(x, side=next(sides)), (0, N), parts=2)
    assert_near(replicas[0][name, "sides"], seen(network, optimizer), 1e-9)
