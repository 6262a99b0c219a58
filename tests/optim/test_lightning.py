"""Inside Lightning, which gives `step` a closure, and clips and accumulates by itself."""

import pytest
import torch
from tests.optim.cases import CASES, SAMPLING, assert_close, data, loop, losses, make, mlp, weights
from torch.utils.data import DataLoader, TensorDataset

pytorch_lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")

# Lightning's own: its optimiser's step is wrapped more than once, a small loader needs no workers, and it still names an
# old class of torch's.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*The number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\):FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\):DeprecationWarning"),
]


class Task(pytorch_lightning.LightningModule):
    def __init__(self, name, held=False):
        super().__init__()
        self.network, self.name, self.held = mlp(), name, held

    def configure_optimizers(self):
        return make(self.name, self.network)

    def on_train_start(self):
        if self.held:
            self.optimizers().train()

    def on_train_end(self):
        self.optimizers().eval()

    def training_step(self, batch, index):
        return losses(self.network, *batch).mean()

    def validation_step(self, batch, index):
        self.log("validation", losses(self.network, *batch).mean())


def trained(task, batch_size=24, **options):
    x, y = data()
    trainer = pytorch_lightning.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
    trainer.fit(task, loader, loader)
    return task.network


@pytest.mark.parametrize("name", CASES)
def test_a_closure_makes_the_steps_of_a_hand_written_loop(name):
    expected = mlp()
    loop(make(name, expected), *data(), steps=4)
    assert_close(weights(trained(Task(name))), weights(expected), 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_accumulated_batches_make_the_steps_of_whole_ones(name):
    expected = mlp()
    loop(make(name, expected), *data(), steps=4)
    found = trained(Task(name, held=True), batch_size=6, accumulate_grad_batches=4)
    assert_close(weights(found), weights(expected), 1e-10)


class Validating(Task):
    """It is judged at the mean after every epoch, through the wrapper that Lightning gives."""

    def on_validation_start(self):
        if not self.trainer.sanity_checking:
            self.optimizers().eval()

    def on_validation_end(self):
        if not self.trainer.sanity_checking:
            self.optimizers().train()


@pytest.mark.parametrize("name", SAMPLING)
def test_a_mean_that_comes_back_for_every_validation_is_no_weight_that_others_wrote(name, caplog):
    trained(Validating(name, held=True), batch_size=6, accumulate_grad_batches=4)
    assert not any("weights were written" in r.getMessage() for r in caplog.records)


class Manual(Task):
    def __init__(self, name):
        super().__init__(name)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()  # whose step hands over a closure that does nothing
        optimizer.zero_grad()
        with optimizer.sampled():
            self.manual_backward(losses(self.network, *batch).mean())
        optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_manual_optimisation_makes_the_steps_of_a_hand_written_loop(name):
    expected = mlp()
    loop(make(name, expected), *data(), steps=4)
    assert_close(weights(trained(Manual(name))), weights(expected), 1e-12)


@pytest.mark.parametrize("name", SAMPLING)
def test_accumulated_batches_without_a_held_draw_are_refused(name):
    with pytest.raises(RuntimeError, match=r"outside of a draw.*optimizer\.train\(\)"):
        trained(Task(name), batch_size=6, accumulate_grad_batches=4)


@pytest.mark.parametrize("name", ["IVON", "VOGN"])
def test_clipping_inside_the_closure_is_clipping_before_the_step(name):
    expected, (x, y) = mlp(), data()
    optimizer = make(name, expected)
    for _ in range(4):
        optimizer.zero_grad()
        with optimizer.sampled():
            losses(expected, x, y).mean().backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
        optimizer.step()
    found = trained(Task(name), gradient_clip_val=0.1)
    assert_close(weights(found), weights(expected), 1e-10)
    free = mlp()
    loop(make(name, free), x, y, steps=4)
    assert not torch.allclose(free[0].weight, found[0].weight, rtol=1e-2)
