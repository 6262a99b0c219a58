"""Several draws of a step, of networks that `vmap` cannot take, and second derivatives that torch does not have."""

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.inference.natural_gradient import draws, full
from plausible.inference.natural_gradient.second_derivatives import twice_differentiable
from plausible.weights.algebra import from_vector, to_vector

QUIET = {"progress": False, "device": "cpu"}


class Branching(nn.Module):
    """It looks at its numbers, which `vmap` forbids."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.a(x)
        return self.b((h / 100 if h.abs().max() > 100.0 else h).tanh())


def data():
    g = torch.Generator().manual_seed(0)
    return torch.randn(24, 4, generator=g), torch.randint(0, 3, (24,), generator=g)


MAKERS = {
    "branching": Branching,
    # whose rule under vmap takes the wrong axis for channels
    "PReLU": lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 3)),
}


METHODS = (pl.VOGN(num_samples=4), pl.IVON(num_samples=4), pl.NaturalGradientVI(num_samples=2))


@pytest.mark.parametrize(
    ("make", "method"),
    [*((Branching, m) for m in METHODS), *((MAKERS["PReLU"], m) for m in (METHODS[0], METHODS[2]))],
)
def test_draws_run_one_after_another_where_vmap_fails(make, method, monkeypatch, caplog):
    torch.manual_seed(0)
    model = pl.BayesianModel(make(), pl.likelihoods.Categorical())
    found = pl.fit(model, data(), method, steps=3, batch_size=8, compile=False, **QUIET)
    assert "draws of a step run one after another, since this network cannot be vectorised" in caplog.text
    assert len([r for r in caplog.records if "one after another" in r.getMessage()]) == 1
    monkeypatch.setattr(draws, "TOGETHER_FROM", 100)
    torch.manual_seed(0)
    apart = pl.fit(
        pl.BayesianModel(make(), pl.likelihoods.Categorical()),
        data(),
        method,
        steps=3,
        batch_size=8,
        compile=False,
        **QUIET,
    )
    for k, v in apart.sample(2, seed=0).items():
        torch.testing.assert_close(found.sample(2, seed=0)[k], v, rtol=1e-6, atol=1e-7)


def normed(kind):
    torch.manual_seed(0)
    wrap = nn.utils.weight_norm if kind == "old" else nn.utils.parametrizations.weight_norm
    return nn.Sequential(wrap(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1)).double()


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["old", "parametrization"])
def test_weight_norms_have_the_curvature_that_differences_of_slopes_have(kind):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=g).double()
    model = pl.BayesianModel(normed(kind), pl.likelihoods.Normal(scale=0.3)).bound(num_data=30.0)
    params, batch = model.init(), (x, x[:, :1].sin(), torch.ones(30).double())
    centre, slope = to_vector(params), lambda v: to_vector(model.slope(from_vector(v, params), batch)[1])
    steps = 1e-5 * torch.eye(len(centre), dtype=torch.float64)
    expected = torch.stack([(slope(centre + e) - slope(centre - e)) / 2e-5 for e in steps])
    with twice_differentiable():
        found = torch.func.jacrev(torch.func.grad(full._log_joint(model, params, batch, None)))(centre)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-6 * float(expected.abs().max()))


def test_attention_can_be_differentiated_twice():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3)).double()
    x = torch.randn(24, 3, 4, dtype=torch.float64)
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    found = pl.fit(model, (x, data()[1]), pl.NaturalGradientVI(), steps=2, batch_size=24, **QUIET)
    assert all(v.isfinite().all() for v in found.sample(2, seed=0).values())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_precision_that_is_still_that_of_the_start_is_said_to_be():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(23, 3, generator=g)
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=1.0))
    short = pl.fit(
        model, (0.01 * x, x[:, :1]), pl.NaturalGradientVI(learning_rate=0.02), steps=50, **QUIET
    ).diagnostics()
    assert not short.ok and any("still has 60% of the precision that it starts from" in m for m in short.messages)
    unused = torch.cat([x[:, :2], torch.zeros(23, 1)], 1)
    flat = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=1.0), pl.priors.Flat())
    improper = pl.fit(flat, (unused, x[:, :1]), pl.NaturalGradientVI(), steps=150, **QUIET).diagnostics()
    assert any("of 25% of the weights data say so little" in m for m in improper.messages)
    usual = pl.fit(model, (x, x[:, :1]), pl.NaturalGradientVI(), steps=150, **QUIET).diagnostics()
    assert usual.ok
