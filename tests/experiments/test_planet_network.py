"""The network that reads time series, and what it is given."""

import math

import torch

import plausible as pl
from plausible.experiments.planet_network import INPUTS, MIDDLE, WIDTH, SeriesNetwork, series_inputs
from plausible.experiments.planet_series import time_likelihood


def made_up_series(count: int = 4, steps: int = 7) -> pl.datasets.PlanetSeries:
    rng = torch.Generator().manual_seed(0)
    axes = torch.tensor([1.0, 1.3, 1.8]) * (1 + 0.01 * torch.randn(count, steps, 3, generator=rng))
    others = torch.rand(count, steps, 3, 5, generator=rng) * torch.tensor([0.1, 0.05, 6.0, 6.0, 6.0])
    values = torch.cat([axes[..., None], others], -1).flatten(2)
    masses = 10 ** (-6 + torch.rand(count, 3, generator=rng, dtype=torch.float64))
    return pl.datasets.PlanetSeries(values=values, masses=masses, met=torch.full((count,), math.inf))


def test_inputs_do_not_depend_on_the_unit_of_length_or_the_origin_of_angles():
    series = made_up_series()
    planets = series.values.double().reshape(4, 7, 3, 6).clone()
    planets[..., 0] *= 5.2
    planets[..., 3:] += 1.234
    turned = pl.datasets.PlanetSeries(values=planets.flatten(2), masses=series.masses, met=series.met)
    torch.testing.assert_close(series_inputs(turned), series_inputs(series), rtol=1e-4, atol=1e-4)
    assert series_inputs(series).shape == (4, 7, INPUTS) and series_inputs(series).isfinite().all()


def test_inputs_are_finite_for_planets_that_are_exactly_circular_and_coplanar():
    series = made_up_series()
    planets = series.values.reshape(4, 7, 3, 6).clone()
    planets[..., 1:3] = 0
    planets[..., 0] = torch.tensor([1.0, 1.3, 1.8])
    still = pl.datasets.PlanetSeries(values=planets.flatten(2), masses=series.masses, met=series.met)
    assert series_inputs(still).isfinite().all()


def test_the_eccentricity_vectors_of_a_pair_are_subtracted():
    values = torch.zeros(1, 2, 3, 6)
    values[..., 0] = torch.tensor([1.0, 1.2, 1.5])
    values[..., 1] = torch.tensor([0.03, 0.04, 0.0])
    values[..., 3] = torch.tensor([0.0, math.pi / 2, 0.0])
    series = pl.datasets.PlanetSeries(
        values=values.flatten(2), masses=torch.full((1, 3), 1e-5, dtype=torch.float64), met=torch.full((1,), math.inf)
    )
    first_pair = series_inputs(series)[0, :, 14]  # 0.05 apart, of 0.2 where orbits cross
    torch.testing.assert_close(first_pair, torch.full((2,), 0.25))


def test_the_network_has_7222_weights_and_follows_its_formula():
    torch.manual_seed(0)
    network = SeriesNetwork()
    assert sum(weight.numel() for weight in network.parameters()) == 7222
    x = torch.randn(3, 9, INPUTS) * 2 + 1
    network.standardise(x)
    torch.testing.assert_close(network.spread, x.flatten(0, 1).std(0), rtol=1e-5, atol=1e-6)
    encoded = torch.stack([network.encoder((step - network.centre) / network.spread) for step in x.unbind(1)])
    mean = encoded.sum(0) / 9
    deviation = (((encoded - mean) ** 2).sum(0) / 9 + 1e-6).sqrt()
    out = network.head(torch.cat([mean, deviation], 1))
    expected = torch.stack([MIDDLE + WIDTH * out[:, 0], out[:, 1]], 1)
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_steps_does_not_matter_to_the_network():
    torch.manual_seed(0)
    network, x = SeriesNetwork(), torch.randn(3, 9, INPUTS)
    torch.testing.assert_close(network(x[:, torch.randperm(9)]), network(x), rtol=1e-4, atol=1e-5)


def test_a_constant_input_is_not_divided_by_zero():
    network = SeriesNetwork()
    network.standardise(torch.ones(4, 5, INPUTS))
    assert network(torch.ones(1, 5, INPUTS)).isfinite().all()


def test_a_saved_posterior_brings_its_standardisation(tmp_path):
    network, x = SeriesNetwork(), series_inputs(made_up_series())
    network.standardise(x)
    model = pl.BayesianModel(network, likelihood=time_likelihood())
    posterior = pl.fit(model, (x, torch.full((4, 1), 6.0)), pl.MAP(), steps=2, progress=False)
    posterior.save(tmp_path / "planets.safetensors")
    loaded = pl.load(tmp_path / "planets.safetensors", SeriesNetwork())
    assert torch.equal(loaded.predict(x).mean, posterior.predict(x).mean)
