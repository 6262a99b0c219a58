"""The data that people bring, in all their forms: one form must give what another gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.contract_cases import Stop, TwoInputs, assert_same_bits, blobs, differ, mlp, model, seeded, stop_at
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import plausible as pl
from plausible.core.data import make_source

X, Y = blobs()


def fit(data, of=None, method=None, **settings):
    settings = {"steps": 12, "batch_size": 16, "progress": False, "device": "cpu", **settings}
    return pl.fit(of or model(), data, method or pl.MAP(learning_rate=0.02), **settings)


class Rows(Dataset):
    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, i):
        return tuple(c[i] for c in self.columns)


class Stream(IterableDataset):
    """Examples in one order, without a length."""

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


FORMS = {
    "tensors": lambda: (X, Y),
    "a list": lambda: [X, Y],
    "numpy": lambda: (X.numpy(), Y.numpy()),
    "numpy in double precision": lambda: (X.double().numpy(), Y.numpy().astype(np.int32)),
    "TensorDataset": lambda: TensorDataset(X, Y),
    "Dataset": lambda: Rows(X, Y),
    "Dataset of numpy": lambda: Rows(X.numpy(), Y.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_data_gives_the_same_posterior(form):
    found, expected = fit(FORMS[form]()), fit((X, Y))
    for k, v in expected.mean.items():
        torch.testing.assert_close(found.mean[k], v, rtol=1e-5, atol=1e-6)
    assert found.model.num_data == 50


@pytest.mark.parametrize("form", [*FORMS, "loader"])
def test_a_full_batch_method_sees_every_example_once_in_every_form(form):
    data = DataLoader(Rows(X, Y), batch_size=16, shuffle=True) if form == "loader" else FORMS[form]()
    seen = []
    fit(data, method=pl.HMC(step_size=1e-8, trajectory_length=1e-8, warmup=0), steps=1, callbacks=[seen.append])
    expected = model().log_joint(model().init(), (X, Y), num_data=50)
    assert float(seen[0]["log_joint"]) == pytest.approx(float(expected), rel=1e-5)


# --- loaders ---


def loader(**settings):
    return DataLoader(Rows(X, Y), **{"batch_size": 16, "shuffle": True, **settings})


def own_generator():
    return loader(generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("make", [loader, own_generator, lambda: loader(num_workers=1)])
def test_a_shuffling_loader_is_reproducible_and_leaves_every_generator_alone(make):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    data = make()
    own = None if data.generator is None else data.generator.get_state()
    first = fit(data)
    assert torch.equal(torch.get_rng_state(), before)
    assert own is None or torch.equal(data.generator.get_state(), own)
    torch.manual_seed(2)
    assert_same_bits(first, fit(make()))
    assert differ(first, fit(make(), seed=1))


@pytest.mark.parametrize("make", [loader, own_generator])
def test_a_shuffling_loader_reshuffles_every_epoch(make):
    seen = []

    def note(inputs):
        seen.append(inputs.sort(0).values)
        return inputs

    fit(make(), steps=8, augment=note)
    assert not torch.equal(seen[0], seen[4])


@pytest.mark.parametrize("make", [loader, own_generator, lambda: Rows(X, Y), lambda: TensorDataset(X, Y)])
@pytest.mark.parametrize("step", [5, 8])
def test_a_run_over_a_loader_resumes_to_the_same_bits(make, step, tmp_path):
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=3)
    with pytest.raises(Stop):
        fit(make(), checkpoint=setting, callbacks=[stop_at(step)])
    assert_same_bits(fit(make(), checkpoint=setting, resume=True), fit(make()))


def test_a_ragged_last_batch_of_a_loader_has_its_own_weight():
    seen = []
    data = DataLoader(Rows(X, Y), batch_size=16)
    fit(data, steps=4, method=pl.MAP(learning_rate=1e-12), callbacks=[lambda e: seen.append(float(e["log_joint"]))])
    start = model().init()
    expected = [
        float(model().log_joint(start, (x, y), num_data=50)) for x, y in zip(X.split(16), Y.split(16), strict=True)
    ]
    assert seen == pytest.approx(expected, rel=1e-5)


def test_a_stream_needs_num_data_and_then_starts_again_where_it_ends(tmp_path):
    with pytest.raises(ValueError, match="num_data=N") as caught:
        fit(Stream())
    assert "\n" not in str(caught.value)
    posterior = fit(Stream(), num_data=50)
    assert posterior.model.num_data == 50
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=5)
    with pytest.raises(Stop):
        fit(Stream(), num_data=50, checkpoint=setting, callbacks=[stop_at(7)])
    assert_same_bits(fit(Stream(), num_data=50, checkpoint=setting, resume=True), posterior)


def test_a_loader_of_a_stream_gives_what_the_stream_gives():
    found = fit(DataLoader(Stream(), batch_size=16), num_data=50)
    assert_same_bits(found, fit(Stream(), num_data=50))


# --- weights ---


def test_a_weight_of_two_is_an_example_twice():
    weights = torch.ones(50)
    weights[::5] = 2.0
    doubled = torch.cat([X, X[::5]]), torch.cat([Y, Y[::5]])
    method = pl.MAP(learning_rate=0.02)
    once = fit((X, Y, weights), batch_size=60, method=method)
    twice = fit(doubled, batch_size=60, method=method)
    assert once.model.num_data == twice.model.num_data == 60
    for k, v in twice.mean.items():
        torch.testing.assert_close(once.mean[k], v, rtol=1e-4, atol=1e-5)


def test_an_example_of_weight_zero_has_no_say():
    weights = torch.ones(50)
    weights[7] = 0.0
    spoilt = X.clone()
    spoilt[7] = 1e3
    a, b = (fit((x, Y, weights), batch_size=50) for x in (X, spoilt))
    for k, v in a.mean.items():
        torch.testing.assert_close(b.mean[k], v, rtol=1e-5, atol=1e-6)


def test_weighted_batches_of_a_loader_need_their_sum():
    data = DataLoader(Rows(X, Y, torch.full((50,), 0.5)), batch_size=50)
    with pytest.raises(ValueError, match="num_data") as caught:
        fit(data)
    assert "\n" not in str(caught.value)
    seen = []
    fit(data, num_data=25, steps=1, callbacks=[seen.append])
    expected = model().log_joint(model().init(), (X, Y), num_data=25)
    assert float(seen[0]["log_joint"]) == pytest.approx(float(expected), rel=1e-5)


class Columns(IterableDataset):
    """A stream of whatever columns there are."""

    def __init__(self, *columns):
        self.columns = columns

    def __iter__(self):
        return zip(*self.columns, strict=True)


def test_batches_of_a_stream_without_weight_are_passed_over(tmp_path):
    """Weights alone say how much of N a stream's batch stands for, and those of such a batch say nothing."""
    weights = torch.linspace(0.5, 1.5, 50)
    weights[:10] = 0.0
    weights[20:40] = 0.0
    settings = {"num_data": float(weights.sum()), "steps": 5}
    seen, expected = [], []
    data = DataLoader(Columns(X, Y, weights), batch_size=10)
    posterior = fit(data, callbacks=[seen.append], **settings)
    heavy = Columns(*(column[weights > 0] for column in (X, Y, weights)))
    fit(DataLoader(heavy, batch_size=10), callbacks=[expected.append], **settings)
    for mine, theirs in zip(seen, expected, strict=True):
        assert float(mine["log_joint"]) == float(theirs["log_joint"])
    setting = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=1)
    with pytest.raises(Stop):
        fit(data, checkpoint=setting, callbacks=[stop_at(3)], **settings)
    assert_same_bits(fit(data, checkpoint=setting, resume=True, **settings), posterior)


@pytest.mark.parametrize("method", [pl.SGLD(step_size=1e-4), pl.HMC(warmup=2)], ids=["SGLD", "HMC"])
def test_a_stream_without_any_weight_has_no_data(method):
    with pytest.raises(ValueError, match="all zero, so there are no data|all weights are zero"):
        fit(DataLoader(Columns(X, Y, torch.zeros(50)), batch_size=10), method=method, num_data=3, steps=5)


@pytest.mark.parametrize("method", [pl.MAP(), pl.HMC(warmup=2)], ids=["MAP", "HMC"])
@pytest.mark.parametrize("dropped", [True, False], ids=["drop_last", "empty-stream"])
def test_a_loader_without_any_batch_is_refused_in_words(dropped, method):
    data = Rows(X, Y) if dropped else Columns(X[:0], Y[:0])
    with pytest.raises(ValueError, match="no batch at all.*drop_last"):
        fit(DataLoader(data, batch_size=len(X) + 1, drop_last=dropped), method=method, num_data=50, steps=3)


WRONG_WEIGHTS = {
    "of one axis more": (torch.ones(50, 1), r"50 examples, got shape \(50, 1\); did you mean weights.squeeze"),
    "negative": (-torch.ones(50), "got -1.0 in example 0"),
    "missing": (torch.full((50,), torch.nan), "got nan in example 0"),
}


@pytest.mark.parametrize("form", ["tensors", "loader"])
@pytest.mark.parametrize("wrong", WRONG_WEIGHTS)
def test_weights_that_cannot_be_are_named(wrong, form):
    weights, told = WRONG_WEIGHTS[wrong]
    with pytest.raises(ValueError, match=told):
        fit((X, Y, weights) if form == "tensors" else DataLoader(Rows(X, Y, weights), batch_size=50), num_data=50)


def test_weights_with_an_axis_too_many_are_refused_by_a_log_joint_too():
    weights, told = WRONG_WEIGHTS["of one axis more"]
    with pytest.raises(ValueError, match=told):
        model().log_joint(model().init(), (X, Y, weights), num_data=50)


# --- dictionaries, tuples, and anything else ---


def two_inputs():
    return model(seeded(TwoInputs))


BATCHES = {
    "tuple": (((X[:, :1], X[:, 1:]), Y), (X[:9, :1], X[:9, 1:])),
    "list": (([X[:, :1], X[:, 1:]], Y), [X[:9, :1], X[:9, 1:]]),
    "dict": ({"left": X[:, :1], "right": X[:, 1:], "labels": Y}, {"right": X[:9, 1:], "left": X[:9, :1]}),
    "dict and targets": (({"left": X[:, :1], "right": X[:, 1:]}, Y), {"left": X[:9, :1], "right": X[:9, 1:]}),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_tuples_and_dictionaries_reach_the_network_alike(kind):
    data, inputs = BATCHES[kind]
    posterior = fit(data, two_inputs())
    assert_same_bits(posterior, fit(BATCHES["tuple"][0], two_inputs()))
    expected = fit(BATCHES["tuple"][0], two_inputs()).predict(BATCHES["tuple"][1]).outputs
    assert torch.equal(posterior.predict(inputs).outputs, expected)


def test_a_loader_may_give_dictionaries():
    class Dictionaries(Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, i):
            return {"left": X[i, :1], "right": X[i, 1:], "labels": Y[i]}

    found = fit(Dictionaries(), two_inputs())
    expected = fit(Rows((X[:, :1]), Y), model(nn.Linear(1, 3)))  # only to see that both are posteriors of 50 examples
    assert found.model.num_data == expected.model.num_data == 50
    for k, v in fit(BATCHES["dict"][0], two_inputs()).mean.items():
        torch.testing.assert_close(found.mean[k], v, rtol=1e-5, atol=1e-6)


def test_a_rule_reads_any_other_batch():
    of = pl.BayesianModel(
        mlp(), pl.likelihoods.Categorical(), batch=lambda b: (torch.cat([b["a"], b["b"]], 1), b["answer"])
    )
    data = {"a": X[:, :1], "b": X[:, 1:], "answer": Y}
    assert_same_bits(fit(data, of), fit((X, Y)))


def test_an_output_with_logits_means_its_logits():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            return type("Output", (), {"logits": self.inner(x), "hidden": x})()

    a, b = fit((X, Y), model(Wrapped())), fit((X, Y))
    assert all(torch.equal(a.mean[f"inner.{k}"], v) for k, v in b.mean.items())
    assert torch.equal(a.predict(X).outputs, b.predict(X).outputs)


# --- images with a class per pixel ---


def test_images_with_a_class_per_pixel_ignore_what_is_to_be_ignored():
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(12, 2, 5, 5, generator=rng)
    labels = torch.randint(0, 3, (12, 5, 5), generator=rng)
    labels[:, 0] = 255
    network = seeded(lambda: nn.Conv2d(2, 3, 3, padding=1))
    of = pl.BayesianModel(network, pl.likelihoods.Categorical(ignore_index=255))
    expected = -nn.functional.cross_entropy(network(images), labels, ignore_index=255, reduction="sum")
    found = of.log_likelihood(of.init(), (images, labels))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)
    posterior = fit((images, labels), of, batch_size=5)
    predictive = posterior.predict(images)
    assert predictive.probs.shape == (12, 3, 5, 5) and predictive.total.shape == (12, 5, 5)
    changed = images.clone(), labels.clone()
    assert_same_bits(posterior, fit(changed, of, batch_size=5))


def test_a_sampler_of_a_subset_counts_only_the_subset():
    loader = DataLoader(TensorDataset(X, Y), batch_size=5, sampler=SubsetRandomSampler(range(10)))
    assert fit(loader).model.num_data == 10
    whole = fit(loader, method=pl.HMC(step_size=0.05, warmup=2), steps=6)
    assert whole.model.num_data == 10


def test_the_weights_of_integer_inputs_have_the_precision_of_the_network():
    """N / B = 10 / 3 in float32 would be wrong in the eighth digit."""
    torch.manual_seed(0)
    of = pl.BayesianModel(nn.Embedding(5, 2).double(), pl.likelihoods.Normal())
    x = torch.arange(10) % 5
    y = torch.randn(10, 2, dtype=torch.float64)
    source = make_source(of, (x, y), batch_size=3, seed=0, device=torch.device("cpu"))
    assert [float(source.batch(step)[2].sum()) for step in range(4)] == pytest.approx([10.0] * 4, rel=1e-14)
