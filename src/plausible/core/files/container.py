"""One safetensors file with a JSON manifest and a checksum over both; written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = 1
FIELD, CHECKSUM = "plausible", "sha256"


def write(path: str | Path, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write a temporary file, sync it, and rename it to `path`: a kill or a full disk leaves the old file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # safetensors refuses shared memory and expanded axes, and sorts its entries by dtype and name.
    # What lies in a mapped file shares nothing and may be more than memory holds.
    plain = {k: t.detach().to("cpu", copy=not _is_mapped(t)).contiguous() for k, t in tensors.items()}
    text = json.dumps({"format": FORMAT, **manifest}, sort_keys=True)
    remove_orphans(path)
    # A folder, since safetensors has a temporary file of its own beside the one that it writes, under a name that nobody knows.
    workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.{_here()}.{os.getpid()}.", suffix=".tmp", dir=path.parent))
    try:
        temporary = workshop / path.name
        temporary.touch()  # as any new file: safetensors lets nobody else read its own
        mode = (path if path.exists() else temporary).stat().st_mode & 0o777
        save_file(plain, temporary, metadata={FIELD: text, CHECKSUM: _checksum(plain, text)})
        temporary.chmod(mode)
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise OSError(f"could not write {path}: {error}; the file that was there, if any, is untouched") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def remove_orphans(path: Path) -> None:
    """What processes of this machine that are gone have left beside a file that they never finished."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        found = re.fullmatch(rf"\.{re.escape(path.name)}\.(?:{_here()}\.)?(\d+)(?:\.\w+)?\.tmp", left.name)
        if found is None or _lives(int(found[1])):
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _here() -> str:
    """This machine, in a file's name: others that write into the same folder have processes of their own."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _lives(process: int) -> bool:
    if os.name != "posix":  # where asking is killing
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _is_mapped(t: Tensor) -> bool:
    """Whether a tensor's memory is a file; that which processes share is also of a network whose buffers are in it."""
    return t.untyped_storage().filename is not None


def read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the manifest of a file of the given kind, after its checksum was found right."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            tensors = {k: handle.get_tensor(k) for k in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a plausible file or is damaged: {error}") from error
    if FIELD not in metadata or CHECKSUM not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not one that plausible wrote")
    if _checksum(tensors, metadata[FIELD]) != metadata[CHECKSUM]:
        raise ValueError(f"{path} is damaged: its checksum does not match; restore it from a copy")
    manifest = json.loads(metadata[FIELD])
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path} has format {manifest.get('format')}, this version reads {FORMAT}; upgrade plausible")
    if manifest.get("kind") != kind:
        raise ValueError(f"{path} holds a {manifest.get('kind')}, not a {kind}")
    return tensors, manifest


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        total.update(f"{name}\0{t.dtype}\0{tuple(t.shape)}\0".encode())
        # A lone number that was expanded counts as contiguous, with a stride of 0, of which there are no bytes.
        total.update(t.as_strided((t.numel(),), (1,)).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
