"""Checks on the sizes a network is asked for."""


def positive_int(name: str, value: int) -> int:
    """The value itself, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value
