"""A small, randomly initialised Hugging Face encoder with its own dictionaries as batches; nothing is downloaded."""

from __future__ import annotations

import pytest
import torch
from tests.contract_cases import assert_same_bits, seeded

import plausible as pl

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def encoder():
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return seeded(lambda: transformers.BertForSequenceClassification(config)).eval()


@pytest.fixture(scope="module")
def batch():
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 40, (24, 10), generator=rng)
    mask = torch.ones(24, 10, dtype=torch.long)
    mask[::3, 7:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 3}


def inputs(batch):
    return {k: v for k, v in batch.items() if k != "labels"}


METHODS = {
    "MAP": pl.MAP(learning_rate=5e-3),
    "SWAG": pl.SWAG(rank=2, start=0.5, base=pl.MAP(optimizer="sgd", learning_rate=0.02)),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_encoder_is_trained_saved_and_predicts(name, encoder, batch, tmp_path):
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    model = pl.BayesianModel(encoder, pl.likelihoods.Categorical(), pl.priors.Normal(scale=0.1))
    settings = {"steps": 8, "batch_size": 8, "progress": False, "device": "cpu"}
    posterior = pl.fit(model, batch, METHODS[name], **settings)
    predictive = posterior.predict(inputs(batch), num_samples=3)
    assert predictive.probs.shape == (24, 3)
    assert torch.equal(predictive.total, predictive.aleatoric + predictive.epistemic)
    assert_same_bits(posterior, pl.fit(model, batch, METHODS[name], **settings))  # its dropout draws by keys
    posterior.save(tmp_path / "bert.plausible")
    loaded = pl.load(tmp_path / "bert.plausible", encoder)
    assert torch.equal(loaded.predict(inputs(batch), num_samples=3).outputs, predictive.outputs)
    assert all(torch.equal(v, encoder.state_dict()[k]) for k, v in before.items())


def test_an_encoder_s_outputs_are_its_logits(encoder, batch):
    model = pl.BayesianModel(encoder, pl.likelihoods.Categorical())
    posterior = pl.fit(model, batch, pl.MAP(), epochs=0, init="network", progress=False, device="cpu")
    with torch.no_grad():
        expected = encoder(**inputs(batch)).logits
    torch.testing.assert_close(posterior.predict(inputs(batch)).outputs[0], expected)


def test_an_encoder_learns_what_the_first_token_says(encoder, batch):
    model = pl.BayesianModel(encoder, pl.likelihoods.Categorical(), pl.priors.Normal(scale=1.0))
    told = []
    pl.fit(
        model, batch, pl.MAP(learning_rate=1e-2, schedule="constant"), steps=60, batch_size=24, progress=False,
        device="cpu", callbacks=[lambda event: told.append(float(event["log_joint"]))],
    )  # fmt: skip
    assert told[-1] > told[0] + 10


def test_only_the_head_of_an_encoder_can_be_random(encoder, batch):
    model = pl.BayesianModel(encoder, pl.likelihoods.Categorical(), parameters="classifier.*")
    posterior = pl.fit(model, batch, pl.HMC(trajectory_length=0.2, warmup=4), steps=8, progress=False, device="cpu")
    assert set(posterior.mean) == {"classifier.weight", "classifier.bias"}
    assert posterior.predict(inputs(batch)).probs.shape == (24, 3)


def test_an_encoder_has_several_modes(encoder, batch):
    model = pl.BayesianModel(encoder, pl.likelihoods.Categorical())
    posterior = pl.fit(model, batch, pl.MAP(), steps=2, batch_size=8, num_modes=2, progress=False, device="cpu")
    first, second = (c.mean["bert.encoder.layer.0.attention.self.query.weight"] for c in posterior.components)
    assert not torch.equal(first, second)


def test_a_tokenizer_s_own_batch_type_works(encoder, batch):
    encoding = transformers.BatchEncoding(batch)
    model = pl.BayesianModel(encoder, pl.likelihoods.Categorical())
    a, b = (pl.fit(model, d, pl.MAP(), steps=2, batch_size=8, progress=False, device="cpu") for d in (encoding, batch))
    assert_same_bits(a, b)
