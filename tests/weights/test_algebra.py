"""Arithmetic on dictionaries: the multi-tensor kernels, the walk inside vmap and plain formulas agree."""

import pytest
import torch

from plausible.weights import algebra


def some(seed, dtype=torch.float64, leading=()):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 2), "b": (2,), "s": ()}
    return {
        k: torch.rand((*leading, *s), generator=rng, dtype=torch.float64).to(dtype) + 0.5 for k, s in shapes.items()
    }


def plain(function, *dicts):
    return {k: function(*(d[k] for d in dicts)) for k in dicts[0]}


OPERATIONS = {
    "add_": (lambda t, o, u: algebra.add_(t, o, 0.3), lambda t, o, u: t + 0.3 * o),
    "scale_": (lambda t, o, u: algebra.scale_(t, 0.7), lambda t, o, u: 0.7 * t),
    "average_": (lambda t, o, u: algebra.average_(t, o, 0.9), lambda t, o, u: 0.9 * t + (1 - 0.9) * o),
    "add_quotient_": (lambda t, o, u: algebra.add_quotient_(t, o, u, 0.2), lambda t, o, u: t + 0.2 * o / u),
    "square": (lambda t, o, u: algebra.square(o), lambda t, o, u: o * o),
    "root": (lambda t, o, u: algebra.root(o, 0.5, 1e-3), lambda t, o, u: (o / 0.5).sqrt() + 1e-3),
}


def assert_close(found, expected):
    assert list(found) == list(expected)
    for k in expected:
        torch.testing.assert_close(found[k], expected[k], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_its_formula(name):
    ours, formula = OPERATIONS[name]
    expected = plain(formula, some(0), some(1), some(2))
    target = some(0)
    assert_close(ours(target, some(1), some(2)), expected)
    if name.endswith("_"):
        assert_close(target, expected)  # in place


@pytest.mark.parametrize("name", OPERATIONS)
def test_inside_vmap_it_is_the_same(name):
    ours, formula = OPERATIONS[name]
    target, other, third = some(0, leading=(4,)), some(1, leading=(4,)), some(2, leading=(4,))
    expected = plain(formula, target, other, third)
    found = torch.vmap(lambda t, o, u: dict(ours(t, o, u)))(target, other, third)
    assert_close(found, expected)


def test_a_scale_may_be_a_tensor():
    scale = torch.tensor(0.3, dtype=torch.float64)
    assert_close(algebra.add_(some(0), some(1), scale), plain(lambda t, o: t + 0.3 * o, some(0), some(1)))
    found = torch.vmap(lambda t, o, s: dict(algebra.add_(t, o, s)))(
        some(0, leading=(2,)), some(1, leading=(2,)), torch.tensor([0.1, 0.2]).double()
    )
    for i, s in enumerate((0.1, 0.2)):
        expected = plain(lambda t, o, s=s: t + s * o, some(0, leading=(2,)), some(1, leading=(2,)))
        torch.testing.assert_close(found["w"][i], expected["w"][i], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept(dtype):
    for ours, _ in OPERATIONS.values():
        assert all(w.dtype == dtype for w in ours(some(0, dtype), some(1, dtype), some(2, dtype)).values())


def test_products_norms_and_sizes():
    a, b = some(0), some(1)
    flat = lambda d: torch.cat([d[k].flatten() for k in d])  # noqa: E731
    torch.testing.assert_close(algebra.dot(a, b), flat(a) @ flat(b))
    torch.testing.assert_close(algebra.norm(a), flat(a).norm())
    assert algebra.size(a) == 9


def test_a_vector_is_in_torchs_own_order_and_comes_apart_again():
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    weights = dict(network.named_parameters())
    vector = algebra.to_vector(weights)
    assert torch.equal(vector, torch.nn.utils.parameters_to_vector(network.parameters()))
    assert all(torch.equal(v, weights[k]) for k, v in algebra.from_vector(vector, weights).items())
    rows = some(3, leading=(5,))
    stacked = algebra.to_vector(rows, 1)
    assert stacked.shape == (5, 9)
    back = algebra.from_vector(stacked, some(0))
    assert all(torch.equal(back[k], rows[k]) for k in rows)


def test_a_vector_has_memory_of_its_own_and_its_length_is_checked():
    for weights in ({"only": torch.ones(2, 2)}, {"a": torch.ones(2), "b": torch.ones(()), "c": torch.ones(0, 3)}):
        vector = algebra.to_vector(weights)
        vector.zero_()
        assert all(bool((w == 1).all()) for w in weights.values())
        for wrong in (torch.zeros(len(vector) + 1), torch.zeros(len(vector) - 1)):
            with pytest.raises(RuntimeError, match="split"):
                algebra.from_vector(wrong, weights)


def test_a_vector_of_several_precisions_has_the_widest_and_comes_apart_in_their_own():
    weights = {"a": torch.ones(3), "b": torch.full((2, 2), 0.1, dtype=torch.float64), "c": torch.ones(4, 3).mT}
    vector = algebra.to_vector(weights)
    assert vector.dtype == torch.float64
    for k, w in algebra.from_vector(vector, weights).items():
        assert w.dtype == weights[k].dtype
        assert torch.equal(w, weights[k])


def test_fused_adam_takes_slopes_in_any_layout():
    """A convolution's slope comes in the layout of its images."""
    rng = torch.Generator().manual_seed(0)
    slope = torch.randn(4, 3, 2, 2, generator=rng)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        state = {name: {"w": torch.ones(4, 3, 2, 2)} for name in ("params", "first", "second")}
        given = {"w": slope.clone().contiguous(memory_format=layout)}
        algebra.fused_adam_(state, given, torch.tensor(0.1).double(), torch.tensor(1.0).double(), 0.9, 0.999, 1e-8)
        found.append(state)
    for name in ("params", "first", "second"):
        assert torch.equal(found[0][name]["w"], found[1][name]["w"])
