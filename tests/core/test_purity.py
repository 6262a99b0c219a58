"""A step never reads a tensor back and never builds one from a Python number: it could not be captured otherwise."""

from __future__ import annotations

import pytest
import torch
from tests.contract_cases import CASES, blobs, fit, model
from torch.utils._python_dispatch import TorchDispatchMode

import plausible as pl
from plausible.core.method import Trajectory

READS = {"aten._local_scalar_dense.default", "aten.item.default", "aten.equal.default", "aten.nonzero.default"}
MADE_FROM_NUMBERS = {
    "aten.scalar_tensor.default",
    "aten.lift_fresh.default",
    "aten.tensor.default",
    "aten.lift_fresh_copy.default",
}


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))

    @property
    def impure(self) -> list[str]:
        return [name for name in self.seen if name in READS | MADE_FROM_NUMBERS]


def watch_steps(monkeypatch, method_class) -> Watch:
    watch = Watch()

    def watched(original):
        def call(self, *args):
            with watch:
                return original(self, *args)

        return call

    for name in ("begin", "move", "end") if issubclass(method_class, Trajectory) else ("step",):
        monkeypatch.setattr(method_class, name, watched(getattr(method_class, name)))
    return watch


def test_the_watch_sees_what_it_must():
    with Watch() as watch:
        torch.tensor(1.0)
        torch.ones(1).item()
        torch.where(torch.ones(2) > 0, torch.ones(2), 0.5)
    assert len(watch.impure) >= 3


@pytest.mark.parametrize("name", CASES)
def test_a_step_neither_reads_a_tensor_back_nor_builds_one_from_a_number(name, monkeypatch):
    base, _ = CASES[name].method.unfold()
    watch = watch_steps(monkeypatch, type(base))
    fit(name, vectorise=False)
    assert len(watch.seen) > 100, "no step was watched"
    assert not watch.impure


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one-cycle", "step", "warm-up"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_no_optimizer_and_no_schedule_of_map_is_impure(optimizer, schedule, monkeypatch):
    watch = watch_steps(monkeypatch, pl.MAP)
    method = pl.MAP(optimizer=optimizer, schedule=schedule, clip_norm=1.0)
    pl.fit(model(), blobs(), method, steps=3, batch_size=16, progress=False, device="cpu")
    assert watch.seen and not watch.impure


@pytest.mark.parametrize(
    ("prior", "likelihood", "outputs"),
    [
        (pl.priors.Laplace(scale=1.0), pl.likelihoods.Normal(scale=0.5), 1),
        (pl.priors.StudentT(df=5.0), pl.likelihoods.Normal(scale="learn"), 1),
        (pl.priors.Cauchy(scale=1.0), pl.likelihoods.StudentT(df=4.0, scale=1.0), 1),
        (pl.priors.ScaleMixture((1.0, 0.1), (0.5, 0.5)), pl.likelihoods.HeteroscedasticNormal(), 2),
        (pl.priors.fan_in(pl.priors.Normal(scale=1.0)), pl.likelihoods.CensoredNormal(scale=1.0, lower=0.0), 1),
        (pl.priors.Normal(scale=pl.hyperpriors.LogNormal()), pl.likelihoods.Normal(scale=1.0), 1),
    ],
)
def test_no_prior_and_no_likelihood_makes_a_step_impure(prior, likelihood, outputs, monkeypatch):
    watch = watch_steps(monkeypatch, pl.MAP)
    x, y = blobs()
    bayes = pl.BayesianModel(torch.nn.Linear(2, outputs), likelihood, prior)
    pl.fit(bayes, (x, y.float().unsqueeze(-1)), pl.MAP(), steps=3, batch_size=16, progress=False, device="cpu")
    # scalar_tensor is how torch's own backward formulas write the zero of a where; it stays on the device.
    assert watch.seen and not [name for name in watch.impure if name != "aten.scalar_tensor.default"]
