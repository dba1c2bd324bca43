"""Skies, grounds, walls and skins made from nothing, as linear pictures."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float32
from PIL import Image

from lpa_cwm.simulator.texture import Picture, linear
from lpa_cwm.synth.images import colored, grid, noise

SIDE = 512


def speckled(rng: np.random.Generator, rough: float) -> Float32[np.ndarray, "s s"]:
    """Gravel, sand or lawn: coarse patches under fine grain."""
    return (0.35 * noise(rng, SIDE, 1.6) + 0.65 * noise(rng, SIDE, rough)).astype(np.float32)


def asphalt(rng: np.random.Generator) -> Picture:
    """Gray, brown, sandy or green ground with grain of every size."""
    base = np.array([(0.23, 0.22, 0.21), (0.32, 0.24, 0.16), (0.42, 0.35, 0.25), (0.12, 0.18, 0.05)])
    color = base[rng.integers(len(base))] * rng.uniform(0.8, 1.2, 3)
    light = 0.35 + 1.3 * speckled(rng, rng.uniform(0.7, 1.1))
    hue = 1 + 0.25 * (noise(rng, SIDE, 1.2)[..., None] - 0.5) * rng.normal(size=3)
    return (color * light[..., None] * hue).astype(np.float32)


def laid(rng: np.random.Generator, rows: int, columns: int, shift: float) -> Picture:
    """Planks, bricks or tiles: pieces of one material with dark joints, each row moved on by `shift` of a piece."""
    x, y = grid(SIDE)
    row = np.floor(y * rows)
    # An even number of rows keeps the picture periodic when every other row is moved.
    along = (x * columns + shift * (row % 2)) % columns
    piece = (row * columns + np.floor(along)).astype(np.int64)
    gap = rng.uniform(0.003, 0.012)
    away = np.minimum(np.minimum(along % 1, 1 - along % 1) / columns, np.minimum(y * rows % 1, 1 - y * rows % 1) / rows)
    joint = np.clip((away * SIDE - gap * SIDE / 2 + 0.5), 0, 1)[..., None]
    tone = rng.uniform(0.65, 1.2, rows * columns)[piece][..., None]
    base = np.array([(0.42, 0.24, 0.12), (0.5, 0.45, 0.4), (0.38, 0.13, 0.08), (0.25, 0.28, 0.32)])
    color = base[rng.integers(len(base))] * rng.uniform(0.8, 1.2, 3)
    grain = 0.7 + 0.6 * (0.5 * noise(rng, SIDE, 0.8) + 0.5 * streaks(rng))[..., None]
    return (color * tone * grain * (0.3 + 0.7 * joint)).astype(np.float32)


def streaks(rng: np.random.Generator) -> Float32[np.ndarray, "s s"]:
    """Grain drawn out along the rows, as in wood."""
    tall = np.asarray(Image.fromarray(noise(rng, SIDE, 0.9)).resize((SIDE * 8, SIDE), Image.Resampling.BILINEAR))
    # Its first and last columns do not meet, which a joint of the planks hides.
    return tall[:, :SIDE]


def planks(rng: np.random.Generator) -> Picture:
    """A wooden floor."""
    return laid(rng, 2 * int(rng.integers(4, 8)), int(rng.integers(1, 3)), 0.5)


def bricks(rng: np.random.Generator) -> Picture:
    """Paving in a running bond."""
    return laid(rng, 2 * int(rng.integers(4, 7)), int(rng.integers(3, 6)), 0.5)


def tiles(rng: np.random.Generator) -> Picture:
    """Square tiles."""
    count = 2 * int(rng.integers(2, 5))
    return laid(rng, count, count, 0.0)


def carpet(rng: np.random.Generator) -> Picture:
    """A woven fabric of a few colors."""
    color = colored(rng, noise(rng, SIDE, rng.uniform(1.0, 1.6)))
    gray = color.mean(-1, keepdims=True)
    calm = 0.15 + 0.5 * (0.5 * gray + 0.5 * color) ** 2
    return (calm * (0.6 + 0.8 * noise(rng, SIDE, 0.7))[..., None]).astype(np.float32)


FLOORS: tuple[Callable[[np.random.Generator], Picture], ...] = (planks, planks, bricks, tiles, carpet)


def relief(rng: np.random.Generator) -> Float32[np.ndarray, "s s 1"]:
    """Detail to multiply a coarse ground with: gray, of mean one, periodic."""
    grain = speckled(rng, rng.uniform(0.8, 1.2))
    strength = rng.uniform(0.7, 1.5)
    field = np.maximum(1 + strength * (grain - grain.mean()), 0.05)
    return (field / field.mean())[..., None].astype(np.float32)


def mirrored(picture: Picture) -> Picture:
    """The picture and its reflections, which together tile without seams."""
    wide = np.concatenate((picture, picture[:, ::-1]), axis=1)
    return np.concatenate((wide, wide[::-1]), axis=0)


def sky(rng: np.random.Generator) -> Picture:
    """A panorama [512, 1024]: clouds, a bright sun, hills on the horizon, plain ground below it."""
    height = np.linspace(np.pi / 2, -np.pi / 2, 512, dtype=np.float32)[:, None]
    blue = np.array([0.16, 0.33, 0.7]) * rng.uniform(0.6, 1.2)
    haze = np.array([0.75, 0.78, 0.8]) * rng.uniform(0.7, 1.1) + rng.uniform(-0.1, 0.15) * np.array([1, 0, -1])
    clear = np.exp(-4 * np.maximum(height, 0))[..., None] * (haze - blue) + blue
    cloud = np.tile(noise(rng, 512, 1.6), (1, 2))
    cover = np.clip(3 * (cloud - rng.uniform(0.4, 0.8)), 0, 1)[..., None]
    light = clear * (1 - cover) + cover * (0.55 + 0.5 * cloud[..., None])
    light = light + sun_glow(rng, height)
    ground = asphalt(rng)
    land = np.tile(ground, (1, 2, 1)).mean((0, 1)) * (0.9 + 0.2 * np.tile(noise(rng, 512, 1.8), (1, 2)))[..., None]
    light = np.where(height[..., None] < 0, land + 0.5 * np.exp(20 * np.minimum(height, 0))[..., None] * haze, light)
    ridge = hills(rng)
    slope = np.array([0.16, 0.2, 0.16]) * rng.uniform(0.5, 1.2) + 0.25 * haze
    wood = slope * (0.7 + 0.6 * np.tile(noise(rng, 512, 0.8), (1, 2)))[..., None]
    return np.where(((height >= 0) & (height < ridge))[..., None], wood, light).astype(np.float32)


def sun_glow(rng: np.random.Generator, height: Float32[np.ndarray, "h 1"]) -> Float[np.ndarray, "h w 3"]:
    """Light around the place of the sun."""
    angle = np.linspace(-np.pi, np.pi, 1024, dtype=np.float32)[None]
    stand, place = rng.uniform(0.5, 1.2), rng.uniform(-np.pi, np.pi)
    near = np.sin(height) * np.sin(stand) + np.cos(height) * np.cos(stand) * np.cos(angle - place)
    return (np.exp(400 * (near - 1)) * 3 + 0.35 * np.exp(12 * (near - 1)))[..., None] * np.array([1, 0.93, 0.8])


def hills(rng: np.random.Generator) -> Float[np.ndarray, "w"]:
    """The height of the horizon, in radians, all the way round."""
    angle = np.linspace(0, 2 * np.pi, 1024, endpoint=False)
    waves = [rng.normal() / turn * np.cos(turn * angle + rng.uniform(0, 2 * np.pi)) for turn in range(1, 40)]
    return 0.06 * np.maximum(np.sum(waves, axis=0) + rng.uniform(-0.5, 1.5), 0)


def plaster(rng: np.random.Generator) -> Picture:
    """A painted wall [256, 512] with a skirting board."""
    paint = rng.uniform(0.35, 0.85) + rng.normal(0, 0.07, 3)
    tone = np.tile(noise(rng, 256, 1.2), (1, 2))[..., None]
    surface = np.clip(paint * (0.85 + 0.3 * tone), 0, 1).astype(np.float32)
    surface[-12:] *= rng.uniform(0.2, 0.6)
    return surface


def hung(rng: np.random.Generator, surface: Picture, posters: list[Image.Image]) -> Picture:
    """The wall with framed pictures on it."""
    surface = surface.copy()
    for place, poster in enumerate(posters):
        width, height = (int(side) for side in rng.uniform((70, 60), (150, 130)))
        x = int((place + rng.uniform(0.1, 0.9)) * (512 - width) / len(posters))
        y = int(rng.uniform(40, 230 - height))
        surface[y - 3 : y + height + 3, max(x - 3, 0) : x + width + 3] = rng.uniform(0, 0.3)
        surface[y : y + height, x : x + width] = linear(np.asarray(poster.resize((width, height))))
    return surface
