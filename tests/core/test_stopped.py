"""What a run says that has to stop because its log joint is not finite."""

import pytest
import torch
from torch import nn

import plausible as pl

QUIET = {"progress": False, "device": "cpu"}


class Logarithm(nn.Linear):
    """A network whose outputs are not numbers where a linear one's are below zero."""

    def forward(self, x):
        return super().forward(x).log()


def data():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1]


def test_inputs_that_augmentation_spoiled_are_not_laid_to_the_learning_rate():
    seen = []

    def spoil(inputs):
        seen.append(len(inputs))
        return inputs * float("nan") if len(seen) == 7 else inputs

    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=0.3))
    with pytest.raises(FloatingPointError, match="stopped being finite at step 6: the inputs.*augment") as found:
        pl.fit(model, data(), pl.VOGN(), steps=20, augment=spoil, **QUIET)
    assert "learning rate" not in str(found.value) and "weight" not in str(found.value)


def test_a_network_that_gives_no_numbers_at_the_start_is_not_laid_to_the_learning_rate():
    model = pl.BayesianModel(Logarithm(3, 1), pl.likelihoods.Normal(scale=0.3))
    with pytest.raises(FloatingPointError, match="not finite at step 0 .*before any step.*network's outputs") as found:
        pl.fit(model, data(), pl.VOGN(), steps=20, **QUIET)
    assert "learning rate" not in str(found.value)


def test_steps_that_are_too_long_are_named_beside_the_other_reason():
    model = pl.BayesianModel(nn.Linear(3, 1), pl.likelihoods.Normal(scale=0.3))
    with pytest.raises(
        FloatingPointError, match="steps before were too long, try a tenth.*gradient of step.*network's outputs"
    ):
        pl.fit(model, data(), pl.MAP(optimizer="sgd", learning_rate=1e30), steps=20, **QUIET)


class Bounded(nn.Linear):
    """Outputs that are finite whatever comes in, with gradients that are not."""

    def forward(self, x):
        return super().forward(x).tanh()


def test_inputs_that_were_spoiled_a_step_before_are_named():
    """An infinite input behind a bounded function shows in the next step alone."""
    seen = []

    def spoil(inputs):
        seen.append(len(inputs))
        return torch.cat([inputs[:1] + float("inf"), inputs[1:]]) if len(seen) == 7 else inputs

    with torch.no_grad():
        network = Bounded(3, 1)
        network.weight.copy_(torch.tensor([[0.5, 0.5, 0.5]]))
    model = pl.BayesianModel(network, pl.likelihoods.Normal(scale=0.3))
    with pytest.raises(
        FloatingPointError, match="at step 7: the inputs of the batch before, at step 6, are not finite.*augment"
    ):
        pl.fit(model, data(), pl.MAP(), steps=20, augment=spoil, **QUIET)


def test_weights_that_are_not_finite_when_they_are_kept_are_named(tmp_path):
    """The log joint of the last step is finite, and its gradient is not."""

    class Root(nn.Linear):
        def forward(self, x):
            return super().forward(x) + (self.weight * x[:, :1]).abs().sqrt().sum(1, keepdim=True)

    def spoil(inputs):
        seen.append(len(inputs))
        return torch.cat([0 * inputs[:1], inputs[1:]]) if len(seen) == 5 else inputs

    seen = []
    model = pl.BayesianModel(Root(3, 1), pl.likelihoods.Normal(scale=0.3))
    checkpoint = pl.Checkpoint(tmp_path / "run.ckpt", every_steps=5)
    with pytest.raises(
        FloatingPointError, match="^weight stopped being finite at step 4: most likely the learning rate"
    ):
        pl.fit(model, data(), pl.MAP(), steps=20, augment=spoil, checkpoint=checkpoint, **QUIET)
