"""What data have done to the weights of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.posteriors import Posterior
from .canvas import POSTERIOR, PRIOR, SECOND, figure_with

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 60
MOST_NUMBERS = 100_000  # of a weight that are binned
PRIOR_DRAWS = 200


def weight_posteriors(posterior: Posterior, num_samples: int = 100, seed: int = 0) -> Figure:
    """Natural weights of each layer under the posterior, all entries together, and their prior as an outline."""
    model = posterior.model
    if not hasattr(model, "natural_weights"):
        raise NotSupported(f"a {type(model).__name__} has no layers; a posterior of a BayesianModel has")
    after = model.natural_weights(posterior.sample(num_samples, seed=seed))
    try:
        before: dict[str, Tensor] | None = model.natural_weights(model.sample_prior(PRIOR_DRAWS, seed=seed))
    except NotSupported:  # a flat prior has no draws
        before = None
    layers: dict[str, list[str]] = {}
    for name in after:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    figure, axes = figure_with(len(layers))
    for axis, (layer, names) in zip(axes, layers.items(), strict=True):
        _layer(axis, layer, names, after, before)
    axes[0].set_ylabel("density", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].legend(handles, labels, fontsize=8, frameon=False)
    return figure


def _layer(axis: Any, layer: str, names: list[str], after: dict[str, Tensor], before: dict[str, Tensor] | None) -> None:
    numbers = [_some(after[n]) for n in names]
    pooled = torch.cat(numbers)
    low, high = (float(pooled.quantile(q)) for q in (0.02, 0.98))  # a few weights far out would flatten all others
    margin = 0.4 * (high - low) or 1e-3
    span = (low - margin, high + margin)
    edges = torch.linspace(*span, BINS + 1).numpy()
    for name, values, colour in zip(names, numbers, [POSTERIOR, SECOND] * len(names), strict=False):
        label = f"{name.rpartition('.')[2]} after"
        axis.stairs(_density(values, span), edges, fill=True, color=colour, alpha=0.6, label=label)
    if before is not None:
        prior = torch.cat([_some(before[n]) for n in names])
        axis.stairs(_density(prior, span), edges, color=PRIOR, linewidth=1.4, label="prior")
    axis.set(title=f"layer {layer}" if layer else "network", xlabel="weight")


def _density(values: Tensor, span: tuple[float, float]) -> Any:
    """Of all values, also of those that lie outside of the picture."""
    return (torch.histc(values, BINS, *span) / len(values) / ((span[1] - span[0]) / BINS)).numpy()


def _some(values: Tensor) -> Tensor:
    flat = values.detach().flatten().double().cpu()
    return flat[:: max(1, len(flat) // MOST_NUMBERS)]
