"""How much memory a device can still give."""

from __future__ import annotations

from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int:
    """Of a GPU, or of the host, its caches included; more than anybody asks for where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not a Linux
        return 1 << 62
