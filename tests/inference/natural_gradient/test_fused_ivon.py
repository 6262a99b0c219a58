"""IVON's kernels against the same update in plain operations.

They need a GPU, or Triton's interpreter: `TRITON_INTERPRET=1 python -m pytest` this file, where Triton is installed.
"""

import importlib.util
import math
import os

import pytest
import torch

import plausible as pl
from plausible.core.schedules import Constant, Cosine, Step
from plausible.inference.natural_gradient import fused_ivon
from plausible.inference.natural_gradient.gaussian_prior import GaussianPrior, deviations, displaced, scattered
from plausible.inference.natural_gradient.ivon import hessian_estimate, ivon_step_
from plausible.weights.rng import Keys, run_key

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
kernels = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="the kernels run on a GPU, and there is none here"
)
cuda = pytest.mark.skipif(DEVICE == "cpu", reason="no GPU on this machine")

# More tensors than a launch takes, whole and broken tiles, a number alone, and nothing at all.
SHAPES = [(3,), (), (1024,), (0,), (31, 33), (5, 3, 3, 3), (2048,), (2049,), (1,), (7,), (4100,), (1023,), (16,)]
SHAPES += [(2, 2), (1025,), (10, 10), (3, 1, 5), (0, 4), (1000,), (9,)]
N, STEPS, PRECISION = 500.0, 100, 7.0


def weights(seed, shapes=SHAPES, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    # Names whose order is not that of the tensors: random numbers follow the names.
    names = [f"w{(i * 7) % len(shapes)}" for i in range(len(shapes))]
    return {k: (scale * torch.randn(s, generator=g)).to(DEVICE) for k, s in zip(names, shapes, strict=True)}


def fresh():
    curvature = {k: w.abs() + 0.05 for k, w in weights(1).items()}
    rescale = torch.full((), 0.31, dtype=torch.float64, device=DEVICE)
    return {
        "params": weights(0),
        "momentum": weights(2, scale=0.1),
        "curvature": curvature,
        "rescale": rescale,
    }


def keys(step, seed=3):
    return Keys(run_key(seed, device=DEVICE), torch.tensor(step, device=DEVICE))


def slopes_at(points):
    """Of a log likelihood on the scale of all data, concave, so that a rounding does not grow from step to step."""
    return {k: N * (0.2 * torch.sin(3 * w) - 0.7 * w) for k, w in points.items()}


def fused_step(state, rng, *, temperature=1.0, momentum=0.9, decay=0.95, clip_radius=None, schedule=None):
    given = {"precision": PRECISION, "num_data": N, "temperature": temperature, "momentum": momentum}
    drawn = fused_ivon.draw(state, rng, rate=0.2, schedule=schedule or Cosine(), num_steps=STEPS, **given)
    fused_ivon.step_(state, slopes_at(drawn.points), drawn, decay=decay, clip_radius=clip_radius, **given)
    return drawn


def plain_step(state, rng, *, temperature=1.0, momentum=0.9, decay=0.95, clip_radius=None, schedule=None):
    prior = GaussianPrior(dict.fromkeys(state["params"], PRECISION))
    metric = prior.metric(state["curvature"], N)
    shift = scattered(deviations(metric, N / temperature), rng)
    points = displaced(state["params"], shift)
    gradient = {k: s * (-temperature / N) for k, s in slopes_at(points).items()}
    ivon_step_(
        state, gradient, hessian_estimate(gradient, shift, metric, N / temperature), metric,
        rate=0.2 * (schedule or Cosine())(rng.step.double() / STEPS) * state["rescale"], count=rng.step.double() + 1,
        momentum=momentum, decay=decay, num_data=N, prior=prior, clip_radius=clip_radius,
    )  # fmt: skip
    return points


def assert_alike(found, expected, ulps=8):
    """To a few roundings of single precision, of the largest number of each tensor."""
    for what in ("params", "momentum", "curvature"):
        for k, w in expected[what].items():
            room = ulps * 2**-24 * (1 + float(w.abs().max()) if w.numel() else 1.0)
            torch.testing.assert_close(found[what][k], w, rtol=ulps * 2**-24, atol=room, msg=lambda m, k=k: f"{k}: {m}")


WAYS = {
    "as it comes": {},
    "clipped": {"clip_radius": 0.3},
    "without momentum": {"momentum": 0.0},
    "cold": {"temperature": 0.25},
    "at a constant rate": {"schedule": Constant()},
    "to a floor": {"schedule": Cosine(final=0.2)},
    "by another schedule": {"schedule": Step()},
    "by a function that gives a number": {"schedule": lambda progress: 0.5},
}


@kernels
@pytest.mark.parametrize("way", WAYS)
def test_one_step_of_the_kernels_is_one_of_plain_operations(way):
    found, expected = fresh(), fresh()
    drawn = fused_step(found, keys(41), **WAYS[way])
    points = plain_step(expected, keys(41), **WAYS[way])
    for k, w in points.items():
        assert drawn.points[k].shape == w.shape
        torch.testing.assert_close(drawn.points[k], w, rtol=2**-22, atol=2**-22)
    assert_alike(found, expected)


@kernels
@pytest.mark.parametrize("way", ["as it comes", "clipped", "cold"])
def test_a_hundred_steps_of_the_kernels_are_those_of_plain_operations(way):
    found, expected = fresh(), fresh()
    for step in range(STEPS if DEVICE == "cuda" else 5):
        fused_step(found, keys(step), **WAYS[way])
        plain_step(expected, keys(step), **WAYS[way])
    # Steps forget what they started from, so that roundings add up to some tens at the most.
    assert_alike(found, expected, ulps=50)


@kernels
def test_the_log_prior_is_that_of_the_drawn_weights():
    drawn = fused_step(fresh(), keys(0), temperature=0.5)
    normal = torch.distributions.Normal(0.0, torch.tensor(PRECISION, dtype=torch.float64).rsqrt())
    expected = sum(float(normal.log_prob(w.double().cpu()).sum()) for w in drawn.points.values()) / 0.5
    assert float(drawn.log_prior) == pytest.approx(expected, rel=1e-5)


@kernels
def test_weights_are_drawn_where_libraries_want_them():
    drawn = fused_step(fresh(), keys(0))
    assert all(w.data_ptr() % 16 == 0 for w in drawn.points.values() if w.numel())


@kernels
def test_slopes_that_are_transposed_or_halved_are_taken_as_they_are():
    found, expected = fresh(), fresh()
    given = {"precision": PRECISION, "num_data": N, "temperature": 1.0, "momentum": 0.9}
    for state, strange in ((found, True), (expected, False)):
        drawn = fused_ivon.draw(state, keys(2), rate=0.2, schedule=Cosine(), num_steps=STEPS, **given)
        slopes = {k: s.bfloat16() for k, s in slopes_at(drawn.points).items()}
        slopes = slopes if strange else {k: s.float() for k, s in slopes.items()}
        if strange:
            slopes = {k: s.T.contiguous().T.float() if s.dim() == 2 else s for k, s in slopes.items()}
        fused_ivon.step_(state, slopes, drawn, decay=0.95, clip_radius=None, **given)
    assert_alike(found, expected, ulps=0)


@kernels
def test_what_is_not_a_number_stays_one_when_clipped():
    state = fresh()
    state["momentum"]["w0"][0] = math.nan
    fused_step(state, keys(0), clip_radius=0.3)
    assert bool(state["params"]["w0"].isnan()[0]) and not bool(state["params"]["w7"].isnan().any())


@kernels
def test_a_step_from_products_is_one_of_plain_operations():
    found, expected = fresh(), fresh()
    gradient, shift = weights(5), weights(6, scale=0.1)
    products = {k: g * shift[k] for k, g in gradient.items()}
    numbers = {"rate": 0.05, "count": 4, "num_data": N, "momentum": 0.9, "decay": 0.99, "clip_radius": 0.5}
    fused_ivon.step_of_products_(found, gradient, products, precision=PRECISION, **numbers)
    prior = GaussianPrior(dict.fromkeys(gradient, PRECISION))
    metric = prior.metric(expected["curvature"], N)
    ivon_step_(expected, gradient, hessian_estimate(gradient, shift, metric, N), metric, prior=prior, **numbers)
    assert_alike(found, expected)


@cuda
def test_a_captured_step_is_an_eager_one():
    found, expected = fresh(), fresh()
    rng = keys(0)
    fused_step(fresh(), rng.later(0))  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused_step(found, rng.later(0))
    for step in range(STEPS):
        rng.step.fill_(step)
        graph.replay()
        fused_step(expected, keys(step))
    assert_alike(found, expected, ulps=0)


@cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_weights_need_not_be_on_the_current_device():
    state = {what: _moved(tensors, "cuda:1") for what, tensors in fresh().items()}
    expected = fresh()
    rng = Keys(run_key(3, device="cuda:1"), torch.tensor(1, device="cuda:1"))
    with torch.cuda.device(0):
        fused_step(state, rng)
    plain_step(expected, keys(1))
    assert_alike({what: _moved(tensors, "cuda:0") for what, tensors in state.items()}, expected)


def _moved(tensors, device):
    return {k: t.to(device) for k, t in tensors.items()} if isinstance(tensors, dict) else tensors.to(device)


# --- through `fit` and the optimiser ---


def problem():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(96, 1, 28, 28, generator=g)
    return x, (x.mean((1, 2, 3)) > 0).long()


def fitted(method=None, *, prior=None, steps=25, dtype=torch.float32, **options):
    torch.manual_seed(1)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 5, stride=3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(192, 2),
    ).to(dtype)  # fmt: skip
    model = pl.BayesianModel(network, pl.likelihoods.Categorical(), prior=prior or pl.priors.Normal(scale=0.3))
    x, y = problem()
    seen = []
    found = pl.fit(
        model, (x.to(dtype), y), method or pl.IVON(), steps=steps, batch_size=32, device=DEVICE, progress=False,
        callbacks=[lambda event: seen.append(float(event["log_joint"].mean()))], deterministic=False, **options,
    )  # fmt: skip
    return found, seen


@pytest.fixture
def counted(monkeypatch):
    """How many steps the kernels did; a CPU counts as a GPU where the interpreter is at hand."""
    calls, step_ = [], fused_ivon.step_
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_ivon, "kernels_run_on", lambda device: True)
    monkeypatch.setattr(fused_ivon, "step_", lambda *a, **k: (calls.append(1), step_(*a, **k)))
    return calls


@kernels
@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}], ids=["single", "mixed"])
@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_a_fit_by_kernels_is_a_fit_by_plain_operations(options, captured, counted, monkeypatch):
    from plausible.core import execution

    if DEVICE == "cpu" and captured:
        pytest.skip("only a GPU captures")
    if not captured:
        monkeypatch.setattr(execution, "CAPTURE_FROM", 10**9)
    steps = 25 if DEVICE == "cuda" else 3
    fused, seen = fitted(steps=steps, **options)
    assert counted
    monkeypatch.setattr(fused_ivon, "usable", lambda *families: False)
    done = len(counted)
    plain, told = fitted(steps=steps, **options)
    assert len(counted) == done
    # In mixed precision a rounding of a weight may be one of bfloat16's in the pass.
    tolerance = 2e-2 if options else 1e-3
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(told), rtol=tolerance, atol=tolerance)
    for k, w in plain.mean.items():
        assert float((fused.mean[k] - w).norm()) < tolerance * (1 + float(w.norm())), k
        assert float((fused.scale[k] - plain.scale[k]).norm()) < tolerance * (1 + float(plain.scale[k].norm())), k


@pytest.mark.parametrize(
    "options",
    [
        {"method": pl.IVON(num_samples=2)},
        {"prior": {"0.*": pl.priors.Normal(scale=0.1), "*": pl.priors.Normal(scale=1.0)}},
        {"prior": pl.priors.Flat()},
        {"dtype": torch.float64},
        {"num_modes": 3, "vectorise": True},
    ],
    ids=["two draws", "two priors", "no prior", "double precision", "vectorised modes"],
)
def test_the_plain_path_does_what_the_kernels_do_not(options, counted):
    fitted(steps=2, **options)
    assert not counted


def test_kernels_take_plain_memory_of_single_precision_alone(counted):
    like = torch.zeros(64, 64, device=DEVICE)
    assert fused_ivon.usable({"w": like})
    for strange in (like.double(), like.bfloat16(), like.T[1:], like[:, 1:], like.flatten()[1:]):
        assert not fused_ivon.usable({"w": like}, {"w": strange})
    assert not fused_ivon.usable({})
    inside = torch.vmap(lambda row: row * float(fused_ivon.usable({"w": row})))(torch.ones(2, 4, device=DEVICE))
    assert not inside.any()
    assert fused_ivon.numbers_alone(1, 0.5, None) and not fused_ivon.numbers_alone(0.5, torch.tensor(0.5))


def test_a_cpu_steps_without_them():
    assert not fused_ivon.usable({"w": torch.zeros(8)})


@kernels
@pytest.mark.parametrize("own", [{}, {"clip_radius": 1}, {"prior_precision": {"1.*": 0.0, "*": 2.0}}], ids=str)
def test_the_optimiser_steps_by_kernels_as_by_plain_operations(own, monkeypatch):
    calls, step = [], fused_ivon.step_of_products_
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_ivon, "kernels_run_on", lambda device: True)
    monkeypatch.setattr(fused_ivon, "step_of_products_", lambda *a, **k: (calls.append(1), step(*a, **k)))
    x, y = (t.to(DEVICE) for t in problem())
    found = []
    for fused in (True, False):
        torch.manual_seed(1)
        layers = torch.nn.Flatten(), torch.nn.Linear(784, 20), torch.nn.Tanh(), torch.nn.Linear(20, 2)
        network = torch.nn.Sequential(*layers).to(DEVICE)
        optimizer = pl.optim.IVON(network, num_data=len(y), **own)
        if not fused:
            monkeypatch.setattr(fused_ivon, "usable", lambda *families: False)
        for _ in range(4):
            optimizer.zero_grad()
            with optimizer.sampled():
                torch.nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        found.append({k: p.detach().clone() for k, p in network.named_parameters()})
    assert len(calls) == 4 * len(optimizer.param_groups)
    for k, w in found[1].items():
        assert float((found[0][k] - w).norm()) < 1e-4 * (1 + float(w.norm())), k
