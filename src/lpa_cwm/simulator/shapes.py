"""Bodies made from nothing: boxes, turned and extruded forms, rings and pebbles, each with texture coordinates."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

ROUND = 40
"""Steps around a full turn."""


@dataclass(frozen=True)
class Solid:
    """The surface of a body."""

    vertices: Float[np.ndarray, "v 3"]
    """With z up."""
    faces: Int[np.ndarray, "f 3"]
    uv: Float[np.ndarray, "v 2"]
    """Texture coordinates in [0, 1], v upwards."""


def sheet(points: Float[np.ndarray, "rows columns 3"], uv: Float[np.ndarray, "rows columns 2"]) -> Solid:
    """Two triangles between every four neighbors of a grid."""
    rows, columns = points.shape[:2]
    corner = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    first = np.stack((corner, corner + 1, corner + columns + 1), axis=-1)
    second = np.stack((corner, corner + columns + 1, corner + columns), axis=-1)
    return Solid(points.reshape(-1, 3), np.concatenate((first, second)), uv.reshape(-1, 2))


def joined(*parts: Solid) -> Solid:
    """Several sheets as one body."""
    offsets = np.cumsum([0] + [len(part.vertices) for part in parts[:-1]])
    faces = [part.faces + offset for part, offset in zip(parts, offsets, strict=True)]
    vertices, uv = (np.concatenate([getattr(part, name) for part in parts]) for name in ("vertices", "uv"))
    return Solid(vertices, np.concatenate(faces), uv)


def unit_grid(rows: int, columns: int) -> tuple[Float[np.ndarray, "r c"], Float[np.ndarray, "r c"]]:
    """Numbers from 0 to 1 down the rows and along the columns."""
    down, along = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
    return down, along


def box(rng: np.random.Generator) -> Solid:
    """A cuboid; each side has its own sixth of the texture."""
    extent = rng.uniform(0.35, 1, 3)
    down, along = unit_grid(2, 2)
    parts = []
    for side in range(6):
        axis, sign = side % 3, 1 - 2 * (side // 3)
        flat = np.stack((np.full_like(down, sign), 2 * along - 1, 2 * down - 1), axis=-1)
        points = np.roll(flat, axis, axis=-1) * extent / 2
        uv = np.stack((side % 3 + 0.02 + 0.96 * along, side // 3 + 0.02 + 0.96 * down), axis=-1) / (3, 2)
        parts.append(sheet(points, uv))
    return joined(*parts)


def turned(rng: np.random.Generator) -> Solid:
    """A body of revolution: bottle, bowl, bead or cone, by a random profile."""
    knots = int(rng.integers(2, 7))
    radius = np.interp(np.linspace(0, 1, 24), np.linspace(0, 1, knots), rng.uniform(0.15, 0.5, knots))
    height = rng.uniform(0.4, 1.6)
    profile = np.concatenate(([0.0], radius, [0.0]))
    level = height * np.concatenate(([0.0], np.linspace(0, 1, 24), [1.0]))
    way = np.concatenate(([0.0], np.cumsum(np.hypot(np.diff(profile), np.diff(level)))))
    _, along = unit_grid(len(profile), ROUND + 1)
    angle = 2 * np.pi * along
    radial = profile[:, None] * np.stack((np.cos(angle), np.sin(angle)))
    points = np.stack((radial[0], radial[1], np.broadcast_to(level[:, None], angle.shape)), axis=-1)
    uv = np.stack((along, np.broadcast_to((way / way[-1])[:, None], along.shape)), axis=-1)
    return sheet(points, uv)


def ring(rng: np.random.Generator) -> Solid:
    """A torus, round or with a squarish section."""
    thick, square = rng.uniform(0.1, 0.22), rng.uniform(1, 3)
    down, along = unit_grid(17, ROUND + 1)
    section, angle = 2 * np.pi * down, 2 * np.pi * along
    # Rounded, for the root of what should be zero is not small.
    waves = (np.cos(section).round(9), np.sin(section).round(9))
    out, up = (np.sign(wave) * np.abs(wave) ** (1 / square) for wave in waves)
    radius = 0.5 - thick + thick * out
    points = np.stack((radius * np.cos(angle), radius * np.sin(angle), thick * up), axis=-1)
    return sheet(points, np.stack((along, down), axis=-1))


def extruded(rng: np.random.Generator) -> Solid:
    """A star, gear, flower or prism with straight walls."""
    teeth, depth = int(rng.integers(3, 9)), rng.uniform(0, 0.35)
    angle = np.linspace(0, 2 * np.pi, 8 * teeth + 1)
    wave = np.cos(teeth * angle)
    wave = np.sign(wave) * np.abs(wave) ** rng.uniform(0.2, 1.2)
    outline = 0.5 * (1 - depth + depth * wave)[:, None] * np.stack((np.cos(angle), np.sin(angle)), axis=-1)
    half = rng.uniform(0.08, 0.4)
    along = np.linspace(0, 1, len(angle))
    lower = np.concatenate((outline, np.full((len(angle), 1), -half)), axis=1)
    upper = lower * (1, 1, -1)
    band = np.stack([np.stack((along, np.full_like(along, v)), axis=-1) for v in (0.0, 0.48)])
    parts = [sheet(np.stack((lower, upper)), band)]
    for side, rim in enumerate((upper, lower[::-1])):
        hub = np.broadcast_to(rim.mean(0) * (0, 0, 1), rim.shape)
        disc = np.stack((np.full_like(rim[:, :2], 0), rim[:, :2])) * 0.48 + (0.25 + 0.5 * side, 0.75)
        parts.append(sheet(np.stack((hub, rim)), disc))
    return joined(*parts)


def pebble(rng: np.random.Generator) -> Solid:
    """Something between a ball, a rounded block and a potato."""
    down, along = unit_grid(25, ROUND + 1)
    tilt, angle = np.pi * (down - 0.5), 2 * np.pi * along
    ball = np.stack((np.cos(tilt) * np.cos(angle), np.cos(tilt) * np.sin(angle), np.sin(tilt)), axis=-1)
    power = rng.uniform(2, 6)
    shape = ball / (np.abs(ball) ** power).sum(-1, keepdims=True) ** (1 / power)
    for _ in range(int(rng.integers(0, 7))):
        towards = rng.normal(size=3)
        towards /= np.linalg.norm(towards)
        shape *= (1 + rng.uniform(-0.25, 0.25) * np.exp(4 * (ball @ towards - 1)))[..., None]
    return sheet(shape * rng.uniform(0.55, 1, 3), np.stack((along, down), axis=-1))


FORMS: tuple[Callable[[np.random.Generator], Solid], ...] = (box, turned, turned, ring, extruded, pebble)


def invented(rng: np.random.Generator) -> Solid:
    """A body of a random form."""
    return FORMS[int(rng.integers(len(FORMS)))](rng)
