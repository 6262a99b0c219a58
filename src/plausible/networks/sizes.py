"""Checks on the sizes a network is asked for."""


def positive_int(name: str, value: int) -> int:
    """The value itself, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def share(name: str, value: float) -> float:
    """The value itself if it is a rate of dropout, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, got {value}")
    return value
