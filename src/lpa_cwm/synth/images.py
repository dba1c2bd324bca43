"""Pictures: photographs of a folder, procedural textures, random outlines, and photometric jitter.

Photographs are split by file name. Outlines are implicit functions on the square [-1, 1], positive inside. Jitter is
what changes between the two frames of a pair apart from motion: light, color, shadow, blur, noise and compression.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.geometry import axis_centers
from lpa_cwm.io.video import read_rgb
from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.pairs import Split, split_of

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
Plane = Float[np.ndarray, "s s"]
Picture = Float[Tensor, "3 s s"]
Field = Float[np.ndarray, "k k"]


@lru_cache(maxsize=512)
def load_image(path: Path) -> Image.Image:
    """A decoded photograph; 512 photographs of 320 x 480 pixels take 240 MB."""
    return Image.fromarray(read_rgb(path, str(path)))


@lru_cache(maxsize=256)
def procedural_image(split: Split, number: int) -> Image.Image:
    """Procedural image `number` of a split; the splits share no image."""
    return Image.fromarray(procedural_photo(numpy_rng("procedural", split, number), 320))


@dataclass(frozen=True)
class ImagePool:
    """Images to sample from; `train` and `val` share no photograph."""

    files: tuple[Path, ...]
    split: Split
    procedural: float
    """Share of sampled images that are procedural."""

    @classmethod
    def of(cls, folder: Path | None, split: Split, procedural: float = 0.1) -> "ImagePool":
        """The photographs of a folder in this split; only procedural images without a folder."""
        if folder is None:
            return cls((), split, 1.0)
        every = [path for path in data_files(folder) if path.suffix.lower() in SUFFIXES]
        files = tuple(path for path in every if split_of(path.name) == split)
        if not files:
            raise InputError(
                f"{folder} holds {len(every)} photographs, none of them for the split '{split}'; give a folder with at "
                "least some tens of .jpg or .png files, or none at all for procedural pictures."
            )
        return cls(files, split, procedural)

    def draw(self, rng: np.random.Generator) -> Image.Image:
        """Sample one image."""
        if rng.random() < self.procedural:
            return procedural_image(self.split, int(rng.integers(256)))
        return load_image(self.files[int(rng.integers(len(self.files)))])


def random_crop(picture: Image.Image, rng: np.random.Generator, side: int) -> Float[Tensor, "3 side side"]:
    """A random square of an image, flipped half of the time, resized with antialiasing."""
    short = min(picture.size)
    span = short * rng.uniform(min(1.0, side / short), 1.0)
    x, y = (rng.uniform(0, length - span) for length in picture.size)
    piece = picture.resize((side, side), Image.Resampling.BILINEAR, box=(x, y, x + span, y + span))
    pixels = np.asarray(piece)
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    planes = rearrange(torch.from_numpy(pixels.copy()), "h w c -> c h w")
    return planes.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def noise(rng: np.random.Generator, side: int, slope: float) -> Plane:
    """Periodic 1/f noise: amplitude falls with frequency to the power `slope`; values are about uniform in [0, 1].

    Slope 1 resembles photographs (Field 1987), slope 2 clouds.
    """
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((side, side))) / frequency**slope
    field = np.fft.irfft2(spectrum, s=(side, side))
    field = (field - field.mean()) / field.std()
    # A logistic curve approximates the normal distribution function.
    return (1 / (1 + np.exp(-1.7 * field))).astype(np.float32)


def grid(side: int) -> tuple[Plane, Plane]:
    """x and y of the pixel centers, in units of the side."""
    ticks = axis_centers(0, side).astype(np.float32) / side
    columns, rows = np.meshgrid(ticks, ticks)
    return columns, rows


def weave(rng: np.random.Generator, side: int) -> Plane:
    """Slightly bent stripes or checks: repeated texture, which is hard to match."""
    x, y = grid(side)
    angle, count = rng.uniform(0, np.pi), rng.uniform(4, 30)
    bend = rng.uniform(0, 0.06) * (noise(rng, side, 2.0) - 0.5)
    along = np.sin(2 * np.pi * count * (np.cos(angle) * x + np.sin(angle) * y + bend))
    across = np.sin(2 * np.pi * count * (np.cos(angle) * y - np.sin(angle) * x + bend))
    pattern = along if rng.random() < 0.4 else along * across
    return (0.5 + 0.5 * np.tanh(rng.uniform(1, 6) * pattern)).astype(np.float32)


def cells(rng: np.random.Generator, side: int) -> Plane:
    """Worley noise (Worley 1996): each pixel has the gray of the nearest seed, darker near the cell borders."""
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
    """Dead leaves model (Lee et al. 2001): overlapping discs and bars of many sizes."""
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
    """1/f noise of random slope."""
    return noise(rng, side, rng.uniform(0.8, 1.7))


PATTERNS: tuple[Callable[[np.random.Generator, int], Plane], ...] = (cloud, cloud, weave, cells, confetti)


def colored(rng: np.random.Generator, plane: Plane) -> Float[np.ndarray, "s s 3"]:
    """Map gray values through a random color map with four colors."""
    stops = np.sort(rng.uniform(0, 1, 4))
    colors = np.clip(rng.uniform(0.05, 0.95, (4, 1)) + rng.normal(0, 0.18, (4, 3)), 0, 1)
    channels = [np.interp(plane, stops, colors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)


def procedural_photo(rng: np.random.Generator, side: int) -> UInt8[np.ndarray, "side side 3"]:
    """A color image: two patterns blended by a noise mask under uneven illumination."""
    first, second = (colored(rng, PATTERNS[int(rng.integers(len(PATTERNS)))](rng, side)) for _ in range(2))
    mask = np.clip((noise(rng, side, 1.6) - rng.uniform(0.2, 0.8)) * 12 + 0.5, 0, 1)[..., None]
    grain = rng.uniform(0, 0.25) * (noise(rng, side, 0.6) - 0.5)
    light = 1 + 0.5 * (noise(rng, side, 2.0) - 0.5)
    picture = ((1 - mask) * first + mask * second + grain[..., None]) * light[..., None]
    return np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)


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


def to_uint8(picture: Picture) -> UInt8[Tensor, "3 s s"]:
    """RGB in [0, 1] to rounded bytes."""
    return picture.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8)


def gaussian_blur(picture: Picture, sigma: float) -> Picture:
    """Separable Gaussian blur with seven taps; the border is repeated."""
    taps = np.exp(-0.5 * (np.arange(-3, 4) / sigma) ** 2)
    for axis in (1, 2):
        ends = [picture.narrow(axis, place, 1) for place in (0, picture.shape[axis] - 1)]
        padded = torch.cat((*ends[:1] * 3, picture, *ends[1:] * 3), dim=axis)
        picture = torch.zeros_like(picture)
        # Seven shifted sums are several times faster than a convolution with three channels.
        for place, tap in enumerate((taps / taps.sum()).tolist()):
            picture.add_(padded.narrow(axis, place, picture.shape[axis]), alpha=tap)
    return picture


def soft_shadow(rng: np.random.Generator, side: int) -> Float[Tensor, "s s"]:
    """Fraction of the light that is left under a half plane or an ellipse with a soft edge."""
    ticks = torch.linspace(-1, 1, side)
    angle, (x, y) = rng.uniform(0, 2 * np.pi), rng.uniform(-0.8, 0.8, 2)
    across = (ticks - x) * np.cos(angle) + (ticks[:, None] - y) * np.sin(angle)
    along = (ticks[:, None] - y) * np.cos(angle) - (ticks - x) * np.sin(angle)
    if rng.random() < 0.5:
        distance = across
    else:
        distance = 1 - ((across / rng.uniform(0.2, 0.8)) ** 2 + (along / rng.uniform(0.2, 0.8)) ** 2).sqrt()
    return 1 - rng.uniform(0.15, 0.5) * torch.sigmoid(distance / rng.uniform(0.01, 0.2))


def motion_blur(picture: Picture, angle: float, length: float) -> Picture:
    """Mean of seven copies, shifted by whole pixels along a line of this length; the border is repeated."""
    total = torch.zeros_like(picture)
    for share in np.linspace(-0.5, 0.5, 7):
        dx, dy = round(share * length * np.cos(angle)), round(share * length * np.sin(angle))
        rows = (torch.arange(picture.shape[1]) + dy).clamp(0, picture.shape[1] - 1)
        columns = (torch.arange(picture.shape[2]) + dx).clamp(0, picture.shape[2] - 1)
        total += picture[:, rows][:, :, columns]
    return total / 7


def encode_jpeg(picture: UInt8[np.ndarray, "h w 3"], quality: int = 95) -> bytes:
    """A JPEG without chroma subsampling."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def jpeg(frame: UInt8[Tensor, "3 s s"], quality: int) -> UInt8[Tensor, "3 s s"]:
    """The frame after JPEG compression."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class PhotometricJitter:
    """Amount of photometric change between two frames."""

    shade: float = 0.05
    """Standard deviation of the log brightness change of each layer."""
    light: float = 0.05
    """Standard deviation of the log brightness change of the whole image."""
    tint: float = 0.015
    """The same per color channel."""
    slope: float = 0.06
    """Standard deviation of the linear illumination gradient across the image."""
    blur: float = 0.25
    """Probability that both frames are blurred; each frame is blurred in addition with half of it."""
    grain: float = 0.02
    """Maximum standard deviation of the noise of a frame."""
    shadow: float = 0.0
    """Probability that a frame has a soft shadow."""
    motion_blur: float = 0.0
    """Probability that a frame is blurred along a line, as by a moving camera."""
    gamma: float = 0.0
    """Standard deviation of the logarithm of the gamma of a frame."""
    jpeg: float = 0.0
    """Probability that both frames are compressed as JPEG."""

    @classmethod
    def strong(cls) -> "PhotometricJitter":
        """Jitter as in poor footage: exposure, shadows, motion blur and compression differ between the frames."""
        return cls(
            shade=0.08,
            light=0.12,
            tint=0.03,
            slope=0.1,
            blur=0.3,
            grain=0.025,
            shadow=0.3,
            motion_blur=0.2,
            gamma=0.08,
            jpeg=0.6,
        )

    def layer_gain(self, rng: np.random.Generator) -> float:
        """Brightness of a layer in the target relative to the source."""
        return float(np.exp(rng.normal(0, self.shade)))

    def relight(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """The image under slightly different illumination."""
        gain = np.exp(rng.normal(0, self.light) + rng.normal(0, self.tint, 3))
        lean = rng.normal(0, self.slope, 2)
        ticks = torch.linspace(-0.5, 0.5, picture.shape[-1])
        ramp = 1 + lean[0] * ticks + lean[1] * ticks[:, None]
        return picture * torch.from_numpy(gain).float()[:, None, None] * ramp

    def apply(self, pair: tuple[Picture, Picture], rng: np.random.Generator) -> list[UInt8[Tensor, "3 s s"]]:
        """Relight the second frame, degrade both, add noise, convert to bytes, and compress."""
        both_sigma = rng.uniform(0.4, 1.0) if rng.random() < self.blur else 0.0
        frames = []
        for picture in (pair[0], self.relight(pair[1], rng)):
            own_sigma = rng.uniform(0.4, 1.2) if rng.random() < self.blur / 2 else 0.0
            sigma = float(np.hypot(both_sigma, own_sigma))
            picture = self.degrade(picture, rng)
            sharp = gaussian_blur(picture, sigma) if sigma > 0 else picture
            noise = torch.Generator().manual_seed(int(rng.integers(2**62)))
            level = rng.uniform(0, self.grain)
            frames.append(to_uint8(sharp + level * torch.randn(sharp.shape, generator=noise)))
        if self.jpeg and rng.random() < self.jpeg:
            quality = int(rng.integers(30, 95))
            frames = [jpeg(frame, quality) for frame in frames]
        return frames

    def degrade(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Gamma, shadow and motion blur of one frame; draws nothing where the probabilities are zero."""
        if self.gamma:
            picture = picture.clamp(0, 1) ** float(np.exp(rng.normal(0, self.gamma)))
        if self.shadow and rng.random() < self.shadow:
            picture = picture * soft_shadow(rng, picture.shape[-1])
        if self.motion_blur and rng.random() < self.motion_blur:
            picture = motion_blur(picture, rng.uniform(0, np.pi), picture.shape[-1] * rng.uniform(0.005, 0.03))
        return picture
