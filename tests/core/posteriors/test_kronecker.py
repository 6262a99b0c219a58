"""Kronecker-factored blocks against dense covariances by brute force: draws, densities, factors, files."""

import pytest
import torch
from tests.oracles import assert_moments, vector_of
from torch import nn
from torch.distributions import MultivariateNormal

import plausible as pl
from plausible import posteriors
from plausible.core.posteriors.kronecker import Block, block_from_factors

DRAWS = 200_000


class Layers(nn.Module):
    """A linear layer, a convolution of two groups, an embedding and a norm, in an order that is not the blocks'."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(2)
        self.table = nn.Embedding(3, 2)
        self.linear = nn.Linear(2, 3)
        self.filters = nn.Conv1d(2, 4, 2, groups=2)


def a_model(dtype=torch.float64):
    torch.manual_seed(0)
    return pl.BayesianModel(Layers().to(dtype), pl.likelihoods.Normal(scale="learn"))


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(*shape, seed=0, low=-1.5, high=0.5):
    rng = torch.Generator().manual_seed(seed)
    return 10 ** (low + (high - low) * torch.rand(*shape, generator=rng, dtype=torch.float64))


def blocks(dtype=torch.float64):
    """The linear layer with its bias, the convolution with its own, the embedding with a diagonal over its rows."""
    made = [
        Block("filters.weight", "filters.bias", randn(2, 2, 2, seed=1), randn(2, 3, 3, seed=2), positive(2, 2, 3)),
        Block("linear.weight", "linear.bias", randn(1, 3, 3, seed=3), randn(1, 3, 3, seed=4), positive(1, 3, 3)),
        Block("table.weight", None, positive(1, 3, seed=5), randn(1, 2, 2, seed=6), positive(1, 3, 2, seed=7)),
    ]
    return [Block(b.weight, b.bias, *(t.to(dtype) for t in (b.left, b.right, b.scale))) for b in made]


SCALE = {"norm.weight": [0.3, 2.0], "norm.bias": [0.1, 0.7], "likelihood.scale": 0.4}


def a_posterior(dtype=torch.float64, seed=0):
    model = a_model(dtype)
    mean = {k: randn(*w.shape, seed=i + seed).to(dtype) for i, (k, w) in enumerate(model.start.items())}
    return posteriors.Kronecker(model, mean, blocks(dtype), {k: torch.tensor(v, dtype=dtype) for k, v in SCALE.items()})


def dense(posterior):
    """The covariance over all unknowns, element by element, from the definition of a draw."""
    order, start = {}, 0
    for k, w in posterior.mean.items():
        order[k] = torch.arange(start, start + w.numel()).reshape(w.shape)
        start += w.numel()
    covariance = torch.zeros(start, start, dtype=torch.float64)
    for k, s in posterior.scale.items():
        covariance[order[k].flatten(), order[k].flatten()] = s.double().flatten() ** 2
    for b in posterior.blocks:
        g, o, _ = b.scale.shape
        place = order[b.weight].reshape(g, o, -1)
        if b.bias is not None:
            place = torch.cat([place, order[b.bias].reshape(g, o, 1)], -1)
        for group in range(g):
            left, right = (torch.diag(f[group]) if f.dim() == 2 else f[group] for f in (b.left, b.right))
            root = torch.kron(left, right).double() @ torch.diag(b.scale[group].double().flatten())
            rows = place[group].flatten()
            covariance[rows[:, None], rows[None, :]] = root @ root.T
    return covariance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_draws_have_the_mean_and_covariance_that_the_blocks_state(dtype):
    posterior = a_posterior(dtype)
    covariance = dense(posterior)
    spectrum = torch.linalg.eigvalsh(covariance)
    assert spectrum[-1] / spectrum[0] >= 100
    draws = posterior.sample(DRAWS, seed=3)
    assert all(w.dtype == dtype for w in draws.values())
    assert_moments(vector_of(draws, 1).double(), vector_of(posterior.mean).double(), covariance)


def test_the_density_is_torchs():
    posterior = a_posterior()
    truth = MultivariateNormal(vector_of(posterior.mean), dense(posterior))
    points = {k: w + randn(5, *w.shape, seed=i) for i, (k, w) in enumerate(posterior.mean.items())}
    expected = truth.log_prob(vector_of(points, 1))
    torch.testing.assert_close(posterior.log_prob(points), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.vmap(posterior.log_prob)(points), expected, rtol=1e-10, atol=1e-10)
    one = {k: v[2] for k, v in points.items()}
    torch.testing.assert_close(posterior.log_prob(one), expected[2], rtol=1e-10, atol=1e-10)


def test_a_density_first_asked_for_inside_a_transform_leaves_nothing_behind():
    posterior = a_posterior()
    slopes = torch.func.grad(posterior.log_prob)(posterior.mean)  # at the mode
    assert max(s.abs().max() for s in slopes.values()) < 1e-12
    assert not any("_known" in b.__dict__ for b in posterior.blocks)
    torch.testing.assert_close(posterior.log_prob(posterior.mean), a_posterior().log_prob(posterior.mean))
    assert all("_known" in b.__dict__ for b in posterior.blocks)


def test_unscattering_is_the_transpose_of_scattering():
    posterior = a_posterior()
    v = randn(4, vector_of(posterior.mean).numel())
    found = posterior.unscatter(v)
    torch.testing.assert_close(found @ found.T, v @ dense(posterior) @ v.T, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.vmap(posterior.unscatter)(v), found, rtol=1e-12, atol=1e-12)


def test_draws_are_a_function_of_seed_and_number_alone():
    posterior = a_posterior()
    many = vector_of(posterior.sample(50, seed=7), 1)
    torch.testing.assert_close(vector_of(posterior.sample(10, seed=7), 1), many[:10], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(vector_of(posterior.draw([31, 4, 4], 7), 1), many[[31, 4, 4]], rtol=1e-13, atol=1e-13)
    assert not torch.equal(vector_of(posterior.sample(50, seed=8), 1), many)


def test_a_file_brings_back_every_bit_and_which_names_a_block_covers(tmp_path):
    posterior = a_posterior(torch.float32)
    posterior.save(tmp_path / "a")
    loaded = pl.load(tmp_path / "a", Layers())
    assert type(loaded) is posteriors.Kronecker
    assert [b.names for b in loaded.blocks] == [b.names for b in posterior.blocks]
    for a, b in zip(loaded.blocks, posterior.blocks, strict=True):
        assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("left", "right", "scale"))
    before, after = posterior.sample(5, seed=1), loaded.sample(5, seed=1)
    assert all(torch.equal(before[k], after[k]) for k in before)
    moved = loaded.to("cpu")
    assert all(torch.equal(v, before[k]) for k, v in moved.sample(5, seed=1).items())


def test_a_file_without_loose_unknowns_is_read(tmp_path):
    model = pl.BayesianModel(nn.Linear(2, 3).double(), pl.likelihoods.Normal())
    block = Block("weight", "bias", randn(1, 3, 3), randn(1, 3, 3, seed=1), positive(1, 3, 3))
    posterior = posteriors.Kronecker(model, model.init(), [block])
    posterior.save(tmp_path / "a")
    loaded = pl.load(tmp_path / "a", nn.Linear(2, 3).double())
    assert torch.equal(loaded.log_prob(model.init(1)), posterior.log_prob(model.init(1)))


def test_a_mixture_of_two_is_the_weighted_sum_and_survives_a_file(tmp_path):
    first, second = a_posterior(), a_posterior(seed=20)
    mixture = pl.mixture([first, second], weights=[0.3, 0.7])
    points = {k: w + 0.1 for k, w in first.mean.items()}
    each = [MultivariateNormal(vector_of(p.mean), dense(p)).log_prob(vector_of(points)) for p in (first, second)]
    shares = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    expected = torch.logsumexp(torch.stack(each) + shares, 0)
    torch.testing.assert_close(mixture.log_prob(points), expected, rtol=1e-10, atol=1e-10)
    mixture.save(tmp_path / "a")
    loaded, before = pl.load(tmp_path / "a", Layers().double()).sample(9, seed=0), mixture.sample(9, seed=0)
    assert all(torch.equal(before[k], loaded[k]) for k in before)


def test_yesterdays_blocks_are_todays_prior():
    posterior = a_posterior()
    model = pl.BayesianModel(Layers().double(), pl.likelihoods.Normal(scale="learn"), prior=posterior)
    params = model.init(3)
    torch.testing.assert_close(model.log_prior(params), posterior.log_prob(params))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b, s: ([*b, b[0]], s), "one block or has a scale"),
        (lambda b, s: (b, {**s, "linear.bias": torch.ones(3)}), "one block or has a scale"),
        (lambda b, s: (b, {**s, "stranger": torch.ones(3)}), "stranger"),
        (lambda b, s: ([Block("linear.weight", None, b[1].left, b[1].right, b[1].scale), b[0], b[2]],
                       {**s, "linear.bias": torch.ones(3)}), "does not fit linear.weight"),
    ],
)  # fmt: skip
def test_blocks_that_do_not_fit_the_model_are_refused(change, message):
    posterior = a_posterior()
    made, scale = change(list(posterior.blocks), posterior.scale)
    with pytest.raises(ValueError, match=message):
        posteriors.Kronecker(posterior.model, posterior.mean, made, scale)


def test_what_is_in_no_block_and_has_no_scale_does_not_vary(tmp_path):
    whole = a_posterior()
    part = posteriors.Kronecker(whole.model, whole.mean, whole.blocks[:2], {"norm.bias": whole.scale["norm.bias"]})
    names = ["norm.bias", "linear.weight", "linear.bias", "filters.weight", "filters.bias"]
    draws = part.sample(4, seed=0)
    assert [k for k, w in draws.items() if not torch.equal(w, whole.mean[k].expand_as(w))] == names
    inside = torch.cat([torch.full((w.numel(),), k in names) for k, w in whole.mean.items()])
    truth = MultivariateNormal(vector_of(whole.mean)[inside], dense(whole)[inside][:, inside])
    points = {k: w + randn(*w.shape, seed=i) for i, (k, w) in enumerate(whole.mean.items())}
    expected = truth.log_prob(vector_of(points)[inside])
    torch.testing.assert_close(part.log_prob(points), expected, rtol=1e-10, atol=1e-10)
    part.save(tmp_path / "a")
    loaded = pl.load(tmp_path / "a", Layers().double()).sample(4, seed=0)
    assert all(torch.equal(w, draws[k]) for k, w in loaded.items())


def test_factors_that_do_not_fit_each_other_are_refused():
    with pytest.raises(ValueError, match=r"left \(1, 2, 2\) for fc.weight"):
        Block("fc.weight", None, randn(1, 2, 2), randn(1, 4, 4), positive(1, 3, 4))


# --- from curvature factors ---


def curvature(g, n, seed, rank=None):
    root = randn(g, rank or n + 2, n, seed=seed) * positive(n, seed=seed + 50)
    return root.mT @ root


def as_matrices(factor):
    return torch.diag_embed(factor) if factor.dim() == 2 else factor


def dense_precision(a, g, d):
    """torch.kron(G, A) + torch.kron(I, D) for every group."""
    parts = zip(as_matrices(a), as_matrices(g), d, strict=True)
    return [torch.kron(gg, aa) + torch.kron(torch.eye(len(gg), dtype=gg.dtype), torch.diag(dd)) for aa, gg, dd in parts]


CASES = {
    "plain": (curvature(1, 4, 1), curvature(1, 3, 2), positive(1, 4, seed=3)),
    "groups": (curvature(3, 4, 1), curvature(3, 2, 2), positive(3, 4, seed=3)),
    "singular": (curvature(1, 5, 1, rank=2), curvature(1, 3, 2, rank=1), positive(1, 5, seed=3)),
    "no curvature": (torch.zeros(1, 4, 4).double(), curvature(1, 3, 2), positive(1, 4, seed=3)),
    "diagonal inputs": (positive(2, 4, seed=1), curvature(2, 3, 2), positive(2, 4, seed=3)),
    "diagonal outputs": (curvature(2, 4, 1), positive(2, 3, seed=2), positive(2, 4, seed=3)),
    "flat": (curvature(1, 4, 1), curvature(1, 3, 2), torch.zeros(1, 4).double()),
    "flat bias": (curvature(2, 4, 1), curvature(2, 3, 2), positive(2, 4, seed=3) * torch.tensor([1.0, 1, 1, 0])),
    "flat bias, few data": (curvature(1, 5, 1, rank=2), curvature(1, 3, 2), torch.tensor([[1.0, 2, 3, 4, 0]]).double()),
    "flat, diagonal inputs": (positive(1, 4, seed=1), curvature(1, 3, 2), torch.tensor([[0.0, 1, 0, 2]]).double()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_block_from_factors_has_exactly_the_covariance_of_the_stated_precision(case):
    a, g, d = CASES[case]
    block, log_det = block_from_factors("w", None, a, g, d)
    for group, precision in enumerate(dense_precision(a, g, d)):
        left, right = (as_matrices(f)[group] for f in (block.left, block.right))
        root = torch.kron(left, right) @ torch.diag(block.scale[group].flatten())
        eye = torch.eye(len(precision), dtype=torch.float64)
        torch.testing.assert_close(root @ root.T @ precision, eye, rtol=1e-7, atol=1e-7)
    expected = sum(torch.logdet(p) for p in dense_precision(a, g, d))
    torch.testing.assert_close(log_det, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(-2 * block.log_determinant(), expected, rtol=1e-9, atol=1e-9)


def test_factors_in_float32_give_blocks_in_float32_near_those_of_float64():
    a, g, d = CASES["singular"]
    exact, _ = block_from_factors("w", None, a, g, d)
    block, _ = block_from_factors("w", None, a.float(), g.float(), d.float())
    assert {block.left.dtype, block.right.dtype, block.scale.dtype} == {torch.float32}
    v = randn(1, 3, 5)
    exact_variance = exact.unspread(v).square().sum()
    assert block.unspread(v.float()).square().sum().item() == pytest.approx(exact_variance.item(), rel=1e-5)


def test_eigenvalues_that_rounding_made_negative_are_zeros():
    a = curvature(1, 4, 1, rank=1) - 1e-9 * torch.eye(4).double()
    block, _ = block_from_factors("w", None, a, curvature(1, 3, 2, rank=1), torch.full((1, 4), 1e-12).double())
    assert bool(torch.isfinite(block.scale).all()) and block.scale.max() <= 1.0


@pytest.mark.parametrize("singular", ["inputs", "outputs", "diagonal", "bias"])
def test_a_singular_curvature_under_a_flat_prior_is_refused_with_the_way_out(singular):
    a, g, d = curvature(1, 4, 1), curvature(1, 3, 2), torch.zeros(1, 4).double()
    if singular == "inputs":
        a = curvature(1, 4, 1, rank=3)
    elif singular == "outputs":
        g = curvature(1, 3, 2, rank=2)
    elif singular == "diagonal":
        a = torch.tensor([[1.0, 0.0, 2.0, 3.0]]).double()
    else:  # a prior on all but the last column, in which there is no curvature
        a, d = torch.diag_embed(torch.tensor([[1.0, 2.0, 3.0, 0.0]]).double()), torch.tensor([[1.0, 1, 1, 0]]).double()
    for dtype in (torch.float64, torch.float32):
        with pytest.raises(ValueError, match=r"fc\.weight is singular.*pl\.priors\.Normal"):
            block_from_factors("fc.weight", None, a.to(dtype), g.to(dtype), d.to(dtype))


def test_factors_that_are_no_numbers_are_refused():
    a, g, d = CASES["plain"]
    with pytest.raises(ValueError, match="fc is not finite"):
        block_from_factors("fc", None, a * torch.nan, g, d)
    with pytest.raises(ValueError, match="not negative"):
        block_from_factors("fc", None, a, g, -d)


def test_a_posterior_made_of_factors_draws_the_inverse_of_the_precision():
    a, g, d = curvature(1, 4, 5) * 30, curvature(1, 3, 6), positive(1, 4, seed=7)
    model = pl.BayesianModel(nn.Linear(3, 3).double(), pl.likelihoods.Normal())
    block, _ = block_from_factors("weight", "bias", a, g, d)
    posterior = posteriors.Kronecker(model, model.init(), [block])
    covariance = torch.linalg.inv(dense_precision(a, g, d)[0])
    # From W̃ row by row (3 weights and the bias of each output) to weights first, biases last.
    order = torch.cat([torch.arange(12).reshape(3, 4)[:, :3].flatten(), torch.arange(12).reshape(3, 4)[:, 3]])
    covariance = covariance[order[:, None], order]
    spectrum = torch.linalg.eigvalsh(covariance)
    assert spectrum[-1] / spectrum[0] >= 100
    assert_moments(vector_of(posterior.sample(DRAWS, seed=5), 1), vector_of(posterior.mean), covariance)
