"""Whether chains agree on what they predict."""

import torch

import plausible as pl
from plausible.report.agreement import plain_words, share_agreed


def chains(*centres: float) -> pl.Posterior:
    """Chains of a linear network with one weight, around these values."""
    network = torch.nn.Linear(1, 1, bias=False)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    generator = torch.Generator().manual_seed(0)
    parts = [
        pl.posteriors.Samples(model, {"weight": centre + torch.randn(40, 1, 1, generator=generator)})
        for centre in centres
    ]
    return pl.mixture(parts)


X = torch.tensor([[1.0], [2.0], [-3.0]])


def test_chains_around_one_value_agree_and_nothing_is_told():
    posterior = chains(0.5, 0.5, 0.5, 0.5)
    assert share_agreed(posterior, X) == 1.0
    assert plain_words("hmc", posterior, X, "--epochs 400") is None


def test_chains_around_two_values_do_not_agree_and_plain_words_say_so():
    posterior = chains(0.5, 4.0)
    assert share_agreed(posterior, X) == 0.0
    told = plain_words("hmc", posterior, X, "--epochs 400")
    assert told == (
        "hmc: its 2 runs agree on only 0% of the predictions, so its numbers are those of a short run; --epochs 400 makes "
        "it longer"
    )


def test_inputs_whose_prediction_does_not_depend_on_the_chain_count_as_agreed():
    x = torch.cat([X, torch.zeros(1, 1)])  # a weight times zero is zero in every chain
    assert share_agreed(chains(0.5, 4.0), x) == 0.25


def test_a_chain_that_stands_still_agrees_with_nothing():
    lone = chains(0.5).components[0]
    lone.draws = {"weight": torch.ones(40, 1, 1)}
    assert share_agreed(lone, X) == 0.0
    assert "not settled" in plain_words("hmc", lone, X, "--epochs 400")


def test_weights_that_trade_places_do_not_count_as_disagreement():
    network = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False), torch.nn.Tanh(), torch.nn.Linear(2, 1, bias=False))
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    generator = torch.Generator().manual_seed(1)
    parts = []
    for order in ([0, 1], [1, 0]):
        first = torch.tensor([[2.0], [-1.0]]) + 0.1 * torch.randn(40, 2, 1, generator=generator)
        second = torch.tensor([[1.0, 3.0]]) + 0.1 * torch.randn(40, 1, 2, generator=generator)
        parts.append(pl.posteriors.Samples(model, {"0.weight": first[:, order], "2.weight": second[:, :, order]}))
    both = pl.mixture(parts)
    assert not both.diagnostics().ok  # the weights themselves do not mix
    assert share_agreed(both, X) == 1.0


def test_a_point_has_nothing_to_tell():
    network = torch.nn.Linear(1, 1)
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=1.0))
    data = (X, X)
    assert plain_words("map", pl.fit(model, data, pl.MAP(), epochs=1, progress=False), X, "") is None
