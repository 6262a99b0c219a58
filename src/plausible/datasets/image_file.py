"""One picture as an array."""

from pathlib import Path
from typing import Literal

import numpy as np

Colour = Literal["grey", "rgb"]


def read_image(path: Path, colour: Colour | None, size: tuple[int, int] | None = None) -> np.ndarray:
    """Bytes (H, W) for grey, (H, W, 3) for rgb; None keeps the numbers of the file, as for pictures of labels.

    Args:
        path: a png, jpeg or other file that Pillow can read.
        colour: what to convert to.
        size: (height, width) to scale to.
    """
    # Pillow is imported here: it is needed for pictures alone, and it comes with matplotlib.
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImportError("reading pictures needs Pillow; pip install pillow") from None

    try:
        with Image.open(path) as file:
            image: Image.Image = file
            if colour is not None:
                image = image.convert({"grey": "L", "rgb": "RGB"}[colour])
            if size is not None:
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is no picture that Pillow can read ({error}); fetch it again") from None
