"""Regions of a frame, from a box or a mask picture, and the points on them."""

import re
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW
from lpa_cwm.io.images import open_image
from lpa_cwm.io.points import MOST_POINTS
from lpa_cwm.types import Queries

NUMBER = r"(-?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9}))"
BOX = re.compile(",".join([NUMBER] * 4), re.ASCII)
Region = Bool[Tensor, "h w"]
"""Which pixels of a frame belong to an object."""


def read_region(text: str, hw: HW) -> Region:
    """The pixels of a box x0,y0,x1,y1, or of a mask picture of the frame's size: opaque and not black."""
    match = BOX.fullmatch(text)
    region = _box(text, [float(part) for part in match.groups()], hw) if match else _mask(Path(text), hw)
    if not region.any():
        raise InputError(f"{text} marks no pixel of the frame; expected a box or a mask that covers an object.")
    return region


def _box(text: str, sides: list[float], hw: HW) -> Region:
    left, top, right, bottom = sides
    if not (0 <= left < right <= hw[1] and 0 <= top < bottom <= hw[0]):
        raise InputError(
            f"The box {text} is not inside the frame of {hw[1]}x{hw[0]}; expected x0,y0,x1,y1 with x0 < x1 and y0 < y1."
        )
    row, column = (torch.arange(side) + 0.5 for side in hw)
    return ((row > top) & (row < bottom))[:, None] & ((column > left) & (column < right))


def _mask(path: Path, hw: HW) -> Region:
    try:
        with open_image(path, str(path)) as picture:
            size, layers = (picture.height, picture.width), np.asarray(picture.convert("RGBA"))
    except InputError as error:
        raise InputError(
            f"{str(path)!r} is neither a box x0,y0,x1,y1 nor a mask picture that can be read; give one of them."
        ) from error
    if size != hw:
        raise InputError(f"The mask {path} is {size[1]}x{size[0]} and the clip {hw[1]}x{hw[0]}; make them equal.")
    return torch.from_numpy((layers[..., :3].max(-1) > 0) & (layers[..., 3] > 0))


def points_on(region: Region, frame: int, *, side: int = 8, spacing: float | None = None) -> Queries:
    """A grid over the bounding box of a region, by the number of points a side or by distance; only points on it."""
    rows, columns = region.any(1).nonzero()[:, 0], region.any(0).nonzero()[:, 0]
    spans = [(int(some[0]), int(some[-1]) + 1) for some in (rows, columns)]
    y, x = (_axis(first, end, side, spacing) for first, end in spans)
    if len(y) * len(x) > MOST_POINTS:
        raise InputError(f"A grid every {spacing:g} px has more than {MOST_POINTS} points; give a wider --spacing.")
    xy = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    column, row = xy.long().unbind(-1)
    xy = xy[region[row, column]]
    if not len(xy):
        # A region thinner than the grid: its pixel nearest to its center of mass.
        pixels = region.nonzero().flip(1) + 0.5
        xy = pixels[(pixels - pixels.mean(0)).norm(dim=1).argmin()][None]
    return Queries(xy, torch.full((len(xy),), frame))


def _axis(first: int, end: int, side: int, spacing: float | None) -> Float[Tensor, "k"]:
    """Places along one side of a box, centered."""
    length = end - first
    if spacing is None:
        side = min(side, length)
        return first + (torch.arange(side) + 0.5) * length / side
    count = max(1, int(length // spacing))
    return first + (length - (count - 1) * spacing) / 2 + spacing * torch.arange(count)
