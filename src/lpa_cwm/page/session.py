"""What one browser tab has chosen: a clip and points on its frames. Values; every change makes a new one."""

from dataclasses import dataclass, replace

import torch

from lpa_cwm.errors import InputError
from lpa_cwm.types import Clip, Queries

MOST_POINTS = 64
NEAR = 0.02
"""A click this close to a point, in units of the frame's shorter side, means the point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A clicked point in pixels of the clip; its color stays when others go."""

    x: float
    y: float
    frame: int
    color: int


@dataclass(frozen=True, slots=True)
class Session:
    """One tab's clip, points, and the points it had before each change."""

    clip: Clip
    bundled: bool
    points: tuple[Point, ...] = ()
    past: tuple[tuple[Point, ...], ...] = ()


def clicked(session: Session, x: float, y: float, frame: int) -> Session:
    """Add a point, or remove the one that was clicked."""
    reach = NEAR * min(session.clip.hw)
    here = [point for point in session.points if point.frame == frame]
    struck = [point for point in here if (point.x - x) ** 2 + (point.y - y) ** 2 <= reach**2]
    if struck:
        gone = min(struck, key=lambda point: (point.x - x) ** 2 + (point.y - y) ** 2)
        return changed(session, tuple(point for point in session.points if point is not gone))
    if len(session.points) == MOST_POINTS:
        raise InputError(f"There are {MOST_POINTS} points already; remove one first, or use `lpa-cwm track`.")
    if frame == len(session.clip) - 1:
        raise InputError("A point in the last frame has no frame to be followed into; choose an earlier frame.")
    return changed(session, (*session.points, Point(x, y, frame, free_color(session.points))))


def undone(session: Session) -> Session:
    """Take back the last change of the points."""
    if not session.past:
        return session
    return replace(session, points=session.past[-1], past=session.past[:-1])


def cleared(session: Session) -> Session:
    """Remove all points; this, too, can be undone."""
    return changed(session, ()) if session.points else session


def changed(session: Session, points: tuple[Point, ...]) -> Session:
    return replace(session, points=points, past=(*session.past, session.points))


def free_color(points: tuple[Point, ...]) -> int:
    """The first color that no point has."""
    taken = {point.color for point in points}
    return next(number for number in range(len(points) + 1) if number not in taken)


def queries(points: tuple[Point, ...]) -> Queries:
    """The points as the tracker wants them, in their order."""
    xy = torch.tensor([(point.x, point.y) for point in points], dtype=torch.float32).reshape(-1, 2)
    return Queries(xy, torch.tensor([point.frame for point in points], dtype=torch.long))
