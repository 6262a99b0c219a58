"""A draw in the network, between steps or inside `sampled()`, and what must not be done to it meanwhile."""

import copy

import pytest
import torch
from tests.optim.cases import assert_equal, data, every, losses, make, mlp, sampling, stepped, weights


@every
@pytest.mark.parametrize("call", ["train", "eval", "state_dict", "load_state_dict"])
def test_inside_a_draw_these_are_refused(name, call):
    optimizer = stepped(name)
    saved, before = optimizer.state_dict(), weights(optimizer.network)
    given = (saved,) if call == "load_state_dict" else ()
    with pytest.raises(RuntimeError, match=r"is inside `with optimizer.sampled\(\):`"), optimizer.sampled():
        getattr(optimizer, call)(*given)
    assert_equal(weights(optimizer.network), before)
    assert not optimizer.held


@sampling
def test_a_mean_survives_what_is_refused_while_a_draw_is_held(name):
    optimizer = stepped(name)
    mean = weights(optimizer.network)
    optimizer.train()
    with pytest.raises(RuntimeError, match="eval"), optimizer.sampled():
        optimizer.eval()
    optimizer.eval()
    assert_equal(weights(optimizer.network), mean)


def held_steps(optimizer, steps=2):
    x, y = data()
    optimizer.train()
    for _ in range(steps):
        optimizer.zero_grad()
        losses(optimizer.network, x, y).mean().backward()
        optimizer.step()


@sampling
@pytest.mark.parametrize("then", ["eval", "step"])
def test_weights_that_are_loaded_while_a_draw_is_held_are_warned_of(name, then, caplog):
    optimizer = make(name, mlp())
    held_steps(optimizer)
    assert not caplog.records
    optimizer.network.load_state_dict({k: v + 1 for k, v in optimizer.network.state_dict().items()})
    if then == "eval":
        optimizer.eval()
    else:
        losses(optimizer.network, *data()).mean().backward()
        optimizer.step()
    (said,) = caplog.records
    assert "call optimizer.eval() before weights are loaded" in said.getMessage()


@sampling
def test_a_draw_that_was_put_back_is_nothing_new(name, caplog):
    """As loops do that evaluate other weights in between."""
    optimizer = make(name, mlp())
    held_steps(optimizer)
    own = copy.deepcopy(optimizer.network.state_dict())
    optimizer.network.load_state_dict({k: v + 1 for k, v in own.items()})
    optimizer.network.load_state_dict(own)
    held_steps(optimizer)
    optimizer.eval()
    assert not caplog.records


@sampling
def test_draws_within_a_held_one_and_resuming_are_nothing_new(name, caplog):
    optimizer = make(name, mlp())
    held_steps(optimizer)
    with optimizer.sampled():
        pass
    losses(optimizer.network, *data()).mean().backward()
    optimizer.zero_grad()
    other = make(name, mlp())
    other.load_state_dict(optimizer.state_dict())
    other.network.load_state_dict(optimizer.network.state_dict())
    for one in (optimizer, other):
        held_steps(one)
        one.eval()
    assert_equal(weights(optimizer.network), weights(other.network))
    assert not caplog.records


def test_ctrl_c_inside_a_pass_leaves_torch_as_it_was():
    class Interrupted(torch.nn.Linear):
        stop = False

        def forward(self, x):
            if self.stop:
                raise KeyboardInterrupt
            return super().forward(x)

    for kind in ("VOGN", "OGN"):
        network = Interrupted(3, 1).double()
        optimizer = make(kind, network)
        x, y = data()

        def step(optimizer=optimizer, network=network, x=x, y=y):
            optimizer.zero_grad()
            if optimizer.draws_weights:
                with optimizer.sampled():
                    losses(network, x, y).mean().backward()
            else:
                losses(network, x, y).mean().backward()
            optimizer.step()

        step()
        network.stop = True
        with pytest.raises(KeyboardInterrupt):
            step()
        network.stop = False
        optimizer.zero_grad()  # of a loop without draws, the first thing that can know
        assert torch.overrides._len_torch_function_stack() == 0
        step()
        assert optimizer.param_groups[0]["step"] == 2
