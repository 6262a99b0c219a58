"""Finding, binding and describing unknown fields."""

import json
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch

from plausible.core import hyperpriors, likelihoods, priors
from plausible.core.hyperpriors import HalfCauchy, HalfNormal, InverseGamma, LogFlat, LogNormal
from plausible.core.unknowns import bind, known, require_scale, spec, unknowns, unspec


class HandWritten:
    """A user's own likelihood: no dataclass, no base class."""

    def __init__(self, width, shift=2.0):
        self.width = width
        self.shift = shift

    def log_prob(self, outputs, y):
        return -((y - outputs - self.shift) / self.width).abs().sum(-1)


def test_unknowns_are_the_fields_that_hold_a_hyperprior():
    assert unknowns(priors.Normal(scale=2.0)) == {}
    assert unknowns(priors.StudentT(df=LogNormal(), scale=HalfCauchy(2.0))) == {
        "df": LogNormal(),
        "scale": HalfCauchy(2.0),
    }
    assert unknowns(likelihoods.Normal("learn")) == {"scale": LogFlat()}
    assert unknowns(HandWritten(HalfNormal())) == {"width": HalfNormal()}


def test_a_nested_prior_lends_its_unknowns():
    assert unknowns(priors.fan_in(priors.Laplace(HalfCauchy()))) == {"scale": HalfCauchy()}


def test_two_unknowns_of_one_name_are_refused():
    @dataclass(frozen=True)
    class Twice:
        prior: object
        scale: object

    with pytest.raises(ValueError, match="Twice has two unknowns called 'scale'; give one a number"):
        unknowns(Twice(priors.Normal(HalfCauchy()), HalfNormal()))


def test_bind_replaces_unknowns_in_a_copy():
    prior = priors.Normal(scale=HalfCauchy())
    value = torch.tensor(0.5)
    bound = bind(prior, {"scale": value})
    assert bound.scale is value
    assert prior.scale == HalfCauchy()
    w = torch.randn(4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(bound.log_prob(w), priors.Normal(0.5).log_prob(w))
    with pytest.raises(FrozenInstanceError):
        bound.scale = 1.0


def test_bind_reaches_a_nested_prior_and_a_users_own_class():
    w = torch.ones(2, 4)
    prior = priors.fan_in(priors.Normal(HalfCauchy()))
    bound = bind(prior, {"scale": torch.tensor(2.0)})
    torch.testing.assert_close(bound.log_prob(w), priors.fan_in(priors.Normal(2.0)).log_prob(w))
    assert prior.prior.scale == HalfCauchy()
    own = HandWritten(HalfNormal())
    assert bind(own, {"width": torch.tensor(3.0)}).width == 3.0
    assert own.width == HalfNormal()


def test_bind_nothing_is_the_thing_itself():
    prior = priors.Normal()
    assert bind(prior, {}) is prior


def test_bind_names_the_unknowns_there_are():
    with pytest.raises(ValueError, match="Normal has no unknown 'df'; it has scale"):
        bind(priors.Normal(HalfCauchy()), {"df": torch.tensor(1.0)})
    with pytest.raises(ValueError, match="Flat has no unknown 'scale'; it has none"):
        bind(priors.Flat(), {"scale": torch.tensor(1.0)})


def test_an_unbound_scale_says_what_to_do():
    with pytest.raises(ValueError, match=r"scale of Normal is unknown, LogFlat\(\); use it in a BayesianModel"):
        likelihoods.Normal("learn").log_prob(torch.zeros(3, 1), torch.zeros(3, 1))
    assert known(priors.Normal(2.0), "scale") == 2.0


def test_binding_works_in_vmap():
    prior = priors.fan_in(priors.StudentT(df=LogNormal(), scale=HalfCauchy()))
    w = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    df, scale = torch.tensor([2.0, 4.0, 9.0]).double(), torch.tensor([0.3, 1.0, 2.0]).double()

    def log_prior(w, df, scale):
        return bind(prior, {"df": df, "scale": scale}).log_prob(w).sum()

    vectorised = torch.vmap(log_prior)(w, df, scale)
    looped = torch.stack([log_prior(*row) for row in zip(w, df, scale, strict=True)])
    torch.testing.assert_close(vectorised, looped, rtol=1e-12, atol=0)


def test_binding_compiles_into_one_graph():
    likelihood, prior = likelihoods.Normal("learn"), priors.fan_in(priors.Normal(HalfCauchy()))

    def log_joint(outputs, y, w, noise, scale):
        likelihood_now, prior_now = bind(likelihood, {"scale": noise}), bind(prior, {"scale": scale})
        return likelihood_now.log_prob(outputs, y).sum() + (prior_now.score(w) * prior_now.log_prob(w)).sum()

    generator = torch.Generator().manual_seed(2)
    outputs, y, w = (torch.randn(4, 2, generator=generator) for _ in range(3))
    arguments = (outputs, y, w, torch.tensor(0.5), torch.tensor(2.0))
    torch._dynamo.reset()
    compiled = torch.compile(log_joint, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), log_joint(*arguments))


EVERYTHING = [
    *[cls() for cls in hyperpriors.registry.values()],
    LogNormal(loc=-1.0, scale=0.5),
    InverseGamma(2.0, 3.0),
    priors.Normal(0.3),
    priors.Normal(HalfCauchy(0.1)),
    priors.Laplace(2),
    priors.Cauchy(),
    priors.StudentT(df=3.0, scale=InverseGamma(2.0, 3.0)),
    priors.ScaleMixture((0.1, 1.0), (0.25, 0.75)),
    priors.Flat(),
    priors.fan_in(priors.Normal(HalfNormal())),
    priors.Hierarchical(),
    priors.Hierarchical(priors.StudentT(df=3.0), InverseGamma(2.0, 3.0), per="input", centred=True),
    priors.Hierarchical(priors.Laplace, 0.5),
    priors.Horseshoe(0.3),
    priors.Correlated(0.5, 2.0),
    likelihoods.Categorical(ignore_index=255),
    likelihoods.Categorical(),
    likelihoods.Bernoulli(),
    likelihoods.Normal("learn"),
    likelihoods.Normal(0.2),
    likelihoods.HeteroscedasticNormal(),
    likelihoods.StudentT(df=3.0, scale="learn"),
    likelihoods.Poisson(),
    likelihoods.CensoredNormal(scale=None, lower=4.0, upper=9.0, truncate_below=0.0),
    likelihoods.CensoredNormal(scale=HalfCauchy(), upper=9),
]


@pytest.mark.parametrize("thing", EVERYTHING, ids=repr)
def test_a_description_survives_json(thing):
    is_likelihood = isinstance(thing, likelihoods.Likelihood)
    registry = likelihoods.registry if is_likelihood else priors.registry
    again = unspec(json.loads(json.dumps(spec(thing), allow_nan=False)), registry)
    assert type(again) is type(thing)
    assert again == thing


def test_every_registered_class_is_described_above():
    described = {type(thing) for thing in EVERYTHING}
    registered = {*hyperpriors.registry.values(), *priors.registry.values(), *likelihoods.registry.values()}
    assert described == registered


def test_tensors_and_classes_are_described_too():
    @dataclass(frozen=True)
    class Box:
        content: object

    scale = torch.tensor([[0.1], [2.0]], dtype=torch.bfloat16)
    again = unspec(
        json.loads(json.dumps(spec(Box((scale, priors.Normal, "a", None))))), {"Box": Box, **priors.registry}
    )
    assert torch.equal(again.content[0], scale)
    assert again.content[0].dtype == torch.bfloat16
    assert again.content[1:] == (priors.Normal, "a", None)


def test_an_instance_of_a_users_class_is_rebuilt_from_a_registry_that_has_it():
    again = unspec(spec(HandWritten(HalfNormal(0.5), shift=1.0)), {"HandWritten": HandWritten})
    assert vars(again) == {"width": HalfNormal(0.5), "shift": 1.0}


def test_only_registered_names_are_rebuilt():
    with pytest.raises(ValueError, match=r"unknown name 'os.system' in a description; known are .*Cauchy.*Normal"):
        unspec({"name": "os.system", "fields": {}}, priors.registry)
    nested = {"name": "Normal", "fields": {"scale": {"name": "Popen", "fields": {}}}}
    with pytest.raises(ValueError, match="unknown name 'Popen'"):
        unspec(nested, priors.registry)
    with pytest.raises(ValueError, match="unknown name 'load' in a description; known are bfloat16"):
        unspec({"name": "Normal", "fields": {"scale": {"tensor": [1.0], "dtype": "load"}}}, priors.registry)


def test_a_rebuilt_object_is_validated():
    with pytest.raises(ValueError, match="scale must be positive and finite, got -1.0"):
        unspec({"name": "Normal", "fields": {"scale": -1.0}}, priors.registry)


def test_what_cannot_be_described_is_named():
    with pytest.raises(ValueError, match="scale has 20000 entries, more than the 10000 a description may hold"):
        spec(priors.Normal(torch.ones(20_000)))
    with pytest.raises(TypeError, match="width holds a function, which has no description"):
        spec(HandWritten(lambda x: x))


def test_a_scale_is_a_number_a_tensor_or_a_hyperprior():
    for fine in (1, 0.5, torch.tensor(-1.0), HalfCauchy()):
        require_scale("scale", fine)
    with pytest.raises(TypeError, match="scale must be a positive number, a tensor or a hyperprior, got 'learn'"):
        require_scale("scale", "learn")
