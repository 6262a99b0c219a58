"""What a prior says of functions, before any data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.likelihoods import Bernoulli, Categorical
from ..core.model import BayesianModel
from ..core.predictive import Predictive
from .canvas import POSTERIOR, PRIOR, SECOND, figure_with

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.9
MOST_INPUTS = 60  # whose intervals are drawn side by side
MOST_LINES = 64
SHARES = 20  # bins of a probability


def prior_predictive(model: BayesianModel, x: Any, n: int = 200, seed: int = 0) -> Figure:
    """Draws of the network from the prior at inputs x.

    Numbers of one input column: functions and the interval that targets are believed to lie in; of several: that interval at
    each of the first inputs. Labels: how sure the drawn networks are, and which labels they prefer.
    """
    inputs: Any = x if isinstance(x, tuple | dict) else torch.as_tensor(x)
    if isinstance(inputs, Tensor) and (inputs.is_floating_point() or not _takes_tokens(model)):
        inputs = inputs.to(model.dtype)
    predictive = model.prior_predictive(inputs, n, seed=seed)
    if isinstance(model.likelihood, Categorical | Bernoulli):
        return _labels(predictive, isinstance(model.likelihood, Bernoulli))
    figure, (axis,) = figure_with(1, (6.0, 3.6))
    lower, upper = (_column(edge) for edge in predictive.interval(LEVEL))
    one_column = isinstance(inputs, Tensor) and inputs[0].numel() == 1
    if one_column:
        place = inputs.reshape(-1).cpu()
        order = place.argsort()
        axis.fill_between(
            *(t[order].numpy() for t in (place, lower, upper)),
            color=PRIOR,
            alpha=0.25,
            linewidth=0,
            label=f"{LEVEL:.0%} of targets",
        )
        lines = predictive.outputs[:MOST_LINES].reshape(min(n, MOST_LINES), len(place), -1)[..., 0].cpu()
        axis.plot(place[order].numpy(), lines[:, order].T.numpy(), color=POSTERIOR, alpha=0.25, linewidth=0.8)
        axis.plot([], [], color=POSTERIOR, linewidth=0.8, label="drawn networks")
        axis.set(xlabel="input", ylabel="output")
    else:
        count = min(len(lower), MOST_INPUTS)
        axis.vlines(
            range(count), lower[:count].numpy(), upper[:count].numpy(), color=PRIOR, label=f"{LEVEL:.0%} of targets"
        )
        axis.plot(
            range(count), _column(predictive.mean)[:count].numpy(), "o", color=POSTERIOR, markersize=3, label="mean"
        )
        axis.set(xlabel="number of the input", ylabel="output")
    # A heavy-tailed prior has a few functions far away, which would flatten all others.
    middle = torch.cat([lower, upper])
    low, high = (float(middle.quantile(q)) for q in (0.02, 0.98))
    margin = 0.35 * (high - low) or 1.0
    axis.set(ylim=(low - margin, high + margin), title=f"{n} draws from the prior")
    axis.legend(fontsize=8, frameon=False)
    return figure


def _takes_tokens(model: BayesianModel) -> bool:
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.network.home.modules())


def _column(values: Tensor) -> Tensor:
    """The first output of every input."""
    return values.detach().cpu().double().reshape(len(values), -1)[:, 0]


def _labels(predictive: Predictive, binary: bool) -> Figure:
    outputs = predictive.outputs.detach().cpu().double()
    if binary:
        one = outputs.sigmoid().reshape(outputs.shape[0], outputs.shape[1], -1)[..., :1]
        probs = torch.cat([1 - one, one], -1)
    else:
        probs = outputs.softmax(2).flatten(3).mean(-1) if outputs.dim() > 3 else outputs.softmax(2)
    figure, (left, right) = figure_with(2)
    largest, picked = probs.max(-1)
    classes = probs.shape[-1]
    left.hist(largest.flatten().numpy(), bins=SHARES, range=(1 / classes, 1), density=True, color=POSTERIOR)
    left.set(xlabel="largest probability of a drawn network", ylabel="density", title="how sure")
    shares = torch.nn.functional.one_hot(picked, classes).double().mean(1)  # of the inputs, for each network
    places = range(classes)
    right.bar(places, probs.mean((0, 1)).numpy(), color=PRIOR, alpha=0.6, label="mean probability")
    edges = [shares.quantile(q, dim=0).numpy() for q in (0.05, 0.95)]
    right.vlines(places, edges[0], edges[1], color=SECOND, label="share of inputs, 90 % of networks")
    right.set(xlabel="label", title="which", ylim=(0, 1.25))
    right.set_xticks(list(places) if classes <= 12 else list(places)[:: max(1, classes // 10)])
    right.legend(fontsize=7, frameon=False)
    return figure
