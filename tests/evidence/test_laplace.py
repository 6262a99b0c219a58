"""Laplace's evidence as a function of its hyperparameters: values, gradients, and what it agrees with."""

import pytest
import torch
from tests.inference.laplace.networks import QUICK, class_model, classes, mlp, regression_model, sine
from tests.oracles import linear_regression

import plausible as pl

STRUCTURES = ("diagonal", "kronecker", "full")
SUBSETS = ("all", "last-layer", ("0.bias", "2.weight"))


def at(model, data, epochs=30):
    return pl.fit(model, data, pl.MAP(learning_rate=0.05), epochs=epochs, progress=False, compile=False).mean


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_match_finite_differences(structure):
    model = regression_model()
    params = at(model, sine())

    def one(logs):
        found = pl.evidence.laplace(
            model, params, sine(), structure=structure, prior_precision=logs[0].exp(), noise_scale=logs[1].exp()
        )
        return found.log_marginal_likelihood

    def per_pattern(logs):
        precision = {"0.weight": logs[0].exp(), "*.bias": logs[1].exp(), "2.*": logs[2].exp()}
        found = pl.evidence.laplace(
            model, params, sine(), structure=structure, prior_precision=precision, noise_scale=logs[3].exp()
        )
        return found.log_marginal_likelihood

    for function, start in ((one, [0.5, -1.0]), (per_pattern, [0.5, -1.0, 1.0, -0.7])):
        logs = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (logs,), eps=1e-5, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_of_a_classifiers_evidence_match_finite_differences(structure):
    params = at(class_model(), classes())

    def value(logs):
        precision = {"0.*": logs[0].exp(), "*": logs[1].exp()}
        found = pl.evidence.laplace(class_model(), params, classes(), structure=structure, prior_precision=precision)
        return found.log_marginal_likelihood

    logs = torch.tensor([0.7, -0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, (logs,), eps=1e-5, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("curvature", ["ggn", "mc-fisher", "empirical-fisher"])
@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_posteriors_own_evidence_is_that_of_its_mean(structure, subset, curvature):
    method = pl.Laplace(structure=structure, subset=subset, curvature=curvature)
    model = class_model(prior={"*.weight": pl.priors.Normal(scale=0.5), "*": pl.priors.Normal(scale=2.0)})
    posterior = pl.fit(model, classes(), method, **{**QUICK, "init": at(model, classes())})
    own = float(posterior.evidence().log_marginal_likelihood)
    settings = {"structure": structure, "subset": subset, "curvature": curvature}
    found = pl.evidence.laplace(model, posterior.mean, classes(), **settings)
    assert found.kind == "laplace"
    assert float(found.log_marginal_likelihood) == pytest.approx(own, abs=1e-7)
    given = {"*.weight": 4.0, "*": 0.25}
    if subset == "all":
        plain = class_model()
        again = pl.evidence.laplace(plain, posterior.mean, classes(), prior_precision=given, **settings)
        assert float(again.log_marginal_likelihood) == pytest.approx(own, abs=1e-7)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_precisions_that_differ_between_a_layers_weight_and_bias(structure):
    """A Kronecker block with a bias column has the prior's precision per column, so this is exact for it too."""
    problem = linear_regression()
    prior = {"weight": pl.priors.Normal(scale=0.5), "bias": pl.priors.Normal(scale=3.0)}
    model = problem.model(prior=prior)
    top = pl.fit(model, problem.data(), pl.Laplace(structure="full"), **QUICK)
    posterior = pl.fit(model, problem.data(), pl.Laplace(structure=structure), **{**QUICK, "init": top})
    own = float(posterior.evidence().log_marginal_likelihood)
    found = pl.evidence.laplace(model, top.mean, problem.data(), structure=structure)
    assert float(found.log_marginal_likelihood) == pytest.approx(own, abs=1e-8)
    if structure != "diagonal":
        exact = pl.evidence.exact(model, problem.data())
        assert own == pytest.approx(float(exact.log_marginal_likelihood), abs=1e-8)


def test_at_the_top_of_a_linear_model_it_is_the_exact_evidence_at_any_hyperparameters():
    problem = linear_regression()
    given = {"prior_precision": 3.0, "noise_scale": 0.9}
    model = problem.model(prior=pl.priors.Normal(scale=3.0**-0.5), likelihood=pl.likelihoods.Normal(scale=0.9))
    top = pl.fit(model, problem.data(), pl.Laplace(structure="full"), **QUICK).mean
    found = pl.evidence.laplace(problem.model(), top, problem.data(), structure="full", **given)
    exact = pl.evidence.exact(problem.model(), problem.data(), **given)
    assert float(found.log_marginal_likelihood) == pytest.approx(float(exact.log_marginal_likelihood), abs=1e-8)


def test_noise_that_was_learned_can_be_given_too():
    model = regression_model(likelihood=pl.likelihoods.Normal(scale="learn"))
    params = at(model, sine())
    scale = float(model.constrain(params)["likelihood.scale"])
    held = pl.evidence.laplace(model, params, sine())
    given = pl.evidence.laplace(model, params, sine(), noise_scale=scale)
    assert float(held.log_marginal_likelihood) == pytest.approx(float(given.log_marginal_likelihood), abs=1e-8)
    fixed = regression_model(likelihood=pl.likelihoods.Normal(scale=scale))
    weights = {k: v for k, v in params.items() if k != "likelihood.scale"}
    same = pl.evidence.laplace(fixed, weights, sine())
    assert float(held.log_marginal_likelihood) == pytest.approx(float(same.log_marginal_likelihood), abs=1e-8)


def test_batches_only_divide_the_work():
    params = at(class_model(), classes())
    whole = pl.evidence.laplace(class_model(), params, classes(), structure="full")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*classes()), batch_size=7)
    parts = pl.evidence.laplace(class_model(), params, loader, structure="full")
    assert float(parts.log_marginal_likelihood) == pytest.approx(float(whole.log_marginal_likelihood), abs=1e-8)


def test_what_it_cannot_do_is_refused():
    params = class_model().init()
    with pytest.raises(ValueError, match="structure must be"):
        pl.evidence.laplace(class_model(), params, classes(), structure="low-rank")
    with pytest.raises(pl.NotSupported, match=r"likelihoods\.Normal"):
        pl.evidence.laplace(class_model(), params, classes(), noise_scale=1.0)
    with pytest.raises(pl.NotSupported, match="flat"):
        pl.evidence.laplace(class_model(prior=pl.priors.Flat()), params, classes())
    with pytest.raises(ValueError, match="one prior precision"):
        scale = torch.linspace(0.5, 2.0, 8, dtype=torch.float64).reshape(4, 2)
        prior = {"0.weight": pl.priors.Normal(scale=scale), "*": pl.priors.Normal()}
        pl.evidence.laplace(class_model(prior=prior), params, classes())
    with pytest.raises(ValueError, match="matches no"):
        pl.evidence.laplace(class_model(), params, classes(), prior_precision={"3.*": 1.0, "*": 1.0})
    with pytest.raises(ValueError, match="missing"):
        pl.evidence.laplace(class_model(), dict(mlp(3).named_parameters(prefix="wrong")), classes())


@pytest.mark.parametrize("precision", [1.0, 1e-2, 1e-4])
def test_single_precision_does_not_lose_a_small_prior_precision_beside_a_large_curvature(precision):
    # Far more weights than data: most eigenvalues are zero, and rounding's are larger than the prior's.
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=rng)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    found = []
    for dtype in (torch.float32, torch.float64):
        model = pl.BayesianModel(network.to(dtype), pl.likelihoods.Normal(scale=0.01))
        data = (x.to(dtype), x[:, :1].to(dtype).sin())
        evidence = pl.evidence.laplace(model, model.init(), data, structure="full", prior_precision=precision)
        found.append(float(evidence.log_marginal_likelihood))
    assert found[0] == pytest.approx(found[1], abs=0.1)


@pytest.mark.parametrize("curvature", ["ggn", "empirical-fisher"])
def test_another_noise_gives_what_a_model_with_that_noise_gives(curvature):
    params = regression_model().init()
    quiet, loud = (regression_model(likelihood=pl.likelihoods.Normal(scale=s)) for s in (0.2, 0.7))
    settings = {"structure": "diagonal", "curvature": curvature}
    moved = pl.evidence.laplace(quiet, params, sine(), noise_scale=0.7, **settings)
    direct = pl.evidence.laplace(loud, params, sine(), **settings)
    torch.testing.assert_close(moved.log_marginal_likelihood, direct.log_marginal_likelihood)


def test_norm_layers_have_the_statistics_of_the_weights_that_are_asked_about():
    x, y = sine(60)
    x = 3 * x + 5
    torch.manual_seed(0)
    network = torch.nn.Sequential(mlp(4), torch.nn.BatchNorm1d(4).double(), torch.nn.Linear(4, 1).double())
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.2))
    own = pl.fit(model, (x, y), pl.Laplace(), **QUICK)
    trained = pl.fit(model, (x, y), pl.Laplace(), epochs=20, progress=False, compile=False)
    for posterior in (own, trained):
        found = pl.evidence.laplace(model, posterior.mean, (x, y))
        torch.testing.assert_close(found.log_marginal_likelihood, posterior.evidence().log_marginal_likelihood)


def test_a_pattern_of_precisions_that_means_nothing_is_named():
    with pytest.raises(ValueError, match=r"prior_precision='head.\*' matches no"):
        pl.evidence.laplace(regression_model(), regression_model().init(), sine(), prior_precision={"head.*": 1.0})
