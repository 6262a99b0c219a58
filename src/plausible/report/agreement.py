"""Whether chains agree on what they predict.

Their weights never agree: hidden units can trade places without changing any prediction. What a reader uses is the
prediction, so R-hat is taken of that (Izmailov et al., 2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.diagnostics import r_hat
from ..core.posteriors import Samples

LARGEST_R_HAT = 1.1
SHARE = 0.9  # of the examples that must be below it
FEWEST_DRAWS = 8  # of a chain, to tell anything


def is_chains(posterior: Any) -> bool:
    """Whether a posterior is one chain of draws, or several."""
    return all(isinstance(part, Samples) for part in posterior.components)


def share_agreed(posterior: Any, x: Tensor) -> float:
    """The share of predicted numbers that the chains agree on; none, if one of them stands still."""
    chains = posterior.components
    length = min(len(chain) for chain in chains)
    if length < FEWEST_DRAWS:
        return 0.0
    drawn = []
    for chain in chains:
        outputs = chain.predict(x, num_samples=len(chain)).outputs[:length]
        if bool((outputs == outputs[:1]).all()):
            return 0.0
        drawn.append(outputs.softmax(-1).flatten(1) if outputs.shape[-1] > 1 else outputs.flatten(1))
    values = torch.stack(drawn)
    constant = (values == values[:1, :1]).flatten(0, 1).all(0)  # such as a probability of zero
    return float(((r_hat(values) < LARGEST_R_HAT) | constant).double().mean())


def plain_words(name: str, posterior: Any, x: Tensor, more: str) -> str | None:
    """What to tell of a posterior that should not be trusted yet; None where there is nothing to tell."""
    if not is_chains(posterior):
        verdict = posterior.diagnostics()
        return None if verdict.ok else f"{name}: {'; '.join(verdict.messages[:2])}"
    agreed = share_agreed(posterior, x)
    if agreed >= SHARE:
        return None
    chains = len(posterior.components)
    runs = f"its {chains} runs agree on only {agreed:.0%} of the predictions" if chains > 1 else "it has not settled"
    return f"{name}: {runs}, so its numbers are those of a short run; {more} makes it longer"
