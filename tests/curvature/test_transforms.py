"""The same numbers inside `vmap`, compiled, in mixed precision, and without a word from torch."""

import warnings

import pytest
import torch
from tests.curvature.brute_force import gap
from tests.curvature.networks import CASES, make
from tests.curvature.test_training import NETWORKS, case
from torch import nn
from torch.utils import _pytree as pytree

import plausible as pl
from plausible.curvature import Curvature, gauss_newton_product, second_moments
from plausible.weights.rng import run_keys

LIKELIHOOD = pl.likelihoods.Categorical()


def stacked(model: pl.BayesianModel, modes: int = 3) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return {
        k: torch.stack([w + 0.1 * m * torch.randn(w.shape, generator=rng).to(w) for m in range(modes)])
        for k, w in model.init().items()
    }


def targets(inputs) -> torch.Tensor:
    count = pytree.tree_leaves(inputs)[0].shape[0]
    return torch.randint(2, (count,), generator=torch.Generator().manual_seed(5))


def check_against_a_loop(function, *args) -> None:
    # First the vectorised call, so that it has no plan to find.
    found = torch.vmap(function, randomness="error")(*args)
    for m in range(3):
        alone = function(*[pytree.tree_map(lambda t, m=m: t[m], a) for a in args])
        largest = max(float(t.abs().max()) for t in alone.values())
        for k, value in alone.items():
            assert float((found[k][m] - value).abs().max()) <= 1e-10 * largest, k


# These kernels cannot be vectorised over weights by any means; `fit` runs such modes one after the other.
RECURRENT = {"LSTM", "LSTM time first", "GRU", "RNN", "LSTM cell"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in RECURRENT])
def test_all_modes_at_once_are_each_by_itself(name):
    network, inputs = make(name)
    model = pl.BayesianModel(network, LIKELIHOOD)
    batch = (inputs, targets(inputs), None)
    check_against_a_loop(lambda params: second_moments(model, params, batch), stacked(model))


def test_all_modes_at_once_with_data_of_their_own():
    network, _ = make("tied weights")
    tokens = torch.randint(0, 7, (3, 4, 5), generator=torch.Generator().manual_seed(2))
    y = torch.randint(2, (3, 4), generator=torch.Generator().manual_seed(3))
    model = pl.BayesianModel(network, LIKELIHOOD)
    check_against_a_loop(lambda p, x, y: second_moments(model, p, (x, y, None)), stacked(model), tokens, y)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "strange"])
def test_all_modes_at_once_in_train_mode(name):
    _, model, batch = case(name)
    check_against_a_loop(lambda params: second_moments(model, params, batch), stacked(model))


def test_all_modes_at_once_with_dropout_keys_of_their_own():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.Dropout2d(0.4), nn.Tanh(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(27, 2)
    )
    network, x, y = network.double(), torch.randn(5, 1, 4, 4).double(), torch.tensor([0, 1, 1, 0, 1])
    model = pl.BayesianModel(network, LIKELIHOOD).bound(training=True)
    check_against_a_loop(lambda p, key: second_moments(model, p, (x, y, None), key), stacked(model), run_keys(0, 3))


@pytest.mark.parametrize("name", ["conv2d", "tied weights", "low rank"])
def test_every_form_of_curvature_for_all_modes_at_once(name):
    network, inputs = make(name)
    model = pl.BayesianModel(network, LIKELIHOOD)
    batch = (inputs, targets(inputs), None)

    def forms(params):
        found = Curvature(model, params, batch)
        factors = found.kronecker()
        sides = {f"{k}.{s}": b[s] for k, b in factors["blocks"].items() for s in ("rows", "columns")}
        product = gauss_newton_product(model, params, batch, {k: params[k] for k in model.weight_names})
        return {"dense": found.dense(), **found.diagonal(), **sides, **{f"{k} v": t for k, t in product.items()}}

    check_against_a_loop(forms, stacked(model))


def test_a_compiled_call_is_the_eager_one():
    network, x = make("linear")
    model = pl.BayesianModel(network, LIKELIHOOD)
    params, batch = model.init(), (x, targets(x), None)

    def twice(params):
        return {k: 2 * v for k, v in second_moments(model, params, batch).items()}

    eager, compiled = twice(params), torch.compile(twice, backend="aot_eager")(params)
    assert all(torch.equal(eager[k], compiled[k]) for k in eager)
    modes = stacked(model)
    several = torch.compile(torch.vmap(twice), backend="aot_eager")(modes)
    for m in range(3):
        alone = twice({k: w[m] for k, w in modes.items()})
        assert all(gap(several[k][m], alone[k]) < 1e-12 for k in alone)


@pytest.mark.parametrize("name", ["weight norm", "transformer", "LSTM", "embedding bag"])
def test_torch_does_not_complain_about_speed(name):
    network, inputs = make(name)
    model = pl.BayesianModel(network, LIKELIHOOD)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        curvature = Curvature(model, model.init(), (inputs, targets(inputs), None))
        curvature.diagonal(), curvature.dense(), curvature.kronecker()
    assert not heard, heard[0].message


@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
def test_mixed_precision_is_within_two_percent_and_sums_in_single(kind):
    torch.manual_seed(0)
    network = {
        "mlp": lambda: nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)),
        "convolutions": lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(72, 10),
        ),
    }[kind]()  # fmt: skip
    x = torch.randn(256, *((20,) if kind == "mlp" else (1, 9, 9)))
    batch = (x, torch.randint(10, (256,)), None)
    model = pl.BayesianModel(network, LIKELIHOOD)
    params = model.init()
    single, mixed = (Curvature(model.bound(precision=p), params, batch, "empirical-fisher") for p in (None, "bf16"))
    truth, found = single.diagonal(), mixed.diagonal()
    for k in truth:
        assert found[k].dtype == torch.float32
        assert float((found[k] - truth[k]).norm() / truth[k].norm()) < 0.02, k
    blocks, truths = mixed.kronecker()["blocks"], single.kronecker()["blocks"]
    for k, block in blocks.items():
        for side in ("rows", "columns"):
            assert block[side].dtype == torch.float32
            assert float((block[side] - truths[k][side]).norm() / truths[k][side].norm()) < 0.02, (k, side)
