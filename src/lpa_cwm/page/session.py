"""The state of one browser tab: clip, points, results. Values; every change makes a new one."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import inside
from lpa_cwm.types import Clip, Grid, Queries, Tracks

MAX_POINTS = 64
MAX_UNDO = 100
GRID_SIDE = 5
NEAR = 0.02
"""A click this close to a point, in units of the frame's shorter side, selects the point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A clicked point in pixels of the clip; its color stays when other points are removed."""

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


@dataclass(frozen=True, slots=True)
class Results:
    """Tracks of one run, by method."""

    clip: Clip
    points: tuple[Point, ...]
    tracks: dict[str, Tracks]


def click_point(session: Session, x: float, y: float, frame: int) -> Session:
    """Add a point, or remove the point that was clicked."""
    if not (math.isfinite(x) and math.isfinite(y) and inside(torch.tensor([x, y]), session.clip.hw)):
        raise InputError("The click is outside the frame; click on the picture.")
    here = [point for point in session.points if point.frame == frame]
    near = [point for point in here if is_near(session.clip, point, x, y)]
    if near:
        removed = min(near, key=lambda point: (point.x - x) ** 2 + (point.y - y) ** 2)
        return change_points(session, tuple(point for point in session.points if point is not removed))
    if len(session.points) == MAX_POINTS:
        raise InputError(f"There are {MAX_POINTS} points already; remove one first, or use `lpa-cwm track`.")
    check_frame(session.clip, frame)
    return change_points(session, (*session.points, Point(x, y, frame, free_color(session.points))))


def add_grid(session: Session, frame: int, side: int = GRID_SIDE) -> Session:
    """Add a regular grid of points in a frame, as far as the limit allows; places near a point are skipped."""
    check_frame(session.clip, frame)
    points = session.points
    for x, y in Grid(side, frame).on(session.clip.hw).xy.tolist():
        taken = any(point.frame == frame and is_near(session.clip, point, x, y) for point in points)
        if not taken and len(points) < MAX_POINTS:
            points = (*points, Point(x, y, frame, free_color(points)))
    return change_points(session, points) if points != session.points else session


def is_near(clip: Clip, point: Point, x: float, y: float) -> bool:
    """Whether a click selects a point."""
    return math.hypot(point.x - x, point.y - y) <= NEAR * min(clip.hw)


def check_frame(clip: Clip, frame: int) -> None:
    """Refuse a frame that a point cannot start in."""
    if not 0 <= frame < len(clip):
        raise InputError(f"Frame {frame} does not exist; {clip.name} has frames 0 to {len(clip) - 1}.")
    if frame == len(clip) - 1:
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
    """The points as queries, in their order."""
    xy = torch.tensor([(point.x, point.y) for point in points], dtype=torch.float32).reshape(-1, 2)
    return Queries(xy, torch.tensor([point.frame for point in points], dtype=torch.long))


def confidence(tracks: Tracks) -> Float[Tensor, "n t"]:
    """Confidence in [0, 1] for drawing: strength between the visibility threshold (0.5) and the best of the run (1).

    Hidden points have less than 0.5. A method without strength has 1 for visible and 0 for hidden points.
    """
    visible = tracks.visible
    strength = tracks.strength
    if strength is None or not visible.any():
        return visible.float()
    finite = strength.where(strength.isfinite(), torch.nan)
    shown = finite[visible & finite.isfinite()]
    if len(shown) == 0:
        return visible.float()
    low, high = float(shown.min()), float(shown.max())
    share = ((finite - low) / max(high - low, 1e-9)).clamp(-1, 1)
    return torch.where(visible, 0.5 + 0.5 * share.clamp(min=0).nan_to_num(1.0), 0.25 * (1 + share.nan_to_num(-1.0)))
