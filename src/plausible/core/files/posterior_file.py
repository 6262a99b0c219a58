"""A posterior as a file, and back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import networks
from ...weights import tree
from .. import likelihoods, priors
from ..diagnostics import Diagnostics
from ..evidence import Evidence
from ..model import BayesianModel
from ..posteriors import Mixture, Posterior, registry
from ..target import Target
from ..unknowns import spec, unspec
from . import container


def save(posterior: Posterior, path: str | Path) -> None:
    """Write `posterior` to `path`."""
    tensors: dict[str, Tensor] = {}
    manifest = {"kind": "posterior", "posterior": _describe(posterior, "posterior", tensors)}
    manifest["model"] = _describe_model(posterior.model, tensors)
    container.write(path, tensors, manifest)


def load(
    path: str | Path,
    network: nn.Module | BayesianModel | Target | None = None,
    device: torch.device | str | None = None,
) -> Posterior:
    """Read a posterior.

    Args:
        path: The file.
        network: The network it is of, with any weights; None where the file names one of `pl.networks`. A
            `BayesianModel` (or `LogDensity`) where the likelihood or the prior is of the user's own class.
        device: Where to put it.
    """
    tensors, manifest = container.read(path, "posterior")
    tensors = tree.to(tensors, device or "cpu")
    if isinstance(network, Target) and not isinstance(network, BayesianModel):
        model: Target = network
    else:
        model = _rebuild_model(manifest["model"], tensors, network)
    posterior = _rebuild(manifest["posterior"], "posterior", tensors, model)
    _check_shapes(posterior, model, path)
    return posterior


# --- posteriors ---


def _describe(posterior: Posterior, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    about: dict[str, Any] = {"class": type(posterior).__name__}
    if isinstance(posterior, Mixture):
        about["weights"] = posterior.weights.tolist()
        about["components"] = [_describe(c, f"{prefix}/{i}", tensors) for i, c in enumerate(posterior.components)]
    else:
        own = dict(tree.leaves(posterior.tensors))
        tensors.update({f"{prefix}/{k}": v for k, v in own.items()})
        about["order"] = {k: list(v) for k, v in posterior.tensors.items() if isinstance(v, Mapping)}
    if posterior.bank is not None:
        tensors.update({f"{prefix}-bank/{k}": v for k, v in tree.leaves(posterior.bank)})
        about["bank_seed"] = posterior.bank_seed
    if posterior.mean_bank is not None:
        tensors.update({f"{prefix}-mean-bank/{k}": v for k, v in tree.leaves(posterior.mean_bank)})
    if posterior.linearised_by_default:
        about["linearised"] = True
    if posterior.notes:
        about["notes"] = dict(posterior.notes)
    if posterior._evidence is not None:
        e = posterior._evidence
        about["evidence"] = [float(e.log_marginal_likelihood), e.kind, e.standard_error]
    if posterior._diagnostics is not None:
        d = posterior._diagnostics
        about["diagnostics"] = {"messages": d.messages, "table": d.table, "ok": d.ok}
    return about


def _rebuild(about: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor], model: Target) -> Posterior:
    if about["class"] not in registry:
        raise ValueError(f"this file holds a {about['class']}, which this version does not know; upgrade plausible")
    posterior: Posterior
    if about["class"] == "Mixture":
        members = [_rebuild(c, f"{prefix}/{i}", tensors, model) for i, c in enumerate(about["components"])]
        posterior = Mixture(members, about["weights"])
    else:
        own = _under(tensors, prefix)
        ordered = {k: {n: v[n] for n in about["order"][k]} if k in about["order"] else v for k, v in own.items()}
        posterior = registry[about["class"]].from_tensors(model, ordered)
    bank = _under(tensors, f"{prefix}-bank")
    if bank:
        posterior.bank, posterior.bank_seed = bank, about["bank_seed"]
    posterior.mean_bank = _under(tensors, f"{prefix}-mean-bank") or None
    posterior.linearised_by_default = about.get("linearised", False)
    posterior.notes = about.get("notes", {})
    if "evidence" in about:
        value, kind, error = about["evidence"]
        posterior._evidence = Evidence(torch.tensor(value, dtype=torch.float64), kind, error)
    if "diagnostics" in about:
        d = about["diagnostics"]
        posterior._diagnostics = Diagnostics(tuple(d["messages"]), d["table"], d["ok"])
    return posterior


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return tree.from_leaves({k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + "/")})


# --- models ---


def _describe_model(model: Target, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if not isinstance(model, BayesianModel):
        return {"class": type(model).__name__, "num_data": model.num_data}
    fixed = {k: v for k, v in model.network.parameters.items() if k not in model.weight_names}
    tensors.update({f"fixed/{k}": v for k, v in tree.leaves(fixed)})
    tensors.update({f"buffers/{k}": v for k, v in tree.leaves(model.network.buffers)})
    name = type(model.source).__name__
    named = networks.registry.get(name) is type(model.source)
    return {
        "class": "BayesianModel",
        "network": {"name": name, "config": model.source.config} if named else {"class": name},
        "likelihood": _describe_part(model.likelihood, likelihoods.registry),
        "prior": _describe_prior(model, tensors),
        "parameters": model.weight_names,
        "temperature": model.temperature,
        "num_data": model.num_data,
    }


def _describe_part(part: Any, known: Mapping[str, type]) -> dict[str, Any]:
    return spec(part) if known.get(type(part).__name__) is type(part) else {"custom": type(part).__name__}


def _describe_prior(model: BayesianModel, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if isinstance(model.prior, Posterior):
        then = _describe_part(model.prior.model.likelihood, likelihoods.registry)
        return {"posterior": _describe(model.prior, "prior", tensors), "likelihood": then}
    if isinstance(model.prior, Mapping):
        return {"patterns": [[k, _describe_part(p, priors.registry)] for k, p in model.prior.items()]}
    return _describe_part(model.prior, priors.registry)


def _rebuild_part(about: Mapping[str, Any], known: Mapping[str, type], what: str) -> Any:
    if "custom" in about:
        raise ValueError(
            f"this posterior has a {what} of its own class {about['custom']}, which a file cannot hold; "
            "give pl.load(path, model) the BayesianModel instead of the network"
        )
    return unspec(about, known)


def _rebuild_model(
    about: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | BayesianModel | None
) -> BayesianModel:
    given = network if isinstance(network, BayesianModel) else None
    network = network.source if isinstance(network, BayesianModel) else network
    if about["class"] != "BayesianModel":
        raise ValueError(f"this is a posterior of a {about['class']}: give it to pl.load(path, log_density)")
    if network is None:
        if "name" not in about["network"]:
            raise ValueError(
                f"the file does not know how to build {about['network']['class']}: give pl.load(path, network)"
            )
        precision = next(t.dtype for k, t in tensors.items() if k.endswith("/" + about["parameters"][0]))
        network = networks.build(about["network"]["name"], about["network"]["config"]).to(precision)
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
    network = copy.deepcopy(network)
    fixed, buffers = _under(tensors, "fixed"), _under(tensors, "buffers")
    _restore(dict(network.named_parameters()), fixed, about["parameters"])
    _restore(dict(network.named_buffers()), buffers, [])
    for name, p in network.named_parameters():
        p.requires_grad_(name in about["parameters"])
    if given is not None:  # what a file cannot hold is the user's; what was fixed in the fit is the file's
        model = BayesianModel(
            network, given.likelihood, given.prior, about["parameters"], about["temperature"], given.batch_rule
        )
        return model.bound(num_data=about["num_data"])
    if "posterior" in about["prior"]:
        # Its own likelihood, since the noise may have been known then and be unknown now.
        then = about["prior"].get("likelihood", about["likelihood"])
        plain = BayesianModel(network, _rebuild_part(then, likelihoods.registry, "likelihood"))
        prior: Any = _rebuild(about["prior"]["posterior"], "prior", tensors, plain)
    elif "patterns" in about["prior"]:
        prior = {k: _rebuild_part(p, priors.registry, "prior") for k, p in about["prior"]["patterns"]}
    else:
        prior = _rebuild_part(about["prior"], priors.registry, "prior")
    likelihood = _rebuild_part(about["likelihood"], likelihoods.registry, "likelihood")
    model = BayesianModel(network, likelihood, prior, about["parameters"], about["temperature"])
    return model.bound(num_data=about["num_data"])


def _restore(own: Mapping[str, Tensor], stored: Mapping[str, Tensor], elsewhere: list[str]) -> None:
    missing = sorted(own.keys() - stored.keys() - set(elsewhere))
    strange = sorted(stored.keys() - own.keys())
    if missing or strange:
        raise ValueError(
            f"this is not the network of the file: the file lacks {missing[:3]} and has {strange[:3]} besides"
        )
    with torch.no_grad():
        for k, v in stored.items():
            if own[k].shape != v.shape:
                raise ValueError(
                    f"this is not the network of the file: {k} is {tuple(own[k].shape)}, stored {tuple(v.shape)}"
                )
            own[k].copy_(v)


def _check_shapes(posterior: Posterior, model: Target, path: str | Path) -> None:
    one = posterior.representative()
    for k, start in model.start.items():
        if k not in one or one[k].shape != start.shape:
            found = tuple(one[k].shape) if k in one else "nothing"
            raise ValueError(f"{path} is not a posterior of this network: {k} is {tuple(start.shape)}, stored {found}")
        if one[k].dtype != start.dtype:
            raise ValueError(
                f"{path} holds {one[k].dtype} and {k} of this network is {start.dtype}; convert it, as in "
                f"network.to({one[k].dtype})"
            )
