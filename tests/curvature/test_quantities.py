"""The kinds of curvature, for likelihoods of every kind, against dense matrices by plain autograd."""

import pytest
import torch
from tests.curvature.brute_force import flat, gap, gradients_of_each, jacobians, output_hessians
from tests.oracles import FOUR
from torch import Tensor, nn

import plausible as pl
from plausible.curvature import Curvature, gauss_newton_product, second_moments
from plausible.weights.rng import Keys, run_key


class Gumbel:
    """A user's own."""

    def distribution(self, outputs):
        return torch.distributions.Gumbel(outputs, torch.ones_like(outputs))

    def log_prob(self, outputs, y):
        return self.distribution(outputs).log_prob(y).flatten(1).sum(1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(*shape: int, below: int, seed: int = 1) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def mlp(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def segmenter() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1)).double()


CASES = {
    "classes": lambda: (mlp(3), pl.likelihoods.Categorical(), normal(5, 3), whole(5, below=3)),
    "bits": lambda: (mlp(2), pl.likelihoods.Bernoulli(), normal(5, 3), whole(5, 2, below=2).double()),
    "counts": lambda: (mlp(2), pl.likelihoods.Poisson(), normal(5, 3), whole(5, 2, below=4).double()),
    "numbers": lambda: (mlp(2), pl.likelihoods.Normal(scale=0.7), normal(5, 3), normal(5, 2, seed=2)),
    "pixels": lambda: (segmenter(), pl.likelihoods.Categorical(), normal(4, 1, 3, 2), whole(4, 3, 2, below=3)),
    "own likelihood": lambda: (mlp(2), Gumbel(), normal(5, 3), normal(5, 2, seed=2)),
}
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)


def truth_of(network, likelihood, x, y, weights) -> Tensor:
    j = jacobians(network, x, len(y))
    with torch.no_grad():
        outputs = network(x)
    return torch.einsum("n,nkp,nkl,nlq->pq", weights, j, output_hessians(likelihood, outputs, y), j)


@pytest.mark.parametrize("name", CASES)
def test_ggn_is_jacobians_around_output_hessians(name):
    network, likelihood, x, y = CASES[name]()
    model, weights = pl.BayesianModel(network, likelihood), WEIGHTS[: len(y)]
    params, truth = model.init(), truth_of(network, likelihood, x, y, weights)
    curvature = Curvature(model, params, (x, y, weights))
    assert gap(curvature.dense(), truth) < 1e-8
    assert gap(flat(curvature.diagonal()), truth.diagonal()) < 1e-8
    assert float(curvature.clipped) == 0.0
    vector = {k: torch.randn(p.shape, generator=torch.Generator().manual_seed(4)).double() for k, p in params.items()}
    product = gauss_newton_product(model, params, (x, y, weights), vector)
    assert gap(flat(product), truth @ flat(vector)) < 1e-8


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_misfit_is_squared_residuals_beside_the_noise(weights):
    network, likelihood, x, y = CASES["numbers"]()
    model = pl.BayesianModel(network, likelihood)
    here = Curvature(model, model.init(), (x, y, weights))
    list(here.columns())
    squares = (network(x) - y).detach().square().mean(1) / 0.7**2
    own = torch.ones(5).double() if weights is None else weights
    torch.testing.assert_close(here.misfit(), (own * squares).sum() / own.sum())


@pytest.mark.parametrize("classes", [2, 100])
def test_a_misfit_of_labels_as_the_network_expects_them_is_one(classes):
    network, x = mlp(classes), normal(2000, 3)
    y = torch.distributions.Categorical(logits=network(x)).sample()
    model = pl.BayesianModel(network, pl.likelihoods.Categorical())
    here = Curvature(model, model.init(), (x, y, None))
    list(here.columns())
    torch.testing.assert_close(here.misfit(), torch.ones(()).double(), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_the_empirical_fisher_is_the_sum_of_outer_products_of_gradients(name):
    network, likelihood, x, y = CASES[name]()
    model, weights = pl.BayesianModel(network, likelihood), WEIGHTS[: len(y)]
    each = gradients_of_each(network, likelihood, x, y)
    rows = torch.cat([g.flatten(1) for g in each.values()], 1)
    truth = rows.T @ (weights[:, None] * rows)
    curvature = Curvature(model, model.init(), (x, y, weights), "empirical-fisher")
    assert gap(curvature.dense(), truth) < 1e-8
    assert gap(flat(curvature.diagonal()), truth.diagonal()) < 1e-8
    assert gap(flat(second_moments(model, model.init(), (x, y, weights))), truth.diagonal()) < 1e-8


def test_unknown_noise_has_second_moments_of_its_own():
    network, _, x, y = CASES["numbers"]()
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale="learn"))
    params = {**model.init(), "likelihood.scale": torch.tensor(-0.4, dtype=torch.float64)}
    found = second_moments(model, params, (x, y, WEIGHTS))
    each = gradients_of_each(
        network, pl.likelihoods.Normal(scale=float(model.constrain(params)["likelihood.scale"])), x, y
    )
    for k, g in each.items():
        assert gap(found[k], torch.einsum("n,n...->...", WEIGHTS, g**2)) < 1e-8
    u = params["likelihood.scale"].clone().requires_grad_()
    with torch.no_grad():
        outputs = network(x)
    scale = model.constrain({"likelihood.scale": u})["likelihood.scale"]
    values = torch.distributions.Normal(outputs, scale).log_prob(y).sum(1)
    slopes = torch.stack([torch.autograd.grad(v, u, retain_graph=True)[0] for v in values])
    assert gap(found["likelihood.scale"], (WEIGHTS * slopes**2).sum()) < 1e-8


@pytest.mark.parametrize("name", ["classes", "bits", "numbers"])
def test_the_simulated_fisher_is_the_ggn_on_average(name):
    network, likelihood, x, y = CASES[name]()
    model, draws = pl.BayesianModel(network, likelihood), 200
    params = model.init()
    truth = flat(Curvature(model, params, (x, y, WEIGHTS)).diagonal())
    found = torch.stack(
        [
            flat(Curvature(model, params, (x, y, WEIGHTS), "mc-fisher", Keys(run_key(s), torch.tensor(0))).diagonal())
            for s in range(draws)
        ]
    )
    error = found.std(0) / draws**0.5
    assert bool(((found.mean(0) - truth).abs() < FOUR * error + 1e-12).all())


# --- Kronecker factors ---


def captured(network: nn.Module, likelihood, x, y, weights) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs of all layers and gradients of their outputs, times the roots of the weights, by plain hooks."""
    inputs, outputs = {}, {}

    def note(name):
        def hook(module, args, out):
            inputs[name], outputs[name] = args[0].detach(), out
            out.retain_grad()

        return hook

    hooks = [
        m.register_forward_hook(note(k)) for k, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
    ]
    out = network(x)
    f = out.detach().requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.log_prob(f, y).sum(), f)
    out.backward(slope * weights.sqrt().reshape(-1, *[1] * (out.dim() - 1)))
    for h in hooks:
        h.remove()
    network.zero_grad()
    return {k: (inputs[k], outputs[k].grad) for k in inputs}


def test_kronecker_factors_are_products_of_captured_inputs_and_gradients():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.Tanh(), nn.Conv2d(4, 3, 2, bias=False), nn.Tanh(),
        nn.Flatten(2), nn.Linear(4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3),
    ).double()  # fmt: skip
    x, y, likelihood = normal(5, 2, 5, 5), whole(5, below=3), pl.likelihoods.Categorical()
    model = pl.BayesianModel(network, likelihood)
    found = Curvature(model, model.init(), (x, y, WEIGHTS), "empirical-fisher").kronecker()["blocks"]
    seen = captured(network, likelihood, x, y, WEIGHTS)
    assert set(found) == {f"{k}.weight" for k in seen}
    for name, (a, g) in seen.items():
        layer = network.get_submodule(name)
        if isinstance(layer, nn.Conv2d):
            a = nn.functional.unfold(a, layer.kernel_size, padding=layer.padding, stride=layer.stride)
            a = a.unflatten(1, (layer.groups, -1)).permute(1, 0, 3, 2)  # (G, N, T, window)
            g = g.unflatten(1, (layer.groups, -1)).flatten(3).permute(1, 0, 3, 2)
        else:
            a, g = a.reshape(1, 5, -1, a.shape[-1]), g.reshape(1, 5, -1, g.shape[-1])
        if layer.bias is not None:
            a = torch.cat([a, torch.ones_like(a[..., :1])], -1)
        block = found[f"{name}.weight"]
        assert gap(block["columns"], torch.einsum("n,gnti,gntj->gij", WEIGHTS, a, a)) < 1e-10
        assert gap(block["rows"], torch.einsum("gnto,gntp->gop", g, g)) < 1e-10
        assert float(block["count"]) == pytest.approx(float(WEIGHTS.sum()) * a.shape[2])


def test_the_factors_of_an_embedding_are_counts_and_products_of_gradients():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(6, 3, padding_idx=1), nn.Flatten(), nn.Linear(12, 2)).double()
    x, y, likelihood = whole(5, 4, below=6), whole(5, below=2), pl.likelihoods.Categorical()
    model = pl.BayesianModel(network, likelihood)
    block = Curvature(model, model.init(), (x, y, WEIGHTS), "empirical-fisher").kronecker()["blocks"]["0.weight"]
    counts, products = torch.zeros(6, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    for i in range(5):
        h = network[0](x[i : i + 1]).detach().requires_grad_()
        (g,) = torch.autograd.grad(likelihood.log_prob(network[2](h.flatten(1)), y[i : i + 1]).sum(), h)
        for t in range(4):
            if x[i, t] != 1:
                counts[x[i, t]] += WEIGHTS[i]
                products += WEIGHTS[i] * torch.outer(g[0, t], g[0, t])
    assert gap(block["rows"], counts[None]) < 1e-12
    assert gap(block["columns"], products[None]) < 1e-10
    assert float(block["count"]) == pytest.approx(float(counts.sum()))


def whole_block(factors: dict[str, Tensor]) -> Tensor:
    """The curvature of (weight | bias), laid flat row by row."""
    return torch.kron(factors["rows"][0], factors["columns"][0]) / factors["count"]


def dense_block(dense: Tensor, network: nn.Module, layer: str) -> Tensor:
    """The same part of the whole matrix, in the same order."""
    places, start = {}, 0
    for k, p in network.named_parameters():
        places[k], start = torch.arange(start, start + p.numel()).reshape(p.shape), start + p.numel()
    order = torch.cat([places[f"{layer}.weight"], places[f"{layer}.bias"][:, None]], 1).flatten()
    return dense[order][:, order]


def test_a_block_is_exact_for_one_example():
    network, likelihood, x, y = CASES["classes"]()
    model = pl.BayesianModel(network, likelihood)
    # With one column: a sum of products over several columns has the one input in common, too.
    curvature = Curvature(model, model.init(), (x[:1], y[:1], WEIGHTS[:1]))
    factors, dense = curvature.kronecker()["blocks"], truth_of(network, likelihood, x[:1], y[:1], WEIGHTS[:1])
    for layer in ("0", "2"):
        assert gap(whole_block(factors[f"{layer}.weight"]), dense_block(dense, network, layer)) < 1e-10


def test_blocks_are_exact_for_a_deep_linear_network_with_squared_loss():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)).double()
    likelihood, x, y = pl.likelihoods.Normal(scale=0.5), normal(5, 3), normal(5, 2, seed=2)
    model = pl.BayesianModel(network, likelihood)
    factors = Curvature(model, model.init(), (x, y, WEIGHTS)).kronecker()["blocks"]
    dense = truth_of(network, likelihood, x, y, WEIGHTS)
    for layer in ("0", "1", "2"):
        assert gap(whole_block(factors[f"{layer}.weight"]), dense_block(dense, network, layer)) < 1e-10


def test_factors_of_batches_add_up():
    network, likelihood, x, y = CASES["classes"]()
    model = pl.BayesianModel(network, likelihood)
    params = model.init()
    parts = [Curvature(model, params, (x[s], y[s], WEIGHTS[s])).kronecker()["blocks"] for s in (slice(2), slice(2, 5))]
    together = Curvature(model, params, (x, y, WEIGHTS)).kronecker()["blocks"]
    for k, block in together.items():
        for side, value in block.items():
            assert gap(parts[0][k][side] + parts[1][k][side], value) < 1e-12


# --- what can go wrong ---


def test_only_the_named_weights_are_asked_for():
    network, likelihood, x, y = CASES["classes"]()
    model = pl.BayesianModel(network, likelihood)
    truth = truth_of(network, likelihood, x, y, WEIGHTS)
    curvature = Curvature(model, model.init(), (x, y, WEIGHTS), names=["2.weight", "2.bias"])
    assert gap(curvature.dense(), truth[-15:, -15:]) < 1e-8
    assert list(curvature.diagonal()) == ["2.weight", "2.bias"]


def test_a_kind_that_does_not_exist_is_an_error_that_lists_those_that_do():
    network, likelihood, x, y = CASES["classes"]()
    model = pl.BayesianModel(network, likelihood)
    with pytest.raises(ValueError, match="ggn, mc-fisher, empirical-fisher, got 'hessian'"):
        Curvature(model, model.init(), (x, y, None), "hessian")
    with pytest.raises(ValueError, match="must be given rng"):
        Curvature(model, model.init(), (x, y, None), "mc-fisher")


def test_the_global_generator_and_the_network_are_left_alone():
    network, likelihood, x, y = CASES["classes"]()
    model = pl.BayesianModel(network, likelihood)
    before, weights = torch.get_rng_state(), [p.clone() for p in network.parameters()]
    second_moments(model, model.init(), (x, y, None))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(weights, network.parameters(), strict=True))


def check_against_brute_force(network: nn.Module, x: Tensor, y: Tensor) -> None:
    likelihood = pl.likelihoods.Categorical()
    model = pl.BayesianModel(network, likelihood)
    each = gradients_of_each(network, likelihood, x, y)
    found = second_moments(model, model.init(), (x, y, None))
    for k, g in each.items():
        assert gap(found[k], (g**2).sum(0)) < 1e-8, k


def test_a_network_that_branches_on_its_inputs_falls_back_to_gradients_one_by_one():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            high = x[:, 0] > 0
            h = x.new_zeros(len(x), 4)
            if high.any():
                h[high] = self.one(x[high])
            if not high.all():
                h[~high] = self.other(x[~high])
            return self.head(torch.tanh(h))

    torch.manual_seed(0)
    x = normal(7, 3)
    x[:3, 0], x[3:, 0] = x[:3, 0].abs(), -x[3:, 0].abs()  # the examples of the plan all go one way
    check_against_brute_force(Branching().double(), x, whole(7, below=2))


def test_a_use_that_the_examples_of_the_plan_did_not_have_is_counted():
    class Longer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            out = torch.tanh(self.layer(x))
            high = (x[:, :1] > 0).to(x)
            return out + high * self.layer(out) if high.any() else out

    torch.manual_seed(0)
    x = normal(7, 2)
    x[:3, 0], x[3:, 0] = -x[:3, 0].abs(), x[3:, 0].abs()  # those of the plan all go the short way
    check_against_brute_force(Longer().double(), x, whole(7, below=2))


class OldSquare(torch.autograd.Function):
    """Without `setup_context`, as most were written: no transform of torch's can enter."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 2 * x * slope


def test_a_network_with_an_old_function_of_its_own_works_with_and_without_rules():
    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale, self.head = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 1), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(OldSquare.apply(self.first(x)) / self.scale)

    torch.manual_seed(0)
    check_against_brute_force(Old().double(), normal(5, 3), whole(5, below=2))


def test_dead_units_on_the_examples_of_a_plan_do_not_mislead_it():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):  # (N, 6, 2)
            h = torch.relu(self.first(x.transpose(0, 1)))
            return self.head(self.second(h).sum(0))

    torch.manual_seed(0)
    network = TimeFirst().double()
    with torch.no_grad():
        network.second.weight.zero_()  # hides where the first layer keeps its examples
    x, y, likelihood = normal(5, 6, 2), whole(5, below=2), pl.likelihoods.Categorical()
    model = pl.BayesianModel(network, likelihood)
    params = model.init()
    second_moments(model, params, (x, y, None))
    with torch.no_grad():
        network.second.weight.normal_()
    moved = {k: p.detach().clone() for k, p in network.named_parameters()}
    found = second_moments(model, moved, (x, y, None))
    for k, g in gradients_of_each(network, likelihood, x, y).items():
        assert gap(found[k], (g**2).sum(0)) < 1e-8, k


def test_one_example_is_enough():
    network, likelihood, x, y = CASES["classes"]()
    check_against_brute_force(network, x[:1], y[:1])
