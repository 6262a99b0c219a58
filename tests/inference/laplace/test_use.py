"""How people call Laplace: loaders of every kind, numbers of every kind, many runs at once, and what is refused in time."""

import numpy as np
import pytest
import torch
from tests.inference.laplace.networks import (
    QUICK,
    class_model,
    classes,
    mlp,
    regression_model,
    sine,
    stated_covariance,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import plausible as pl


class Endless(IterableDataset):
    """The same examples over and over."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        i = 0
        while True:
            yield self.x[i % len(self.x)], self.y[i % len(self.x)]
            i += 1


class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def covariance(data, **settings):
    return stated_covariance(pl.fit(regression_model(), data, pl.Laplace(structure="diagonal"), **QUICK, **settings))


# --- all data, whoever brings them ---


def test_an_endless_stream_is_swept_until_n_examples_were_seen():
    x, y = sine(40)
    streamed = covariance(DataLoader(Endless(x, y), batch_size=8), num_data=40)
    torch.testing.assert_close(streamed, covariance((x, y)))


def test_what_a_loader_drops_or_leaves_out_does_not_change_how_many_data_there_are():
    x, y = (t.repeat(4, 1) for t in sine(10))  # so that ten examples in a row are the same ten
    whole = covariance((x, y))
    rows = TensorDataset(x, y)
    dropped = DataLoader(TensorDataset(*(torch.cat([t, t[:5]]) for t in (x, y))), batch_size=10, drop_last=True)
    torch.testing.assert_close(covariance(dropped, num_data=40), whole)
    sampled = DataLoader(rows, batch_size=10, sampler=torch.utils.data.SequentialSampler(range(20)))
    torch.testing.assert_close(covariance(sampled), whole)
    picked = DataLoader(rows, batch_size=10, sampler=RandomSampler(rows, num_samples=20))
    prior, few = torch.ones(17, dtype=torch.float64), covariance(picked).diagonal()
    # Twenty picked examples stand for forty, so the data's part is nearer to that of forty than to that of twenty.
    data = (1 / few - prior).sum() / (1 / whole.diagonal() - prior).sum()
    assert 0.75 < data < 1.5


def test_a_loader_whose_last_batch_is_dropped_counts_the_whole_set():
    x, y = (t.repeat(5, 1)[:45] for t in sine(10))
    loader = DataLoader(TensorDataset(x, y), batch_size=10, drop_last=True)
    tens = covariance((x[:40], y[:40]))
    expected = 1 / (1 + (1 / tens.diagonal() - 1) * 45 / 40)
    torch.testing.assert_close(covariance(loader).diagonal(), expected)


def test_labels_that_a_loader_brings_are_checked_although_nothing_is_trained():
    x, y = classes()
    with pytest.raises(ValueError, match="labels must be 0 to 2"):
        pl.fit(class_model(), DataLoader(TensorDataset(x, y + 5), batch_size=8), pl.Laplace(), **QUICK)


@pytest.mark.parametrize("curvature", ["ggn", "mc-fisher"])
def test_a_finished_run_over_a_data_set_resumes_to_the_same_bits(tmp_path, curvature):
    x, y = classes(60, torch.float32)
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    model = pl.BayesianModel(net, pl.likelihoods.Categorical())

    def fit(**settings):
        return pl.fit(
            model, Rows(x, y), pl.Laplace(curvature=curvature), epochs=3, batch_size=16, progress=False, compile=False,
            checkpoint=tmp_path / "run.ckpt", **settings,
        )  # fmt: skip

    first, again = fit(), fit(resume=True)
    assert first.evidence().log_marginal_likelihood == again.evidence().log_marginal_likelihood
    assert torch.equal(stated_covariance(first), stated_covariance(again))
    assert all(torch.equal(v, again.mean_bank[k]) for k, v in first.mean_bank.items())


# --- numbers of every kind ---


@pytest.mark.parametrize("number", [50, np.float32(50), np.float64(50), torch.tensor(50.0)])
def test_a_precision_may_be_any_kind_of_number(number):
    method = pl.Laplace(structure="full", prior_precision=number)
    expected = pl.fit(regression_model(), sine(), pl.Laplace(structure="full", prior_precision=50.0), **QUICK)
    found = pl.fit(regression_model(), sine(), method, **QUICK)
    torch.testing.assert_close(stated_covariance(found), stated_covariance(expected), rtol=1e-10, atol=0)
    assert isinstance(method.prior_precision, float)


def test_the_runs_of_one_fit_many_may_differ_in_their_precision():
    methods = [pl.Laplace(prior_precision=p) for p in (1, 0.25, 4.0)]
    together = pl.fit_many(regression_model(), sine(), methods, epochs=2, progress=False, compile=False)
    for method, posterior in zip(methods, together, strict=True):
        alone = pl.fit(regression_model(), sine(), method, epochs=2, progress=False, compile=False)
        torch.testing.assert_close(
            posterior.evidence().log_marginal_likelihood, alone.evidence().log_marginal_likelihood
        )


def test_a_precision_must_be_finite():
    with pytest.raises(ValueError, match="positive and finite, got inf"):
        pl.Laplace(prior_precision=float("inf"))


# --- refused before anything is trained ---


def untrained(event):
    raise AssertionError("a step was made")


@pytest.mark.parametrize(
    ("settings", "method", "error", "words"),
    [
        ({}, {"prior_precision": "validation"}, ValueError, r"validation=\(x, y\)"),
        ({}, {"subset": "head.*"}, ValueError, r"subset='head.\*' matches no"),
        ({"temperature": 0.5}, {"prior_precision": "marginal-likelihood"}, pl.NotSupported, "tempered"),
        (
            {"prior": pl.priors.Normal(scale=pl.hyperpriors.LogNormal())},
            {"prior_precision": 1.0},
            pl.NotSupported,
            "unknown of this model already",
        ),
        (
            {"likelihood": pl.likelihoods.Normal(scale="learn")},
            {"prior_precision": "marginal-likelihood", "curvature": "empirical-fisher"},
            pl.NotSupported,
            "empirical Fisher",
        ),
    ],
)
def test_what_cannot_end_well_is_refused_before_a_step_is_made(settings, method, error, words):
    with pytest.raises(error, match=words):
        pl.fit(
            regression_model(**settings), sine(), pl.Laplace(**method), epochs=1, progress=False, callbacks=[untrained]
        )


def test_a_log_density_is_refused_what_only_networks_have_before_a_step_is_made():
    density = pl.LogDensity(lambda p: -(p["a"] ** 2).sum(), {"a": torch.zeros(2)})
    with pytest.raises(pl.NotSupported, match="no layers"):
        pl.fit(density, None, pl.Laplace(), epochs=1, progress=False, callbacks=[untrained])


def test_a_matrix_that_no_memory_holds_is_refused_before_a_step_is_made():
    model = pl.BayesianModel(nn.Linear(2000, 1000), pl.likelihoods.Normal())
    with pytest.raises(ValueError, match="bytes here"):
        pl.fit(
            model, (torch.zeros(2, 2000), torch.zeros(2, 1000)), pl.Laplace(structure="full"), epochs=1, progress=False,
            callbacks=[untrained],
        )  # fmt: skip


@pytest.mark.parametrize("settings", [{"curvature": "empirical-fisher"}, {"per": "layer"}])
def test_what_low_rank_cannot_do_is_refused_by_its_constructor(settings):
    with pytest.raises(pl.NotSupported, match="low-rank"):
        pl.Laplace(structure="low-rank", prior_precision="marginal-likelihood", **settings)


def test_a_subset_without_a_weight_is_refused():
    model = regression_model(likelihood=pl.likelihoods.Normal(scale="learn"))
    with pytest.raises(pl.NotSupported, match="leaves no weight to vary"):
        pl.fit(model, sine(), pl.Laplace(subset="likelihood.scale"), **QUICK)


def test_a_posterior_that_is_the_prior_is_not_forgotten_for_a_precision():
    yesterday = pl.fit(regression_model(), sine(), pl.Laplace(structure="diagonal"), **QUICK)
    model = regression_model(prior=yesterday)
    with pytest.raises(pl.NotSupported, match="the prior is a posterior"):
        pl.fit(model, sine(), pl.Laplace(structure="diagonal", prior_precision=1.0), **QUICK)


def test_a_correlated_prior_is_refused_before_a_step_is_made():
    yesterday = pl.fit(regression_model(), sine(), pl.Laplace(), **QUICK)
    with pytest.raises(pl.NotSupported, match="correlated"):
        pl.fit(regression_model(prior=yesterday), sine(), pl.Laplace(), epochs=1, progress=False, callbacks=[untrained])


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "low-rank", "full"])
def test_weights_that_are_not_finite_are_named(structure):
    net = mlp()
    with torch.no_grad():
        net[2].weight[0, 1] = float("nan")
    model = pl.BayesianModel(net, pl.likelihoods.Normal(scale=0.2))
    with pytest.raises(ValueError, match=r"2\.weight is not finite"):
        pl.fit(model, sine(), pl.Laplace(structure=structure), **QUICK)


def test_a_network_that_draws_in_eval_mode_too_has_no_curvature():
    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(F.dropout(self.body(x), 0.5))

    model = pl.BayesianModel(Forgetful(), pl.likelihoods.Normal(scale=0.2))
    before = torch.get_rng_state()
    with pytest.raises(pl.NotSupported, match="eval mode too"):
        pl.fit(model, sine(dtype=torch.float32), pl.Laplace(), epochs=1, progress=False)
    assert torch.equal(before, torch.get_rng_state())
    # One that draws in training only is no problem.
    honest = pl.BayesianModel(nn.Sequential(mlp(4), nn.Dropout(0.5), nn.Linear(4, 1).double()), model.likelihood)
    pl.fit(honest, sine(), pl.Laplace(), epochs=1, progress=False, compile=False)


# --- several modes ---


def test_the_components_of_a_mixture_have_the_evidence():
    posterior = pl.fit(regression_model(), sine(), pl.Laplace(), epochs=1, num_modes=2, progress=False, compile=False)
    with pytest.raises(pl.NotSupported, match="components"):
        posterior.evidence()
    values = [float(c.evidence().log_marginal_likelihood) for c in posterior.components]
    assert values[0] != values[1]


# --- norm layers ---


def normed() -> tuple[pl.BayesianModel, tuple[torch.Tensor, torch.Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()
    x, y = sine(100)
    return pl.BayesianModel(net, pl.likelihoods.Normal(scale=0.2)), (3 * x + 5, y)


def test_modes_that_are_drawn_anew_have_norm_statistics_of_their_own():
    model, (x, y) = normed()
    first, second = pl.fit(model, (x, y), pl.Laplace(), epochs=0, num_modes=2, progress=False).components
    assert torch.equal(first.mean_bank["1.running_mean"], torch.zeros(6, dtype=torch.float64))
    hidden = x @ second.mean["0.weight"].T + second.mean["0.bias"]
    torch.testing.assert_close(second.mean_bank["1.running_mean"], hidden.mean(0))


def test_draws_run_with_the_norm_statistics_at_which_the_curvature_was_taken(tmp_path):
    model, (x, y) = normed()
    posterior = pl.fit(model, (x, y), pl.Laplace(structure="full"), epochs=30, progress=False, compile=False)
    net = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double().eval()
    expected = []
    for i in range(70):  # more than any bank
        own = {k: v[0] for k, v in posterior.draw([i], 3).items()}
        net.load_state_dict({**own, **posterior.mean_bank})
        expected.append(net(x).detach())
    found = posterior.predict(x, num_samples=70, seed=3, linearised=False).outputs
    torch.testing.assert_close(found, torch.stack(expected))
    posterior.save(tmp_path / "p.plausible")
    again = pl.load(tmp_path / "p.plausible", net).predict(x, num_samples=70, seed=3, linearised=False).outputs
    assert torch.equal(found, again)


def test_deterministic_algorithms_are_on_while_the_curvature_is_taken():
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            if not self.training:
                seen.append(torch.are_deterministic_algorithms_enabled())
            return super().forward(x)

    model = pl.BayesianModel(Watching(2, 1).double(), pl.likelihoods.Normal(scale=0.2))
    pl.fit(model, sine(), pl.Laplace(), **QUICK, deterministic=True)
    assert seen[-1] and not torch.are_deterministic_algorithms_enabled()


# --- precision ---


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "low-rank", "full"])
def test_a_network_of_halves_has_about_the_posterior_of_its_twin_in_single_precision(structure):
    x, y = sine(60, torch.float32)
    net = mlp(dtype=torch.float32)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p.bfloat16())
    spreads = []
    for dtype in (torch.float32, torch.bfloat16):
        model = pl.BayesianModel(net.to(dtype), pl.likelihoods.Normal(scale=0.5))
        method = pl.Laplace(structure=structure, subset="2.*")
        posterior = pl.fit(model, (x.to(dtype), y.to(dtype)), method, **QUICK)
        assert posterior.predict(x.to(dtype), num_samples=4).outputs.dtype == dtype
        draws = posterior.sample(1000, seed=0)
        spreads.append(torch.cat([draws[k].float().flatten(1).std(0) for k in posterior.free]))
    # Halves have 8 bits, and curvatures sum many of them.
    torch.testing.assert_close(spreads[0], spreads[1], rtol=0.1, atol=0)


# --- what is said ---


def test_the_distance_from_the_highest_point_is_that_under_the_prior_that_was_chosen():
    model = regression_model()
    trained = pl.fit(model, sine(), pl.Laplace(structure="full"), **QUICK)
    assert trained.diagnostics().table["expansion"]["distance"] < 1e-4
    other = pl.fit(
        model, sine(), pl.Laplace(structure="diagonal", prior_precision=1e4), init=trained, epochs=0, progress=False
    )
    told = other.diagnostics()
    weights = torch.cat([w.flatten() for w in trained.mean.values()])
    slope = (1.0 - 1e4) * weights  # at the top under the old prior, so only the priors' difference is left
    variance = torch.cat([other.scale[k].flatten() ** 2 for k in other.scale])
    assert told.table["expansion"]["distance"] == pytest.approx(float((variance * slope**2).sum().sqrt()), rel=1e-3)
    assert not told.ok and "posterior.model.prior" in told.messages[-1]


def test_unknown_noise_of_another_kind_is_climbed_to_while_the_prior_is_found():
    model = regression_model(likelihood=pl.likelihoods.StudentT(df=4.0, scale=pl.hyperpriors.HalfNormal()))
    method = pl.Laplace(structure="full", prior_precision="marginal-likelihood")
    posterior = pl.fit(model, sine(), method, epochs=20, progress=False, compile=False)
    params = posterior.mean
    _, slope = posterior.model.slope(params, sine())
    deviation = posterior.covariance[-1, -1].sqrt()
    assert abs(float(slope["likelihood.scale"] * deviation)) < 1e-5
