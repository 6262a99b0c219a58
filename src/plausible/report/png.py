"""Small pictures inside a page: pixels as the address of a PNG."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def data_uri(pixels: np.ndarray) -> str:
    """A PNG of (height, width, 3) colours or (height, width) greys, all in [0, 1], as a `data:` address."""
    bytes_ = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    height, width = bytes_.shape[:2]
    kind = 2 if bytes_.ndim == 3 else 0  # true colour, or grey
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in bytes_)  # each begins with its filter: none
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(SIGNATURE + body).decode()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
