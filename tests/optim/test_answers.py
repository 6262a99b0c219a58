"""The posterior that an optimiser answers with, around its mean or of a chain's draws."""

import pytest
import torch
from tests.optim.cases import LOOPS, N, assert_equal, data, every, loop, make, mlp, model, sampling, stepped, weights
from torch import nn

import plausible as pl

# --- the answer ---


@every
def test_a_posterior_predicts_and_owns_its_tensors(name):
    optimizer = stepped(name)
    loop(optimizer, *data(), steps=5)
    posterior = optimizer.posterior(model(optimizer.network))
    before = posterior.predict(data()[0]).mean
    loop(optimizer, *data(), steps=2)
    assert torch.equal(posterior.predict(data()[0]).mean, before)
    assert (posterior.predict(data()[0]).epistemic > 0).all()


@sampling
def test_the_posterior_is_the_same_while_a_draw_is_held(name):
    optimizer = stepped(name)
    expected = optimizer.posterior(model(optimizer.network))
    optimizer.train()
    found = optimizer.posterior(model(mlp()))
    assert_equal(found.mean, expected.mean)
    assert_equal(found.scale, expected.scale)


@sampling
def test_the_posterior_is_the_same_inside_a_context(name):
    optimizer = stepped(name)
    expected = optimizer.posterior(model(optimizer.network))
    with optimizer.sampled():
        found = optimizer.posterior(model(mlp()))
    assert_equal(found.mean, expected.mean)


def test_a_model_of_other_weights_is_refused():
    optimizer = stepped("IVON")
    with pytest.raises(ValueError, match=r"likelihood\.scale"):
        optimizer.posterior(pl.BayesianModel(mlp(), pl.likelihoods.Normal(scale="learn")))
    with pytest.raises(TypeError, match="BayesianModel"):
        optimizer.posterior(mlp())
    with pytest.raises(ValueError, match="temperature"):
        optimizer.posterior(model(mlp(), temperature=0.5))


@pytest.mark.parametrize(
    ("prior", "precision", "said"),
    [
        (pl.priors.Normal(scale=0.5), 4.0, ""),
        ({"*.bias": pl.priors.Flat(), "*": pl.priors.Normal()}, {"*.bias": 0.0, "*": 1.0}, ""),
        (pl.priors.Normal(), 4.0, "prior of 0.weight has precision 1 and VOGN had prior_precision=4"),
        (pl.priors.Normal(), 0.0, "give the model pl.priors.Flat()"),
        (pl.priors.Laplace(), 1.0, "not one of independent normals"),
    ],
)  # fmt: skip
def test_another_prior_than_the_one_that_weights_were_drawn_towards_is_named(prior, precision, said, caplog):
    optimizer = stepped("VOGN", prior_precision=precision)
    optimizer.posterior(model(optimizer.network, prior=prior))
    assert said in caplog.text if said else not caplog.text


def test_a_prior_that_is_not_around_zero_is_named(caplog):
    optimizer = stepped("VOGN")
    own = weights(optimizer.network)
    yesterday = pl.posteriors.Diagonal(
        model(optimizer.network), {k: w + 5 for k, w in own.items()}, {k: torch.ones_like(w) for k, w in own.items()}
    )
    optimizer.posterior(model(optimizer.network, prior=yesterday))
    assert "not around zero" in caplog.text


@every
@pytest.mark.parametrize("style", LOOPS)
def test_a_batch_that_is_not_a_number_makes_no_step_and_names_the_gradient(name, style):
    optimizer, (x, y) = stepped(name), data()
    before = weights(optimizer.network)
    with pytest.raises(FloatingPointError, match=r"gradient of 0\.weight at step 1 is not finite"):
        LOOPS[style](optimizer, x, y * float("nan"), steps=1)
    optimizer.eval()
    assert_equal(weights(optimizer.network), before)
    loop(optimizer, x, y, steps=1)
    optimizer.posterior(model(optimizer.network))


@every
def test_weights_that_are_not_finite_make_no_posterior(name):
    optimizer = stepped(name)
    loop(optimizer, *data(), steps=3)
    with torch.no_grad():
        for p in optimizer.network.parameters():
            for kept in optimizer.state[p].get("draws", [p]):  # of a chain; else the mean
                kept.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="finite"):
        optimizer.posterior(model(optimizer.network))


def test_norm_statistics_are_the_networks_own():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer, (x, y) = make("VOGN", network), data()
    stale = model(network)  # made before anything was trained
    loop(optimizer, x, y, steps=20)
    posterior = optimizer.posterior(stale)
    network.eval()
    drawn = posterior.sample(1, seed=0)
    with torch.no_grad():
        for k, p in network.named_parameters():
            p.copy_(drawn[k][0])
    torch.testing.assert_close(posterior.predict(x, num_samples=1).outputs[0], network(x))


# --- draws of a chain ---


def test_kept_draws_stay_spread_over_the_chain():
    network, (x, y) = mlp(), data()
    optimizer = make("SGLD", network, max_draws=8, burn_in=2)
    seen = []
    for _ in range(40):
        loop(optimizer, x, y, steps=1)
        seen.append(network[0].weight.detach().clone())
    draws = optimizer.posterior(model(network)).draws["0.weight"]
    assert optimizer.param_groups[0]["thin"] == 8
    assert torch.equal(draws, torch.stack([seen[2 + 8 * k - 1] for k in range(1, 5)]))


def test_two_fifths_of_a_chain_are_dropped_unless_told():
    network, (x, y) = mlp(), data()
    optimizer = make("SGHMC", network)
    loop(optimizer, x, y, steps=10)
    assert len(optimizer.posterior(model(network))) == 6


def test_ivon_says_when_its_width_is_still_that_of_the_start():
    network = mlp()
    optimizer = make("IVON", network, betas=(0.9, 0.9))
    loop(optimizer, *data(), steps=10)
    (said,) = optimizer.posterior(model(network)).diagnostics().messages
    assert "after 10 steps" in said and "35% of hess_init" in said
    assert not optimizer.posterior(model(network)).diagnostics().ok
    loop(optimizer, *data(), steps=30)
    assert optimizer.posterior(model(network)).diagnostics().ok


class WithARest(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.fixed = nn.Linear(3, 1), nn.Linear(1, 1).requires_grad_(False)
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x):
        return self.fixed(self.layer(x)) + self.shift


@every
@pytest.mark.parametrize("what", ["shift", "fixed.weight"])
def test_a_model_that_was_made_before_the_rest_of_the_network_changed_is_refused(name, what):
    torch.manual_seed(0)
    network = WithARest().double()
    early = model(network)
    optimizer = make(name, network)
    loop(optimizer, *data(), steps=3)
    assert optimizer.posterior(early) is not None
    with torch.no_grad():
        network.get_parameter(what).add_(1.0) if "." in what else network.shift.add_(1.0)
    with pytest.raises(ValueError, match=f"{what}: the network has other values than when the model was made"):
        optimizer.posterior(early)
    assert optimizer.posterior(model(network)) is not None


def test_a_weight_that_was_frozen_meanwhile_is_called_so():
    network = mlp()
    optimizer = make("IVON", network)
    loop(optimizer, *data(), steps=2)
    network[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"0\.bias, 0\.weight: frozen since the optimiser was made"):
        optimizer.posterior(model(network))
    network[0].requires_grad_(True)
    assert optimizer.posterior(model(network)) is not None


def test_a_short_run_says_that_the_first_batch_decides_the_width():
    for beta in (0.999, 0.5):
        optimizer = make("VOGN", mlp(), betas=(0.9, beta))
        loop(optimizer, *data(), steps=5)
        said = optimizer.posterior(model(optimizer.network)).diagnostics()
        kept = "with betas[1]=0.999 the curvature still has 100% of the first batch's squared gradients"
        assert said.ok == (beta == 0.5)
        assert any(kept in m for m in said.messages) == (beta == 0.999)


def test_a_start_that_does_not_go_with_the_noise_is_named(caplog):
    """What a regression's loss bends by is in units of its noise, and IVON's defaults are for classes."""
    for noise, advice in ((0.05, "hess_init=400 and lr=0.00025"), (0.2, "hess_init=25 and lr=0.004"), (1.0, None)):
        for told in ({}, {"hess_init": 1 / noise**2, "lr": 0.1 * noise**2}):
            caplog.clear()
            network, named = mlp(), advice is not None and not told
            optimizer = pl.optim.IVON(network, num_data=N, betas=(0.9, 0.5), **told)
            loop(optimizer, *data(), steps=20)
            said = optimizer.posterior(pl.BayesianModel(network, pl.likelihoods.Normal(scale=noise))).diagnostics()
            assert any(str(advice) in m for m in said.messages) == named and (not named or not said.ok)
            assert any(str(advice) in r.getMessage() for r in caplog.records) == named


def test_a_prior_that_is_too_strong_for_the_rate_is_named_when_it_first_steps(caplog):
    """Its pull is δ / N of a weight's distance from zero, times lr (h₀ + δ/N) / h: here 2.15 of it where h is forgotten."""
    for precision, long in ((256.0, True), (64.0, False)):
        caplog.clear()
        optimizer = pl.optim.IVON(mlp(), num_data=64, prior_precision=precision)
        loop(optimizer, *data(), steps=3)
        (*told,) = [
            r.getMessage() for r in caplog.records if "hess_init + prior_precision / num_data" in r.getMessage()
        ]
        assert len(told) == long and ("lr=0.5 times" in "".join(told)) == long
        prior = pl.priors.Normal(scale=precision**-0.5)
        said = optimizer.posterior(model(optimizer.network, prior=prior)).diagnostics()
        assert any("farther each time" in m for m in said.messages) == long and (not long or not said.ok)


@pytest.mark.parametrize("name", ["OGN", "VOGN"])
def test_weights_that_neither_prior_nor_data_speak_of_are_named(name):
    """Behind a unit that is always off; they are held with a deviation that nothing says."""
    for precision in (0.0, 1.0):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double()
        with torch.no_grad():
            network[0].bias[0] = -100.0
        optimizer = make(name, network, prior_precision=precision)
        loop(optimizer, *data(), steps=20)
        prior = pl.priors.Normal() if precision else pl.priors.Flat()
        said = optimizer.posterior(model(network, prior=prior)).diagnostics()
        assert any(" weights of 0.weight, 0.bias, 2.weight have no prior" in m for m in said.messages) == (
            not precision
        )
        method = {"VOGN": pl.VOGN, "OGN": pl.OGN}[name](curvature_decay=0.5)
        found = pl.fit(
            model(network, prior=prior), data(), method, epochs=20, progress=False, device="cpu"
        ).diagnostics()
        assert any(" weights of 0.weight, 0.bias, 2.weight have no prior" in m for m in found.messages) == (
            not precision
        )


@pytest.mark.parametrize("count", [3, N])
def test_a_number_of_data_below_that_of_a_batch_is_named(count, caplog):
    optimizer = pl.optim.VOGN(mlp(), num_data=count, lr=0.01)
    loop(optimizer, *data(), steps=3)
    pl.fit(model(mlp()), data(), pl.VOGN(), steps=2, num_data=count, progress=False, device="cpu")
    said = [r.getMessage() for r in caplog.records if "it is the number of training examples" in r.getMessage()]
    assert len(said) == (2 if count < N else 0)
