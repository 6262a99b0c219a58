"""An optimiser's posterior, as one of the user's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..core.diagnostics import Diagnostics
from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Posterior, Samples
from ..core.run import BANK
from .groups import warn_of_another_prior
from .networks import bare

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer

NOT_JUDGED = (
    "not judged: an optimiser keeps no data; compare posterior.predict(x).log_prob(y) with what "
    "pl.posteriors.Delta(model, posterior.mean) has there, the network at the mean"
)


def answer(optimizer: BayesianOptimizer, model: BayesianModel) -> Posterior:
    """What was inferred, with the norm statistics that the network has now."""
    require_same_weights(optimizer, model)
    require_same_rest(optimizer, model)
    warn_of_another_prior(type(optimizer).__name__, optimizer.param_groups, model)
    mean = optimizer.means()
    found = optimizer._posterior(
        model.bound(num_data=float(optimizer.num_data)), {k: mean[k].detach().clone() for k in model.start}
    )
    if found._diagnostics is None and not isinstance(found, Samples):  # which judges its own chain
        found._diagnostics = Diagnostics(messages=(NOT_JUDGED,))
    buffers = dict(bare(optimizer.network).named_buffers())
    fixed = {k: buffers[k].detach().clone() for k in model.network.statistics}
    if fixed:
        rows = len(found) if found.finite else BANK  # type: ignore[arg-type]
        found.bank, found.mean_bank = {k: v.expand(rows, *v.shape) for k, v in fixed.items()}, fixed
    return found


def require_same_weights(optimizer: BayesianOptimizer, model: BayesianModel) -> None:
    """Raise where the model is not one of the weights that were trained."""
    if not isinstance(model, BayesianModel):
        raise TypeError(f"posterior(model) takes a pl.BayesianModel of the network, got {type(model).__name__}")
    own = {k: tuple(p.shape) for k, p in optimizer.weights().items()}
    other = {k: tuple(w.shape) for k, w in model.start.items()}
    if own != other:
        differ = sorted(k for k in own.keys() | other.keys() if own.get(k) != other.get(k))
        frozen = [k for k in differ if k in own and not optimizer.weights()[k].requires_grad]
        if frozen:
            raise ValueError(
                f"{', '.join(frozen)}: frozen since the optimiser was made, and so no unknown of the model; call "
                "requires_grad_(True) before the model is made"
            )
        raise ValueError(
            f"the model's unknowns must be the weights that were trained; they differ in {', '.join(differ)}: give "
            "pl.BayesianModel the same network, not its compiled or parallel form, and numbers for scales of noise and prior"
        )
    temperature = optimizer.param_groups[0].get("temperature", 1.0)
    require(
        model.temperature == temperature,
        f"the model has temperature {model.temperature} and {type(optimizer).__name__} had {temperature}; make them one",
    )


def require_same_rest(optimizer: BayesianOptimizer, model: BayesianModel) -> None:
    """Raise where what is no unknown, and no norm's statistics, is not what the network has now."""
    network, copy = bare(optimizer.network), model.network
    now = {**dict(network.named_buffers()), **{k: p for k, p in network.named_parameters() if k not in model.start}}
    then = {**copy.buffers, **copy.parameters}
    changed = sorted(k for k, t in now.items() if k not in copy.statistics and not _same(t, then.get(k)))
    if changed:
        raise ValueError(
            f"{', '.join(changed)}: the network has other values than when the model was made, with which predictions would be "
            "others; make the model when training is over: optimizer.posterior(pl.BayesianModel(network, ...))"
        )


def _same(own: Tensor, other: Tensor | None) -> bool:
    if other is None or own.shape != other.shape:
        return False
    own, other = own.detach(), other.detach().to(own.device)
    return bool(((own == other) | ((own != own) & (other != other))).all())
