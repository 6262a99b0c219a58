"""The library's own error, and the check of a number that many constructors share."""

import math
import numbers


class NotSupported(NotImplementedError):
    """Something that cannot be done here; the message names what can."""


def require_positive(name: str, value: object) -> None:
    """Raise unless ``value`` is a positive, finite Python number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and float(value) > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def require_finite(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite Python number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
