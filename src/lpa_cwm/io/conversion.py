"""Clips and queries from what Python users have: paths, arrays, lists of frames, lists of points."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.io.points import read_points
from lpa_cwm.io.video import read
from lpa_cwm.types import Clip, Grid, Queries

Picture = np.ndarray | Tensor | Image.Image
FALLBACK_GRID = 8
"""Points a side where no points are given."""


def as_clip(video: Any, name: str = "array", fps: float = 24.0) -> Clip:
    """A clip from a path, an array of frames, or a list of pictures; what could be misread is refused.

    Arrays are uint8, [t h w 3] or [t 3 h w].

    Examples:
        >>> as_clip(np.zeros((4, 32, 48, 3), np.uint8)).hw
        (32, 48)
    """
    if isinstance(video, Clip):
        return video
    if isinstance(video, str | Path):
        return read(video)
    if isinstance(video, np.ndarray | Tensor):
        return Clip(frames_of(torch.as_tensor(video)), name, fps)
    if isinstance(video, Sequence) and video and all(isinstance(one, Picture) for one in video):
        return Clip(frames_of(_stack(list(video))), name, fps)
    raise InputError(
        f"A video of type {type(video).__name__} cannot be read; expected a path, a Clip, an array [t h w 3] or a list "
        "of pictures."
    )


def _stack(pictures: list[Any]) -> Tensor:
    frames = [torch.as_tensor(np.array(one) if isinstance(one, Image.Image) else one) for one in pictures]
    if len({frame.shape for frame in frames}) > 1:
        raise InputError("The frames of the list have different sizes; expected one size; resize them.")
    return torch.stack(frames)


def frames_of(video: Tensor) -> UInt8[Tensor, "t 3 h w"]:
    """Frames with channels first."""
    shape = tuple(video.shape)
    if video.dtype != torch.uint8:
        raise InputError(f"The frames are {video.dtype}; expected uint8 from 0 to 255; convert them.")
    if video.ndim != 4 or 3 not in (shape[1], shape[3]) or 0 in shape:
        raise InputError(f"The frames have the shape {list(shape)}; expected [t h w 3] or [t 3 h w], in color.")
    if shape[1] == shape[3]:
        raise InputError(f"The shape {list(shape)} may have its channels first or last; give a Clip with [t 3 h w].")
    return video if shape[1] == 3 else video.permute(0, 3, 1, 2).contiguous()


def as_queries(points: Any, frame: int | Sequence[int] = 0) -> Queries | Grid:
    """Queries from rows (x, y), from words x,y@frame or a file of points; None is a grid of 8 x 8 points.

    Examples:
        >>> as_queries([[3, 4], [5.5, 6]], frame=2).frame
        tensor([2, 2])
    """
    if points is None:
        return Grid(FALLBACK_GRID, _one_frame(frame))
    if isinstance(points, Queries | Grid):
        return points
    if isinstance(points, str | Path):
        return read_points([str(points)])
    if isinstance(points, Sequence) and points and all(isinstance(one, str) for one in points):
        return read_points(list(points))
    try:
        xy = torch.as_tensor(np.asarray(points, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise InputError(f"The points cannot be read ({error}); expected rows (x, y), as in [[120, 80]].") from error
    xy = xy[None] if xy.shape == (2,) else xy
    if xy.ndim == 2 and xy.shape[1] == 3:
        raise InputError(
            "The points have three columns, which may be (x, y, frame) or TAP-Vid's (t, y, x); give rows (x, y) and "
            "frame=[...]."
        )
    if xy.ndim != 2 or xy.shape[1] != 2 or not len(xy) or not xy.isfinite().all():
        raise InputError(f"The points are {list(xy.shape)}; expected rows of finite (x, y), as in [[120, 80]].")
    frames = torch.as_tensor(np.asarray(frame))
    if frames.dtype.is_floating_point or frames.ndim > 1 or (frames.ndim == 1 and len(frames) != len(xy)):
        raise InputError(f"frame is {frame!r}; expected one whole number, or one for each of the {len(xy)} points.")
    return Queries(xy, frames.long().expand(len(xy)).clone())


def _one_frame(frame: int | Sequence[int]) -> int:
    if isinstance(frame, int):
        return frame
    raise InputError(f"frame is {frame!r}; a grid lies in one frame; give one number.")
