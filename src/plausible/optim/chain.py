"""What the samplers share: draws of the chain, kept as it runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..core.method import require
from ..core.model import BayesianModel
from ..core.posteriors import Samples
from ..weights.algebra import Weights, scale_
from .checks import number, whole
from .optimizer import BayesianOptimizer, Part


class Chain(BayesianOptimizer):
    """A chain whose every point is a draw, so that nothing is drawn around it: any loop will do.

    After every `thin`-th step the weights are kept. When there are `max_draws`, every second one is dropped and `thin`
    doubled: what is kept is always spread evenly over the whole chain.
    """

    def __init__(
        self, network: nn.Module, numbers: Mapping[str, float], *, num_data: float,
        prior_precision: float | Mapping[str, float], temperature: float, burn_in: int | None, thin: int, max_draws: int,
        reduction: str, seed: int,
    ):  # fmt: skip
        temperature, thin, max_draws = (
            number("temperature", temperature),
            whole("thin", thin),
            whole("max_draws", max_draws),
        )
        burn_in = None if burn_in is None else whole("burn_in", burn_in)
        require(temperature > 0, f"temperature must be positive, got {temperature}")
        require(burn_in is None or burn_in >= 0, f"burn_in must not be negative, got {burn_in}")
        require(thin >= 1, f"thin must be at least 1, got {thin}")
        require(max_draws >= 2, f"max_draws must be at least 2, got {max_draws}")
        told = {"temperature": temperature, "burn_in": burn_in, "thin": thin, "max_draws": max_draws}
        super().__init__(
            network, {**numbers, **told, "draws": 0}, num_data=num_data,
            prior_precision=prior_precision, reduction=reduction, num_samples=1, seed=seed,
        )  # fmt: skip

    @property
    def random(self) -> bool:
        """Every step draws."""
        return True

    @property
    def burn_in(self) -> int | None:
        """Steps before the first draw that is kept."""
        return self.param_groups[0]["burn_in"]

    @property
    def max_draws(self) -> int:
        """How many draws are kept at most."""
        return self.param_groups[0]["max_draws"]

    def _slope(self, part: Part) -> Weights:
        """Of the whole data's log joint, before its temperature: −(N ĝ + δ w)."""
        slope = part.prior.pull(part.params)
        torch._foreach_add_(list(slope.values()), [part.gradient[k] for k in slope], alpha=float(self.num_data))
        return scale_(slope, -1.0)

    def _keep(self) -> None:
        """Keep the point after a step, where its turn has come."""
        first, weights = self.param_groups[0], self.weights().values()
        count = first["step"] + 1 - (self.burn_in or 0)
        if count <= 0 or count % first["thin"]:
            return
        if first["draws"] == self.max_draws:
            for p in weights:
                self.state[p]["draws"] = self.state[p]["draws"][1::2]
            self._set("draws", self.max_draws // 2)
            self._set("thin", 2 * first["thin"])
            if count % first["thin"]:
                return
        for p in weights:
            self.state[p].setdefault("draws", []).append(p.detach().clone())
        self._set("draws", first["draws"] + 1)

    def _posterior(self, model: BayesianModel, mean: Weights) -> Samples:
        first, weights = self.param_groups[0], self.weights()
        kept = first["draws"]
        # As in `pl.fit`, two fifths of the steps are dropped unless it was said how many.
        dropped = 2 * first["step"] // 5 // first["thin"] if self.burn_in is None else 0
        require(kept > dropped, f"no draw was kept in {first['step']} steps; run more, or a shorter burn_in")
        draws = {k: torch.stack(self.state[weights[k]]["draws"][dropped:]) for k in mean}
        for name, values in draws.items():
            if not bool(values.isfinite().all()):
                raise FloatingPointError(
                    f"draws of {name} are not finite: most likely lr is too large, try a tenth of it"
                )
        return Samples(model, draws)
