"""Runs that ended worse than they began, or made no step, and runs that are as they should be."""

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient.hindsight import _is_worse

QUIET = {"progress": False, "device": "cpu"}


def deep(layers, kind=nn.ReLU):
    torch.manual_seed(0)
    hidden = [part for _ in range(layers - 1) for part in (kind(), nn.Linear(16, 16))]
    network = nn.Sequential(nn.Linear(3, 16), *hidden, kind(), nn.Linear(16, 2))
    x = torch.randn(37, 3, generator=torch.Generator().manual_seed(0))
    return pl.BayesianModel(network, pl.likelihoods.Categorical()), (x, (x[:, 0] > 0).long())


def test_a_run_that_lost_what_there_was_says_so_with_both_numbers():
    model, data = deep(2)
    posterior = pl.fit(model, data, pl.IVON(learning_rate=1000.0, initial_curvature=1.0), steps=100, **QUIET)
    assert -posterior.predict(data[0]).log_prob(data[1]).mean() > 10.0  # it is lost indeed
    told = posterior.diagnostics()
    assert not told.ok
    assert any("outputs of zero have -0.693" in m and "learning_rate=1e+03" in m for m in told.messages)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN(), pl.IVON(), pl.KFAC(), pl.NoisyKFAC(), pl.NaturalGradientVI()])
@pytest.mark.parametrize("steps", [1, 10, 200])
def test_ordinary_runs_are_not_said_to_have_lost_anything(method, steps):
    model, data = deep(1, nn.Tanh)
    told = pl.fit(model, data, method, steps=steps, batch_size=16, num_modes=2, **QUIET).diagnostics()
    assert not any("lost what there was" in m for m in told.messages)


def test_a_network_with_norms_is_judged_with_statistics_of_its_own():
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    _, data = deep(1)
    for modes in (1, 3):
        model = pl.BayesianModel(network, pl.likelihoods.Categorical())
        told = pl.fit(model, data, pl.IVON(), steps=200, num_modes=modes, **QUIET).diagnostics()
        assert not any("lost what there was" in m for m in told.messages)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN(), pl.IVON(), pl.NaturalGradientVI()])
def test_a_run_without_a_step_says_that_there_was_none(method):
    model, data = deep(1, nn.Tanh)
    told = pl.fit(model, data, method, epochs=0, **QUIET).diagnostics()
    (said,) = told.messages
    assert not told.ok and said.startswith("no step was made")


def noisy_classes(flipped=0.1):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=g)
    y = (x[:, 0] > 0).long()
    return x, torch.where(torch.rand(200, generator=g) < flipped, 1 - y, y)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8])
def test_a_few_examples_that_are_hard_are_no_loss(batch_size):
    """A tenth of the labels is wrong, so that small batches often predict worse than outputs of zero would."""
    model = pl.BayesianModel(nn.Linear(2, 2), pl.likelihoods.Categorical())
    for seed in range(12):
        told = pl.fit(
            model, noisy_classes(), pl.OGN(), steps=400, batch_size=batch_size, seed=seed, **QUIET
        ).diagnostics()
        assert not any("lost what there was" in m for m in told.messages)


def shifted(by):
    """A classifier that starts as the truth does, and ends as it is told: what is judged is the answer alone."""
    x, y = noisy_classes(0.0)
    weight = torch.tensor([[-3.0, 0.0], [3.0, 0.0]])
    model = pl.BayesianModel(nn.Linear(2, 2), pl.likelihoods.Categorical())
    start = {"weight": weight, "bias": torch.zeros(2)}
    end = {"weight": by * weight, "bias": torch.zeros(2)}
    scale = {k: torch.full_like(v, 1e-4) for k, v in end.items()}
    answer = pl.posteriors.Diagonal(model, end, scale)
    pl.VOGN(learning_rate=1.0).reviewed(answer, start, (x, y, None), 10)
    return [] if answer._diagnostics is None else answer._diagnostics.messages


def test_what_is_worse_than_one_of_the_references_alone_is_no_loss():
    assert not shifted(1.0)
    # Worse than the start (log probability −.2), and better than outputs of zero (−.69).
    assert not any("lost what there was" in m for m in shifted(0.05))
    assert any("lost what there was" in m for m in shifted(-0.3))


def test_places_that_only_fill_a_batch_up_have_no_say():
    model = pl.BayesianModel(nn.Linear(2, 2), pl.likelihoods.Categorical())
    x, y = noisy_classes(0.0)
    weight = torch.tensor([[-3.0, 0.0], [3.0, 0.0]])
    right = {"weight": weight, "bias": torch.zeros(2)}
    answer = pl.posteriors.Diagonal(model, right, {k: torch.full_like(v, 1e-4) for k, v in right.items()})
    wrong = torch.cat([y, 1 - y]), torch.cat([torch.ones(200), torch.zeros(200)])
    pl.VOGN().reviewed(answer, right, (torch.cat([x, x]), *wrong), 10)
    assert answer._diagnostics is None


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_draws_that_a_network_does_not_bear_are_named(scale, caplog):
    """OGN's curvature vanishes where all examples are fitted."""
    model, data = deep(3)
    model = model.with_prior(pl.priors.Normal(scale=scale)) if scale < 1 else model
    told = pl.fit(model, data, pl.OGN(), steps=400, **QUIET).diagnostics()
    wide = [m for m in told.messages if "draws are too wide for this network: damping=0.3 bounds their width" in m]
    assert bool(wide) == (scale == 1.0)
    assert bool(wide) == any("too wide for this network: damping" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("method", [pl.OGN(), pl.KFAC()])
def test_draws_that_no_step_has_tried_are_named_where_they_lose_most_of_what_the_mean_knows(method):
    data = pl.datasets.digits()
    model = pl.BayesianModel(pl.networks.MLP((1, 8, 8), (64,), 10), pl.likelihoods.Categorical())
    posterior = pl.fit(model, data.train, method, epochs=40, **QUIET)
    x, y = data.x_train[:256], data.y_train[:256]
    at_mean = pl.posteriors.Delta(posterior.model, posterior.mean)
    averaged, mean = (-float(p.predict(x).log_prob(y).mean()) for p in (posterior, at_mean))
    assert averaged > mean + 0.1  # so there is something to be said
    (said,) = [m for m in posterior.diagnostics().messages if "draws are too wide" in m]
    assert "pl.posteriors.Delta(model, posterior.mean)" in said


def test_one_example_that_is_far_off_does_not_hide_that_all_are_worse():
    """Draws that are sure of something else make such: a mean of so many is then within three standard errors of anything."""
    better = torch.full((400,), -0.1, dtype=torch.float64)
    worse = better - 0.2
    worse[0] -= 300.0
    assert _is_worse(worse, better, 0.1)
    alone = better.clone()
    alone[0] -= 300.0
    assert not _is_worse(alone, better, 0.1)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.IVON(), pl.NoisyKFAC()])
def test_draws_that_steps_have_tried_are_not_named_there(method):
    data = pl.datasets.digits()
    model = pl.BayesianModel(pl.networks.MLP((1, 8, 8), (64,), 10), pl.likelihoods.Categorical())
    told = pl.fit(model, data.train, method, epochs=20, **QUIET).diagnostics()
    assert not any("draws are too wide" in m for m in told.messages)


def test_classes_of_which_nothing_is_learnt_are_named():
    x, y = noisy_classes()
    for prior, learnt in ((1e-3, False), (1.0, True)):
        model = pl.BayesianModel(nn.Linear(2, 2), pl.likelihoods.Categorical(), pl.priors.Normal(scale=prior))
        told = pl.fit(model, (x, y), pl.VOGN(), steps=300, **QUIET).diagnostics()
        assert any("no more than how often each class occurs" in m for m in told.messages) != learnt
    model = pl.BayesianModel(nn.Linear(2, 2), pl.likelihoods.Categorical(), pl.priors.Normal(scale=1e-3))
    told = pl.fit(model, (x, y), pl.OGN(), steps=300, **QUIET).diagnostics()  # which draws nothing while it learns
    assert any("where pl.MAP learns more, more steps" in m for m in told.messages)


def with_little_noise(noise=0.05):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=g)
    y = x.sum(1, keepdim=True) + noise * torch.randn(200, 1, generator=g)
    return pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=noise), pl.priors.Normal(scale=3.0)), (x, y)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.OGN(), pl.IVON(), pl.KFAC(), pl.NoisyKFAC(), pl.NaturalGradientVI()])
def test_a_run_that_has_not_come_near_data_of_little_noise_says_so(method):
    """Squared gradients of large residuals shorten steps: about (residual / noise)² of them are needed."""
    model, data = with_little_noise()
    posterior = pl.fit(model, data, method, epochs=150, batch_size=50, **QUIET)
    far = float((pl.posteriors.Delta(model, posterior.mean).predict(data[0]).mean - data[1]).square().mean()) ** 0.5
    said = [m for m in posterior.diagnostics().messages if "times the noise's deviation" in m]
    assert bool(said) == (far > 3 * 0.05)
    assert bool(said) == isinstance(method, pl.VOGN | pl.OGN)


def test_residuals_of_heavy_tails_and_of_a_learnt_noise_are_not_far():
    model, (x, y) = with_little_noise()
    heavy = y + 3.0 * (torch.rand(200, 1, generator=torch.Generator().manual_seed(1)) < 0.05)
    for likelihood in (pl.likelihoods.StudentT(df=2.0, scale=0.05), pl.likelihoods.Normal(scale="learn")):
        own = pl.BayesianModel(nn.Linear(3, 1), likelihood)
        told = pl.fit(own, (x, heavy), pl.IVON(), epochs=150, batch_size=50, **QUIET).diagnostics()
        assert not any("times the noise's deviation" in m for m in told.messages)


def test_a_batch_with_few_labels_of_many_classes_is_no_measure_of_what_is_known():
    g = torch.Generator().manual_seed(0)
    centres, y = torch.randn(100, 20, generator=g), torch.arange(2000) % 100
    x = 0.45 * centres[y] + torch.randn(2000, 20, generator=g)
    model = pl.BayesianModel(nn.Linear(20, 100), pl.likelihoods.Categorical())
    posterior = pl.fit(model, (x, y), pl.KFAC(), epochs=15, batch_size=16, **QUIET)
    assert float((posterior.predict(x).probs.argmax(1) == y).float().mean()) > 0.2  # where chance has 0.01
    assert not any("how often each class occurs" in m for m in posterior.diagnostics().messages)


@pytest.mark.parametrize("size", [32, 128])
def test_little_that_is_learnt_is_more_than_a_batch_can_deny(size):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 5, generator=g)
    y = (torch.rand(1024, generator=g) < torch.sigmoid(0.5 * x[:, 0])).long()
    model = pl.BayesianModel(nn.Linear(5, 2), pl.likelihoods.Categorical())
    for seed in range(6):
        posterior = pl.fit(model, (x, y), pl.IVON(), epochs=30, batch_size=size, seed=seed, **QUIET)
        assert float(posterior.predict(x).log_prob(y).mean()) > -0.69314 + 0.01
        assert not any("how often each class occurs" in m for m in posterior.diagnostics().messages)


def test_outliers_of_a_robust_regression_are_not_far():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(512, 1, generator=g)
    y = torch.where(torch.rand(512, 1, generator=g) < 0.05, 3.0, x) + 0.1 * torch.randn(512, 1, generator=g)
    model = pl.BayesianModel(nn.Linear(1, 1), pl.likelihoods.StudentT(df=2.5, scale=0.1))
    start = pl.fit(model, (x, y), pl.MAP(learning_rate=0.05), epochs=200, **QUIET)
    for method in (pl.KFAC(), pl.IVON(), pl.OGN(), pl.NaturalGradientVI()):
        posterior = pl.fit(model, (x, y), method, epochs=100, init=start, **QUIET)
        assert float((posterior.predict(x).mean - x).square().mean()) < 0.05**2
        assert not any("times the noise's deviation" in m for m in posterior.diagnostics().messages)


@pytest.mark.parametrize("method", [pl.VOGN(), pl.NoisyKFAC()])
def test_whatever_batches_say_by_chance_what_is_not_learnt_is_named(method):
    """Inputs that say nothing, and batches of 64: their own frequencies may be near those of all data, or far from them."""
    y = torch.randint(0, 10, (640,), generator=torch.Generator().manual_seed(0))
    for seed in range(6):
        network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 10))
        model = pl.BayesianModel(network, pl.likelihoods.Categorical())
        posterior = pl.fit(model, (torch.zeros(640, 5), y), method, epochs=30, batch_size=64, seed=seed, **QUIET)
        assert any("no more than how often each class occurs" in m for m in posterior.diagnostics().messages)


def test_a_learnt_noise_far_above_the_residuals_is_named():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=torch.Generator().manual_seed(1))
    for scale, told in (("learn", True), (5.0, False)):  # what is given is the user's to know
        model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=scale))
        right = {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}
        if scale == "learn":
            right["likelihood.scale"] = torch.tensor(5.0).log()
        params = {k: right[k].reshape(v.shape).to(v.dtype) for k, v in model.start.items()}
        answer = pl.posteriors.Diagonal(model, params, {k: torch.full_like(v, 1e-4) for k, v in params.items()})
        pl.KFAC().reviewed(answer, params, (x, y, None), 10)
        said = () if answer._diagnostics is None else answer._diagnostics.messages
        assert any("times the residuals" in m for m in said) == told


@pytest.mark.parametrize("method", [pl.KFAC(), pl.VOGN(), pl.IVON()])
def test_all_that_is_to_be_known_of_a_rare_class_is_not_nothing(method):
    """Of a thousand examples one or two are of it: less than .01 nats an example, all of which are learnt here."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(20_000, 3, generator=g)
    y = (x[:, 0] > 3.0).long()
    x[:, 0] += 3.0 * y
    model = pl.BayesianModel(nn.Linear(3, 2), pl.likelihoods.Categorical())
    for seed in range(2):
        posterior = pl.fit(model, (x, y), method, epochs=10, batch_size=128, seed=seed, **QUIET)
        assert float(posterior.predict(x[y == 1]).probs[:, 1].min()) > 0.5
        assert not any("how often each class occurs" in m for m in posterior.diagnostics().messages)


@pytest.mark.parametrize("method", [pl.NaturalGradientVI(), pl.NoisyKFAC()])
def test_a_learnt_noise_of_few_data_is_larger_than_residuals_at_the_mean(method):
    """With nearly as many weights as examples the mean interpolates, and E_q of squared residuals is what the noise is."""
    x = torch.randn(60, 56, generator=torch.Generator().manual_seed(0))
    y = x @ torch.randn(56, 1, generator=torch.Generator().manual_seed(1))
    y = y + 0.5 * torch.randn(60, 1, generator=torch.Generator().manual_seed(2))
    model = pl.BayesianModel(nn.Linear(56, 1, bias=False), pl.likelihoods.Normal(scale="learn"))
    posterior = pl.fit(model, (x, y), method, epochs=2000, batch_size=60, **QUIET)
    found = pl.posteriors.Delta(posterior.model, posterior.mean).predict(x)
    assert float(found.aleatoric.mean()) ** 0.5 > 3 * float((found.mean - y).square().mean()) ** 0.5
    assert not any("times the residuals" in m for m in posterior.diagnostics().messages)


@pytest.mark.parametrize("df", [2.0, 2.1])
def test_a_noise_without_a_variance_is_not_compared_with_one(df):
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    y = x.sum(1, keepdim=True) + 0.5 * torch.distributions.StudentT(df).sample((400, 1))
    model = pl.BayesianModel(nn.Linear(2, 1), pl.likelihoods.StudentT(df=df, scale="learn"))
    posterior = pl.fit(model, (x, y), pl.IVON(), epochs=100, **QUIET)
    assert not any("times" in m for m in posterior.diagnostics().messages)


class Positive:
    """A likelihood that is not defined everywhere."""

    def log_prob(self, outputs, y):
        if bool((outputs == 0).all()):
            raise ValueError("outputs of zero are no rates")
        return -((outputs - y) ** 2).sum(-1)

    def distribution(self, outputs):
        return torch.distributions.Normal(outputs, 1.0)


def test_a_look_back_that_fails_loses_no_run(caplog):
    x = torch.randn(20, 3)
    model = pl.BayesianModel(nn.Linear(3, 1), Positive())
    assert pl.fit(model, (x, x[:, :1]), pl.OGN(), steps=20, **QUIET).sample(2) is not None
    assert any("outputs of zero are no rates" in r.getMessage() for r in caplog.records)
