"""A network as a function of its weights: nothing of the user's is touched, and dropout comes from keys."""

import copy
import math

import pytest
import torch
from torch import nn

import plausible as pl
from plausible.weights.network import KeyedDropout, Network
from plausible.weights.rng import Keys, run_key


def keys(seed=0, mode=0, step=0):
    return Keys(run_key(seed, mode), torch.tensor(step))


def dropped(net, x, rng, weights=None):
    return net(weights or net.parameters, x, role="train", rng=rng)


def only_dropout(layer):
    """A network with a weight that does nothing, since a network needs one."""
    return Network(nn.Sequential(nn.Linear(1, 1, bias=False), layer))


def masks(layer, shape, rng):
    net = only_dropout(layer)
    return dropped(net, torch.ones(shape), rng, {"0.weight": torch.ones(1, 1)})


def test_it_computes_what_the_module_computes_with_other_weights():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    net, x = Network(module), torch.randn(5, 3)
    other = {k: p + 0.1 for k, p in net.parameters.items()}
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.1)
    assert torch.equal(net(net.parameters, x), module(x))
    assert torch.equal(net(other, x), twin(x))
    assert torch.equal(net({"0.weight": net.parameters["0.weight"]}, x), module(x))  # the rest keep their values


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(rate):
    count = 200_000
    out = masks(nn.Dropout(rate), (count, 1), keys())
    zero = (out == 0).double().mean().item()
    assert abs(zero - rate) < 4 * math.sqrt(rate * (1 - rate) / count)
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))


def test_masks_differ_between_steps_modes_and_seeds_and_repeat_for_the_same():
    first = masks(nn.Dropout(0.5), (100, 1), keys())
    assert torch.equal(first, masks(nn.Dropout(0.5), (100, 1), keys()))
    for other in (keys(step=1), keys(mode=1), keys(seed=1)):
        found = masks(nn.Dropout(0.5), (100, 1), other)
        agree = (found == first).double().mean()
        assert 0.25 < agree < 0.75


def test_two_layers_and_one_layer_used_twice_have_masks_of_their_own():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.drop, self.other = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x):
            return torch.stack([self.drop(x), self.drop(x), self.other(x)]) * self.weight

    net = Network(Twice())
    a, b, c = dropped(net, torch.ones(400), keys())
    for one, two in ((a, b), (a, c), (b, c)):
        assert abs((one == two).double().mean() - 0.5) < 4 * 0.5 / math.sqrt(400)
    again = dropped(net, torch.ones(400), keys())
    assert torch.equal(again[0], a) and torch.equal(again[1], b)


@pytest.mark.parametrize(
    "layer, shape",
    [(nn.Dropout1d(0.5), (30, 8, 6)), (nn.Dropout2d(0.5), (30, 8, 3, 2)), (nn.Dropout3d(0.5), (30, 8, 2, 3, 1))],
)
def test_channel_dropout_masks_whole_channels(layer, shape):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.layer = nn.Parameter(torch.ones(())), layer

        def forward(self, x):
            return self.layer(x) * self.weight

    out = dropped(Network(Wrapped()), torch.ones(shape), keys()).flatten(2)
    assert torch.equal(out, out[..., :1].expand_as(out))
    assert abs((out[..., 0] == 0).double().mean() - 0.5) < 4 * 0.5 / math.sqrt(240)


def test_vmapped_modes_have_the_masks_of_their_lone_twins():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.4), nn.Linear(16, 1))
    net, x = Network(module), torch.randn(6, 3)
    weights = {k: torch.stack([p, p * 1.5, p * 2]) for k, p in net.parameters.items()}
    streams = torch.stack([run_key(0, m) for m in range(3)])

    def one(w, key):
        return dropped(net, x, Keys(key, key[0] * 0 + 7), w)

    together = torch.vmap(one, randomness="error")(weights, streams)
    for m in range(3):
        lone = one({k: w[m] for k, w in weights.items()}, streams[m])
        torch.testing.assert_close(together[m], lone)


def test_dropout_is_off_outside_training_and_needs_a_key_inside():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    net, x = Network(module), torch.randn(4, 2)
    assert torch.equal(net(net.parameters, x), module.eval()(x))
    with pytest.raises(ValueError, match="rng"):
        net(net.parameters, x, role="train")
    before = torch.get_rng_state()
    dropped(net, x, keys())
    assert torch.equal(before, torch.get_rng_state())
    assert any(isinstance(m, KeyedDropout) for m in net.module(torch.device("cpu"), "train").modules())
    assert not any(isinstance(m, KeyedDropout) for m in module.modules())  # the user's keeps its own


def test_dropout_layers_that_share_one_object_still_work():
    shared = nn.Dropout(0.5)
    module = nn.Sequential(nn.Linear(2, 50), shared, nn.Linear(50, 50), shared)
    net, x = Network(module), torch.randn(4, 2)
    before = torch.get_rng_state()
    out = dropped(net, x, keys())
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(out, dropped(net, x, keys()))
    assert (out == 0).double().mean() > 0.25


def test_each_step_of_a_fit_draws_new_masks():
    """With a frozen network and a rate of one half, the log joint a step shows says which mask it had."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 30), nn.Dropout(0.5), nn.Linear(30, 1))
    shown = []
    pl.fit(
        pl.BayesianModel(net, pl.likelihoods.Normal()),
        (torch.ones(1, 1), torch.zeros(1, 1)),
        pl.MAP(learning_rate=1e-12),
        steps=20,
        progress=False,
        callbacks=[lambda event: shown.append(float(event["log_joint"]))],
    )
    assert len({round(v, 6) for v in shown}) == 20


def test_layers_are_reinitialised_by_their_own_rule_from_the_seed_alone():
    torch.manual_seed(0)
    net = Network(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    before = torch.get_rng_state()
    one, missed = net.reinitialised(5)
    two, _ = net.reinitialised(5)
    other, _ = net.reinitialised(6)
    assert torch.equal(before, torch.get_rng_state()) and not missed
    assert torch.equal(one["0.weight"], two["0.weight"]) and not torch.equal(one["0.weight"], other["0.weight"])
    assert torch.equal(one["1.weight"], torch.ones(4))

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(3))
            self.layer = nn.Linear(3, 1)

    assert Network(Bare()).reinitialised(0)[1] == ["scale"]


def test_objects_with_logits_dictionaries_and_tuples_are_understood():
    class Output:
        def __init__(self, logits):
            self.logits = logits

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b=None):
            return Output(self.layer(a if b is None else a + b))

    net, x = Network(Model()), torch.randn(3, 2)
    plain = net(net.parameters, x)
    assert plain.shape == (3, 1)
    torch.testing.assert_close(net(net.parameters, {"a": x, "b": torch.zeros_like(x)}), plain)
    torch.testing.assert_close(net(net.parameters, (x, torch.zeros_like(x))), plain)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("normed", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_weight_that_a_hook_computes_does_not_stand_in_the_way(normed):
    module = nn.Sequential(normed(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    told = module(x)  # after which the weight is no leaf
    assert not module[0].weight.is_leaf
    model = pl.BayesianModel(module, pl.likelihoods.Categorical())
    torch.testing.assert_close(model.outputs(model.init(), x), module.eval()(x).detach())
    found = pl.fit(model, (x, y), pl.MAP(learning_rate=0.05), steps=50, progress=False)
    before = torch.nn.functional.cross_entropy(told, y)
    assert float(-found.predict(x).log_prob(y).mean()) < float(before.detach()) - 0.05
    assert {"0.weight_orig", "0.weight_g"} & set(found.mean)
