"""Image sets packed without loss as .medxz files, unpacked by the script that lies beside them."""

import functools
import importlib.util
import lzma
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy as np


def read_packed(root: Path, path: Path) -> np.ndarray:
    """The images of a .medxz file as bytes (N, C, H, W).

    This runs code: the function `read_medxz` of the file `unpack.py` in the root that the user named, since the format
    belongs to that folder. Nothing else is looked for, and no reader of any other format runs code from its data.
    """
    script = root / "unpack.py"
    if not script.is_file():
        raise FileNotFoundError(
            f"no file {script}, which unpacks {path.name}; copy it from where the .medxz files came from, or put the "
            f"published files in {root}"
        )
    try:
        images = _decoder(script.resolve())(str(path))
    except (lzma.LZMAError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None
    return images.transpose(0, 3, 1, 2)


class _WithoutCache(SourceFileLoader):
    def set_data(self, path, data, **options) -> None:
        """Write no compiled copy into a folder that is the user's."""


@functools.cache
def _decoder(script: Path) -> Callable[[str], np.ndarray]:
    loader = _WithoutCache("plausible_data_unpack", str(script))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    return module.read_medxz
