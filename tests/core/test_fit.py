"""The loop: where runs start, what trains, and the networks that people bring."""

from __future__ import annotations

import math

import pytest
import torch
from tests.contract_cases import Stop, assert_same_bits, blobs, differ, mlp, model, seeded, stop_at
from torch import nn
from torch.nn import functional as F

import plausible as pl
from plausible.core.schedules import registry

X, Y = blobs()


def fit(of=None, method=None, data=(X, Y), **settings):
    settings = {"steps": 12, "batch_size": 16, "progress": False, "device": "cpu", **settings}
    return pl.fit(of or model(), data, method or pl.MAP(learning_rate=0.02), **settings)


def starts_of(**settings):
    posterior = pl.fit(
        settings.pop("of", None) or model(), (X, Y), pl.MAP(), epochs=0, progress=False, device="cpu", **settings
    )
    return [c.mean for c in posterior.components]


def equal(a, b):
    return all(torch.equal(v, b[k]) for k, v in a.items())


# --- where a run starts ---


def test_no_epochs_train_nothing():
    (start,) = starts_of()
    assert equal(dict(mlp().named_parameters()), start)


def test_mode_0_starts_at_the_networks_own_weights_and_the_others_do_not():
    own = dict(mlp().named_parameters())
    first, *rest = starts_of(num_modes=4)
    assert equal(own, first)
    assert all(not torch.equal(own["0.weight"], r["0.weight"]) for r in rest)
    assert not torch.equal(rest[0]["0.weight"], rest[1]["0.weight"])


def test_reset_starts_every_mode_afresh_and_by_the_layers_own_rule():
    own = dict(mlp().named_parameters())
    for start in starts_of(num_modes=3, init="reset"):
        assert not torch.equal(own["0.weight"], start["0.weight"])
        assert float(start["0.weight"].abs().max()) <= 1 / math.sqrt(2)  # Linear draws from ±1/√inputs


def test_starting_from_the_prior_draws_from_it():
    of = model(nn.Linear(2, 400), prior=pl.priors.Normal(scale=3.0))
    (start,) = pl.fit(of, (X, Y), pl.MAP(), epochs=0, init="prior", progress=False, device="cpu").components
    weights = torch.cat([v.flatten() for v in start.mean.values()])
    assert float(weights.std()) == pytest.approx(
        3.0, abs=4 * 3.0 / math.sqrt(2 * 1200)
    )  # 4 standard errors of a deviation


def test_network_starts_every_mode_at_the_networks_weights():
    assert all(equal(dict(mlp().named_parameters()), s) for s in starts_of(num_modes=2, init="network"))


def test_a_posterior_is_a_warm_start():
    first = fit()
    assert equal(first.mean, starts_of(init=first)[0])
    ensemble = fit(num_modes=3)
    assert all(
        equal(c.mean, s) for c, s in zip(ensemble.components, starts_of(init=ensemble, num_modes=3), strict=True)
    )


def test_params_are_a_start_for_one_mode_or_for_all():
    one = {k: torch.randn_like(v) for k, v in model().start.items()}
    assert all(equal(one, s) for s in starts_of(init=one, num_modes=2))
    many = {k: torch.stack([v, v + 1]) for k, v in one.items()}
    assert equal({k: v + 1 for k, v in one.items()}, starts_of(init=many, num_modes=2)[1])


def test_a_start_that_was_given_is_not_written_to():
    given = {k: v.clone() for k, v in model().start.items()}
    kept = {k: v.clone() for k, v in given.items()}
    fit(init=given)
    assert equal(kept, given)


def test_a_trained_network_is_fine_tuned():
    trained = mlp()
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(trained(X), Y).backward()
        optimizer.step()
    seen = []
    fit(model(trained), steps=1, batch_size=50, callbacks=[seen.append])
    expected = model(trained).log_joint(dict(trained.named_parameters()), (X, Y), num_data=50)
    assert float(seen[0]["log_joint"]) == pytest.approx(float(expected.detach()), rel=1e-5)


# --- what trains ---


def test_map_by_sgd_is_the_loop_that_anybody_would_write():
    network = mlp()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(30):
        optimizer.zero_grad()
        decay = sum(0.5 * p.square().sum() for p in network.parameters())
        ((F.cross_entropy(network(X), Y, reduction="sum") + decay) / 50).backward()
        optimizer.step()
    method = pl.MAP(optimizer="sgd", learning_rate=0.1, momentum=0.9, schedule="constant")
    found = fit(method=method, steps=30, batch_size=50).mean
    for k, v in network.named_parameters():
        torch.testing.assert_close(found[k], v.detach(), rtol=1e-4, atol=1e-5)


def test_epochs_are_passes_over_the_data():
    seen = []
    pl.fit(model(), (X, Y), pl.MAP(), epochs=3, batch_size=16, progress=False, device="cpu", callbacks=[seen.append])
    assert len(seen) == 3 * math.ceil(50 / 16)


def test_every_example_is_seen_once_an_epoch():
    seen = []
    ids = torch.arange(50.0).unsqueeze(-1).repeat(1, 2)

    def note(inputs):
        seen.append(inputs[:, 0].clone())
        return inputs

    fit(data=(ids, Y), steps=8, augment=note, vectorise=False)
    for epoch in (torch.cat(seen[:4]), torch.cat(seen[4:])):  # the last batch is filled up with others of weight zero
        assert sorted(epoch[:50].tolist()) == list(range(50))
    assert not torch.equal(seen[0], seen[4])


def test_fixed_weights_stay_and_only_the_matched_are_unknown():
    posterior = fit(model(parameters="2.*"))
    assert set(posterior.mean) == {"2.weight", "2.bias"}
    network = mlp()
    hidden = network[1](network[0](X))
    expected = hidden @ posterior.mean["2.weight"].T + posterior.mean["2.bias"]
    torch.testing.assert_close(posterior.predict(X).outputs[0], expected.detach())


def test_a_predicate_or_several_patterns_choose_weights():
    assert set(model(parameters=lambda name: name.endswith("bias")).start) == {"0.bias", "2.bias"}
    assert set(model(parameters=["0.bias", "2.w*"]).start) == {"0.bias", "2.weight"}


class LoRA(nn.Module):
    """A linear layer with a low-rank correction."""

    def __init__(self, base: nn.Linear, rank: int = 2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(0.1 * torch.randn(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T


def adapted():
    return seeded(lambda: nn.Sequential(LoRA(nn.Linear(2, 8)), nn.Tanh(), LoRA(nn.Linear(8, 3))))


@pytest.mark.parametrize(
    "method", [pl.MAP(learning_rate=0.05), pl.SWAG(rank=3, start=0.5), pl.HMC(trajectory_length=0.2, warmup=4)]
)
def test_a_lora_adapter_alone_is_random(method, tmp_path):
    network = adapted()
    posterior = fit(pl.BayesianModel(network, pl.likelihoods.Categorical(), parameters="*lora_*"), method)
    assert set(posterior.mean) == {"0.lora_a", "0.lora_b", "2.lora_a", "2.lora_b"}
    with torch.no_grad():
        assert not torch.allclose(posterior.predict(X).outputs.mean(0), network(X))
    posterior.save(tmp_path / "a")
    loaded = pl.load(tmp_path / "a", adapted())
    assert torch.equal(loaded.predict(X).outputs, posterior.predict(X).outputs)


# --- settings ---


@pytest.mark.parametrize("name", registry)
def test_every_schedule_trains(name):
    told = []
    method = pl.MAP(optimizer="sgd", learning_rate=0.05, schedule=name)
    fit(method=method, steps=60, batch_size=50, callbacks=[lambda e: told.append(float(e["log_joint"]))])
    assert told[-1] > told[0] + 1


def test_a_clipped_step_is_no_longer_than_it_may_be():
    method = pl.MAP(optimizer="sgd", learning_rate=0.5, momentum=0.0, schedule="constant", clip_norm=0.01)
    moved = fit(method=method, steps=1).mean
    length = math.sqrt(sum(float((moved[k] - v).square().sum()) for k, v in model().start.items()))
    assert length == pytest.approx(0.5 * 0.01, rel=1e-4)


def test_augmentation_is_reproducible_resumes_and_has_a_say(tmp_path):
    def augment(inputs):
        return inputs + 0.5 * torch.randn_like(inputs)

    whole = fit(augment=augment)
    assert_same_bits(whole, fit(augment=augment))
    assert differ(whole, fit())
    setting = pl.Checkpoint(tmp_path / "a", every_steps=5)
    with pytest.raises(Stop):
        fit(augment=augment, checkpoint=setting, callbacks=[stop_at(7)])
    assert_same_bits(fit(augment=augment, checkpoint=setting, resume=True), whole)


@pytest.mark.parametrize("modes", [1, 4])
def test_bf16_stays_close_to_full_precision_and_keeps_full_weights(modes):
    half, full = (fit(precision=p, num_modes=modes, batch_size=50, steps=20) for p in ("bf16", None))
    assert differ(half, full)
    for a, b in zip(half.components, full.components, strict=True):
        for k, v in b.mean.items():
            assert a.mean[k].dtype == torch.float32
            assert float((a.mean[k] - v).norm()) < 0.1 * float(v.norm())


def test_doubles_stay_doubles():
    posterior = fit(model(mlp(torch.float64)), data=(X.double(), Y))
    assert all(v.dtype == torch.float64 for v in posterior.mean.values())
    assert posterior.predict(X.double()).probs.dtype == torch.float64


def test_deterministic_is_put_back():
    fit(deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_warm_start_from_a_posterior_of_other_unknowns_names_what_is_missing():
    torch.manual_seed(0)
    y = torch.randn(len(X), 1)
    known = pl.BayesianModel(nn.Linear(X.shape[1], 1), pl.likelihoods.Normal(scale=1.0))
    unknown = pl.BayesianModel(nn.Linear(X.shape[1], 1), pl.likelihoods.Normal(scale="learn"))
    with pytest.raises(ValueError, match=r"missing \['likelihood.scale'\]"):
        fit(unknown, data=(X, y), init=fit(known, data=(X, y)))
