"""What is said of every run whose targets are in units that weights near one cannot reach."""

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.core.data import Resident

METHODS = [
    pl.MAP(learning_rate=0.01), pl.IVON(), pl.OGN(), pl.KFAC(), pl.Laplace(), pl.ADVI(), pl.SGLD(),
    pl.SGHMC(variance_reduction="saga"), pl.HMC(step_size=1e-4, trajectory_length=1e-3),
]  # fmt: skip
SAID = "hardly nearer to the targets than the targets' own mean is"


def fitted(method, y, x=None, likelihood=None, **told):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    model = pl.BayesianModel(network, likelihood or pl.likelihoods.Normal(scale=1.0))
    return pl.fit(model, (inputs() if x is None else x, y), method, progress=False, device="cpu", compile=False, **told)


def inputs(count=100):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(0))


def targets():
    x = inputs()
    return x[:, :1].sin() + 0.1 * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_prices_as_they_come_are_named_with_their_unit(method, caplog):
    posterior = fitted(method, 3e5 + 6e4 * targets(), steps=20, likelihood=pl.likelihoods.Normal(scale=1e4))
    told = posterior.diagnostics()
    (said,) = [m for m in told.messages if SAID in m]
    assert not told.ok and "mean 2.98e+05" in said and "(y - y.mean()) / y.std()" in said
    assert sum(SAID in r.getMessage() for r in caplog.records) == 1


def test_several_chains_and_a_file_say_so_too(tmp_path):
    y = 3e5 + 6e4 * targets()
    posterior = fitted(METHODS[-1], y, steps=20, num_modes=2)
    assert any(SAID in m for m in posterior.diagnostics().messages)
    posterior.components[0].save(tmp_path / "chain.plausible")
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    assert any(SAID in m for m in pl.load(tmp_path / "chain.plausible", network).diagnostics().messages)


def test_large_targets_that_are_learnt_and_small_ones_that_are_noise_are_not_named():
    far = fitted(pl.MAP(learning_rate=0.3), 20 + 5 * targets(), epochs=200)
    assert not any(SAID in m for m in far.diagnostics().messages)
    noise = torch.randn(100, 1, generator=torch.Generator().manual_seed(2))
    assert not any(SAID in m for m in fitted(pl.MAP(), noise, epochs=1).diagnostics().messages)


def test_counts_are_no_targets_to_standardise():
    y = torch.full((100, 1), 1000.0)
    posterior = fitted(pl.MAP(), y, likelihood=pl.likelihoods.Poisson(), epochs=1)
    assert not any(SAID in m for m in posterior.diagnostics().messages)


def test_rows_of_no_weight_have_no_say():
    y = targets()
    strange = torch.cat([y, torch.full((100, 1), 3e5)])
    x = torch.cat([inputs(), inputs()])
    weights = torch.cat([torch.ones(100), torch.zeros(100)])
    network = nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(x, strange, weights)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    posterior = pl.fit(model, data, pl.MAP(), epochs=1, batch_size=200, progress=False, device="cpu")
    assert not any(SAID in m for m in posterior.diagnostics().messages)


def test_a_weak_signal_in_few_examples_is_not_named():
    """Of a tenth of the variance small batches often know less than their own mean does."""
    x = torch.randn(400, 1, generator=torch.Generator().manual_seed(3))
    y = 6.0 + x / 3 + torch.randn(400, 1, generator=torch.Generator().manual_seed(4))
    for seed in range(6):
        for size in (2, 8, 32):
            model = pl.BayesianModel(nn.Linear(1, 1), pl.likelihoods.Normal(scale=1.0))
            posterior = pl.fit(
                model,
                (x, y),
                pl.MAP(learning_rate=0.1),
                epochs=20,
                batch_size=size,
                seed=seed,
                progress=False,
                device="cpu",
            )
            assert float((posterior.predict(x).mean - y).square().mean()) < 1.2  # so it has come to its data
            assert not any(SAID in m for m in posterior.diagnostics().messages)


def test_outliers_and_censored_targets_are_not_in_strange_units():
    x = 4 * torch.rand(400, 1, generator=torch.Generator().manual_seed(0)) - 2
    noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(1))
    outliers = torch.where(torch.rand(400, 1, generator=torch.Generator().manual_seed(2)) < 0.1, 100.0, 2 * x)
    for likelihood, y in (
        (pl.likelihoods.StudentT(df=2.0, scale=0.1), outliers + 0.1 * noise),
        (pl.likelihoods.CensoredNormal(scale=1.0, upper=6.0), (10 + 10 * x + noise).clamp(max=6.0)),
    ):
        model = pl.BayesianModel(nn.Linear(1, 1), likelihood)
        posterior = pl.fit(model, (x, y), pl.MAP(learning_rate=0.1), epochs=300, progress=False, device="cpu")
        assert not any(SAID in m for m in posterior.diagnostics().messages)


def test_every_chain_is_heard():
    x = inputs()
    y = 20 + 3 * x[:, :1]
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=0.3), pl.priors.Normal(scale=30.0))
    near = pl.fit(model, (x, y), pl.MAP(learning_rate=0.3), epochs=500, progress=False, device="cpu")
    still = pl.HMC(step_size=1e-5, trajectory_length=1e-5)
    one, other = (
        pl.fit(model, (x, y), still, steps=20, init=start, progress=False, device="cpu") for start in (near, "reset")
    )
    assert [any(SAID in m for m in p.diagnostics().messages) for p in (one, other)] == [False, True]
    for chains in ([one, other], [other, one], [other, other]):
        assert sum(SAID in m for m in pl.posteriors.Mixture(chains).diagnostics().messages) == 1


class ReadOnce(torch.utils.data.IterableDataset):
    def __init__(self, readings):
        self.readings = readings

    def __iter__(self):
        if not self.readings:
            raise OSError("the stream is closed")
        self.readings -= 1
        yield from zip(inputs(), targets(), strict=True)


def test_a_run_that_is_over_can_be_had_again_when_its_data_are_gone(tmp_path, caplog):
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=0.1))
    told = {"epochs": 2, "num_data": 100, "batch_size": 25, "checkpoint": tmp_path / "run", "progress": False}
    first = pl.fit(model, ReadOnce(9), pl.MAP(), device="cpu", **told)
    again = pl.fit(model, ReadOnce(1), pl.MAP(), device="cpu", resume=True, **told)
    torch.testing.assert_close(again.mean, first.mean, rtol=0, atol=0)
    assert any("OSError: the stream is closed" in r.getMessage() for r in caplog.records)


def test_nothing_is_looked_up_where_nothing_would_look(monkeypatch):
    """Twenty sets of images, say, of which a thousand each would be gathered."""

    def look(*_):
        raise AssertionError("it was looked up")

    monkeypatch.setattr(Resident, "look", look)
    labels = (inputs()[:, 0] > 0).long()
    model = pl.BayesianModel(nn.Linear(3, 2), pl.likelihoods.Categorical())
    told = {"epochs": 1, "progress": False, "device": "cpu"}
    pl.fit(model, (inputs(), labels), pl.MAP(), **told)
    pl.fit_many(model, [(inputs(), labels)] * 3, pl.MAP(), **told)


def test_what_is_shown_is_a_share_of_what_a_run_has_gone_through():
    source = Resident(inputs(3000), torch.zeros(3000, 1), None, 10, 0, torch.device("cpu"), None)
    for limit, rows in ((0, 10), (95, 90), (5000, 3000)):
        x, y, weights = source.look(0, limit)
        assert len(x) == len(y) == len(weights) == rows
    assert torch.equal(source.look(0, 20)[0], torch.cat([source.batch(0)[0], source.batch(1)[0]]))


@pytest.mark.parametrize(
    "likelihood", [pl.likelihoods.StudentT(df=4.0, scale=1.0), pl.likelihoods.Normal(scale="learn")]
)
def test_years_are_named_with_heavy_tails_and_a_learnt_noise_too(likelihood):
    posterior = fitted(pl.MAP(), 2000 + 15 * targets(), epochs=50, likelihood=likelihood)
    assert any(SAID in m for m in posterior.diagnostics().messages) and not posterior.diagnostics().ok


def test_constant_targets_cannot_be_standardised():
    posterior = fitted(pl.MAP(), torch.full((100, 1), 10.0), epochs=5)
    assert not any(SAID in m for m in posterior.diagnostics().messages)


def test_large_targets_of_which_nothing_is_known_are_a_hint_and_no_verdict():
    noise = 300 * torch.randn(100, 1, generator=torch.Generator().manual_seed(2))
    told = fitted(pl.MAP(), noise, epochs=1, likelihood=pl.likelihoods.Normal(scale=300.0)).diagnostics()
    assert told.ok and any(SAID in m and "unless there is little more to know" in m for m in told.messages)
