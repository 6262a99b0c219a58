"""A saved state goes into an optimiser of the same method, weights and groups, and into no other."""

import copy

import pytest
import torch
from tests.optim.cases import CASES, assert_equal, data, every, loop, make, mlp, model, stepped, weights
from torch import nn


@every
def test_groups_in_another_order_are_refused(name):
    one = stepped(name, prior_precision={"0.*": 1.0, "2.*": 2.0})
    two = make(name, mlp(), prior_precision={"2.*": 2.0, "0.*": 1.0})
    with pytest.raises(ValueError, match=r"0\.weight.*2\.weight.*prior_precision"):
        two.load_state_dict(one.state_dict())


@every
def test_a_state_of_other_weights_is_refused_by_name(name):
    one = stepped(name)
    torch.manual_seed(0)
    longer = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Linear(1, 1)).double()
    with pytest.raises(ValueError, match=r"3\.weight"):
        make(name, longer).load_state_dict(one.state_dict())
    frozen = mlp()
    frozen[0].bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"0\.bias"):
        make(name, frozen).load_state_dict(one.state_dict())


@every
def test_a_state_of_weights_of_another_shape_is_refused_by_name(name):
    one = stepped(name)
    torch.manual_seed(0)
    wider = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    with pytest.raises(ValueError, match=r"0\.weight.*\(5, 3\).*\(7, 3\)"):
        make(name, wider).load_state_dict(one.state_dict())


@every
def test_a_state_of_another_method_is_refused(name):
    other = next(k for k in CASES if k != name)
    with pytest.raises(ValueError, match=f"state of {other}.*is {name}"):
        make(name, mlp()).load_state_dict(stepped(other).state_dict())
    with pytest.raises(ValueError, match=r"state of none of pl\.optim"):
        make(name, mlp()).load_state_dict(torch.optim.Adam(mlp().parameters()).state_dict())


@every
def test_a_state_that_does_not_name_its_method_is_taken(name):
    one = stepped(name)
    saved = copy.deepcopy(one.state_dict())
    for group in saved["param_groups"]:
        group.pop("method")
    two = make(name, copy.deepcopy(one.network))
    two.load_state_dict(saved)
    loop(one, *data(), steps=2)
    loop(two, *data(), steps=2)
    assert_equal(weights(two.network), weights(one.network))
    assert two.state_dict()["param_groups"][0]["method"] == name


def test_a_state_that_lacks_a_number_is_called_that_of_another_version():
    saved = copy.deepcopy(stepped("KFAC").state_dict())
    for group in saved["param_groups"]:
        group.pop("seen")
    with pytest.raises(ValueError, match="the state has no seen, which KFAC goes by: it is that of another version"):
        make("KFAC", mlp()).load_state_dict(saved)


def compiled(network):
    return torch.compile(network, backend="eager")


WRAPPERS = {"torch.compile": compiled, "DataParallel": nn.DataParallel}


@every
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapped_network_has_the_names_of_the_bare_one(name, wrap):
    bare, network = mlp(), mlp()
    one, two = stepped(name, bare), make(name, WRAPPERS[wrap](network))
    assert list(two.weights()) == list(one.weights())
    network.load_state_dict(bare.state_dict())
    two.load_state_dict(one.state_dict())
    two.posterior(model(network)) if name not in ("SGLD", "SGHMC") else None
    if wrap == "torch.compile" and two.witness is not None and not two.remembers:
        return  # warnings that are errors, as in these tests, make torch's compiler leave hooks out
    for own in (one, two):
        own.zero_grad()
        with own.sampled():
            ((own.network(data()[0]) - data()[1]) ** 2).mean().backward()
        own.step()
    assert_equal(weights(network), weights(bare))
