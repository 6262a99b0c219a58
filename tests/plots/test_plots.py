"""Pictures show the numbers they are about; how they look is for people to judge."""

import io

import pytest
import torch
from torch import nn

import plausible as pl


def model(prior, outputs=1, likelihood=None, inputs=1):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))
    return pl.BayesianModel(network, likelihood or pl.likelihoods.Normal(scale=0.1), prior=prior)


def gaussian(m, spread=0.1):
    return pl.posteriors.Diagonal(m, m.init(), {k: torch.full_like(v, spread) for k, v in m.start.items()})


def rendered(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer)
    return len(buffer.getvalue())


def test_functions_drawn_from_the_prior_are_the_lines_of_the_picture():
    m = model(pl.priors.Hierarchical())
    x = torch.linspace(-1, 1, 9).flip(0).unsqueeze(1)
    figure = pl.plots.prior_predictive(m, x, n=7, seed=3)
    expected = m.prior_predictive(x, 7, seed=3).outputs[:, :, 0].flip(1)
    lines = [torch.tensor(line.get_ydata()) for line in figure.axes[0].lines if len(line.get_ydata())]
    torch.testing.assert_close(torch.stack(lines).float(), expected)
    assert rendered(figure) > 5000


def test_intervals_are_drawn_where_there_are_several_input_columns():
    figure = pl.plots.prior_predictive(model(pl.priors.Normal(), inputs=3), torch.randn(80, 3), n=16)
    assert len(figure.axes[0].lines[0].get_ydata()) == 60 and rendered(figure) > 5000


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(pl.likelihoods.Categorical(), 3), (pl.likelihoods.Bernoulli(), 1)]
)
def test_labels_are_shown_by_how_sure_drawn_networks_are_and_of_what(likelihood, outputs):
    m = model(pl.priors.Normal(), outputs, likelihood, inputs=2)
    figure = pl.plots.prior_predictive(m, torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), n=50)
    bars = figure.axes[1].patches
    assert len(bars) == max(outputs, 2)
    assert sum(bar.get_height() for bar in bars) == pytest.approx(1.0)
    assert rendered(figure) > 5000


def test_whole_numbers_are_tokens_to_a_network_that_embeds_them_and_numbers_to_any_other():
    network = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 3))
    tokens = torch.arange(10).reshape(5, 2) % 5
    embedding = pl.BayesianModel(network, pl.likelihoods.Categorical())
    assert len(pl.plots.prior_predictive(embedding, tokens, n=4).axes[1].patches) == 3
    assert len(pl.plots.prior_predictive(model(pl.priors.Normal(), inputs=2), tokens, n=4).axes) == 1


def test_each_layer_has_a_panel_of_natural_weights_beside_the_prior():
    m = model(pl.priors.Hierarchical(hyperprior=pl.hyperpriors.LogNormal(3.0, 0.01)))
    posterior = gaussian(m, 1e-4)
    figure = pl.plots.weight_posteriors(posterior)
    assert [axis.get_title() for axis in figure.axes] == ["layer 0", "layer 2"]
    edges = figure.axes[0].patches[0].get_data().edges
    own = torch.cat([w.detach().flatten() for w in m.source[0].parameters()])
    assert edges[0] < float(own.min()) < float(own.max()) < edges[-1] < 10  # of w, and not of z = w / 20
    assert rendered(figure) > 5000


def test_a_flat_prior_has_no_outline():
    figure = pl.plots.weight_posteriors(gaussian(model(pl.priors.Flat())))
    assert [patch.get_label() for patch in figure.axes[0].patches] == ["weight after", "bias after"]


@pytest.mark.parametrize(
    "prior", [pl.priors.Hierarchical(), pl.priors.Hierarchical(per="input"), pl.priors.Horseshoe()]
)
def test_learned_scales_are_shown_as_intervals_on_a_log_axis(prior):
    m = model(prior, inputs=50)
    figure = pl.plots.learned_scales(gaussian(m))
    names = [k for k in m.start if k.startswith("prior.")]
    assert len(figure.axes) == sum(m.start[k].dim() > 0 for k in names) + any(m.start[k].dim() == 0 for k in names)
    assert all(axis.get_xscale() == "log" for axis in figure.axes)
    assert rendered(figure) > 5000


def test_the_dots_of_learned_scales_are_posterior_medians():
    m = model(pl.priors.Hierarchical(per="network"))
    posterior = pl.posteriors.Diagonal(
        m, {**m.init(), "prior.scale": torch.tensor(0.7)}, {k: torch.full_like(v, 1e-6) for k, v in m.start.items()}
    )
    figure = pl.plots.learned_scales(posterior)
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert float(dots[0].get_xdata()[0]) == pytest.approx(2.01375, rel=1e-4)


def test_a_prior_without_unknown_scales_has_none_to_show():
    with pytest.raises(pl.NotSupported, match="Hierarchical"):
        pl.plots.learned_scales(gaussian(model(pl.priors.Normal())))
