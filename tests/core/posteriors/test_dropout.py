"""The posterior of dropout: its passes against closed forms and plain torch, its draws of weights, its file."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.weights.watched_networks import NETWORKS
from torch import nn

import plausible as pl
from plausible.core.posteriors import Delta, Dropout

RATE = 0.3


def seeded(make):
    torch.manual_seed(2)
    return make()


def posterior_of(network, rates=RATE, where="all", likelihood=None):
    model = pl.BayesianModel(network, likelihood or pl.likelihoods.Normal(scale=1.0))
    names = [k for k in model.weight_names if model.start[k].dim() > 1]
    return Dropout(model, model.start, rates if isinstance(rates, dict) else dict.fromkeys(names, rates), where)


def test_a_layers_mean_and_sd_are_those_of_its_coins():
    layer = seeded(lambda: nn.Linear(5, 2))
    x, count = torch.randn(3, 5), 20_000
    outputs = posterior_of(layer).predict(x, num_samples=count).outputs
    variance = RATE / (1 - RATE) * x.square() @ layer.weight.detach().square().T
    torch.testing.assert_close(outputs.var(0), variance, rtol=0.06, atol=0)  # 4 / √(count / 2), and a kurtosis
    error = (variance / count).sqrt()
    assert bool(((outputs.mean(0) - layer(x).detach()).abs() < 4.5 * error).all())


def test_a_convolutions_outputs_are_switched_and_passes_and_examples_have_masks_of_their_own():
    layer = seeded(lambda: nn.Conv2d(1, 4, 2))
    x = torch.randn(1, 1, 5, 5).expand(3, -1, -1, -1).contiguous()
    outputs = posterior_of(nn.Sequential(layer, nn.Flatten())).predict(x, num_samples=200).outputs
    full = layer(x).detach().flatten(1) / (1 - RATE)
    gone = outputs == 0
    torch.testing.assert_close(outputs, torch.where(gone, 0.0, full.expand_as(outputs)))
    share = float(gone.float().mean())
    assert share == pytest.approx(RATE, abs=4 * (RATE * (1 - RATE) / gone.numel()) ** 0.5)
    assert not torch.equal(gone[:, 0], gone[:, 1]) and not torch.equal(gone[0], gone[1])


def test_rates_are_by_layer():
    network = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    outputs = posterior_of(network, {"2.weight": 0.4}).predict(x, num_samples=5000).outputs
    hidden = network[1](network[0](x)).detach()
    variance = 0.4 / 0.6 * hidden.square() @ network[2].weight.detach().square().T
    torch.testing.assert_close(outputs.var(0), variance, rtol=0.1, atol=0)


def test_the_same_call_gives_the_same_numbers_and_another_seed_others():
    posterior = posterior_of(seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))))
    x = torch.randn(7, 3)
    state = torch.get_rng_state()
    first, again, other = (posterior.predict(x, num_samples=9, seed=s).outputs for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == (9, 7, 1)


def test_batch_norm_keeps_its_statistics_and_treats_every_example_alone():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.norm(self.first(x)).tanh())

    network = seeded(Normed)
    data = torch.randn(60, 3), torch.randn(60, 1)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    method = pl.MCDropout(rate={"last": RATE}, base=pl.MAP(learning_rate=0.01))
    posterior = pl.fit(model, data, method, steps=10, batch_size=20, progress=False, device="cpu")
    before = {k: v.clone() for k, v in posterior.mean_bank.items()}
    x = torch.randn(4, 3) * 5 + 3  # far from the data: a norm in training mode would centre it
    outputs = posterior.predict(x, num_samples=4000).outputs
    with torch.no_grad():
        first = posterior.params["first.weight"], posterior.params["first.bias"]
        values = F.linear(data[0], *first)  # what training data give, of which no mask is before the norm
        torch.testing.assert_close(posterior.mean_bank["norm.running_mean"], values.mean(0))
        normed = (F.linear(x, *first) - values.mean(0)) / (values.var(0) + 1e-5).sqrt()
        hidden = torch.tanh(normed * posterior.params["norm.weight"] + posterior.params["norm.bias"])
        middle = F.linear(hidden, posterior.params["last.weight"], posterior.params["last.bias"])
    sd = (RATE / (1 - RATE) * hidden.square() @ posterior.params["last.weight"].square().T).sqrt()
    assert bool(((outputs.mean(0) - middle).abs() < 4.5 * sd / 4000**0.5 + 1e-5).all())
    torch.testing.assert_close(outputs.std(0), sd, rtol=0.1, atol=0)
    assert all(torch.equal(v, posterior.mean_bank[k]) for k, v in before.items())
    assert all(torch.equal(v, dict(network.named_buffers())[k]) for k, v in model.network.buffers.items())


def test_statistics_are_gathered_under_masks_as_training_would_have():
    network = seeded(lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)))
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    posterior = Dropout(model.bound(num_data=2000), model.start, {"0.weight": 0.5})
    with pytest.raises(ValueError, match="refresh"):
        posterior.predict(torch.ones(2, 1))
    posterior.refresh((torch.ones(2000, 1), torch.ones(2000, 1)))
    weight = float(model.start["0.weight"])
    assert float(posterior.mean_bank["1.running_mean"]) == pytest.approx(weight, rel=0.1)  # coins of 0 and 2
    assert float(posterior.mean_bank["1.running_var"]) == pytest.approx(weight**2, rel=0.1)


def test_the_weight_average_is_the_usual_pass_without_dropout():
    network = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    posterior, x = posterior_of(network), torch.randn(5, 3)
    average = posterior.weight_average()
    assert isinstance(average, Delta)
    torch.testing.assert_close(average.predict(x).outputs[0], network(x).detach())


# --- draws of weights ---


def test_drawn_weights_lack_inputs_of_linear_layers_and_filters_of_convolutions():
    network = seeded(
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.Linear(32, 4))
    )
    posterior, count = posterior_of(network), 3000
    drawn = posterior.sample(count, seed=1)
    for name, axis in (("0.weight", 1), ("1.weight", 2), ("3.weight", 2)):
        units = drawn[name].movedim(axis, 1).flatten(2)
        mean = posterior.params[name].movedim(axis - 1, 0).flatten(1)
        there = units.abs().sum(2) > 0
        torch.testing.assert_close(units, torch.where(there[..., None], mean / (1 - RATE), 0.0))
        assert float(there.float().mean()) == pytest.approx(
            1 - RATE, abs=4 * (RATE * (1 - RATE) / there.numel()) ** 0.5
        )
    assert torch.equal(drawn["0.bias"] == 0, drawn["0.weight"].flatten(2).abs().sum(2) == 0)  # dropped with its filter
    assert torch.equal(drawn["3.bias"], posterior.params["3.bias"].expand(count, -1))
    assert torch.equal(drawn["3.weight"], posterior.sample(count, seed=1)["3.weight"])


def test_a_linear_layers_passes_and_draws_have_one_law():
    layer = seeded(lambda: nn.Linear(4, 1))
    posterior, x, count = posterior_of(layer), torch.randn(1, 4), 20_000
    passes = posterior.predict(x, num_samples=count).outputs[:, 0, 0].sort().values
    drawn = posterior.sample(count, seed=3)
    draws = (drawn["weight"][:, 0] @ x[0] + drawn["bias"][:, 0]).sort().values
    distinct = lambda v: {round(float(u), 4) for u in v}  # noqa: E731 - 16 masks
    assert distinct(passes) == distinct(draws) and len(distinct(draws)) == 16
    assert float(passes.mean()) == pytest.approx(float(draws.mean()), abs=6 * float(draws.std()) / count**0.5)


@pytest.mark.parametrize("kind", ["functional", "tied", "attention", "recurrent layer"])
def test_masks_that_are_no_masks_of_weights_are_refused_with_a_way_out(kind):
    posterior = posterior_of(NETWORKS[kind][0]())
    with pytest.raises(pl.NotSupported, match=r"\.predict draws masks"):
        posterior.sample(1)
    assert posterior.predict(*NETWORKS[kind][1](), num_samples=3).outputs.shape[:2] == (3, 6)


def test_embeddings_are_drawn_whole_beside_layers_that_masks_meet():
    network = seeded(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)))
    posterior = posterior_of(network, {"0.weight": 0.5, "2.weight": 0.5})
    drawn = posterior.sample(20, seed=0)
    assert torch.equal(drawn["0.weight"], posterior.params["0.weight"].expand(20, 5, 4))
    assert 0.2 < float((drawn["2.weight"] == 0).float().mean()) < 0.8


# --- files, devices, mixtures ---


@pytest.mark.parametrize("where", ["all", "own"])
def test_a_file_holds_rates_and_places(where, tmp_path):
    def network():
        return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.4), nn.Linear(4, 1)))

    posterior = posterior_of(network(), {} if where == "own" else {"2.weight": 0.25}, where)
    posterior.save(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", network())
    assert isinstance(loaded, Dropout) and loaded.where == where
    assert {k: float(r) for k, r in loaded.rates.items()} == {k: float(r) for k, r in posterior.rates.items()}
    x = torch.randn(3, 3)
    expected = posterior.predict(x, num_samples=5).outputs
    for other in (loaded, posterior.to("cpu"), pl.mixture([posterior]).components[0]):
        assert torch.equal(other.predict(x, num_samples=5).outputs, expected)
    assert float(expected.std(0).min()) > 0


def test_mixtures_of_networks_without_masks_of_weights_can_be_saved(tmp_path):
    parts = [posterior_of(NETWORKS["tied"][0]()) for _ in range(2)]
    pl.mixture(parts).save(tmp_path / "a.plausible")
    loaded = pl.load(tmp_path / "a.plausible", NETWORKS["tied"][0]())
    x = NETWORKS["tied"][1]()[0]
    assert torch.equal(loaded.predict(x, num_samples=6).outputs, pl.mixture(parts).predict(x, num_samples=6).outputs)


def test_own_channel_dropout_switches_whole_channels():
    network = nn.Sequential(nn.Conv2d(1, 6, 1), nn.Dropout2d(0.5))
    outputs = posterior_of(seeded(lambda: network), {}, "own").predict(torch.randn(2, 1, 3, 3), num_samples=50).outputs
    gone = (outputs == 0).flatten(3)
    assert torch.equal(gone.all(-1), gone.any(-1))
    assert 0.4 < float(gone.float().mean()) < 0.6


def test_there_is_no_evidence_and_no_linearised_prediction():
    posterior = posterior_of(seeded(lambda: nn.Linear(2, 1)))
    with pytest.raises(pl.NotSupported, match="has no evidence"):
        posterior.evidence()
    with pytest.raises(pl.NotSupported, match="Dropout is no Gaussian"):
        posterior.predict(torch.ones(1, 2), linearised=True)


def test_a_rate_outside_its_range_is_named():
    with pytest.raises(ValueError, match="got 1.0 for 'weight'"):
        posterior_of(nn.Linear(2, 1), 1.0)
