"""Points to track: words of a command line, tables, grids, objects; and the frames of a clip that are used."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW
from lpa_cwm.types import Clip, Queries
from lpa_cwm.validation import parse_json, read_text, reading, structure

POINT = re.compile(r"(-?[\d.]{1,12}),(-?[\d.]{1,12})(@\d{1,9})?(#\d{1,9})?", re.ASCII)
MOST_POINTS = 100_000
MOST_BYTES = 16 << 20
"""Of a file of points."""


class GivenPoint(NamedTuple):
    """A position that the user gives."""

    x: float
    y: float
    frame: int
    track: int | None = None
    """Number of the track; several positions of one track correct it."""


def read_points(words: Sequence[str]) -> Queries:
    """Points from words x,y@frame#track (frame 0 and a new track when left out) and from .csv and .json files."""
    found: list[GivenPoint] = []
    for word in words:
        kind = Path(word).suffix.lower()
        if kind in (".csv", ".json"):
            found += _table(Path(word), _rows_of_csv if kind == ".csv" else _rows_of_json)
        else:
            found.append(parse_point(word))
    if len(found) > MOST_POINTS:
        raise InputError(f"{len(found)} points were given; at most {MOST_POINTS} can be tracked at once.")
    return queries_from(found)


def queries_from(points: Sequence[GivenPoint]) -> Queries:
    """Queries of some positions; tracks are numbered in the order in which they first appear."""
    xy = torch.tensor([point[:2] for point in points], dtype=torch.float32).view(-1, 2)
    frame = torch.tensor([point.frame for point in points], dtype=torch.long)
    if all(point.track is None for point in points):
        return Queries(xy, frame)
    names = [("new", index) if point.track is None else ("given", point.track) for index, point in enumerate(points)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return Queries(xy, frame, torch.tensor([numbers[name] for name in names]))


def parse_point(word: str) -> GivenPoint:
    """The position that one word gives."""
    match = POINT.fullmatch(word)
    try:
        if match:
            track = int(match[4][1:]) if match[4] else None
            return GivenPoint(float(match[1]), float(match[2]), int((match[3] or "@0")[1:]), track)
    except ValueError:
        pass
    raise InputError(
        f"The point {word!r} is not of the form x,y@frame, for example 120,80@0, nor a .csv or .json file."
    )


def _table(path: Path, rows_of: Any) -> list[GivenPoint]:
    """The rows of a file, each with x, y and, if it has them, frame and track."""
    expected = "expected columns x, y and, if need be, frame and track, or a list of such objects"
    with reading(path, "a table of points", expected):
        rows = rows_of(read_text(path, MOST_BYTES))
        return [_point(row, number) for number, row in enumerate(rows)]


def _rows_of_csv(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(text.splitlines()))


def _rows_of_json(text: str) -> list[Any]:
    held = parse_json(text)
    return structure(held["points"] if isinstance(held, dict) else held, list[Any], "points")


def _point(row: Any, number: int) -> GivenPoint:
    named = row if isinstance(row, dict) else dict(zip(("x", "y", "frame", "track"), row, strict=False))
    x, y, frame, track = named["x"], named["y"], named.get("frame") or 0, named.get("track")
    point = GivenPoint(float(x), float(y), int(frame), None if track in (None, "") else int(track))
    # NaN is smaller than nothing; the clip's own size is checked where it is known.
    if not (abs(point.x) < 1e6 and abs(point.y) < 1e6 and 0 <= point.frame < 10**9 and 0 <= (point.track or 0) < 10**9):
        raise ValueError(f"row {number} is {x}, {y}, {frame}, {track}"[:100])
    return point


def spaced_grid(hw: HW, spacing: float, frame: int = 0) -> Queries:
    """A grid of points at a distance in pixels, centered in the frame."""
    axes = []
    for side in hw:
        count = max(1, int(side // spacing))
        axes.append((side - (count - 1) * spacing) / 2 + spacing * torch.arange(count))
    if len(axes[0]) * len(axes[1]) > MOST_POINTS:
        raise InputError(f"A grid every {spacing:g} px has more than {MOST_POINTS} points; give a wider --spacing.")
    y, x = torch.meshgrid(*axes, indexing="ij")
    xy = torch.stack([x, y], -1).reshape(-1, 2).float()
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
        raise InputError(
            f"Frames {start} to {len(clip) if end is None else end} of {clip.name}, which has {len(clip)}, at stride "
            f"{stride} are {len(numbers)}; tracking needs at least two: change --start, --end or --stride."
        )
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
