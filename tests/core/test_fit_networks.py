"""Networks that are not pure functions, batch norm, attention and recurrence."""

from __future__ import annotations

import pytest
import torch
from tests.contract_cases import (
    FunctionalDropout,
    Stop,
    assert_same_bits,
    blobs,
    model,
    pairwise_different,
    seeded,
    stop_at,
)
from torch import nn

import plausible as pl

X, Y = blobs()


def fit(of=None, method=None, data=(X, Y), **settings):
    settings = {"steps": 12, "batch_size": 16, "progress": False, "device": "cpu", **settings}
    return pl.fit(of or model(), data, method or pl.MAP(learning_rate=0.02), **settings)


# --- networks that are not pure functions ---


METHODS = [pl.MAP(learning_rate=0.02), pl.SWAG(rank=3, start=0.5), pl.HMC(trajectory_length=0.2, warmup=4)]


DRAWING = [(m, always) for m in METHODS for always in (False, True) if not (always and isinstance(m, pl.HMC))]


@pytest.mark.parametrize(("method", "always"), DRAWING)
@pytest.mark.parametrize("modes", [1, 4])
def test_a_network_that_draws_by_itself_is_reproducible_and_leaves_the_generator_alone(modes, method, always, tmp_path):
    of = model(seeded(lambda: FunctionalDropout(always)))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    whole = fit(of, method, num_modes=modes, validation=(X, Y))
    predicted = whole.predict(X, num_samples=5).outputs
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(whole.predict(X, num_samples=5).outputs, predicted)
    setting = pl.Checkpoint(tmp_path / "a", every_steps=5)
    with pytest.raises(Stop):
        fit(of, method, num_modes=modes, checkpoint=setting, callbacks=[stop_at(7)])
    assert_same_bits(fit(of, method, num_modes=modes, checkpoint=setting, resume=True), whole)
    if modes > 1:
        assert pairwise_different(whole.components)
    if modes > 1 and method.trains:  # looped, so that mode 0 is the lone run
        assert_same_bits(whole.components[0], fit(of, method))


def test_a_sampler_refuses_a_network_that_draws_in_eval_mode():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(pl.NotSupported, match="HMC.*training=self.training") as caught:
        fit(model(seeded(lambda: FunctionalDropout(always=True))), METHODS[2])
    assert "\n" not in str(caught.value)
    assert torch.equal(torch.get_rng_state(), before)


def test_functional_dropout_drops_in_training_and_not_in_prediction():
    def network():
        return seeded(FunctionalDropout)

    plain = seeded(lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)))
    dropped = fit(model(network()))
    assert not torch.equal(dropped.mean["a.weight"], fit(model(plain)).mean["0.weight"])
    w = dropped.mean
    expected = (X @ w["a.weight"].T + w["a.bias"]).tanh() @ w["b.weight"].T + w["b.bias"]
    torch.testing.assert_close(dropped.predict(X).outputs[0], expected)


class Counting(nn.Module):
    """Counts its training passes in a buffer and uses the count."""

    def __init__(self, in_place):
        super().__init__()
        self.layer, self.in_place = nn.Linear(2, 3), in_place
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        if self.training:
            if self.in_place:
                self.passes += 1
            else:
                self.passes = self.passes + 1
        return self.layer(x) * (1 + 0.01 * self.passes)


@pytest.mark.parametrize("vectorise", [None, True])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("modes", [1, 4])
def test_a_buffer_that_a_forward_pass_writes_is_kept_per_mode(modes, in_place, vectorise, tmp_path):
    network = Counting(in_place)
    of = model(network)
    whole = fit(of, num_modes=modes, vectorise=vectorise)
    assert float(network.passes) == 0
    for member in whole.components:
        assert float(member.bank["passes"][0]) == 12
        expected = (X @ member.mean["layer.weight"].T + member.mean["layer.bias"]) * 1.12
        torch.testing.assert_close(member.predict(X).outputs[0], expected)
    setting = pl.Checkpoint(tmp_path / "a", every_steps=5)
    with pytest.raises(Stop):
        fit(of, num_modes=modes, vectorise=vectorise, checkpoint=setting, callbacks=[stop_at(7)])
    resumed = fit(of, num_modes=modes, vectorise=vectorise, checkpoint=setting, resume=True)
    assert_same_bits(resumed, whole)
    whole.save(tmp_path / "b")
    assert torch.equal(pl.load(tmp_path / "b", Counting(in_place)).predict(X).outputs, whole.predict(X).outputs)


def test_an_earlier_fit_of_a_model_does_not_change_a_later_one():
    of = model(seeded(FunctionalDropout))
    chains = pl.HMC(trajectory_length=0.2, warmup=4)
    alone = fit(of, chains, num_modes=4)
    fit(of)
    assert_same_bits(fit(of, chains, num_modes=4), alone)


# --- batch norm ---


def normed():
    return seeded(lambda: nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))


def test_batch_norm_statistics_are_those_of_the_training_data_under_the_final_weights():
    posterior = fit(model(normed()))
    w = posterior.mean
    hidden = X @ w["0.weight"].T + w["0.bias"]
    torch.testing.assert_close(posterior.bank["1.running_mean"][0], hidden.mean(0), rtol=1e-4, atol=1e-5)
    one_batch = fit(model(normed()), batch_size=50)
    hidden = X @ one_batch.mean["0.weight"].T + one_batch.mean["0.bias"]
    torch.testing.assert_close(one_batch.bank["1.running_var"][0], hidden.var(0), rtol=1e-4, atol=1e-5)


def test_hmc_predicts_with_the_statistics_it_sampled_with():
    network = normed()
    with torch.no_grad():
        network[1].running_mean += 0.5
        network[1].running_var *= 2.0
    of = model(network)
    posterior = fit(of, pl.HMC(trajectory_length=0.2, warmup=4))
    draw = {k: v[3] for k, v in posterior.draws.items()}
    predictive = posterior.predict(X, num_samples=len(posterior))
    found = torch.log_softmax(predictive.outputs[3], 1).gather(1, Y[:, None]).sum()
    torch.testing.assert_close(found, of.log_likelihood(draw, (X, Y)))


# --- attention and recurrence ---


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Linear(1, 8), nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.embed(x.unsqueeze(-1))
        return self.out(self.attend(tokens, tokens, tokens)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.lstm(x.unsqueeze(-1))[0][:, -1])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("network", [Attentive, Recurrent])
@pytest.mark.parametrize("modes", [1, 4])
def test_attention_and_recurrence_train_in_one_mode_and_in_several(network, method, modes):
    of = model(seeded(network))
    posterior = fit(of, method, num_modes=modes, steps=6 if modes > 1 else 12)
    assert pairwise_different(posterior.components)
    predictive = posterior.predict(X, num_samples=4)
    assert bool(torch.isfinite(predictive.probs).all())
    assert_same_bits(posterior, fit(of, method, num_modes=modes, steps=6 if modes > 1 else 12))
