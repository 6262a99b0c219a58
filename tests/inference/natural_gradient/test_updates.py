"""The update rules by themselves, where expectations over q have closed forms."""

import pytest
import torch

from plausible.inference.natural_gradient.gaussian_prior import GaussianPrior, deviations
from plausible.inference.natural_gradient.ivon import hessian_estimate, ivon_step_
from plausible.inference.natural_gradient.vogn import vogn_metric, vogn_step_

NOISE, DELTA = 0.5, 2.0
CENTRE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def regression(count=40):
    rng = torch.Generator().manual_seed(0)
    mix = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 1.2]], dtype=torch.float64)
    x = torch.randn(count, 3, generator=rng, dtype=torch.float64) @ mix
    return x, x @ CENTRE + NOISE * torch.randn(count, generator=rng, dtype=torch.float64)


def start(value=0.0, size=3):
    zeros = torch.zeros(size, dtype=torch.float64)
    return {"params": {"w": zeros.clone()}, "momentum": {"w": zeros.clone()}, "curvature": {"w": zeros + value}}


def own_equation(x, y, tau):
    """The mean of exp(−N ℓ̄ / τ) p(w), and the variances that VOGN's equation has for its solution, iterated."""
    precision = x.T @ x / NOISE**2 / tau + DELTA * torch.eye(3, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2 / tau)
    variance = torch.ones(3, dtype=torch.float64)
    for _ in range(500):
        residual = (y - x @ mean) ** 2 + x**2 @ variance
        variance = 1 / ((residual[:, None] * x**2).sum(0) / NOISE**4 / tau + DELTA)
    return mean, variance, 1 / precision.diagonal()


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_vogn_settles_where_its_own_equation_says_and_not_at_the_best_independent_normal(tau):
    x, y = regression()
    mean, variance, best = own_equation(x, y, tau)
    prior, state, total = GaussianPrior({"w": DELTA}), start(1.0), float(len(x))
    for _ in range(800):
        now = deviations(vogn_metric(state["curvature"], num_data=total, prior=prior), total)["w"] ** 2
        residual = y - x @ state["params"]["w"]
        gradient = {"w": -(x * residual[:, None]).mean(0) / NOISE**2}
        squares = {"w": (x**2 * (residual**2 + x**2 @ now)[:, None]).mean(0) / NOISE**4}
        vogn_step_(
            state, gradient, squares, rate=0.05, momentum=0.9, decay=0.95, num_data=total, prior=prior, tempering=tau
        )
    found = deviations(vogn_metric(state["curvature"], num_data=total, prior=prior), total)["w"] ** 2
    torch.testing.assert_close(state["params"]["w"], mean, rtol=1e-8, atol=0)
    torch.testing.assert_close(found, variance, rtol=1e-8, atol=0)
    assert float((found / best - 1).abs().max()) > 0.01


def test_one_vogn_step_is_the_published_one_written_out():
    prior = GaussianPrior({"w": 3.0}, {"w": torch.tensor([0.5, 0.0, 0.0], dtype=torch.float64)})
    state = start(0.2)
    state["params"]["w"] += CENTRE
    state["momentum"]["w"] += 0.1
    g, h = torch.tensor([1.0, -1.0, 2.0]).double(), torch.tensor([2.0, 1.0, 5.0]).double()
    vogn_step_(
        state, {"w": g.clone()}, {"w": h}, rate=0.3, momentum=0.9, decay=0.7, num_data=20.0, prior=prior, damping=0.01
    )
    m = 0.9 * 0.1 + g + 3.0 / 20 * (CENTRE - torch.tensor([0.5, 0.0, 0.0]).double())
    s = 0.7 * 0.2 + 0.3 * h
    torch.testing.assert_close(state["momentum"]["w"], m)
    torch.testing.assert_close(state["curvature"]["w"], s)
    torch.testing.assert_close(state["params"]["w"], CENTRE - 0.3 * m / (s + 3.0 / 20 + 0.01))


def quadratic():
    root = torch.tensor([[2.0, 0.0, 0.0], [1.5, 1.0, 0.0], [-0.5, 0.3, 0.4]], dtype=torch.float64)
    return root @ root.T  # condition number above 100


def test_ivons_hessian_estimate_is_unbiased_on_a_correlated_quadratic():
    hessian, total, prior = quadratic(), 30.0, GaussianPrior({"w": 0.6})
    metric = prior.metric({"w": torch.tensor([1.0, 0.3, 2.0], dtype=torch.float64)}, total)
    rng = torch.Generator().manual_seed(1)
    noise = torch.randn(200_000, 3, generator=rng, dtype=torch.float64)
    shift = noise * deviations(metric, total)["w"]
    gradient = (shift + 0.7) @ hessian
    found = hessian_estimate({"w": gradient}, {"w": shift}, metric, total)["w"]
    error = found.std(0) / len(found) ** 0.5
    assert bool(((found.mean(0) - hessian.diagonal()).abs() < 4 * error).all())


def test_ivon_settles_at_the_best_independent_normal_of_a_quadratic():
    hessian, total, delta = quadratic(), 30.0, 6.0
    prior, state = GaussianPrior({"w": delta}), start(1.0)
    rng = torch.Generator().manual_seed(2)
    for t in range(1200):
        metric = prior.metric(state["curvature"], total)
        shift = torch.randn(160, 3, generator=rng, dtype=torch.float64) * deviations(metric, total)["w"]
        gradient = {"w": (state["params"]["w"] + shift - CENTRE) @ hessian}
        estimate = hessian_estimate(gradient, {"w": shift}, metric, total)
        mean = {"w": gradient["w"].mean(0)}
        ivon_step_(
            state, mean, {"w": estimate["w"].mean(0)}, metric, rate=0.1 * (1 - t / 1200), count=t + 1, momentum=0.9,
            decay=0.995, num_data=total, prior=prior,
        )  # fmt: skip
    precision = total * hessian + delta * torch.eye(3, dtype=torch.float64)
    variance = deviations(prior.metric(state["curvature"], total), total)["w"] ** 2
    # ĥ of 160 draws scatters by an eighth of its own size, and the memory is of 400 such steps: 0.6 %, and less than thrice that.
    assert float((variance * precision.diagonal() - 1).abs().max()) < 0.016
    truth = torch.linalg.solve(precision, total * hessian @ CENTRE)
    assert bool(((state["params"]["w"] - truth).abs() < 0.2 * variance.sqrt()).all())


def test_ivons_metric_stays_positive_whatever_the_estimate_is():
    prior, state = GaussianPrior({"w": 0.0}), start(1e-3, size=4)
    wild = {"w": torch.tensor([-1e6, 1e6, 0.0, -1e-3], dtype=torch.float64)}
    for t in range(50):
        metric = prior.metric(state["curvature"], 10.0)
        ivon_step_(
            state, {"w": torch.zeros(4).double()}, wild, metric, rate=0.1, count=t + 1, momentum=0.9, decay=0.5,
            num_data=10.0, prior=prior,
        )  # fmt: skip
        assert bool((prior.metric(state["curvature"], 10.0)["w"] > 0).all())


def test_ivons_step_is_clipped_entry_by_entry():
    prior, state = GaussianPrior({"w": 0.0}), start(1.0)
    gradient = {"w": torch.tensor([100.0, -0.1, -100.0], dtype=torch.float64)}
    metric = prior.metric(state["curvature"], 5.0)
    ivon_step_(
        state, gradient, {"w": torch.ones(3).double()}, metric, rate=0.1, count=1, momentum=0.9, decay=0.5, num_data=5.0,
        prior=prior, clip_radius=0.5,
    )  # fmt: skip
    torch.testing.assert_close(state["params"]["w"], torch.tensor([-0.05, 0.01, 0.05], dtype=torch.float64))


@pytest.mark.parametrize("update", ["vogn", "ivon"])
def test_a_weight_that_the_data_say_nothing_of_keeps_its_prior(update):
    prior, total = GaussianPrior({"w": 4.0}), 10.0
    zero = {"w": torch.zeros(3, dtype=torch.float64)}
    state = start(0.3)
    for t in range(400):
        if update == "vogn":
            vogn_step_(
                state, {"w": zero["w"].clone()}, zero, rate=0.05, momentum=0.5, decay=0.9, num_data=total, prior=prior
            )
            metric = vogn_metric(state["curvature"], num_data=total, prior=prior)
        else:
            metric = prior.metric(state["curvature"], total)
            ivon_step_(
                state, zero, zero, metric, rate=0.05, count=t + 1, momentum=0.5, decay=0.9, num_data=total, prior=prior
            )
    torch.testing.assert_close(deviations(metric, total)["w"], torch.full((3,), 0.5, dtype=torch.float64))


def test_without_curvature_and_without_a_prior_vogn_stands_still_and_stays_finite():
    prior, zero = GaussianPrior({"w": 0.0}), {"w": torch.zeros(3, dtype=torch.float64)}
    state = start(0.0)
    vogn_step_(state, {"w": zero["w"].clone()}, zero, rate=1.0, momentum=0.9, decay=0.9, num_data=7.0, prior=prior)
    scale = deviations(vogn_metric(state["curvature"], num_data=7.0, prior=prior), 7.0)["w"]
    assert torch.equal(state["params"]["w"], zero["w"]) and torch.equal(scale, torch.ones_like(scale))


@pytest.mark.parametrize(("draws", "clip"), [(1, None), (4, None), (1, 0.5)])
def test_a_hundred_steps_of_ivon_are_those_of_its_authors_given_the_same_noise(draws, clip):
    ivon = pytest.importorskip("ivon", reason="ivon-opt is not installed")
    x, y = regression()
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    settings = {} if clip is None else {"clip_radius": clip}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = ivon.IVON(
            [weight], lr=0.05, ess=40.0, hess_init=0.3, beta1=0.9, beta2=0.98, weight_decay=0.02, mc_samples=draws, **settings
        )  # fmt: skip
        prior, state = GaussianPrior({"w": 0.02 * 40}), start(0.3)
        for t in range(100):
            metric = prior.metric(state["curvature"], 40.0)
            before, gradients, estimates = weight.detach().clone(), [], []
            for _ in range(draws):
                with theirs.sampled_params(train=True):
                    shift = weight.detach() - before
                    theirs.zero_grad()
                    (((x @ weight - y) ** 2).mean() / 2).backward()
                point = state["params"]["w"] + shift
                gradients.append({"w": x.T @ (x @ point - y) / len(y)})
                estimates.append(hessian_estimate(gradients[-1], {"w": shift}, metric, 40.0)["w"])
            theirs.step()
            ivon_step_(
                state, {"w": torch.stack([g["w"] for g in gradients]).mean(0)}, {"w": torch.stack(estimates).mean(0)}, metric,
                rate=0.05 * (0.3 + 0.02), count=t + 1, momentum=0.9, decay=0.98, num_data=40.0, prior=prior, clip_radius=clip,
            )  # fmt: skip
    torch.testing.assert_close(state["params"]["w"], weight.detach(), rtol=1e-6, atol=1e-7)
