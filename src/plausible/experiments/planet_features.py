"""What a network reads of a planetary system: the published summaries of its first orbits, its masses and its spacing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..datasets import PlanetSystems

# Of a regular orbit the MEGNO tends to 2 and its spread to 0.19; what tells systems apart is the small distance from there.
REGULAR_MEGNO, MEGNO_UNIT = 2.0, 0.05
REGULAR_SPREAD, SPREAD_UNIT = 0.19, 1e-4
AS_THEY_ARE = ("knear", "kfar", "stableinshortintegration")  # of two values only


def planet_columns(systems: PlanetSystems) -> Tensor:
    """(N, 24): everything positive and of many sizes on a logarithmic scale; not a number where a feature is missing."""
    columns = [_on_its_scale(name, systems.features[:, i]) for i, name in enumerate(systems.feature_names)]
    return torch.stack([*columns, *systems.masses.log().T, *(systems.period_ratios - 1).log().T], 1)


def _on_its_scale(name: str, values: Tensor) -> Tensor:
    if name in AS_THEY_ARE:
        return values
    if name == "MEGNO":
        return torch.asinh((values - REGULAR_MEGNO) / MEGNO_UNIT)
    if name == "MEGNOstd":
        return (values - REGULAR_SPREAD).clamp(min=SPREAD_UNIT).log()
    return values.log()


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureScale:
    """How columns become inputs, known from the training part alone.

    Attributes:
        mean: Of each column where it is known.
        deviation: The same.
        flagged: The columns whose absence is an input of its own; of columns that are always absent together, the first.
    """

    mean: Tensor
    deviation: Tensor
    flagged: tuple[int, ...]

    @classmethod
    def of(cls, train: Tensor) -> FeatureScale:
        """The scale of the training part's columns."""
        absent = train.isnan()
        if bool(absent.all(0).any()):
            raise ValueError(
                f"column {int(absent.all(0).nonzero()[0])} has no value in the training part; leave it out"
            )
        mean = train.nanmean(0)
        deviation = (train - mean).square().nanmean(0).sqrt()
        flagged: dict[bytes, int] = {}
        for i in absent.any(0).nonzero().flatten().tolist():
            flagged.setdefault(absent[:, i].numpy().tobytes(), i)
        return cls(mean=mean, deviation=deviation.clamp(min=1e-12), flagged=tuple(flagged.values()))

    def inputs(self, columns: Tensor, shift: Tensor | None = None) -> Tensor:
        """(N, 24 + flags), standardised; what is missing is put at the mean, and flagged.

        Args:
            columns: As of `planet_columns`.
            shift: Added to what is standardised, in the training part's standard deviations; the flags stay.
        """
        values = ((columns - self.mean) / self.deviation).nan_to_num(0.0)
        if shift is not None:
            values = values + shift
        return torch.cat([values, columns[:, list(self.flagged)].isnan().to(values)], 1).float()
