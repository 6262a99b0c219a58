"""Nested dictionaries of tensors."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from plausible.weights import tree

letters = st.characters(codec="utf-8", exclude_categories=("Cs",))
names = st.text(alphabet=letters, min_size=1, max_size=5) | st.sampled_from(["a/b", "%2F", "%", "a.b"])
branches = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=6
)
trees = st.dictionaries(names, branches, min_size=1, max_size=4)


def tensors(shape):
    return tree.tree_map(lambda n: torch.full((2,), float(n)), shape)


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return torch.equal(a, b)


@given(trees)
def test_leaves_can_be_put_back_whatever_the_names(shape):
    original = tensors(shape)
    pairs = list(tree.leaves(original))
    assert len(dict(pairs)) == len(pairs)  # no two leaves share a path
    assert equal(tree.from_leaves(dict(pairs)), original)


@given(trees)
def test_leaves_do_not_depend_on_the_order_of_insertion(shape):
    turned = lambda t: {k: turned(t[k]) for k in reversed(t)} if isinstance(t, dict) else t  # noqa: E731
    assert [p for p, _ in tree.leaves(tensors(shape))] == [p for p, _ in tree.leaves(tensors(turned(shape)))]


def test_stacked_trees_come_apart_again():
    some = [{"a": torch.full((3,), float(i)), "b": {"c": torch.tensor(i)}} for i in range(4)]
    stacked = tree.stack(some)
    assert stacked["a"].shape == (4, 3) and stacked["b"]["c"].shape == (4,)
    assert tree.leading_axis(stacked) == 4
    assert all(equal(tree.unstack(stacked, i), some[i]) for i in range(4))


def test_trees_map_together_by_name_not_by_order():
    one, two = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"b": torch.tensor(20.0), "a": torch.tensor(10.0)}
    assert tree.tree_map(lambda x, y: (x + y).item(), one, two) == {"a": 11.0, "b": 22.0}


def test_a_clone_shares_no_memory_and_a_copy_writes_into_it():
    original = {"a": torch.zeros(3), "b": {"c": torch.ones(2)}}
    twin = tree.clone(original)
    twin["a"] += 5
    assert not original["a"].any()
    place = original["a"].data_ptr()
    tree.copy_into(original, twin)
    assert equal(original, twin) and original["a"].data_ptr() == place
    tree.copy_into(original, original)
    assert equal(original, twin)


def test_bytes_are_counted_by_dtype():
    some = {"a": torch.zeros(3, dtype=torch.float64), "b": {"c": torch.zeros(5, dtype=torch.int8)}}
    assert tree.num_bytes(some) == 29
