"""The state of one browser tab: clip, points, results. Values; every change makes a new one."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError, require
from lpa_cwm.geometry import axis_centers, inside
from lpa_cwm.io.inputs import points_on
from lpa_cwm.types import Clip, Grid, Queries, Tracks

ColorBy = Literal["track", "confidence"]
COLORS: tuple[ColorBy, ...] = get_args(ColorBy)
MAX_POINTS = 64
MAX_UNDO = 100
GRID_SIDE, OBJECT_SIDE = 5, 5
"""Points a side of a grid over the frame, and of one over an object."""
SELECT_RADIUS = 0.02
"""A click this close to a point, in units of the frame's shorter side, selects the point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A clicked point in pixels of the clip; its color stays when other points are removed.

    The color is the track's: a second point of the same color, in another frame, corrects the track.
    """

    x: float
    y: float
    frame: int
    color: int


@dataclass(frozen=True, slots=True)
class Session:
    """One tab's clip and points, and the points before each change."""

    clip: Clip
    bundled: bool
    points: tuple[Point, ...] = ()
    past: tuple[tuple[Point, ...], ...] = ()
    zoom: int = 1
    """Enlargement of the part of the frame around the last point."""
    chosen: int | None = None
    """Color of the track that the next click on the tracks corrects."""

    def view(self) -> tuple[int, int, int, int]:
        """The shown part of a frame: left, top, right, bottom."""
        height, width = self.clip.hw
        wide, high = max(8, width // self.zoom), max(8, height // self.zoom)
        x, y = (self.points[-1].x, self.points[-1].y) if self.points else (width / 2, height / 2)
        left = min(max(0, round(x - wide / 2)), max(0, width - wide))
        top = min(max(0, round(y - high / 2)), max(0, height - high))
        return left, top, min(width, left + wide), min(height, top + high)


@dataclass(frozen=True, slots=True)
class Results:
    """Tracks of one run, by method."""

    clip: Clip
    points: tuple[Point, ...]
    tracks: dict[str, Tracks]
    videos: dict[ColorBy, Path] = field(default_factory=dict)
    """Videos of all methods, by the coloring of the tracks."""


def click_point(session: Session, x: float, y: float, frame: int, backward: bool = False) -> Session:
    """Add a point, or remove the point that was clicked; the last frame is refused unless tracking goes backward."""
    check_click(session.clip, x, y)
    here = [point for point in session.points if point.frame == frame]
    near = [point for point in here if is_near(session.clip, point, x, y)]
    if near:
        removed = min(near, key=lambda point: (point.x - x) ** 2 + (point.y - y) ** 2)
        return change_points(session, tuple(point for point in session.points if point is not removed))
    if len(session.points) == MAX_POINTS:
        raise InputError(f"There are {MAX_POINTS} points already; remove one first, or use `lpa-cwm track`.")
    check_frame(session.clip, frame, backward)
    return change_points(session, (*session.points, Point(x, y, frame, free_color(session.points))))


def check_click(clip: Clip, x: float, y: float) -> None:
    """Refuse a click outside the frame."""
    if not (math.isfinite(x) and math.isfinite(y) and inside(torch.tensor([x, y]), clip.hw)):
        raise InputError("The click is outside the frame; click on the picture.")


def add_grid(session: Session, frame: int, side: int = GRID_SIDE, backward: bool = False) -> Session:
    """Add a regular grid of points in a frame."""
    return add_points(session, Grid(side, frame).on(session.clip.hw).xy.tolist(), frame, backward)


def add_object(session: Session, x: float, y: float, frame: int, backward: bool = False) -> Session:
    """Add points on the object at a click, which GrabCut finds."""
    check_click(session.clip, x, y)
    region = segment_object(session.clip[frame], x, y)
    return add_points(session, points_on(region, frame, side=OBJECT_SIDE).xy.tolist(), frame, backward)


def add_points(session: Session, places: list[list[float]], frame: int, backward: bool) -> Session:
    """Add points in a frame, as far as the limit allows; places near a point are skipped."""
    check_frame(session.clip, frame, backward)
    points = session.points
    for x, y in places:
        taken = any(point.frame == frame and is_near(session.clip, point, x, y) for point in points)
        if not taken and len(points) < MAX_POINTS:
            points = (*points, Point(x, y, frame, free_color(points)))
    return change_points(session, points) if points != session.points else session


def is_near(clip: Clip, point: Point, x: float, y: float) -> bool:
    """Whether a click selects a point."""
    return math.hypot(point.x - x, point.y - y) <= SELECT_RADIUS * min(clip.hw)


def correct_track(session: Session, results: Results, method: str, x: float, y: float, frame: int) -> Session:
    """The first click chooses the nearest track of the results; the second says where it is in this frame."""
    check_click(session.clip, x, y)
    if session.chosen is None:
        places = results.tracks[method].xy[:, frame]
        distance = (places - torch.tensor([x, y])).norm(dim=-1).nan_to_num(torch.inf)
        nearest = int(distance.argmin())
        if not float(distance[nearest]) <= 3 * SELECT_RADIUS * min(session.clip.hw):
            raise InputError("There is no track at this place; click on a track to correct it.")
        return replace(session, chosen=track_points(results.points)[nearest].color)
    color = session.chosen
    others = tuple(point for point in session.points if (point.color, point.frame) != (color, frame))
    if not any(point.color == color for point in session.points):
        raise InputError("The point of this track was removed; track the points again.")
    return replace(change_points(session, (*others, Point(x, y, frame, color))), chosen=None)


def track_points(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """The first point of each track, in the order of the tracks' numbers."""
    return tuple({point.color: point for point in reversed(points)}[color] for color in track_colors(points))


def track_colors(points: tuple[Point, ...]) -> list[int]:
    """The color of each track, in the order in which they were clicked."""
    return list(dict.fromkeys(point.color for point in points))


def check_frame(clip: Clip, frame: int, backward: bool = False) -> None:
    """Refuse a frame that a point cannot start in."""
    if not 0 <= frame < len(clip):
        raise InputError(f"Frame {frame} does not exist; {clip.name} has frames 0 to {len(clip) - 1}.")
    if frame == len(clip) - 1 and not backward:
        raise InputError("A point in the last frame cannot be tracked any further; choose an earlier frame.")


def undo(session: Session) -> Session:
    """Take back the last change of the points."""
    if not session.past:
        return session
    return replace(session, points=session.past[-1], past=session.past[:-1])


def clear_points(session: Session) -> Session:
    """Remove all points; this can be undone."""
    return change_points(session, ()) if session.points else session


def change_points(session: Session, points: tuple[Point, ...]) -> Session:
    """Replace the points and remember the former ones."""
    return replace(session, points=points, past=(*session.past, session.points)[-MAX_UNDO:])


def free_color(points: tuple[Point, ...]) -> int:
    """The first color that no point has."""
    taken = {point.color for point in points}
    return next(number for number in range(len(points) + 1) if number not in taken)


def queries(points: tuple[Point, ...]) -> Queries:
    """The points as queries, in their order; points of one color are positions of one track."""
    xy = torch.tensor([(point.x, point.y) for point in points], dtype=torch.float32).reshape(-1, 2)
    frame = torch.tensor([point.frame for point in points], dtype=torch.long)
    colors = track_colors(points)
    if len(colors) == len(points):
        return Queries(xy, frame)
    return Queries(xy, frame, torch.tensor([colors.index(point.color) for point in points]))


OBJECT_RADIUS = 0.3
"""Largest distance of an object's border from the click, in units of the frame's shorter side."""
SEED_RADIUS = 0.02
"""Radius around the click that belongs to the object, in the same units."""
WORKING_SIDE = 320
"""Longer side at which frames are segmented, in pixels."""
GRABCUT_ITERATIONS = 4


def segment_object(frame: UInt8[Tensor, "3 h w"], x: float, y: float) -> Bool[Tensor, "h w"]:
    """The connected foreground around a place; never farther than `OBJECT_RADIUS` from it."""
    cv2 = require("cv2", extra="flow")
    pixels = rearrange(frame.cpu(), "c h w -> h w c").contiguous().numpy()
    shrink = min(1.0, WORKING_SIDE / max(pixels.shape[:2]))
    small = cv2.resize(pixels, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA) if shrink < 1 else pixels
    height, width = small.shape[:2]
    side = min(height, width)
    rows, columns = np.meshgrid(axis_centers(0, height), axis_centers(0, width), indexing="ij")
    distance = np.hypot(columns - x * shrink, rows - y * shrink)
    labels = np.where(distance <= OBJECT_RADIUS * side, cv2.GC_PR_FGD, cv2.GC_BGD).astype(np.uint8)
    # Without some probable background inside, the whole disc can stay foreground.
    labels[(distance > OBJECT_RADIUS * side / 2) & (labels == cv2.GC_PR_FGD)] = cv2.GC_PR_BGD
    core = distance <= max(1.5, SEED_RADIUS * side)
    labels[core] = cv2.GC_FGD
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.setRNGSeed(0)
    cv2.grabCut(np.ascontiguousarray(small), labels, None, *models, GRABCUT_ITERATIONS, cv2.GC_INIT_WITH_MASK)
    foreground = np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.uint8)
    _, parts = cv2.connectedComponents(foreground)
    mask = np.isin(parts, np.unique(parts[core & (foreground == 1)])).astype(np.uint8)
    whole = cv2.resize(mask, pixels.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    return torch.from_numpy(whole > 0)
