"""Inside Hugging Face's Trainer, which calls `step()` bare and `train()` and `eval()` where an optimiser has them."""

import pytest
import torch
from tests.optim.cases import assert_close, assert_equal, weights

import plausible as pl

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate, which is not installed")

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
N = 8
CASES = {
    "IVON": (pl.optim.IVON, {"lr": 0.1}),
    "OGN": (pl.optim.OGN, {"lr": 1e-3}),
    "SGHMC": (pl.optim.SGHMC, {"lr": 1e-3}),
    "VOGN": (pl.optim.VOGN, {"lr": 1e-3}),
}


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=11, max_position_embeddings=8, num_labels=3, **sizes, **none)
    return transformers.BertForSequenceClassification(config)


def examples():
    g = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(11, (N, 6), generator=g), torch.randint(3, (N,), generator=g)
    return [
        {"input_ids": t, "attention_mask": torch.ones(6, dtype=torch.long), "labels": y}
        for t, y in zip(tokens, labels, strict=True)
    ]


def trainer(network, optimizer, folder, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, lr_scheduler_type="constant",
        save_strategy="no", seed=0, **{"per_device_train_batch_size": N, "max_grad_norm": 0.5, **options},
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    found = transformers.Trainer(
        network, arguments, train_dataset=examples(), eval_dataset=examples(), optimizers=(optimizer, schedule)
    )
    # This network takes the number of items that a loss is to be divided by, and leaves it aside.
    found.model_accepts_loss_kwargs = False
    return found


def by_hand(network, optimizer):
    """The whole data at once: their order does not count."""
    rows = examples()
    batch = {k: torch.stack([r[k] for r in rows]) for k in rows[0]}
    network.train()
    for _ in range(3):
        with optimizer.sampled():
            network(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("name", "accumulated"), [("IVON", 1), ("OGN", 4), ("SGHMC", 1), ("VOGN", 4)])
def test_a_trainer_makes_the_steps_of_a_hand_written_loop(name, accumulated, tmp_path):
    constructor, numbers = CASES[name]
    expected, network = bert(), bert()
    by_hand(expected, constructor(expected, num_data=N, **numbers))
    optimizer = constructor(network, num_data=N, **numbers)
    split = {"per_device_train_batch_size": N // accumulated, "gradient_accumulation_steps": accumulated}
    trainer(network, optimizer, tmp_path, **split).train()
    optimizer.eval()
    assert optimizer.param_groups[0]["step"] == 3
    assert_close(weights(network), weights(expected), 1e-5)


def test_an_evaluation_is_at_the_mean_and_a_posterior_predicts(tmp_path):
    network = bert()
    optimizer = pl.optim.IVON(network, num_data=N)
    hugging = trainer(network, optimizer, tmp_path)
    hugging.train()
    assert optimizer.held
    found = hugging.evaluate()["eval_loss"]
    assert not optimizer.held
    rows = examples()
    batch = {k: torch.stack([r[k] for r in rows]) for k in rows[0]}
    with torch.no_grad():
        assert network.eval()(**batch).loss.item() == pytest.approx(found, rel=1e-5)
    posterior = optimizer.posterior(pl.BayesianModel(network, pl.likelihoods.Categorical()))
    assert_equal(posterior.mean, weights(network))
    assert posterior.predict({k: batch[k] for k in ("input_ids", "attention_mask")}).probs.shape == (N, 3)
