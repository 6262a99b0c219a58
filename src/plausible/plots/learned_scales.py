"""The scales of a prior that were learnt, beside what was believed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.errors import NotSupported
from ..core.posteriors import Posterior
from .canvas import POSTERIOR, PRIOR, figure_with

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDGES = (0.05, 0.5, 0.95)
MOST_ENTRIES = 40  # of a scale per unit or input; of more, these are spread over the sorted ones
HYPERPRIOR_DRAWS = 4001


def learned_scales(posterior: Posterior, num_samples: int = 400, seed: int = 0) -> Figure:
    """Medians and 90 % intervals of every unknown scale of the prior; grey: the hyperprior's."""
    model = posterior.model
    names = [k for k in getattr(model, "hyperpriors", {}) if k.startswith("prior.")]
    if not names:
        raise NotSupported("this prior has no unknown scale; pl.priors.Hierarchical and Horseshoe have")
    drawn = posterior.sample(num_samples, seed=seed)
    natural = {k: v.detach().cpu().double() for k, v in model.constrain({k: drawn[k] for k in names}).items()}
    single = [k for k in names if natural[k].dim() == 1]
    groups = ([single] if single else []) + [[k] for k in names if k not in single]
    tallest = max(len(_rows(g, natural)[0]) for g in groups)
    figure, axes = figure_with(len(groups), (4.0, 1.2 + 0.24 * min(tallest, MOST_ENTRIES)))
    for axis, group in zip(axes, groups, strict=True):
        _panel(axis, group, natural, model)
    axes[0].plot([], [], color=POSTERIOR, linewidth=2.0, label="after")
    axes[0].plot([], [], color=PRIOR, linewidth=1.2, label="before")
    figure.legend(loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    return figure


def _rows(group: list[str], natural: dict[str, Tensor]) -> tuple[list[str], Tensor]:
    """Labels, and draws in columns."""
    if natural[group[0]].dim() == 1:
        return [_short(k) for k in group], torch.stack([natural[k] for k in group], 1)
    values = natural[group[0]].flatten(1)
    chosen = torch.arange(values.shape[1])
    if len(chosen) > MOST_ENTRIES:
        order = values.median(0).values.argsort()
        chosen = order[torch.linspace(0, len(order) - 1, MOST_ENTRIES).long()]
    return [str(int(i)) for i in chosen], values[:, chosen]


def _panel(axis: Any, group: list[str], natural: dict[str, Tensor], model: Any) -> None:
    labels, values = _rows(group, natural)
    low, middle, high = (values.quantile(q, dim=0).numpy() for q in EDGES)
    places = list(range(len(labels)))
    generator = torch.Generator().manual_seed(0)
    for place, name in zip(places, group if len(group) > 1 else group * len(labels), strict=True):
        believed = model.hyperpriors[name].sample((HYPERPRIOR_DRAWS,), generator, dtype=torch.float64)
        edges = [float(believed.quantile(q)) for q in EDGES]
        axis.plot([edges[0], edges[2]], [place + 0.25] * 2, color=PRIOR, linewidth=1.2)
        axis.plot([edges[1]], [place + 0.25], "|", color=PRIOR, markersize=6)
    axis.hlines(places, low, high, color=POSTERIOR, linewidth=2.0)
    axis.plot(middle, places, "o", color=POSTERIOR, markersize=4)
    axis.set_yticks(places, labels)
    title = "prior scales" if natural[group[0]].dim() == 1 else _short(group[0])
    axis.set(xscale="log", xlabel="scale", title=title, ylim=(len(places) - 0.4, -0.6))


def _short(name: str) -> str:
    return name.removeprefix("prior.")
