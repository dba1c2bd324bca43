"""Pictures of files and of records: known formats of limited size, decoded upright to 8-bit RGB."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import ExifTags, Image, ImageOps

from lpa_cwm.errors import InputError
from lpa_cwm.validation import MOST_PIXELS, file_size, reason

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Others, such as PostScript, need programs to be read."""
DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "F"})


@contextmanager
def open_image(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """A picture whose header was read and whose number of pixels is admissible; `name` is for the error sentence."""
    try:
        if isinstance(source, Path):
            file_size(source)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"it has {width}x{height} pixels, at most {MOST_PIXELS // 10**6} million are read")
            yield picture
    except InputError:
        raise
    except Exception as error:  # Pillow raises whatever the damaged bytes cause.
        raise InputError(
            f"{name} is not a picture that can be read ({reason(error)}); expected JPEG, PNG or the like; replace it."
        ) from error


def read_rgb(source: Path | bytes, name: str, upright: bool = False) -> UInt8[ndarray, "h w 3"]:
    """Pixels of a picture, turned as its EXIF orientation says if asked."""
    with open_image(source, name) as picture:
        if picture.mode in DEEP_MODES:
            raise InputError(f"{name} has more than 8 bits per channel; convert it to 8.")
        return np.array((ImageOps.exif_transpose(picture) if upright else picture).convert("RGB"))


def shown_size(source: Path, name: str) -> str:
    """Width and height of a picture as displayed, from its header."""
    with open_image(source, name) as picture:
        width, height = picture.size
        turned = picture.getexif().get(ExifTags.Base.Orientation, 1) > 4
    return f"{height}x{width}" if turned else f"{width}x{height}"
