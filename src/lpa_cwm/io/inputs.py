"""Users' input as clips and queries: words, tables, boxes, masks, paths, arrays and lists."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW, center_of, pixel_centers
from lpa_cwm.io.video import open_image, read
from lpa_cwm.types import Clip, Grid, Queries
from lpa_cwm.validation import check_array, parse_json, read_npy, read_text, reading, structure

POINT = re.compile(r"(-?[\d.]{1,12}),(-?[\d.]{1,12})(@\d{1,9})?(#\d{1,9})?", re.ASCII)
MAX_POINTS = 100_000
MAX_BYTES = 16 << 20
"""Largest file of points."""


class GivenPoint(NamedTuple):
    """A position that the user gives."""

    x: float
    y: float
    frame: int
    track: int | None = None
    """Number of the track; several positions of one track correct it."""


@dataclass(frozen=True, slots=True)
class NumberedQueries:
    """Queries, and the numbers that the user gave their tracks."""

    queries: Queries
    track_ids: list[int] | None = None
    """By row of the tracks; None if the user gave none."""


def read_points(words: Sequence[str], frame: int = 0) -> NumberedQueries:
    """Points from words x,y@frame#track and from .csv and .json files; `frame` is for points that have none."""
    found: list[GivenPoint] = []
    for word in words:
        kind = Path(word).suffix.lower()
        if kind in (".csv", ".json"):
            found += _table(Path(word), _rows_of_csv if kind == ".csv" else _rows_of_json, frame)
        else:
            found.append(parse_point(word, frame))
    if len(found) > MAX_POINTS:
        raise InputError(f"{len(found)} points were given; at most {MAX_POINTS} can be tracked at once.")
    refuse_fractions([point[:2] for point in found])
    return number_tracks(found)


def refuse_fractions(points: Sequence[Sequence[float]]) -> None:
    """Refuse points between 0 and 1, which are fractions of the frame rather than pixels."""
    values = [value for point in points for value in point]
    if values and all(0 <= value <= 1 for value in values) and any(value not in (0, 1) for value in values):
        raise InputError(
            "All points lie between 0 and 1, like fractions of the frame; expected pixels: multiply x by the width and "
            "y by the height."
        )


def number_tracks(points: Sequence[GivenPoint]) -> NumberedQueries:
    """Queries of some positions; rows are tracks in the order in which they first appear.

    A track without a number gets the smallest one that is free.
    """
    xy = torch.tensor([point[:2] for point in points], dtype=torch.float32).view(-1, 2)
    frame = torch.tensor([point.frame for point in points], dtype=torch.long)
    given = {point.track for point in points}
    if given <= {None}:
        return NumberedQueries(Queries(xy, frame))
    free = (number for number in count() if number not in given)
    ids = [next(free) if point.track is None else point.track for point in points]
    rows = {track: row for row, track in enumerate(dict.fromkeys(ids))}
    return NumberedQueries(Queries(xy, frame, torch.tensor([rows[track] for track in ids])), list(rows))


def parse_point(word: str, frame: int = 0) -> GivenPoint:
    """The position that one word gives; in this frame if the word names none."""
    match = POINT.fullmatch(word)
    try:
        if match:
            track = int(match[4][1:]) if match[4] else None
            return GivenPoint(float(match[1]), float(match[2]), int(match[3][1:]) if match[3] else frame, track)
    except ValueError:
        pass
    raise InputError(
        f"The point {word!r} is not of the form x,y@frame, for example 120,80@0, nor a .csv or .json file."
    )


def _table(path: Path, rows_of: Any, frame: int) -> list[GivenPoint]:
    """The rows of a file, each with x, y and, if it has them, frame and track."""
    expected = "expected columns x, y and, if need be, frame and track, or a list of such objects"
    with reading(path, "a table of points", expected):
        rows = rows_of(read_text(path, MAX_BYTES))
        return [_point(row, number, frame) for number, row in enumerate(rows)]


def _rows_of_csv(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(text.splitlines()))


def _rows_of_json(text: str) -> list[Any]:
    held = parse_json(text)
    return structure(held["points"] if isinstance(held, dict) else held, list[Any], "points")


def _point(row: Any, number: int, default: int) -> GivenPoint:
    named = row if isinstance(row, dict) else dict(zip(("x", "y", "frame", "track"), row, strict=False))
    for column in ("x", "y"):
        if column not in named:
            raise ValueError(f"it has no column {column}")
    x, y, frame, track = named["x"], named["y"], named.get("frame"), named.get("track")
    frame = default if frame in (None, "") else frame
    point = GivenPoint(float(x), float(y), int(frame), None if track in (None, "") else int(track))
    # NaN fails every comparison; the clip's size is checked where it is known.
    if not (abs(point.x) < 1e6 and abs(point.y) < 1e6 and 0 <= point.frame < 10**9 and 0 <= (point.track or 0) < 10**9):
        raise ValueError(f"row {number} is {x}, {y}, {frame}, {track}"[:100])
    return point


def spaced_grid(hw: HW, spacing: float, frame: int = 0) -> Queries:
    """A grid of points at a distance in pixels, centered in the frame."""
    xy = _grid((0, hw[1]), (0, hw[0]), spacing=spacing)
    return Queries(xy, torch.full((len(xy),), frame))


@dataclass(frozen=True, slots=True)
class SelectedFrames:
    """Some frames of a clip by their numbers."""

    clip: Clip
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        return self.clip[self.numbers[index]]


def frame_range(clip: Clip, start: int = 0, end: int | None = None, stride: int = 1) -> range:
    """Frame numbers from `start` to before `end`, every `stride`-th; refused if fewer than two remain."""
    numbers = range(start, len(clip) if end is None else min(end, len(clip)), stride)
    if len(numbers) < 2:
        count = f"{len(clip)} frame{'s' * (len(clip) != 1)}"
        left = f"; of these --start {start}, --end {end or len(clip)} and --stride {stride} leave {len(numbers)}"
        raise InputError(f"{clip.name} has {count}{left if len(clip) > 1 else ''}; tracking needs at least two.")
    return numbers


def select_frames(clip: Clip, numbers: range) -> Clip:
    """The clip with these frames only."""
    if numbers == range(len(clip)):
        return clip
    return Clip(SelectedFrames(clip, numbers), clip.name, clip.fps / numbers.step)


def renumber(queries: Queries, numbers: range) -> Queries:
    """Queries given by the clip's frame numbers, for the selected frames."""
    frames: Iterable[int] = queries.frame.tolist()
    for frame in frames:
        if frame not in numbers:
            raise InputError(
                f"A point is given in frame {frame}, which is not among the frames used, {numbers[0]} to {numbers[-1]}"
                f"{f' at stride {numbers.step}' if numbers.step > 1 else ''}; give a frame that is."
            )
    return Queries(queries.xy, torch.tensor([numbers.index(frame) for frame in frames]), queries.track)


NUMBER = r"(-?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9}))"
BOX = re.compile(",".join([NUMBER] * 4), re.ASCII)
Region = Bool[Tensor, "h w"]
"""Which pixels of a frame belong to an object."""


def read_region(text: str, hw: HW) -> Region:
    """The pixels of a box x0,y0,x1,y1, or of a mask of the frame's size: where an array is not zero, or a picture is
    opaque and not black.
    """
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
    column, row = pixel_centers(hw).unbind(-1)
    return (row > top) & (row < bottom) & (column > left) & (column < right)


def _mask(path: Path, hw: HW) -> Region:
    read_mask = _array_mask if path.suffix.lower() == ".npy" else _picture_mask
    try:
        mask = read_mask(path)
    except InputError as error:
        raise InputError(
            f"{str(path)!r} is neither a box x0,y0,x1,y1 nor a mask that can be read, a picture or an .npy array of "
            "[h w]; give one of them."
        ) from error
    if mask.shape != hw:
        raise InputError(
            f"The mask {path} is {mask.shape[1]}x{mask.shape[0]} and the clip {hw[1]}x{hw[0]}; make them equal."
        )
    return torch.from_numpy(mask)


def _picture_mask(path: Path) -> Bool[np.ndarray, "h w"]:
    with open_image(path, str(path)) as picture:
        layers = np.asarray(picture.convert("RGBA"))
    return (layers[..., :3].max(-1) > 0) & (layers[..., 3] > 0)


def _array_mask(path: Path) -> Bool[np.ndarray, "h w"]:
    with reading(path, "a mask array", "give one of [h w]"):
        array = read_npy(path)
        # `predict` of SAM returns one or three masks [k h w]; a single one is meant whatever the shape.
        array = array[0] if array.ndim == 3 and len(array) == 1 else array
        check_array(array, (None, None), "buif", "the mask")
        return array > 0


def points_on(region: Region, frame: int, *, side: int = 8, spacing: float | None = None) -> Queries:
    """A grid over the bounding box of a region, by the number of points a side or by distance; only points on it."""
    rows, columns = region.any(1).nonzero()[:, 0], region.any(0).nonzero()[:, 0]
    x, y = ((int(some[0]), int(some[-1]) + 1) for some in (columns, rows))
    xy = _grid(x, y, side, spacing)
    column, row = xy.long().unbind(-1)
    xy = xy[region[row, column]]
    if not len(xy):
        # A region thinner than the grid: its pixel nearest to its center of mass.
        pixels = center_of(region.nonzero().flip(1))
        xy = pixels[(pixels - pixels.mean(0)).norm(dim=1).argmin()][None]
    return Queries(xy, torch.full((len(xy),), frame))


def _grid(x: tuple[int, int], y: tuple[int, int], side: int = 8, spacing: float | None = None) -> Float[Tensor, "k 2"]:
    """A grid over a box, by the number of points a side or by their distance."""
    across, down = (_axis(*span, side, spacing) for span in (x, y))
    if len(across) * len(down) > MAX_POINTS:
        raise InputError(f"A grid every {spacing:g} px has more than {MAX_POINTS} points; give a wider --spacing.")
    return torch.stack(torch.meshgrid(across, down, indexing="xy"), -1).reshape(-1, 2)


def _axis(first: int, end: int, side: int, spacing: float | None) -> Float[Tensor, "k"]:
    """Places along one side of a box, centered."""
    length = end - first
    if spacing is None:
        side = min(side, length)
        return first + (torch.arange(side) + 0.5) * length / side
    count = max(1, int(length // spacing))
    return first + (length - (count - 1) * spacing) / 2 + spacing * torch.arange(count)


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
        return read_points([str(points)]).queries
    if isinstance(points, Sequence) and points and all(isinstance(one, str) for one in points):
        return read_points(list(points)).queries
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
    refuse_fractions(xy.tolist())
    frames = torch.as_tensor(np.asarray(frame))
    if frames.dtype.is_floating_point or frames.ndim > 1 or (frames.ndim == 1 and len(frames) != len(xy)):
        raise InputError(f"frame is {frame!r}; expected one whole number, or one for each of the {len(xy)} points.")
    return Queries(xy, frames.long().expand(len(xy)).clone())


def _one_frame(frame: int | Sequence[int]) -> int:
    if isinstance(frame, int):
        return frame
    raise InputError(f"frame is {frame!r}; a grid lies in one frame; give one number.")
