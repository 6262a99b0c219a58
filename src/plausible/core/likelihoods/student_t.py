"""Student t noise: regression that survives outliers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from plausible.core.hyperpriors import Hyperprior
from plausible.core.likelihoods import distributions
from plausible.core.likelihoods.likelihood import Likelihood, require_finite, require_one_shape, sum_over_example
from plausible.core.likelihoods.noise_scale import settle, tensor_like
from plausible.core.log_densities import log_student_t
from plausible.core.unknowns import known, require_scale


@dataclass(frozen=True)
class StudentT(Likelihood):
    """(y - outputs) / scale is Student t, independently for every output.

    Args:
        df: Degrees of freedom; the variance is infinite up to two of them.
        scale: As in ``Normal``; not the standard deviation.
    """

    task: ClassVar[Literal["classification", "regression"]] = "regression"
    df: float | Tensor | Hyperprior = 4.0
    scale: float | Tensor | Hyperprior | Literal["learn"] = 1.0

    def __post_init__(self):
        require_scale("df", self.df)
        settle(self, "scale")

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        require_one_shape(outputs, y)
        return sum_over_example(log_student_t(y - outputs, known(self, "df"), known(self, "scale")))

    def distribution(self, outputs: Tensor) -> distributions.StudentT:
        df, scale = (tensor_like(outputs, known(self, name)) for name in ("df", "scale"))
        return distributions.StudentT(df, outputs, scale, validate_args=False)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        require_one_shape(outputs, y)
        require_finite(y)
