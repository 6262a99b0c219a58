"""Methods that look more closely at some batches: when, at which, and with which random numbers."""

from dataclasses import dataclass

import torch
from torch import nn

import plausible as pl
from plausible.core.posteriors import Delta


@dataclass(frozen=True, kw_only=True)
class Looking(pl.Method):
    """Adds up the batches it looked at and those of its steps, each times the first random number of the moment."""

    def init(self, model, params):
        zero = torch.zeros((), dtype=torch.float64)
        return {"params": params, "looked": zero, "stepped": zero.clone(), "times": zero.clone()}

    def probed_steps(self, num_steps):
        return range(1, num_steps, 3)

    def probe(self, model, state, batch, rng):
        return {
            **state,
            "looked": state["looked"] + batch[0].double().sum() * rng.normal(),
            "times": state["times"] + 1,
        }

    def step(self, model, state, batch, rng):
        # What a look added is undone by the step that it was before, and by no other.
        of_this = ((rng.step - 1) % 3 == 0) & (rng.step >= 1)
        state["stepped"] += batch[0].double().sum() * rng.normal() * of_this
        return state, {"log_joint": model.slope(state["params"], batch)[0]}

    def posterior(self, model, state, draws):
        Looking.seen.append({k: float(state[k]) for k in ("looked", "stepped", "times")})
        return Delta(model, state["params"])


def test_a_look_is_at_the_batch_and_with_the_keys_of_the_step_it_comes_before():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=1.0))
    for vectorise in (False, True):
        Looking.seen = []
        pl.fit(
            model, (x, x[:, :1]), Looking(), steps=8, batch_size=6, num_modes=3, vectorise=vectorise, progress=False,
            device="cpu",
        )  # fmt: skip
        assert len(Looking.seen) == 3
        for seen in Looking.seen:
            assert seen["times"] == 3
            assert abs(seen["looked"]) > 1e-3 and abs(seen["looked"] - seen["stepped"]) < 1e-5
        assert len({seen["looked"] for seen in Looking.seen}) == 3  # modes draw numbers of their own


def test_a_method_is_told_a_few_inputs_before_its_state_is_made():
    told = []

    @dataclass(frozen=True, kw_only=True)
    class Asking(Looking):
        def init(self, model, params):
            told.append(model.example)
            return super().init(model, params)

    Looking.seen = []
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.Normal(scale=1.0))
    posterior = pl.fit(model, (torch.ones(20, 2), torch.ones(20, 1)), Asking(), steps=2, progress=False, device="cpu")
    assert told[0].shape == (4, 2) and (told[0] == 1).all()
    assert posterior.model.example is None  # data do not stay in the answer
