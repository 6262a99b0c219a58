"""An optimiser's posterior, as one of the user's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Posterior
from ..core.run import BANK
from .groups import warn_of_another_prior
from .networks import bare

if TYPE_CHECKING:
    from .optimizer import BayesianOptimizer


def answer(optimizer: BayesianOptimizer, model: BayesianModel) -> Posterior:
    """What was inferred, with the norm statistics that the network has now."""
    require_same_weights(optimizer, model)
    warn_of_another_prior(type(optimizer).__name__, optimizer.param_groups, model)
    mean = optimizer.means()
    found = optimizer._posterior(
        model.bound(num_data=float(optimizer.num_data)), {k: mean[k].detach().clone() for k in model.start}
    )
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
        raise ValueError(
            f"the model's unknowns must be the weights that were trained; they differ in {', '.join(differ)}: give "
            "pl.BayesianModel the same network, not its compiled or parallel form, and numbers for scales of noise and prior"
        )
    temperature = optimizer.param_groups[0].get("temperature", 1.0)
    require(
        model.temperature == temperature,
        f"the model has temperature {model.temperature} and {type(optimizer).__name__} had {temperature}; make them one",
    )
