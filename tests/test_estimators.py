"""The scikit-learn estimators: scikit-learn's own checks, units, weights, storing, and how good the defaults are."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load as tensors_in
from scipy import special, stats
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import plausible as pl
from plausible.estimators import BayesianClassifier, BayesianRegressor, base
from plausible.report import catalogue

QUICK = pl.MAP(learning_rate=0.03)
PAIR = pl.DeepEnsemble(members=2, base=QUICK)


def tiny(num_inputs: int, num_outputs: int) -> nn.Module:
    return pl.networks.MLP(num_inputs, (8,), num_outputs)


def curve(rows: int = 80, targets: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 3)) * [1.0, 20.0, 0.1] + [0.0, 1000.0, -3.0]
    z = (x - x.mean(0)) / x.std(0)
    y = np.stack([np.sin(z[:, 0] + t) * 50 * 10**t + 700 + z[:, 1] for t in range(targets)], 1)
    y = y + rng.normal(size=y.shape) * 5
    return x, y[:, 0] if targets == 1 else y


def iris() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_iris(return_X_y=True)
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


# --- scikit-learn's own suite ---


@parametrize_with_checks(
    [
        BayesianClassifier(method=QUICK, epochs=25),
        BayesianRegressor(method=QUICK, epochs=40),
    ]
)
def test_scikit_learns_own_check_passes(estimator, check):
    check(estimator)


# --- predictions against the mixture written out by hand ---


def components(estimator: BayesianRegressor, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and noise scales (members, rows, targets) of an ensemble in the units of y."""
    z = torch.as_tensor((x - estimator.input_mean_) / estimator.input_scale_)
    means, scales = [], []
    for member in estimator.posterior_.components:
        params = member.mean
        network = copy.deepcopy(estimator.network_)
        network.load_state_dict({k: v for k, v in params.items() if not k.startswith("likelihood.")})
        out = network(z).detach().numpy()
        noise = np.exp(params["likelihood.scale"].numpy()) if "likelihood.scale" in params else None
        if isinstance(estimator.likelihood_, pl.likelihoods.HeteroscedasticNormal):
            out, raw = np.split(out, 2, axis=1)
            noise = np.logaddexp(0, raw)
        elif noise is None:
            noise = estimator.likelihood_.scale
        means.append(out * estimator.target_scale_ + estimator.target_mean_)
        scales.append(np.broadcast_to(noise, out.shape) * estimator.target_scale_)
    return np.stack(means), np.stack(scales)


NOISES = {
    "normal of unknown scale": (None, lambda r, s: stats.norm.logpdf(r, scale=s), 1.0),
    "normal of known scale": (pl.likelihoods.Normal(scale=0.3), lambda r, s: stats.norm.logpdf(r, scale=s), 1.0),
    "heteroscedastic": (pl.likelihoods.HeteroscedasticNormal(), lambda r, s: stats.norm.logpdf(r, scale=s), 1.0),
    "student t": (pl.likelihoods.StudentT(df=5.0, scale="learn"), lambda r, s: stats.t.logpdf(r, 5, scale=s), 5 / 3),
}


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("noise", NOISES)
def test_mean_deviation_and_density_are_those_of_the_mixture_in_the_units_of_y(noise, targets):
    likelihood, log_density, variance_factor = NOISES[noise]
    x, y = curve(targets=targets)
    fitted = BayesianRegressor(method=PAIR, network=tiny, likelihood=likelihood, epochs=30).fit(x, y)
    mean, std = fitted.predict(x, return_std=True)
    means, scales = components(fitted, x)
    np.testing.assert_allclose(mean, means.mean(0).reshape(y.shape), rtol=1e-9)
    variance = variance_factor * (scales**2).mean(0) + means.var(0)
    np.testing.assert_allclose(std, np.sqrt(variance).reshape(y.shape), rtol=1e-9)
    each = log_density(y.reshape(len(y), -1) - means, scales).sum(-1)
    np.testing.assert_allclose(fitted.log_prob(x, y), special.logsumexp(each, axis=0) - math.log(2), rtol=1e-9)


def test_the_predictive_has_every_field_in_the_shape_and_the_units_of_y():
    x, y = curve()
    predictive = BayesianRegressor(method=PAIR, network=tiny, epochs=60).fit(x, y).predictive(x)
    assert isinstance(predictive, pl.Predictive)
    lower, upper = predictive.interval(0.9)
    for field in (predictive.mean, predictive.std, predictive.epistemic, predictive.crps(y), lower):
        assert field.shape == y.shape
    assert torch.allclose(predictive.total, predictive.aleatoric + predictive.epistemic)
    assert abs(float(predictive.mean.mean()) - y.mean()) < 0.2 * y.std()
    assert ((lower.numpy() < y) & (y < upper.numpy())).mean() > 0.7


def test_drawn_targets_have_the_predicted_mean_and_deviation():
    x, y = curve(targets=2)
    fitted = BayesianRegressor(method=PAIR, network=tiny, epochs=30).fit(x, y)
    mean, std = fitted.predict(x[:5], return_std=True)
    draws = fitted.sample_y(x[:5], n_samples=4000, random_state=1)
    assert draws.shape == (5, 2, 4000)
    assert np.abs((draws.mean(-1) - mean) / std * math.sqrt(4000)).max() < 4.5  # of 10 standard normal errors
    assert np.abs(draws.std(-1) / std - 1).max() < 4.5 / math.sqrt(2 * 4000)
    np.testing.assert_array_equal(draws, fitted.sample_y(x[:5], n_samples=4000, random_state=1))


def test_drawn_labels_have_the_predicted_frequencies():
    x, y = iris()
    fitted = BayesianClassifier(method=PAIR, network=tiny, epochs=20).fit(x, y)
    draws = fitted.sample_y(x[60:70], n_samples=4000)
    assert draws.shape == (10, 4000) and set(np.unique(draws)) <= set(fitted.classes_)
    frequencies = np.stack([(draws == label).mean(1) for label in fitted.classes_], 1)
    p = fitted.predict_proba(x[60:70])
    assert np.abs(frequencies - p).max() < 4.5 * math.sqrt(0.25 / 4000)


def test_class_probabilities_average_the_members_and_log_prob_reads_them_by_label():
    x, y = iris()
    fitted = BayesianClassifier(method=PAIR, network=tiny, epochs=20).fit(x, y)
    z = torch.as_tensor((x - x.mean(0)) / x.std(0))
    each = []
    for member in fitted.posterior_.components:
        network = copy.deepcopy(fitted.network_)
        network.load_state_dict(member.mean)
        each.append(special.softmax(network(z).detach().numpy(), axis=1))
    expected = np.mean(each, 0)
    np.testing.assert_allclose(fitted.predict_proba(x), expected, rtol=1e-9)
    np.testing.assert_array_equal(fitted.predict(x), fitted.classes_[expected.argmax(1)])
    columns = np.searchsorted(fitted.classes_, y)
    np.testing.assert_allclose(fitted.log_prob(x, y), np.log(expected[np.arange(len(y)), columns]), rtol=1e-9)


def test_a_bernoulli_likelihood_gives_two_columns():
    x, y = iris()
    two = y != "virginica"
    fitted = BayesianClassifier(method=QUICK, network=tiny, likelihood=pl.likelihoods.Bernoulli(), epochs=60)
    fitted.fit(x[two], y[two])
    p = fitted.predict_proba(x[two])
    assert p.shape == (100, 2) and np.allclose(p.sum(1), 1)
    assert fitted.score(x[two], y[two]) > 0.95
    assert set(fitted.sample_y(x[two], 3).ravel()) == {"setosa", "versicolor"}


def test_counts_are_not_standardised():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(1 + x[:, 0]))
    fitted = BayesianRegressor(method=QUICK, likelihood=pl.likelihoods.Poisson(), epochs=60).fit(x, y)
    mean, std = fitted.predict(x, return_std=True)
    assert mean.shape == y.shape and np.corrcoef(mean, np.exp(1 + x[:, 0]))[0, 1] > 0.9
    np.testing.assert_allclose(std, np.sqrt(mean), rtol=1e-6)  # one network, so all variance is Poisson's
    np.testing.assert_allclose(fitted.log_prob(x, y), stats.poisson.logpmf(y, mean), rtol=1e-6)


# --- units and weights ---


def test_units_of_inputs_and_targets_do_not_matter():
    x, y = curve(targets=2)
    first = BayesianRegressor(method=PAIR, network=tiny, epochs=20).fit(x, y)
    units, offsets = np.array([1e-15, 7.0, 1e4]), np.array([0.0, -40.0, 1e5])
    other = clone(first).fit(x * units + offsets, y * 0.01 - 5)
    mean, std = first.predict(x, return_std=True)
    other_mean, other_std = other.predict(x * units + offsets, return_std=True)
    np.testing.assert_allclose((other_mean + 5) * 100, mean, rtol=1e-6)
    np.testing.assert_allclose(other_std * 100, std, rtol=1e-6)


def test_without_standardising_the_network_sees_the_columns_as_they_are():
    x, y = curve()
    fitted = BayesianRegressor(method=QUICK, network=tiny, epochs=1, standardise=False).fit(x, y)
    assert (fitted.input_mean_ == 0).all() and (fitted.input_scale_ == 1).all()
    assert (fitted.target_mean_ == 0).all() and (fitted.target_scale_ == 1).all()


def test_a_weight_counts_a_row_that_many_times_in_scaling_and_in_fitting():
    x, y = curve(rows=20)
    weights = np.random.default_rng(1).integers(0, 4, 20)
    once = BayesianRegressor(method=QUICK, network=tiny, epochs=40)
    weighted = clone(once).fit(x, y, sample_weight=weights)
    repeated = clone(once).fit(x.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_allclose(weighted.input_mean_, repeated.input_mean_)
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), rtol=1e-8)
    assert not np.allclose(weighted.predict(x), once.fit(x, y).predict(x), rtol=1e-3)


def test_float32_tables_stay_float32():
    x, y = curve()
    fitted = BayesianRegressor(method=QUICK, network=tiny, epochs=2).fit(x.astype(np.float32), y)
    assert fitted.predict(x.astype(np.float32)).dtype == np.float32
    assert BayesianRegressor(method=QUICK, network=tiny, epochs=2).fit(x, y).predict(x).dtype == np.float64


def test_a_constant_column_and_a_constant_target_are_harmless():
    x, y = curve()
    x = np.hstack([x, np.full((len(x), 1), 1e6)])
    fitted = BayesianRegressor(method=QUICK, network=tiny, epochs=40).fit(x, y)
    assert np.isfinite(fitted.predict(x)).all()
    constant = BayesianRegressor(method=QUICK, network=tiny, epochs=200).fit(x, np.full(len(x), 3.0))
    mean, std = constant.predict(x, return_std=True)
    assert np.abs(mean - 3.0).max() < 0.2 and np.isfinite(std).all() and (std > 0).all()


# --- in scikit-learn's company ---


def test_a_grid_search_over_methods_in_a_pipeline_scores_by_log_density():
    x, y = curve()
    model = make_pipeline(MinMaxScaler(), BayesianRegressor(network=tiny, epochs=8))
    grid = {"bayesianregressor__method": ["map", "multiswag", pl.SWAG(rank=3)]}
    search = GridSearchCV(model, grid, cv=2, scoring=lambda e, x, y: e[-1].log_prob(e[:-1].transform(x), y).mean())
    search.fit(x, y)
    assert search.predict(x).shape == y.shape
    assert len(set(search.cv_results_["mean_test_score"])) == 3


def test_cross_validation_finds_the_species():
    x, y = iris()
    scores = cross_val_score(BayesianClassifier(method=QUICK, epochs=60), x, y, cv=3)
    assert scores.mean() > 0.9


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda e: e.name)
def test_every_method_is_known_by_its_command_line_name(entry):
    x, y = iris()
    fitted = BayesianClassifier(method=entry.name, network=tiny, epochs=8).fit(x[::5], y[::5])
    assert type(fitted.method_).__name__ == entry.class_name
    p = fitted.predict_proba(x)
    assert p.shape == (150, 3) and np.allclose(p.sum(1), 1)


def test_neither_global_generator_moves():
    x, y = iris()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = BayesianClassifier(method=PAIR, epochs=2).fit(x, y).predict_proba(x)
    assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == np.random.get_state()[1]).all()
    np.testing.assert_array_equal(first, BayesianClassifier(method=PAIR, epochs=2).fit(x, y).predict_proba(x))
    other = BayesianClassifier(method=PAIR, epochs=2, random_state=np.random.RandomState(5)).fit(x, y).predict_proba(x)
    assert np.abs(first - other).max() > 1e-3


# --- networks ---


def test_a_given_network_is_where_the_fit_starts_and_stays_as_it_was():
    x, y = curve()
    network = tiny(3, 1)
    before = copy.deepcopy(network.state_dict())
    untrained = BayesianRegressor(method=pl.MAP(), network=network, epochs=0).fit(x, y)
    z = torch.as_tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    expected = network(z).detach().numpy()[:, 0] * y.std() + y.mean()
    np.testing.assert_allclose(untrained.predict(x), expected, rtol=1e-5)
    BayesianRegressor(method=pl.MAP(), network=network, epochs=3).fit(x, y)
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())


@pytest.mark.parametrize(("likelihood", "expected"), [(None, (3, 2)), (pl.likelihoods.HeteroscedasticNormal(), (3, 4))])
def test_a_network_function_is_told_how_many_outputs_the_likelihood_needs(likelihood, expected):
    asked = []

    def build(*sizes: int) -> nn.Module:
        asked.append(sizes)
        return tiny(*sizes)

    x, y = curve(targets=2)
    BayesianRegressor(method=QUICK, network=build, likelihood=likelihood, epochs=1).fit(x, y)
    assert asked == [expected]


def test_a_long_table_is_predicted_in_parts_that_agree_with_the_whole(monkeypatch):
    x, y = curve()
    fitted = BayesianRegressor(method=pl.SWAG(rank=3), network=tiny, epochs=20, num_samples=8).fit(x, y)
    whole, density = fitted.predict(x, return_std=True), fitted.log_prob(x, y)
    monkeypatch.setattr(base, "NUMBERS_AT_A_TIME", 8 * 7)  # seven rows at a time
    np.testing.assert_allclose(fitted.predict(x, return_std=True), whole, rtol=1e-12)
    np.testing.assert_allclose(fitted.log_prob(x, y), density, rtol=1e-12)


# --- storing ---


class Wide(pl.likelihoods.Normal):
    """A likelihood of the user's own class."""


@pytest.mark.parametrize(
    "settings",
    [
        {"method": pl.MultiSWAG(modes=2, base=pl.SWAG(rank=3))},
        {"method": QUICK, "likelihood": Wide(scale=0.5)},
        {"method": pl.HMC(), "likelihood": pl.likelihoods.HeteroscedasticNormal()},
        {"method": QUICK, "network": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))},
    ],
    ids=["mixture", "own likelihood", "samples", "batch norm"],
)
def test_a_stored_or_copied_estimator_predicts_the_same_to_the_bit(settings):
    x, y = curve()
    fitted = BayesianRegressor(**{"network": tiny, "epochs": 12, **settings}).fit(x, y)
    expected = fitted.predict(x, return_std=True)
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(twin.predict(x, return_std=True), expected)
        assert twin.posterior_.model.num_data == len(x)


def test_what_is_stored_of_the_posterior_is_a_safetensors_file():
    x, y = curve()
    fitted = BayesianRegressor(method=QUICK, network=tiny, epochs=1).fit(x, y)
    state = fitted.__getstate__()
    assert not any(isinstance(value, pl.Posterior) for value in state.values())
    stored = tensors_in(state["_stored"]["file"])
    assert any(torch.equal(t, fitted.posterior_.mean["layers.0.weight"]) for t in stored.values())
    assert fitted.posterior_ is not None  # asking for the state took nothing away


def test_the_posterior_can_be_saved_and_loaded_on_its_own(tmp_path):
    x, y = iris()
    fitted = BayesianClassifier(method=pl.SWAG(rank=3), epochs=8).fit(x, y)
    fitted.posterior_.save(tmp_path / "iris.plausible")
    loaded = pl.load(tmp_path / "iris.plausible")
    probs = loaded.predict(torch.as_tensor((x - x.mean(0)) / x.std(0))).probs
    assert probs.dtype == torch.float64
    np.testing.assert_allclose(probs.numpy(), fitted.predict_proba(x), rtol=1e-9)


def test_refitting_after_a_change_of_parameters_forgets_the_old_fit():
    x, y = curve()
    fitted = BayesianRegressor(method=QUICK, network=tiny, epochs=5).fit(x, y)
    again = fitted.set_params(epochs=30).fit(x[:, :2], y)
    fresh = BayesianRegressor(method=QUICK, network=tiny, epochs=30).fit(x[:, :2], y)
    np.testing.assert_array_equal(again.predict(x[:, :2]), fresh.predict(x[:, :2]))


# --- errors ---


def test_wrong_requests_name_the_value_and_the_way_out():
    x, y = iris()
    with pytest.raises(ValueError, match=r"one of .*deep-ensemble.*multiswag.*got 'swagg'"):
        BayesianClassifier(method="swagg").fit(x, y)
    with pytest.raises(TypeError, match=r"network must be .*got 'mlp'"):
        BayesianClassifier(network="mlp").fit(x, y)
    with pytest.raises(ValueError, match="Bernoulli is for two classes, got 3"):
        BayesianClassifier(likelihood=pl.likelihoods.Bernoulli()).fit(x, y)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        BayesianClassifier(epochs=1).fit(x, y, sample_weight=np.full(150, -1.0))
    with pytest.raises(ValueError, match="label 'rose', which was not in the training data"):
        BayesianClassifier(method=QUICK, epochs=1).fit(x, y).log_prob(x[:2], ["setosa", "rose"])
    with pytest.raises(NotFittedError):
        BayesianRegressor().predictive(x)


# --- the defaults, beside scikit-learn's ---

TASKS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine, "diabetes": load_diabetes}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("task", TASKS)
def test_defaults_score_as_well_as_scikit_learns_networks_on_scaled_inputs(task):
    x, y = TASKS[task](return_X_y=True)
    classes = task != "diabetes"
    ours = BayesianClassifier() if classes else BayesianRegressor()
    theirs = make_pipeline(StandardScaler(), (MLPClassifier if classes else MLPRegressor)(random_state=0))
    our_scores, their_scores = [], []
    for split in range(5):
        x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=split, stratify=y if classes else None)
        our_scores.append(ours.fit(x_train, y_train).score(x_test, y_test))
        their_scores.append(theirs.fit(x_train, y_train).score(x_test, y_test))
    assert np.mean(our_scores) >= np.mean(their_scores) - np.std(their_scores, ddof=1) / math.sqrt(5)
