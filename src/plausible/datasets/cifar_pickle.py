"""CIFAR's python version, which is pickles, read without running what they say.

A pickle names functions and calls them, so loading one runs whatever its author wrote. Here the four names that an
array is pickled with become stand-ins that only store what they are given; any other name is refused.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np


class _Array:
    """What a pickle says about an array."""

    shape: Any = None
    dtype: Any = None
    raw: Any = b""

    def __init__(self, *ignored: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.fortran, self.raw = state


class _Dtype:
    """What a pickle says about a dtype: its name; the rest is how numpy writes it down."""

    def __init__(self, name: str = "", *ignored: Any):
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return STAND_INS[module, name]


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (N, 3072) and labels (N,) of a batch, by the original authors or by Python 3; never runs its content."""
    try:
        with path.open("rb") as file:
            # Python 2 wrote the originals; its byte strings become text of the same numbers.
            batch = _Unpickler(file, encoding="latin1").load()
        return _bytes_of(batch["data"]), np.array(batch["labels"], dtype=np.int64)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a pickle can fail in any way
        raise ValueError(f"{path} is refused: {error}; fetch it again") from None


def _bytes_of(array: Any) -> np.ndarray:
    if not isinstance(array, _Array) or not isinstance(array.dtype, _Dtype) or array.dtype.name not in ("u1", "|u1"):
        raise ValueError("its images are no array of bytes")
    raw = array.raw.encode("latin1") if isinstance(array.raw, str) else array.raw
    rows, columns = array.shape
    if array.fortran or columns != 3072:
        raise ValueError(f"its images must be (N, 3072) row by row, got {array.shape}")
    return np.frombuffer(raw, np.uint8).reshape(rows, columns)
