"""How warm a stochastic-gradient sampler was: two averages that are 1 under the right density, and what it means if not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

KINDS = {"kinetic_temperature": "kinetic temperature", "configurational_temperature": "configurational temperature"}
TOLERATED = 0.1  # finite steps alone make a few per cent


def readings(noted: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Mean and standard error of each thermometer over chains (C, K), by ten batches of every chain."""
    found = {}
    for kind in KINDS:
        if kind in noted:
            values = noted[kind].double()
            length = values.shape[1] // 10 * 10 or values.shape[1]
            batches = values[:, -length:].reshape(values.shape[0] * min(10, length), -1).mean(1)
            found[kind] = {
                "mean": float(values.mean()),
                "standard_error": float(batches.std()) / math.sqrt(len(batches)),
            }
    return found


def judged(found: Mapping[str, Mapping[str, float]]) -> tuple[list[str], bool]:
    """In words, and whether each is 1 but for its error and a tenth."""
    if not found:
        return [], True
    told = ", ".join(f"{KINDS[k]} {row['mean']:.2f} ± {row['standard_error']:.2f}" for k, row in found.items())
    messages, ok = [f"{told}, in units of the model's temperature (1 is right)"], True
    for kind, row in found.items():
        off = row["mean"] - 1
        if abs(off) <= TOLERATED + 4 * row["standard_error"]:
            continue
        ok = False
        if math.isnan(off):
            messages.append(f"the {KINDS[kind]} of some draws is not a number: use a smaller step_size")
        elif off > 0:
            messages.append(
                f"too warm by its {KINDS[kind]}: use a smaller step_size, larger batches or variance_reduction"
            )
        else:
            messages.append(
                f"too cold by its {KINDS[kind]}: the chain has not spread out yet; run longer, or burn in longer"
            )
    return messages, ok
