"""All data in chunks: what a method that sees all of them finds must not depend on how they are cut."""

from __future__ import annotations

import pytest
import torch
from tests.contract_cases import Stop, assert_same_bits, stop_at
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import plausible as pl
from plausible.core import whole_data
from plausible.core.chunks import HeldChunks, ReadChunks, parts
from plausible.core.data import make_source
from plausible.core.model import InternalBatch

RNG = torch.Generator().manual_seed(0)
X = torch.randn(50, 3, generator=RNG, dtype=torch.float64)
Y = X.sum(1, keepdim=True).sin()
WEIGHTS = torch.rand(50, generator=RNG, dtype=torch.float64) + 0.5
CPU = torch.device("cpu")
QUIET = {"progress": False, "device": "cpu", "compile": False}
SAMPLERS = [
    pl.HMC(step_size=0.02, trajectory_length=0.1, warmup=2),
    pl.NUTS(step_size=0.05, max_depth=2, warmup=2),
    pl.MALA(step_size=0.05, warmup=2),
    pl.Metropolis(scale=0.05, warmup=2),
]
PRIORS = {
    "with a score": pl.priors.Normal(scale=0.7),
    "without a score": pl.priors.ScaleMixture((1.0, 0.1), (0.5, 0.5)),
    "with an unknown scale": pl.priors.Hierarchical(),
}


class Seen(list):
    """One list, however often a network that has it is copied."""

    def __deepcopy__(self, memo):
        return self


class Watched(nn.Sequential):
    """A network that notes how many examples it is given at a time."""

    def __init__(self, seen: Seen):
        torch.manual_seed(1)
        super().__init__(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.double().seen = seen

    def forward(self, x):
        self.seen.append(x.shape[-2])
        return super().forward(x)


class Rows(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


def model(seen=None, prior=PRIORS["with a score"], temperature=1.0):
    network = Watched(Seen() if seen is None else seen)
    return pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.3), prior=prior, temperature=temperature)


@pytest.fixture
def small_budget(monkeypatch):
    """About a dozen of the fifty examples at a time."""
    held, made = whole_data._bytes_per_example(model(), source((X, Y)), CPU)
    assert held == 3 * 8 and made > held
    monkeypatch.setattr(whole_data, "PASS_BUDGET", 13 * made)


def source(data):
    return make_source(model(), data, batch_size=16, seed=0, device=CPU)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_log_joint_and_its_slope_are_the_sums_over_chunks(prior, temperature):
    target = model(prior=PRIORS[prior], temperature=temperature).bound(num_data=50.0)
    batch = InternalBatch((X, Y, WEIGHTS))
    params = target.init(seed=3)
    whole, slope = target.slope(params, batch)
    for size in (7, 25, 49):
        chunks = HeldChunks(parts(batch, size), CPU)
        assert [len(b[0]) for b in chunks] == [size] * (50 // size) + ([50 % size] if 50 % size else [])
        value, slopes = target.slope(params, chunks)
        torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-10)
        torch.testing.assert_close(target.value(params, chunks), whole, rtol=1e-12, atol=1e-10)
        for k, s in slope.items():
            torch.testing.assert_close(slopes[k], s, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "vectorise"),
    list(zip(SAMPLERS, [False, True, True, True], strict=True)),
    ids=["HMC apart", "NUTS together", "MALA together", "Metropolis together"],
)
def test_a_chain_over_chunks_is_the_chain_over_all_data(method, vectorise, small_budget, monkeypatch):
    settings = {**QUIET, "steps": 5, "num_modes": 2, "vectorise": vectorise}
    chunked = pl.fit(model(), (X, Y, WEIGHTS), method, **settings)
    monkeypatch.setattr(whole_data, "PASS_BUDGET", 2**40)
    whole = pl.fit(model(), (X, Y, WEIGHTS), method, **settings)
    for found, expected in zip(chunked.components, whole.components, strict=True):
        for k, v in expected.draws.items():
            torch.testing.assert_close(found.draws[k], v, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["tensors", "dataset", "loader", "read again at every pass"])
def test_no_pass_sees_more_examples_than_fit(form, small_budget, monkeypatch):
    if form == "read again at every pass":
        monkeypatch.setattr(whole_data, "HELD_BUDGET", 100)
    data = {"tensors": (X, Y), "dataset": Rows(), "loader": DataLoader(Rows(), batch_size=30, shuffle=True)}
    given, seen, told = data.get(form, data["loader"]), Seen(), []
    pl.fit(model(seen), given, SAMPLERS[2], steps=4, callbacks=[told.append], vectorise=False, **QUIET)
    assert max(seen) <= 13 and sum(seen) > 4 * 50
    monkeypatch.setattr(whole_data, "PASS_BUDGET", 2**40)
    expected = []
    pl.fit(model(seen), (X, Y), SAMPLERS[2], steps=4, callbacks=[expected.append], vectorise=False, **QUIET)
    assert max(seen) == 50
    for mine, theirs in zip(told, expected, strict=True):
        torch.testing.assert_close(mine["log_joint"], theirs["log_joint"], rtol=1e-9, atol=1e-9)


def test_modes_that_run_together_share_the_budget(small_budget):
    target = model().bound(num_data=50.0)
    alone = whole_data.whole_data(source((X, Y)), target, CPU, 1)
    together = whole_data.whole_data(source((X, Y)), target, CPU, 6)
    assert [len(b[0]) for b in alone] == [13, 13, 13, 11] and {len(b[0]) for b in together} == {2}


def test_data_that_do_not_fit_are_never_held(small_budget, monkeypatch):
    monkeypatch.setattr(whole_data, "HELD_BUDGET", 100)
    found = whole_data.whole_data(source(Rows()), model().bound(num_data=50.0), CPU, 1)
    assert isinstance(found, ReadChunks)
    for _ in range(2):  # the same ones again
        inputs = torch.cat([b[0] for b in found])
        torch.testing.assert_close(inputs.sort(0).values, X.sort(0).values)
    assert float(sum(b[2].sum() for b in found)) == pytest.approx(50.0)


class Weighted(Rows):
    def __getitem__(self, i):
        return X[i], Y[i], WEIGHTS[i] / 100


class WeightedStream(IterableDataset):
    def __iter__(self):
        return iter(Weighted()[i] for i in range(50))


@pytest.mark.parametrize("kind", [Weighted, WeightedStream])
def test_chunks_follow_from_the_number_of_examples_and_not_from_what_they_weigh(kind, small_budget):
    total = float(WEIGHTS.sum() / 100)
    loader = DataLoader(kind(), batch_size=10)
    given = make_source(model(), loader, batch_size=10, seed=0, device=CPU, num_data=total)
    found = whole_data.whole_data(given, model().bound(num_data=total), CPU, 1)
    assert [len(b[0]) for b in found] == [13, 13, 13, 11]
    assert float(sum(b[2].sum() for b in found)) == pytest.approx(total)


def test_runs_with_data_of_their_own_are_chunked_side_by_side(small_budget, monkeypatch):
    sets = [(X, Y), (X.flip(1), 2 * Y)]
    settings = {**QUIET, "steps": 6, "seed": 1}
    together = pl.fit_many(model(), sets, SAMPLERS[0], vectorise=True, **settings)
    monkeypatch.setattr(whole_data, "PASS_BUDGET", 2**40)
    for found, data in zip(together, sets, strict=True):
        expected = pl.fit(model(), data, SAMPLERS[0], **settings)
        for k, v in expected.draws.items():
            torch.testing.assert_close(found.draws[k], v, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("data", [(X, Y), Rows()], ids=["tensors", "dataset"])
def test_a_chunked_run_resumes_to_the_same_bits_and_refuses_other_chunks(data, small_budget, monkeypatch, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    settings = {**QUIET, "steps": 9, "checkpoint": setting}
    expected = pl.fit(model(), data, SAMPLERS[2], steps=9, **QUIET)
    with pytest.raises(Stop):
        pl.fit(model(), data, SAMPLERS[2], callbacks=[stop_at(7)], **settings)
    budget = whole_data.PASS_BUDGET
    monkeypatch.setattr(whole_data, "PASS_BUDGET", budget // 2)
    with pytest.raises(ValueError, match="checkpoint of another run: chunks was 4, now 9"):
        pl.fit(model(), data, SAMPLERS[2], resume=True, **settings)
    monkeypatch.setattr(whole_data, "PASS_BUDGET", budget)
    assert_same_bits(expected, pl.fit(model(), data, SAMPLERS[2], resume=True, **settings))


class Squeezed(nn.Sequential):
    """A network that forgets the axis of a lone example."""

    def forward(self, x):
        return super().forward(x).squeeze()


def test_a_network_need_not_run_on_a_lone_example():
    model = pl.BayesianModel(Squeezed(nn.Linear(3, 1)).double(), pl.likelihoods.Normal(scale=0.5))
    chain = pl.fit(model, (X, Y.squeeze()), SAMPLERS[0], steps=4, **QUIET)
    assert len(chain) == 2
