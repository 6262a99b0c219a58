"""The contract that every public method keeps. The table of cases is in contract_cases.py, more tests in contract/."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors import safe_open
from tests.contract_cases import (
    CASES,
    NETWORKS,
    ONE_MODE,
    PLAIN,
    Stop,
    assert_same_bits,
    blobs,
    data_for,
    differ,
    fit,
    inputs_for,
    mlp,
    model,
    pairwise_different,
    public_methods,
    stop_at,
)

import plausible as pl

every_case = pytest.mark.parametrize("name", CASES)
every_method = pytest.mark.parametrize("name", PLAIN)
every_unmasked_case = pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.masks])


def test_every_public_method_is_in_the_table():
    covered = {type(case.method) for case in CASES.values()}
    assert public_methods(), "the list of public methods is empty, so nothing would be tested"
    missing = [c.__name__ for c in public_methods() if c not in covered]
    assert not missing, f"add these to CASES: {missing}"


# --- randomness ---


@every_case
def test_the_same_seed_gives_the_same_posterior_to_the_bit(name):
    assert_same_bits(fit(name, seed=5), fit(name, seed=5))


@every_case
def test_another_seed_gives_another_posterior(name):
    assert differ(fit(name, seed=5), fit(name, seed=6))


@every_case
def test_the_global_generator_is_untouched_and_has_no_say(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    posterior = fit(name)
    posterior.predict(blobs()[0], num_samples=4)
    posterior.sample(2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_same_bits(posterior, fit(name))


@every_method
def test_members_differ_pairwise(name):
    modes = {} if CASES[name].method.unfold()[1] else {"num_modes": 4}
    members = fit(name, **modes).components
    assert len(members) >= 3
    assert pairwise_different(members)


@pytest.mark.parametrize("name", ONE_MODE)
def test_mode_two_of_four_equals_mode_two_of_seven_to_the_bit(name):
    few, many = (fit(name, num_modes=m, vectorise=True).components for m in (4, 7))
    assert_same_bits(few[2], many[2])


@pytest.mark.parametrize("name", ONE_MODE)
def test_a_looped_mode_equals_the_lone_run_to_the_bit(name):
    assert_same_bits(fit(name, num_modes=3, vectorise=False).components[0], fit(name))


# --- what belongs to the user ---


@pytest.mark.parametrize("kind", NETWORKS)
@every_method
def test_the_users_network_is_untouched(name, kind):
    network = NETWORKS[kind]()
    network.train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    flags = [p.requires_grad for p in network.parameters()]
    posterior = fit(name, model(network), data_for(kind))
    posterior.predict(inputs_for(kind), num_samples=4)
    after = network.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(v, after[k]) for k, v in before.items())
    assert [p.requires_grad for p in network.parameters()] == flags
    assert all(p.grad is None for p in network.parameters())
    assert all(m.training for m in network.modules())


def test_the_users_data_are_untouched():
    x, y = blobs()
    kept = x.clone(), y.clone()
    fit("MAP", data=(x, y), augment=lambda inputs: inputs + torch.randn_like(inputs))
    assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


# --- files ---


@pytest.mark.parametrize("kind", NETWORKS)
@every_method
def test_a_saved_and_loaded_posterior_predicts_the_same_to_the_bit(name, kind, tmp_path):
    posterior = fit(name, model(NETWORKS[kind](), temperature=0.5), data_for(kind))
    posterior.save(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", NETWORKS[kind]())
    assert type(loaded) is type(posterior)
    assert_same_bits(posterior, loaded)
    x = inputs_for(kind)
    assert torch.equal(posterior.predict(x, num_samples=8).outputs, loaded.predict(x, num_samples=8).outputs)
    assert loaded.model.temperature == 0.5 and loaded.model.num_data == 50


@every_case
def test_a_run_that_was_stopped_resumes_to_the_same_bits(name, tmp_path):
    steps = CASES[name].steps
    whole = fit(name)
    path = tmp_path / "run.ckpt"
    for step in (0, 6, steps - 2):
        path.unlink(missing_ok=True)
        setting = pl.Checkpoint(path, every_steps=3)
        with pytest.raises(Stop):
            fit(name, checkpoint=setting, callbacks=[stop_at(step)])
        assert path.exists() == (step > 2)
        assert_same_bits(fit(name, checkpoint=setting, resume=True), whole)


@every_case
def test_a_finished_run_resumes_to_the_same_bits_without_another_step(name, tmp_path):
    whole = fit(name, checkpoint=tmp_path / "run.ckpt")
    seen = []
    again = fit(name, checkpoint=tmp_path / "run.ckpt", resume=True, callbacks=[seen.append])
    assert_same_bits(again, whole)
    assert not seen


@pytest.mark.parametrize("name", ONE_MODE)
def test_vectorised_modes_resume_to_the_same_bits(name, tmp_path):
    settings = {"num_modes": 4, "vectorise": True}
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=4)
    with pytest.raises(Stop):
        fit(name, checkpoint=setting, callbacks=[stop_at(13)], **settings)
    assert_same_bits(fit(name, checkpoint=setting, resume=True, **settings), fit(name, **settings))


@pytest.mark.parametrize("kind", NETWORKS)
@every_method
def test_every_kind_of_network_resumes_to_the_same_bits(name, kind, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=5)
    with pytest.raises(Stop):
        fit(name, model(NETWORKS[kind]()), data_for(kind), checkpoint=setting, callbacks=[stop_at(12)])
    resumed = fit(name, model(NETWORKS[kind]()), data_for(kind), checkpoint=setting, resume=True)
    assert_same_bits(resumed, fit(name, model(NETWORKS[kind]()), data_for(kind)))


def reorder(path):
    """Turn the order of a safetensors file's entries round: names travel with their offsets, no tensor changes."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8:end])
    turned = json.dumps({k: table[k] for k in reversed(table)}).encode()
    turned += b" " * (-len(turned) % 8)
    path.write_bytes(len(turned).to_bytes(8, "little") + turned + raw[end:])
    with safe_open(path, framework="pt") as handle:
        assert set(handle.keys()) == table.keys() - {"__metadata__"}


@every_case
def test_a_checkpoint_whose_entries_were_reordered_resumes_to_the_same_bits(name, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=7)
    with pytest.raises(Stop):
        fit(name, checkpoint=setting, callbacks=[stop_at(16)])
    reorder(tmp_path / "run.ckpt")
    assert_same_bits(fit(name, checkpoint=setting, resume=True), fit(name))


@every_method
def test_a_posterior_whose_entries_were_reordered_predicts_the_same(name, tmp_path):
    posterior = fit(name)
    posterior.save(tmp_path / "a.plausible")
    reorder(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", mlp())
    x = blobs()[0]
    assert torch.equal(loaded.predict(x, num_samples=8).outputs, posterior.predict(x, num_samples=8).outputs)


# --- predictions ---


@every_method
def test_total_uncertainty_is_aleatoric_and_epistemic_together(name):
    predictive = fit(name).predict(blobs()[0], num_samples=16)
    assert torch.equal(predictive.total, predictive.aleatoric + predictive.epistemic)
    assert float(predictive.epistemic.min()) >= -1e-6
    entropy = torch.distributions.Categorical(probs=predictive.probs).entropy()  # of the mixture, computed apart
    torch.testing.assert_close(predictive.total, entropy, atol=1e-5, rtol=1e-5)


@every_method
def test_predictions_are_finite_normalised_and_repeatable(name):
    posterior = fit(name)
    first, second = (posterior.predict(blobs()[0], num_samples=8) for _ in range(2))
    assert torch.equal(first.outputs, second.outputs)
    torch.testing.assert_close(first.probs.sum(1), torch.ones(50))
    assert bool(torch.isfinite(first.log_prob(blobs()[1])).all())


# --- one scale ---


def first_slope(monkeypatch, name, **settings):
    """The log joint that a method sees first, and the network it sees: with its own weights, or with a draw around them."""
    seen = []
    original = pl.BayesianModel.slope

    def watched(self, params, batch, *rest):
        value, slopes = original(self, params, batch, *rest)
        seen.append((float(value), {k: v.detach().clone() for k, v in params.items()}))
        return value, slopes

    value_alone = pl.BayesianModel.value

    def watched_value(self, params, batch, *rest):  # of methods that take no slope
        value = value_alone(self, params, batch, *rest)
        seen.append((float(value), {k: v.detach().clone() for k, v in params.items()}))
        return value

    rest_alone = pl.BayesianModel.add_remainder

    def watched_rest(self, value, params, slopes):  # of methods that differentiate the likelihood themselves
        value, slopes = rest_alone(self, value, params, slopes)
        if not seen:
            seen.append((float(value), {k: v.detach().clone() for k, v in params.items()}))
        return value, slopes

    with monkeypatch.context() as patch:
        patch.setattr(pl.BayesianModel, "add_remainder", watched_rest)
        patch.setattr(pl.BayesianModel, "slope", watched)
        patch.setattr(pl.BayesianModel, "value", watched_value)
        fit(name, vectorise=False, compile=False, **settings)
    value, params = seen[0]
    network = mlp()
    network.load_state_dict(params)
    return value, network


def by_hand(network, likelihood_scale, temperature=1.0):
    """[scale · Σ log p(y | x, w) + log N(w; 0, 1)] / T, without a line of the library."""
    x, y = blobs()
    with torch.no_grad():
        likelihood = -torch.nn.functional.cross_entropy(network(x), y, reduction="sum")
        prior = sum((-0.5 * p.double() ** 2 - 0.5 * math.log(2 * math.pi)).sum() for p in network.parameters())
        return float((likelihood_scale * likelihood + prior) / temperature)


@every_unmasked_case
def test_temperature_divides_what_a_method_sees(name, monkeypatch):
    found, network = first_slope(monkeypatch, name, own_model=model(temperature=0.25), batch_size=50)
    assert found == pytest.approx(by_hand(network, 1.0, temperature=0.25), rel=1e-5)


@every_unmasked_case
def test_n_scales_the_likelihood_and_not_the_prior(name, monkeypatch):
    found, network = first_slope(monkeypatch, name, num_data=150, batch_size=50)
    assert found == pytest.approx(by_hand(network, 3.0), rel=1e-5)


@every_unmasked_case
def test_weights_count_as_examples(name, monkeypatch):
    x, y = blobs()
    found, network = first_slope(monkeypatch, name, data=(x, y, torch.full((50,), 2.0)), batch_size=50)
    assert found == pytest.approx(by_hand(network, 2.0), rel=1e-5)


@pytest.mark.parametrize("batch_size", [7, 16, 50])
def test_log_joints_of_an_epoch_average_to_that_of_all_data_whatever_the_batch_size(batch_size):
    seen = []
    pl.fit(
        model(), blobs(), pl.MAP(learning_rate=1e-12), epochs=1, batch_size=batch_size, progress=False, device="cpu",
        callbacks=[lambda event: seen.append(float(event["log_joint"]))],
    )  # fmt: skip
    sizes = [len(part) for part in torch.arange(50).split(batch_size)]
    average = sum(size * value for size, value in zip(sizes, seen, strict=True)) / 50
    assert average == pytest.approx(by_hand(mlp(), 1.0), rel=1e-5)
