"""Priors as a person types them."""

import math

import pytest

from plausible.core import hyperpriors as h
from plausible.core import priors as p


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("normal", p.Normal()),
        ("normal(0.5)", p.Normal(0.5)),
        (" Normal ( scale = 5e-1 ) ", p.Normal(0.5)),
        ("laplace(.3)", p.Laplace(0.3)),
        ("cauchy", p.Cauchy()),
        ("student-t(5, 1)", p.StudentT(5.0, 1.0)),
        ("StudentT(df=3)", p.StudentT(df=3.0)),
        ("flat", p.Flat()),
        ("scale-mixture", p.ScaleMixture((1.0, math.exp(-6)), (0.5, 0.5))),
        ("scale_mixture(2, 0.1, weight=0.25)", p.ScaleMixture((2.0, 0.1), (0.25, 0.75))),
        ("fan-in(normal(2))", p.fan_in(p.Normal(2.0))),
        ("normal(half-cauchy(0.1))", p.Normal(h.HalfCauchy(0.1))),
        ("horseshoe", p.Horseshoe()),
        ("horseshoe(global-scale=0.1)", p.Horseshoe(0.1)),
        ("correlated(1, lengthscale=2)", p.Correlated(1.0, 2.0)),
        ("hierarchical", p.Hierarchical()),
        ("hierarchical(laplace, inverse-gamma)", p.Hierarchical(p.Laplace(), h.InverseGamma())),
        (
            "hierarchical(student-t(3), log-normal(-1, 0.5), per=input, centred=true)",
            p.Hierarchical(p.StudentT(3.0), h.LogNormal(-1.0, 0.5), per="input", centred=True),
        ),
        ("hierarchical(normal, 0.3)", p.Hierarchical(p.Normal(), 0.3)),
    ],
)
def test_a_text_names_a_prior(text, prior):
    assert p.from_string(text) == prior


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norml", "known are normal, laplace, .*inverse-gamma"),
        ("", "expected a name"),
        ("normal(0.5", r"expected , or \)"),
        ("normal(0.5 2)", r"expected , or \)"),
        ("normal)", "expected the end"),
        ("normal; rm", "cannot read '; rm'"),
        ("normal(-1)", "scale must be positive"),
        ("normal(width=3)", r"normal takes \(scale\)"),
        ("student-t(1, 2, 3)", r"student-t takes \(df, scale\)"),
        ("hierarchical(normal, normal)", "hyperprior must be one of"),
        ("hierarchical(per=true)", "per must be one of"),
        ("half-cauchy", r"normal\(half-cauchy\)"),
        ("3", "is no prior"),
        ("scale-mixture(1, 2, 3)", "positive|sum to 1"),
    ],
)
def test_a_text_that_names_none_is_told_what_does(text, message):
    with pytest.raises(ValueError, match=message):
        p.from_string(text)
