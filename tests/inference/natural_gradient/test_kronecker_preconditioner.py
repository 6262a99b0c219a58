"""Steps and draws by Kronecker factors of the curvature, against dense matrices."""

import pytest
import torch

from plausible.inference.natural_gradient import kronecker_preconditioner as metric

DRAWS = 200_000
LIKE = {"w": torch.zeros(6, 3).double(), "b": torch.zeros(6).double(), "norm": torch.zeros(2).double()}
PRIOR = {"w": 2.0, "b": 0.5, "norm": 3.0}


@pytest.fixture
def factors():
    """One block (two groups, three rows, four columns) and one weight of its own."""
    rng = torch.Generator().manual_seed(5)
    root = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    g, a = root(2, 3, 3), root(2, 4, 4)
    return {
        "blocks": {"w + b": {"rows": 50 * g @ g.mT, "columns": a @ a.mT}},
        "diagonal": {"norm": torch.tensor([1.0, 5.0]).double()},
    }


def dense_inverse(roots, like):
    """Λ⁻¹ of the block, one column after the other, as (group, row, column) each."""
    made, columns = metric.squared(roots), []
    for i in range(24):
        unit = torch.eye(24, dtype=torch.float64)[i].reshape(2, 3, 4)
        gradient = {"w": unit[..., :3].reshape(6, 3), "b": unit[..., 3].flatten(), "norm": like["norm"]}
        step = metric.precondition(made, gradient)
        columns.append(torch.cat([step["w"].reshape(2, 3, 3), step["b"].reshape(2, 3, 1)], -1).flatten())
    return torch.stack(columns, 1)


def precision(factors, group, offset=0.0):
    own, d = factors["blocks"]["w + b"], torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.5]).double() + offset)
    return torch.kron(own["rows"][group], own["columns"][group]) + torch.kron(torch.eye(3).double(), d)


def wide_inverse(factors, group):
    """What a wide layer has for the two factors of an inverse: the damping is divided between them."""
    g, a = (factors["blocks"]["w + b"][k][group] for k in ("rows", "columns"))
    stretch = torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.5]).double().rsqrt())
    scaled = stretch @ a @ stretch
    pi = ((scaled.trace() / 4) / (g.trace() / 3)).sqrt()
    rows = torch.linalg.inv(g + torch.eye(3).double() / pi)
    columns = stretch @ torch.linalg.inv(scaled + pi * torch.eye(4).double()) @ stretch
    return torch.kron(rows.contiguous(), columns.contiguous())


def test_curvature_along_a_way_is_the_quadratic_form_of_the_likelihood(factors):
    rng = torch.Generator().manual_seed(3)
    way = {k: torch.randn(v.shape, generator=rng).double() for k, v in LIKE.items()}
    matrices = torch.cat([way["w"].reshape(2, 3, 3), way["b"].reshape(2, 3, 1)], -1)
    own = factors["blocks"]["w + b"]
    expected = sum(
        m.flatten() @ torch.kron(own["rows"][g], own["columns"][g]) @ m.flatten() for g, m in enumerate(matrices)
    )
    expected = expected + (way["norm"] ** 2 * torch.tensor([1.0, 5.0]).double()).sum()
    torch.testing.assert_close(metric.along(factors, way), expected)


@pytest.mark.parametrize("damping", [0.0, 7.0])
def test_a_step_is_the_gradient_divided_by_curvature_and_prior_and_damping(factors, damping):
    found = dense_inverse(metric.roots(factors, PRIOR, LIKE, damping), LIKE)
    expected = torch.block_diag(*[torch.linalg.inv(precision(factors, g, damping)) for g in (0, 1)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    made = metric.squared(metric.roots(factors, PRIOR, LIKE, damping))
    own = metric.precondition(made, {**LIKE, "norm": torch.ones(2).double()})
    torch.testing.assert_close(own["norm"], 1 / (torch.tensor([4.0, 8.0]).double() + damping))


def test_a_wide_layer_divides_its_damping_between_its_factors(factors, monkeypatch):
    monkeypatch.setattr(metric, "EXACT_WIDTH", 3)
    found = dense_inverse(metric.roots(factors, PRIOR, LIKE), LIKE)
    blocks = []
    for group in (0, 1):
        blocks.append(wide_inverse(factors, group))
        # The product has terms to spare, so that it never steps further than the exact one.
        assert torch.linalg.eigvalsh(torch.linalg.inv(blocks[-1]) - precision(factors, group)).min() > -1e-8
    torch.testing.assert_close(found, torch.block_diag(*blocks), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("quiet", [("rows",), ("columns",), ("rows", "columns")])
@pytest.mark.parametrize("loudness", [1e-8, 1.0, 1e8])  # of the factor that is not zero
def test_a_wide_layer_of_which_data_say_nothing_is_held_by_its_prior(factors, quiet, loudness, monkeypatch):
    """Behind weights that start at zero, as of the last norms of residual branches, no gradient comes through."""
    monkeypatch.setattr(metric, "EXACT_WIDTH", 3)
    block = {k: t.float() * (0.0 if k in quiet else loudness) for k, t in factors["blocks"]["w + b"].items()}
    like = {k: v.float() for k, v in LIKE.items()}
    own = {"blocks": {"w + b": block}, "diagonal": {"norm": factors["diagonal"]["norm"].float()}}
    found = dense_inverse(metric.roots(own, PRIOR, like), LIKE)
    expected = 1 / torch.tensor([2.0, 2.0, 2.0, 0.5]).double().repeat(6)
    torch.testing.assert_close(found, torch.diag(expected), rtol=1e-4, atol=1e-4)


def off_by(found, covariance, draws):
    """The largest distance of a sample covariance from a stated one, in standard errors of its entries."""
    sizes = covariance.diagonal()
    error = ((sizes[:, None] * sizes + covariance.square()) / draws).sqrt()
    return float(((found - covariance).abs() / error).max())


def draws(made):
    """(DRAWS, group, row, column)."""
    rng = torch.Generator().manual_seed(3)
    noise = {k: torch.randn(DRAWS, *v.shape, generator=rng, dtype=torch.float64) for k, v in LIKE.items()}
    away = torch.vmap(lambda z: metric.deviations(made, z))(noise)
    return torch.cat([away["w"].reshape(DRAWS, 2, 3, 3), away["b"].reshape(DRAWS, 2, 3, 1)], -1)


def test_draws_of_a_wide_layer_have_the_covariance_of_the_matrix_normal_that_is_stated(factors, monkeypatch):
    """MN(0, rows, columns): covariance rows ⊗ columns, of 200,000 draws, condition above 100."""
    monkeypatch.setattr(metric, "EXACT_WIDTH", 2)
    made = metric.roots(factors, PRIOR, LIKE)
    drawn = draws(made)
    for group in (0, 1):
        stated = wide_inverse(factors, group)
        assert torch.linalg.cond(stated) > 100
        assert off_by(torch.cov(drawn[:, group].flatten(1).T), stated, DRAWS) < 5


def test_draws_of_a_layer_have_the_inverse_of_curvature_and_prior_as_covariance(factors):
    made = metric.roots(factors, PRIOR, LIKE)
    drawn = draws(made).flatten(1)
    stated = dense_inverse(made, LIKE)
    assert torch.linalg.cond(stated) > 100
    blocks = torch.block_diag(torch.ones(12, 12), torch.ones(12, 12)).bool()
    found = torch.cov(drawn.T)
    errors = (found - stated).abs() / (stated.diagonal()[:, None] * stated.diagonal() / DRAWS).sqrt()
    assert off_by(found, stated, DRAWS) < 5 and errors[~blocks].max() < 5


def test_draws_do_not_depend_on_the_signs_of_eigenvectors(factors, monkeypatch):
    noise = {k: torch.randn(v.shape, generator=torch.Generator().manual_seed(1)).double() for k, v in LIKE.items()}
    before = metric.deviations(metric.roots(factors, PRIOR, LIKE), noise)
    plain = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: (plain(m)[0], -plain(m)[1]))
    after = metric.deviations(metric.roots(factors, PRIOR, LIKE), noise)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
