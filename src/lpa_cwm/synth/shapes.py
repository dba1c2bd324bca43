"""Random outlines of layers as implicit functions on the square [-1, 1], positive inside."""

import numpy as np
from jaxtyping import Float

from lpa_cwm.geometry import axis_centers
from lpa_cwm.synth.images import noise

Field = Float[np.ndarray, "k k"]


def square(side: int) -> tuple[Field, Field]:
    """x and y of the pixel centers of the square [-1, 1]."""
    ticks = (axis_centers(0, side) / side * 2 - 1).astype(np.float32)
    x, y = np.meshgrid(ticks, ticks)
    return x, y


def blob(rng: np.random.Generator, side: int) -> Field:
    """A rounded shape with lobes as an implicit function, negative outside."""
    x, y = square(side)
    angle, away = np.arctan2(y, x), np.hypot(x, y)
    orders = np.arange(2, 8, dtype=np.float32)
    swings = rng.standard_normal(len(orders), dtype=np.float32) * 0.35 / orders
    phases = rng.uniform(0, 2 * np.pi, len(orders)).astype(np.float32)
    lobes = np.cos(angle[..., None] * orders + phases) @ swings
    radius = (1 + lobes) / (1 + lobes.max())
    return np.float32(rng.uniform(0.75, 0.95)) * radius - away


def polygon(rng: np.random.Generator, side: int) -> Field:
    """A convex polygon with three to seven edges."""
    x, y = square(side)
    corners = int(rng.integers(3, 8))
    angles = rng.uniform(0, 2 * np.pi) + (np.arange(corners) + rng.uniform(-0.25, 0.25, corners)) * 2 * np.pi / corners
    depths = rng.uniform(0.35, 0.8, corners)
    edges = [d - x * np.cos(a) - y * np.sin(a) for a, d in zip(angles, depths, strict=True)]
    return np.min(edges, axis=0).astype(np.float32)


def bar(rng: np.random.Generator, side: int) -> Field:
    """A long, thin, bent bar."""
    x, y = square(side)
    bend = rng.uniform(-0.4, 0.4)
    width = rng.uniform(0.08, 0.25) * (1 + rng.uniform(-0.5, 0.5) * x)
    return np.minimum(width - np.abs(y - bend * (x**2 - 0.4)), 0.92 - np.abs(x)).astype(np.float32)


def capsule(rng: np.random.Generator, side: int) -> Field:
    """A tapered bar with rounded ends along x, such as an arm, as an approximate signed distance."""
    x, y = square(side)
    width = rng.uniform(0.15, 0.4)
    beyond = np.maximum(np.abs(x) - (0.85 - width), 0)
    return (width * (1 + rng.uniform(-0.3, 0.3) * x) - np.hypot(beyond, y)).astype(np.float32)


def outline(rng: np.random.Generator, margin: float, side: int = 48) -> Field:
    """A random shape as an approximate signed distance, positive inside, sometimes with holes.

    The shape keeps a margin to the border of the square.
    """
    kind = rng.choice(3, p=(0.6, 0.22, 0.18))
    field = (blob, polygon, bar)[kind](rng, side)
    if rng.random() < 0.2:
        field = np.minimum(field, (rng.uniform(0.5, 0.75) - noise(rng, side, 2.0)) * 2)
    slope = np.hypot(*np.gradient(field, 2 / side))
    x, y = square(side)
    frame = 1 - margin - np.maximum(np.abs(x), np.abs(y))
    return np.minimum(field / np.maximum(slope, 0.3), frame).astype(np.float32)
