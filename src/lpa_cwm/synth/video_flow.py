"""Natural video without labels: frame pairs and annotated clips whose motion optical flow confirms.

Dense inverse search (Kroeger et al. 2016, arXiv:1603.03590) tracks points from frame to frame and back. The motion is
known where the round trip closes (the forward-backward check of Sundaram et al. 2010) and the squares around both ends
correlate. Nothing is known of all other points, not even that they are occluded.

In annotated clips, cut-outs of pictures move over the video and hide some of the points. These occlusions are exact,
while colors, noise, blur and motion are those of real video. Points are never hidden by the scene itself.
"""

import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError, require
from lpa_cwm.files import atomic_write, pin_settings, share_pieces
from lpa_cwm.geometry import HW, inside, pixel_centers, sample_bilinear
from lpa_cwm.io.safe_load import load_pickle
from lpa_cwm.jobs import Shard, progress
from lpa_cwm.rng import numpy_rng, seed_of
from lpa_cwm.synth.images import ImagePool, encode_jpeg, outline, random_crop
from lpa_cwm.synth.layered import rotation
from lpa_cwm.synth.pair_shards import FLOW_STRIDE, SIZE, VIDEO_KINDS, FlowPair, FlowSource, flow_grid
from lpa_cwm.synth.pairs import Shot, VideoPairs, memmap, resize_crop

PAIR_ERROR = 1.0
"""Largest error of a round trip, in pixels."""
MIN_CORRELATION = 0.5
"""Smallest correlation of brightness around both ends of known flow."""
SQUARE = 9
"""Side of the squares that are compared, in pixels."""
NOISE = 3.0
"""Standard deviation of brightness, in gray levels, that counts as no texture: it lowers the correlation."""
MIN_KNOWN = 0.25
"""Smallest share of known points in a pair."""
ATTEMPTS = 10
KINDS = dict(zip(VIDEO_KINDS, (((5, 16), 4.0), ((1, 4), 1.0)), strict=True))
"""For each kind of pairs: minimum and maximum number of frames between source and target, and the smallest upper
quartile of the motion in pixels."""


@dataclass(frozen=True)
class VideoFlow:
    """Pairs of natural video with backward flow where a round trip closes."""

    pairs: VideoPairs
    motion: float
    """Smallest upper quartile of the lengths of known flow, in pixels."""

    def __call__(self, index: int) -> FlowPair:
        """Pair `index`: the first sample with enough motion and enough known points, or the last of several samples."""
        rng = numpy_rng("video flow", self.pairs.name, *self.pairs.gaps, self.pairs.seed, index)
        found = self.sample(rng)
        for _ in range(ATTEMPTS - 1):
            length = found.flow[:, found.visible].norm(dim=0)
            if len(length) >= MIN_KNOWN * found.visible.numel() and length.quantile(0.75) >= self.motion:
                break
            found = self.sample(rng)
        return found

    def sample(self, rng: np.random.Generator) -> FlowPair:
        """Two frames of a clip, tracked through all frames between them."""
        square = self.pairs.square(rng, SIZE)
        return follow_back([resize_crop(np.ascontiguousarray(frame), SIZE) for frame in square])


def video_sources(pairs: VideoPairs) -> dict[str, FlowSource]:
    """Sources of the kinds of pairs of natural video."""
    return {kind: VideoFlow(replace(pairs, gaps=gaps), motion) for kind, (gaps, motion) in KINDS.items()}


def follow_back(frames: Sequence[UInt8[Tensor, "3 s s"]]) -> FlowPair:
    """Flow from the last frame to the first, and which points have known flow."""
    cv2, search = dense_inverse_search()
    grays = [gray_image(cv2, frame) for frame in frames]
    grid = rearrange(flow_grid((SIZE, SIZE)), "d h w -> (h w) d")
    origin, inside_back = follow(search, grays[::-1], grid)
    again, inside_forth = follow(search, grays, origin)
    known = inside_back & inside_forth & ((again - grid).norm(dim=-1) <= PAIR_ERROR)
    known &= correlation(grays[0], origin, grays[-1], grid) >= MIN_CORRELATION
    flow, visible = (
        rearrange(part, "(h w) ... -> ... h w", w=SIZE // FLOW_STRIDE)
        for part in ((origin - grid).where(known[:, None], torch.nan), known)
    )
    return FlowPair(torch.stack((frames[0], frames[-1])), flow, visible)


def dense_inverse_search() -> tuple[Any, Any]:
    """OpenCV, and its dense inverse search with the medium preset."""
    cv2 = require("cv2", extra="flow")
    return cv2, cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)


def follow(
    search: Any, grays: Sequence[np.ndarray], xy: Float[Tensor, "n 2"]
) -> tuple[Float[Tensor, "n 2"], Bool[Tensor, "n"]]:
    """Points of the first image in the last one, and which of them never left the images."""
    kept = torch.ones(len(xy), dtype=torch.bool)
    for before, after in pairwise(grays):
        flow = rearrange(torch.from_numpy(search.calc(before, after, None)), "h w d -> 1 d h w")
        xy = xy + sample_bilinear(flow, xy[None])[0]
        kept &= inside(xy, before.shape)
    return xy, kept


def correlation(
    first: np.ndarray, here: Float[Tensor, "n 2"], second: np.ndarray, there: Float[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    """Zero-normalized cross-correlation of the squares around points of two images."""
    one, other = (squares(gray, xy) for gray, xy in ((first, here), (second, there)))
    norms = (part.square().mean(1).sqrt() + NOISE for part in (one, other))
    return (one * other).mean(1) / math.prod(norms)


def squares(gray: np.ndarray, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n s"]:
    """Brightness around points, the mean removed."""
    ticks = torch.arange(SQUARE) - SQUARE // 2
    around = torch.cartesian_prod(ticks, ticks).to(xy)
    places = rearrange(xy[:, None] + around, "n s d -> 1 (n s) d")
    values = sample_bilinear(torch.from_numpy(gray).float()[None, None], places).view(len(xy), -1)
    return values - values.mean(1, keepdim=True)


def gray_image(cv2: Any, frame: UInt8[Tensor, "3 h w"]) -> np.ndarray:
    """A frame as a gray OpenCV image."""
    return cv2.cvtColor(rearrange(frame.cpu(), "c h w -> h w c").contiguous().numpy(), cv2.COLOR_RGB2GRAY)


FRAMES = 24
STRIDES = (1, 2, 3)
"""Steps between the frames that are used; the flow goes through all frames."""
POINTS = 600
"""Points that are tracked."""
TRACK_ERROR = 1.5
"""Largest error of a round trip through the whole clip, in pixels."""
MIN_TRACKS, MIN_FRAMES = 16, 8
"""Minimum number of tracks of a clip, if possible; minimum number of frames that a track stays in the picture."""
OCCLUDERS = (1, 3)
"""Minimum and maximum number of occluders of a clip."""
SIDES = (0.15, 0.6)
"""Smallest and largest side of an occluder, as a share of the height of the frame."""
SPEED = 8.0
"""Largest speed of an occluder, in pixels per frame; a quarter of them stand still."""
TEXTURE = 96
"""Side of the picture of an occluder, in pixels."""
QUALITY = 92
"""Quality of the JPEG frames."""


@dataclass(frozen=True)
class AnnotatedClip:
    """A clip with its tracks."""

    name: str
    frames: UInt8[Tensor, "t 3 h w"]
    xy: Float[Tensor, "n t 2"]
    visible: Bool[Tensor, "n t"]

    def tapvid_entry(self) -> dict[str, np.ndarray]:
        """The clip in TAP-Vid format: JPEG frames, points in [0, 1], and occlusion."""
        height, width = self.frames.shape[-2:]
        pictures = rearrange(self.frames, "t c h w -> t h w c").numpy()
        return {
            "video": np.array([encode_jpeg(picture, QUALITY) for picture in pictures]),
            "points": (self.xy / torch.tensor([width, height])).numpy().astype(np.float32),
            "occluded": ~self.visible.numpy(),
        }


@dataclass(frozen=True)
class Occluder:
    """A cut-out of a picture that moves on a straight line and turns."""

    picture: Float[Tensor, "4 s s"]
    """Colors and opacity."""
    half: float
    """Half of its side in the frame, in pixels."""
    center: Float[Tensor, "2"]
    """Its center in the first frame."""
    velocity: Float[Tensor, "2"]
    angle: float
    turn: float
    """Radians per frame."""

    def look_up(self, xy: Float[Tensor, "n 2"], frame: int) -> Float[Tensor, "n 4"]:
        """Color and opacity at points of a frame; transparent outside."""
        away = xy - self.center - frame * self.velocity
        local = away @ rotation(self.angle + frame * self.turn) / self.half
        found = F.grid_sample(self.picture[None], local[None, None], align_corners=False)
        return rearrange(found, "1 c 1 n -> n c")

    def paste(self, picture: Float[Tensor, "3 h w"], frame: int) -> Float[Tensor, "3 h w"]:
        """The frame with the occluder in front of it."""
        hw = picture.shape[-2], picture.shape[-1]
        own = rearrange(self.look_up(pixel_centers(hw).flatten(0, 1), frame), "(h w) c -> c h w", h=hw[0])
        return torch.lerp(picture, own[:3], own[3:])

    def hides(self, xy: Float[Tensor, "n t 2"]) -> Bool[Tensor, "n t"]:
        """Whether points of every frame are behind it."""
        frames = enumerate(xy.unbind(1))
        return torch.stack([self.look_up(places, frame)[:, 3] > 0.5 for frame, places in frames], dim=1)


@dataclass(frozen=True)
class VideoTracks:
    """A numbered series of annotated clips; clip i depends on the videos, the pictures and the seed only."""

    videos: VideoPairs
    pictures: ImagePool
    """Textures of occluders."""
    tracks: int = 256
    seed: int = 0

    def __call__(self, number: int) -> AnnotatedClip:
        """Clip `number`: the first sample with enough tracks, or the last of several samples."""
        rng = numpy_rng("video tracks", self.videos.split, self.seed, number)
        pictures, stride, xy, kept = self.sample(rng)
        for _ in range(ATTEMPTS - 1):
            if len(xy) >= MIN_TRACKS:
                break
            pictures, stride, xy, kept = self.sample(rng)
        chosen = torch.from_numpy(rng.permutation(len(xy))[: self.tracks].copy())
        xy, kept = xy[chosen][:, ::stride], kept[chosen][:, ::stride]
        clip = pictures[::stride].float() / 255
        hw = clip.shape[-2], clip.shape[-1]
        for _ in range(int(rng.integers(OCCLUDERS[0], OCCLUDERS[1] + 1))):
            occluder = self.occluder(xy, kept, hw, rng)
            clip = torch.stack([occluder.paste(picture, frame) for frame, picture in enumerate(clip)])
            kept = kept & ~occluder.hides(xy)
        return AnnotatedClip(f"video_{self.seed}_{number}", (clip * 255).round().to(torch.uint8), xy, kept)

    def sample(
        self, rng: np.random.Generator
    ) -> tuple[UInt8[Tensor, "t 3 h w"], int, Float[Tensor, "n t 2"], Bool[Tensor, "n t"]]:
        """Consecutive frames of a video, the step between those that are used, and `confirmed_tracks` of all."""
        stride = int(rng.choice(STRIDES))
        length = (FRAMES - 1) * stride + 1
        shots = [shot for shot in self.videos.shots if shot.stop - shot.start >= length]
        if not shots:
            raise InputError(f"No shot of the videos has {length} frames; give longer videos.")
        shot: Shot = shots[int(rng.integers(len(shots)))]
        first = int(rng.integers(shot.start, shot.stop - length + 1))
        frames = rearrange(
            torch.from_numpy(np.array(memmap(shot.frames)[first : first + length])), "t h w c -> t c h w"
        )
        return frames, stride, *confirmed_tracks(frames, MIN_FRAMES * stride, rng)

    def occluder(
        self, xy: Float[Tensor, "n t 2"], visible: Bool[Tensor, "n t"], hw: HW, rng: np.random.Generator
    ) -> Occluder:
        """A random occluder that meets a random point at a random time at which it is visible."""
        shown = visible.nonzero()
        point, time = shown[int(rng.integers(len(shown)))].tolist()
        speed, heading = max(0.0, float(rng.uniform(-SPEED / 3, SPEED))), rng.uniform(0, 2 * np.pi)
        velocity = torch.tensor([speed * np.cos(heading), speed * np.sin(heading)]).float()
        shape = F.interpolate(torch.from_numpy(outline(rng, 0.05))[None, None], (TEXTURE, TEXTURE), mode="bicubic")
        half = hw[0] * float(rng.uniform(*SIDES)) / 2
        # The outline is a distance in halves of the side: the edge is about a pixel wide.
        opacity = (shape[0] * half + 0.5).clamp(0, 1)
        picture = random_crop(self.pictures.draw(rng), rng, TEXTURE) * float(np.exp(rng.normal(0, 0.2)))
        turn = float(rng.normal(0, 0.03)) if speed else 0.0
        return Occluder(
            torch.cat((picture.clamp(0, 1), opacity)),
            half,
            xy[point, time] - time * velocity,
            velocity,
            float(rng.uniform(0, 2 * np.pi)),
            turn,
        )


def confirmed_tracks(
    frames: UInt8[Tensor, "t 3 h w"], least: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "n t 2"], Bool[Tensor, "n t"]]:
    """Tracks of random points of the first frame that a round trip confirms, and where they are in the frame.

    A track that leaves the frame ends there; none leaves before frame `least`.
    """
    cv2, search = dense_inverse_search()
    grays = [gray_image(cv2, frame) for frame in frames]
    hw = grays[0].shape
    start = torch.from_numpy(rng.uniform(0.02, 0.98, (POINTS, 2)) * hw[::-1]).float()
    places, kept = [start], [torch.ones(POINTS, dtype=torch.bool)]
    for before, after in pairwise(grays):
        xy, _ = follow(search, (before, after), places[-1])
        places.append(xy)
        kept.append(kept[-1] & inside(xy, hw))
    xy, inner = torch.stack(places, dim=1), torch.stack(kept, dim=1)
    last = inner.sum(1) - 1
    back = xy[:, -1]
    for time in range(len(grays) - 1, 0, -1):
        earlier, _ = follow(search, (grays[time], grays[time - 1]), back)
        back = torch.where((last >= time)[:, None], earlier, xy[:, time - 1])
    end = xy[torch.arange(POINTS), last]
    confirmed = ((back - start).norm(dim=-1) <= TRACK_ERROR) & (last >= least)
    for time in last.unique().tolist():
        rows = (last == time).nonzero()[:, 0]
        confirmed[rows] &= correlation(grays[0], start[rows], grays[time], end[rows]) >= MIN_CORRELATION
    return xy[confirmed], inner[confirmed]


def write_annotated(
    source: VideoTracks, out: Path, clips: int, per_file: int = 16, shard: Shard | None = None
) -> Iterator[Path]:
    """Write pickles in TAP-Vid format, as `lpa-cwm data annotate` does; complete files are kept.

    Args:
        source: The clips.
        out: Folder of the files.
        clips: Number of clips in all.
        per_file: Clips in each file.
        shard: Which files are written; by default all.
    """
    claims = out / "annotated.json"
    shots = seed_of(*(f"{shot.clip} {shot.start} {shot.stop}" for shot in source.videos.shots))
    settings = {"split": source.videos.split, "seed": source.seed, "tracks": source.tracks, "shots": f"{shots:016x}"}
    pin_settings(claims, settings | {"clips": clips, "per_file": per_file, "pictures": len(source.pictures.files)})
    count = -(-clips // per_file)
    paths = {file: out / f"video-{file:05d}-of-{count:05d}.pkl" for file in (shard or Shard()).of(count)}
    yield from (path for path in paths.values() if is_complete_pickle(path))
    for file in share_pieces(claims, list(paths), lambda file: is_complete_pickle(paths[file])):
        numbers = range(file * per_file, min((file + 1) * per_file, clips))
        made = map(source, progress(numbers, len(numbers), f"file {file + 1} of {count}"))
        with atomic_write(paths[file]) as temporary:
            temporary.write_bytes(pickle.dumps({clip.name: clip.tapvid_entry() for clip in made}))
        yield paths[file]


def is_complete_pickle(path: Path) -> bool:
    """Whether a file of clips exists and is whole; a truncated one is made again."""
    try:
        return path.exists() and bool(load_pickle(path))
    except InputError:
        return False
