"""Modes that run together under vmap, and steps that are compiled, against the plain way."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from tests.contract_cases import (
    CASES,
    NETWORKS,
    ONE_MODE,
    Stop,
    assert_same_bits,
    blobs,
    data_for,
    fit,
    furthest,
    mlp,
    model,
    seeded,
    stop_at,
)

import plausible as pl

WITHOUT_REJECTION = [name for name in ONE_MODE if not CASES[name].rejects]


@pytest.mark.parametrize("name", WITHOUT_REJECTION)
def test_a_vectorised_mode_equals_its_lone_twin_over_twenty_steps_of_float32(name):
    together = fit(name, num_modes=4, steps=20, vectorise=True).components
    apart = fit(name, num_modes=4, steps=20, vectorise=False).components
    assert max(furthest(a, b) for a, b in zip(together, apart, strict=True)) < 1e-4
    assert furthest(together[0], fit(name, steps=20)) < 1e-4


LONG = {
    "MAP": pl.MAP(learning_rate=0.01),
    "MAP-sgd": pl.MAP(optimizer="sgd", learning_rate=0.05, clip_norm=1.0),
    "MAP-adamw": pl.MAP(optimizer="adamw", learning_rate=0.01),
    "SWAG": pl.SWAG(rank=5),
    "Laplace": pl.Laplace(base=pl.MAP(learning_rate=0.01)),
    "Laplace-diagonal": pl.Laplace(structure="diagonal", base=pl.MAP(learning_rate=0.01)),
    "Laplace-low-rank": pl.Laplace(structure="low-rank", rank=3, base=pl.MAP(learning_rate=0.01)),
    "Laplace-full": pl.Laplace(structure="full", subset="last-layer", base=pl.MAP(learning_rate=0.01)),
    "SGLD": pl.SGLD(),
    "SGLD-preconditioned": pl.SGLD(preconditioned=True),
    "SGHMC": pl.SGHMC(),
    "SGHMC-saga": pl.SGHMC(variance_reduction="saga"),
    "CyclicalSGMCMC": pl.CyclicalSGMCMC(base=pl.SGHMC(variance_reduction="svrg")),
    "BayesByBackprop": pl.BayesByBackprop(learning_rate=0.01),
    "ADVI": pl.ADVI(learning_rate=0.01),
    "ADVI-low-rank": pl.ADVI(family="low-rank", rank=3, num_samples=4, learning_rate=0.01),
    "ADVI-full": pl.ADVI(family="full", estimator="sticking-the-landing", learning_rate=0.01),
    "ADVI-adaptive": pl.ADVI(optimizer="adaptive"),
    "MCDropout": pl.MCDropout(base=pl.MAP(learning_rate=0.01)),
    "ConcreteDropout": pl.ConcreteDropout(base=pl.MAP(learning_rate=0.01)),
    "VOGN": pl.VOGN(),
    "OGN": pl.OGN(),
    "IVON": pl.IVON(),
    "NaturalGradientVI": pl.NaturalGradientVI(learning_rate=0.01),  # longer steps make much of the last bits
    "KFAC": pl.KFAC(),
    "NoisyKFAC": pl.NoisyKFAC(),
    "HMC": pl.HMC(step_size=0.1, trajectory_length=0.2, warmup=400),
    "NUTS": pl.NUTS(step_size=0.1, max_depth=2, warmup=400),
    "MALA": pl.MALA(step_size=0.1, warmup=400),
    "Metropolis": pl.Metropolis(scale=0.05, warmup=400),
}


def test_every_method_has_a_long_twin_test():
    tested = {type(m) for m in LONG.values()}
    assert {type(CASES[name].method) for name in ONE_MODE} <= tested


@pytest.mark.parametrize("name", [n if n in ("MAP", "SWAG") else pytest.param(n, marks=pytest.mark.slow) for n in LONG])
def test_a_vectorised_mode_equals_its_lone_twin_over_a_thousand_steps_of_float64(name):
    def run(vectorise):
        return pl.fit(
            model(mlp(torch.float64)), blobs(dtype=torch.float64), LONG[name], steps=1000, batch_size=25, num_modes=2,
            vectorise=vectorise, progress=False, device="cpu",
        )  # fmt: skip

    assert furthest(run(True), run(False)) < 1e-10


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_network_vectorises(kind, caplog):
    with caplog.at_level(logging.WARNING, "plausible"):
        together = fit("MAP", model(NETWORKS[kind]()), data_for(kind), num_modes=4, vectorise=True)
    assert not caplog.records, "vmap failed, so that the comparison would be of the loop with itself"
    apart = fit("MAP", model(NETWORKS[kind]()), data_for(kind), num_modes=4, vectorise=False)
    assert furthest(together, apart) < 1e-4


def twice(name, **settings):
    """The same run compiled and eager, in double precision."""
    method = CASES[name].method
    if CASES[name].rejects:
        # Dual averaging feeds the last bits back, twentyfold a step at first; a step size that is given does not.
        method = replace(method, **{"scale" if isinstance(method, pl.Metropolis) else "step_size": 0.1})
    settings = {"batch_size": 16, "progress": False, "device": "cpu", **settings}
    data = blobs(dtype=torch.float64)
    return [pl.fit(model(mlp(torch.float64)), data, method, compile=c, **settings) for c in (True, False)]


COMPILED = [("MAP", 1), ("HMC", 1)]
COMPILED_SLOWLY = [
    (name, modes)
    for name in ONE_MODE
    for modes in (1, 4)
    if (name, modes) not in COMPILED and CASES[name].method.compiles
]


@pytest.mark.parametrize(
    ("name", "modes"),
    [*COMPILED, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in COMPILED_SLOWLY)],
)
def test_a_compiled_run_equals_the_eager_one(name, modes, caplog):
    with caplog.at_level(logging.WARNING, "plausible"):
        compiled, eager = twice(name, num_modes=modes, steps=24)
    assert not caplog.records, "the compiler gave up, so that the comparison would be of eager steps with themselves"
    assert furthest(compiled, eager) < 1e-10


@pytest.mark.slow
def test_a_compiled_run_resumes_to_the_same_bits(tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=5)
    with pytest.raises(Stop):
        fit("MAP", compile=True, checkpoint=setting, callbacks=[stop_at(11)])
    resumed = fit("MAP", compile=True, checkpoint=setting, resume=True)
    assert_same_bits(resumed, fit("MAP", compile=True))


class Branching(torch.nn.Module):
    """Looks at a weight to decide, which vmap cannot do."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.a(x) if self.a.weight.sum() > -1e9 else self.b(x)


@pytest.mark.parametrize("name", ["MAP", "SWAG", "HMC"])
def test_a_network_that_vmap_cannot_run_is_looped_with_one_line_and_resumes(name, tmp_path, caplog):
    network = seeded(Branching)
    with caplog.at_level(logging.WARNING, "plausible"):
        whole = fit(name, model(network), num_modes=4)
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 1 and "one after another" in messages[0] and "\n" not in messages[0]
    assert_same_bits(whole, fit(name, model(network), num_modes=4, vectorise=False))
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=5)
    with pytest.raises(Stop):
        fit(name, model(network), num_modes=4, checkpoint=setting, callbacks=[stop_at(12)])
    assert_same_bits(fit(name, model(network), num_modes=4, checkpoint=setting, resume=True), whole)
