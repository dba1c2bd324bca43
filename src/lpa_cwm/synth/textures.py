"""Pictures made from nothing, for when no photographs are given: clouds, cells, weaves and scattered shapes."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from lpa_cwm.geometry import axis_centers

Plane = Float[np.ndarray, "s s"]


def noise(rng: np.random.Generator, side: int, slope: float) -> Plane:
    """A random field whose amplitude falls with frequency to the power `slope`, spread evenly over 0 to 1.

    Slope 1 resembles photographs, 2 clouds; the field is periodic, so it tiles.
    """
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((side, side))) / frequency**slope
    field = np.fft.irfft2(spectrum, s=(side, side))
    field = (field - field.mean()) / field.std()
    # A logistic curve stands in for the normal distribution's own: near enough, and cheap.
    return (1 / (1 + np.exp(-1.7 * field))).astype(np.float32)


def grid(side: int) -> tuple[Plane, Plane]:
    """Columns and rows in units of the side."""
    ticks = axis_centers(0, side).astype(np.float32) / side
    columns, rows = np.meshgrid(ticks, ticks)
    return columns, rows


def weave(rng: np.random.Generator, side: int) -> Plane:
    """Stripes or checks, slightly bent: the repeated texture that matching finds hard."""
    x, y = grid(side)
    angle, count = rng.uniform(0, np.pi), rng.uniform(4, 30)
    bend = rng.uniform(0, 0.06) * (noise(rng, side, 2.0) - 0.5)
    along = np.sin(2 * np.pi * count * (np.cos(angle) * x + np.sin(angle) * y + bend))
    across = np.sin(2 * np.pi * count * (np.cos(angle) * y - np.sin(angle) * x + bend))
    pattern = along if rng.random() < 0.4 else along * across
    return (0.5 + 0.5 * np.tanh(rng.uniform(1, 6) * pattern)).astype(np.float32)


def cells(rng: np.random.Generator, side: int) -> Plane:
    """Stones or tiles: each pixel takes the gray of the nearest of some seeds, darker towards the joints."""
    x, y = grid(side)
    nearest = np.full_like(x, np.inf)
    second, gray = nearest, np.zeros_like(x)
    for seed in rng.uniform(-0.05, 1.05, (int(rng.integers(12, 60)), 2)).astype(np.float32):
        away = (x - seed[0]) ** 2 + (y - seed[1]) ** 2
        gray = np.where(away < nearest, np.float32(rng.random()), gray)
        second = np.minimum(second, np.maximum(nearest, away))
        nearest = np.minimum(nearest, away)
    return gray * (0.3 + 0.7 * np.clip((np.sqrt(second) - np.sqrt(nearest)) * 25, 0, 1))


def confetti(rng: np.random.Generator, side: int) -> Plane:
    """Discs and bars of many sizes on top of one another."""
    picture = Image.new("L", (side, side), int(rng.integers(40, 215)))
    pen = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(30, 120))):
        x, y = rng.uniform(0, side, 2)
        gray = int(rng.integers(0, 256))
        radius = side * 0.01 * rng.lognormal(1.0, 0.7)
        if rng.random() < 0.5:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=gray)
        else:
            dx, dy = rng.normal(0, 3 * radius, 2)
            pen.line((x - dx, y - dy, x + dx, y + dy), fill=gray, width=max(1, int(radius / 2)))
    return np.asarray(picture, dtype=np.float32) / 255


def cloud(rng: np.random.Generator, side: int) -> Plane:
    """Noise between the roughness of gravel and that of clouds."""
    return noise(rng, side, rng.uniform(0.8, 1.7))


PATTERNS: tuple[Callable[[np.random.Generator, int], Plane], ...] = (cloud, cloud, weave, cells, confetti)


def colored(rng: np.random.Generator, plane: Plane) -> Float[np.ndarray, "s s 3"]:
    """Gray values read from a random scale of four colors."""
    stops = np.sort(rng.uniform(0, 1, 4))
    colors = np.clip(rng.uniform(0.05, 0.95, (4, 1)) + rng.normal(0, 0.18, (4, 3)), 0, 1)
    channels = [np.interp(plane, stops, colors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)


def photo(rng: np.random.Generator, side: int) -> UInt8[np.ndarray, "side side 3"]:
    """A colored picture: two patterns, one showing through where a third is high, under uneven light."""
    first, second = (colored(rng, PATTERNS[int(rng.integers(len(PATTERNS)))](rng, side)) for _ in range(2))
    mask = np.clip((noise(rng, side, 1.6) - rng.uniform(0.2, 0.8)) * 12 + 0.5, 0, 1)[..., None]
    grain = rng.uniform(0, 0.25) * (noise(rng, side, 0.6) - 0.5)
    light = 1 + 0.5 * (noise(rng, side, 2.0) - 0.5)
    picture = ((1 - mask) * first + mask * second + grain[..., None]) * light[..., None]
    return np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)
