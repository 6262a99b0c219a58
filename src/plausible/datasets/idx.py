"""The IDX format of MNIST."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np


def read_idx(path: Path, limit: int | None = None) -> np.ndarray:
    """An IDX file of bytes, gzipped or not: two zeros, the type 8, the number of axes, big-endian sizes, the values.

    With a limit only the first so many examples are unpacked.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            axes = start[3] if len(start) == 4 else 0
            sizes = file.read(4 * axes)
            if start[:3] != b"\x00\x00\x08" or axes == 0 or len(sizes) < 4 * axes:
                raise ValueError(f"{path} is no IDX file of bytes, it starts with {start!r}; fetch it again")
            shape = struct.unpack(f">{axes}I", sizes)
            if limit is not None and limit < shape[0]:
                shape = (limit, *shape[1:])
                raw = file.read(math.prod(shape))
            else:
                raw = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None
    if len(raw) != math.prod(shape):
        raise ValueError(f"{path} must hold {shape} values, got {len(raw)}; fetch it again")
    return np.frombuffer(raw, np.uint8).reshape(shape)
