"""What each method predicts, as pictures for the page: calibration, maps of a plane, outliers, images, fans."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..core.predictive import Predictive
from ..datasets import Dataset
from .charts import MARGIN_BOTTOM, MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, Plot
from .plane import GRID, plotted_box
from .png import data_uri

BINS = 10
SHOWN_IMAGES = 8
SHOWN_NUMBERS = 120  # examples of a fan
MAP_SIZE = (300, 270)
NUMBERS_SIZE = (440, 300)


def figure(heading: str, picture: str, caption: str) -> str:
    """A picture with its heading and what to look for. Only the picture is markup."""
    return f"<figure><h4>{escape(heading)}</h4>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


# --- labels ---


def reliability(predictive: Predictive, data: Dataset) -> str:
    """Right answers against confidence."""
    curve = metrics.calibration_curve(predictive.probs, data.y_test, bins=BINS)
    plot = Plot((0, 1), (0, 1), "confidence", "share of right answers")
    for b in range(BINS):
        if curve.count[b] > 0:
            accuracy, share = float(curve.accuracy[b]), float(curve.count[b]) / len(data.y_test)
            plot.bar(b / BINS + 0.005, (b + 1) / BINS - 0.005, accuracy, "bar")
            plot.dot(float(curve.confidence[b]), accuracy, "mark", 2 + 8 * math.sqrt(share))
    plot.line([(0, 0), (1, 1)], "ideal")
    error = float(metrics.ece(predictive.probs, data.y_test))
    return figure(
        "Reliability",
        plot.svg(f"reliability diagram, expected calibration error {error:.3f}"),
        "On the dashed line, of the predictions made with 80 % confidence 80 % are right; below it they claim too much. "
        "A larger dot is more examples.",
    )


def outlier_histogram(inside: Predictive, outside: Predictive, data: Dataset, outliers_are: str) -> str:
    """Entropies of what is known and of what is not."""
    top = math.log(len(data.classes))
    bins = 20
    shares = [np.histogram(p.total.numpy(), bins, (0, top + 1e-6))[0] / len(p.total) for p in (inside, outside)]
    plot = Plot((0, top), (0, float(max(s.max() for s in shares)) * 1.05), "entropy of the prediction (nats)", "share")
    for share, kind in zip(shares, ("inside", "outside"), strict=True):
        for b, height in enumerate(share):
            if height > 0:
                plot.bar(b * top / bins, (b + 1) * top / bins, float(height), kind)
    area = float(metrics.auroc_ood(inside.total, outside.total))
    legend = '<p class="legend"><span class="key in"></span>test examples <span class="key out"></span>outliers</p>'
    picture = plot.svg(f"histogram of entropies, test examples against outliers, AUROC {area:.3f}") + legend
    return figure("Does it notice what it does not know?", picture, f"AUROC {area:.3f}; {outliers_are}.")


# --- a plane ---


def plane_points(data: Dataset, name: str) -> str:
    """The test points, drawn once and used in every map."""
    _, (left, right, bottom, top) = plotted_box(data)
    plot = Plot((left, right), (bottom, top), "", "", size=MAP_SIZE)
    for (x, y), label in zip(data.x_test.tolist(), data.y_test.tolist(), strict=True):
        plot.dot(x, y, f"class{label % 10}", 1.8)
    return f'<svg width="0" height="0" aria-hidden="true"><defs><g id="{name}">{"".join(plot.parts)}</g></defs></svg>'


def plane_maps(grid: Predictive, data: Dataset, name: str, most: float) -> str:
    """The decision with what more data could and could not settle; `most` is where the epistemic scale ends."""
    probs = grid.probs.numpy().reshape(GRID, GRID, -1)
    palette = _class_colours(probs.shape[-1])
    ceiling = math.log(probs.shape[-1])
    aleatoric, epistemic = (v.numpy().reshape(GRID, GRID) for v in (grid.aleatoric, grid.epistemic))
    names = " or ".join(data.classes[:4])
    return (
        figure(
            "Decision", _map(probs @ palette, data, name, "decision"), f"The colour mixes the probabilities: {names}."
        )
        + figure(
            "Aleatoric: the classes overlap",
            _map(_heat(aleatoric / ceiling), data, name, "aleatoric uncertainty"),
            f"What more data could not settle, from 0 (dark) to {ceiling:.2f} nats (bright).",
        )
        + figure(
            "Epistemic: nobody has looked there",
            _map(_heat(epistemic / max(most, 1e-9)), data, name, "epistemic uncertainty"),
            f"What more data could settle, from 0 (dark) to {most:.2f} nats (bright), the most of all methods. "
            "A single network has none.",
        )
    )


def _map(colours: np.ndarray, data: Dataset, name: str, what: str) -> str:
    _, (left, right, bottom, top) = plotted_box(data)
    x_label, y_label = (*data.feature_names, "x1", "x2")[:2]
    plot = Plot((left, right), (bottom, top), x_label, y_label, size=MAP_SIZE)
    width, height = MAP_SIZE[0] - MARGIN_LEFT - MARGIN_RIGHT, MAP_SIZE[1] - MARGIN_TOP - MARGIN_BOTTOM
    plot.add(
        f'<image x="{MARGIN_LEFT}" y="{MARGIN_TOP}" width="{width}" height="{height}" preserveAspectRatio="none" '
        f'href="{data_uri(colours)}"/><use href="#{name}"/>'
    )
    return plot.svg(f"map of the {what}")


def _heat(values: np.ndarray) -> np.ndarray:
    from matplotlib import colormaps

    return colormaps["viridis"](np.clip(values, 0, 1))[..., :3]


def _class_colours(count: int) -> np.ndarray:
    from matplotlib import colormaps

    return np.array([colormaps["tab10"](k % 10)[:3] for k in range(count)]) * 0.65 + 0.3  # paler than the points


# --- images ---


def telling_images(predictive: Predictive, data: Dataset) -> str:
    """The images that a method is least sure of, and those it gets wrong while sure."""
    confidence, answer = predictive.probs.max(1)
    unsure = predictive.total.argsort(descending=True)[:SHOWN_IMAGES]
    wrong = torch.nonzero(answer != data.y_test).flatten()
    wrong = wrong[confidence[wrong].argsort(descending=True)][:SHOWN_IMAGES]
    found = [figure("Most uncertain", _gallery(unsure, confidence, answer, data), "Highest entropy first.")]
    if len(wrong):
        caption = "Wrong, and sure of it: most confident first."
        found.append(figure("Most confidently wrong", _gallery(wrong, confidence, answer, data), caption))
    else:
        found.append(figure("Most confidently wrong", "<p>None: every test example is right.</p>", ""))
    return "".join(found)


def _gallery(picks: Tensor, confidence: Tensor, answer: Tensor, data: Dataset) -> str:
    items = []
    for i in picks.tolist():
        truth, said = (escape(data.classes[int(k)]) for k in (data.y_test[i], answer[i]))
        image = data_uri(pixels(data.x_test[i], data.input_mean, data.input_scale))
        kind = "right" if truth == said else "wrong"
        items.append(
            f'<li><img src="{image}" alt="an image of class {truth}">'
            f'<span class="{kind}">{said} ({float(confidence[i]):.0%})</span><span>is {truth}</span></li>'
        )
    return f'<ul class="gallery">{"".join(items)}</ul>'


def pixels(image: Tensor, mean: Tensor | None, scale: Tensor | None) -> np.ndarray:
    """An image (channels, height, width) as greys or colours in [0, 1], as it was before it was standardised."""
    if mean is not None and scale is not None:
        image = image * scale + mean
    shown = image.movedim(0, -1).squeeze(-1).numpy()
    low, high = float(shown.min()), float(shown.max())
    if low >= -1e-3 and high <= 1 + 1e-3:
        return shown.clip(0, 1)
    return (shown - low) / (high - low)  # on a scale of its own


# --- numbers ---


def fan(predictive: Predictive, data: Dataset) -> str:
    """Test examples from the smallest to the largest prediction, with the intervals around them."""
    order = predictive.mean.flatten().argsort()
    picks = order[torch.linspace(0, len(order) - 1, min(SHOWN_NUMBERS, len(order))).round().long()]

    def units(values: Tensor) -> list[float]:
        return (values.flatten()[picks] * data.target_scale + data.target_mean).tolist()

    (low90, high90), (low50, high50) = ([units(v) for v in predictive.interval(level)] for level in (0.9, 0.5))
    truth, middle = units(data.y_test), units(predictive.mean)
    everything = [*truth, *low90, *high90]
    low, high = min(everything), max(everything)
    pad = 0.04 * (high - low)
    across = [float(k + 1) for k in range(len(picks))]
    plot = Plot((1, len(picks)), (low - pad, high + pad), "test examples by prediction", "target", size=NUMBERS_SIZE)
    plot.band(across, low90, high90, "wide")
    plot.band(across, low50, high50, "narrow")
    plot.line(list(zip(across, middle, strict=True)), "curve")
    for x, y in zip(across, truth, strict=True):
        plot.dot(x, y, "truth", 2.2)
    caption = "Dots are the true values; the bands should hold 90 % and 50 % of them."
    return figure("Predictions with their intervals", plot.svg("fan chart of predictions and true values"), caption)


def interval_calibration(predictive: Predictive, data: Dataset) -> str:
    """How much the intervals of every level hold."""
    below = predictive.cdf(data.y_test)
    needed = (2 * below - 1).abs().flatten()  # the level of the central interval that just holds the true value
    levels = [k / 20 for k in range(21)]
    held = [float((needed <= level).float().mean()) for level in levels]
    plot = Plot((0, 1), (0, 1), "level of the interval", "share it holds", size=NUMBERS_SIZE)
    plot.line([(0, 0), (1, 1)], "ideal")
    plot.line(list(zip(levels, held, strict=True)), "curve")
    caption = "On the dashed line, 90 % intervals hold 90 % of the true values; below it they are too narrow."
    return figure("Calibration of intervals", plot.svg("calibration of intervals"), caption)


def panel(method: str, comparison: Any, name: str, grid: Predictive | None, most: float) -> str:
    """All pictures of one method."""
    data = comparison.data
    predictive, outside = comparison.predictions[method]
    if data.task != "classification":
        return fan(predictive, data) + interval_calibration(predictive, data)
    found = plane_maps(grid, data, name, most) if grid is not None else ""
    found += reliability(predictive, data)
    if outside is not None:
        found += outlier_histogram(predictive, outside, data, comparison.outliers_are)
    if data.x_test.ndim == 4 and data.x_test.shape[1] in (1, 3):
        found += telling_images(predictive, data)
    return found
