"""Annotated clips of natural video without labels: tracks that optical flow confirms, and pasted occluders.

Points are tracked through a clip and back again (`video_flow.follow`). A track is kept if it returns to its start and
if the squares around both ends correlate. Cut-outs of pictures then move over the clip and hide some of the points.
These occlusions are exact, while colors, noise, blur and motion are those of real video. Points are never hidden by
the scene itself.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, pin_settings, share_pieces
from lpa_cwm.geometry import HW, inside, pixel_centers
from lpa_cwm.io.safe_load import load_pickle
from lpa_cwm.jobs import Shard, progress
from lpa_cwm.rng import numpy_rng, seed_of
from lpa_cwm.synth.images import ImagePool, encode_jpeg, outline, random_crop
from lpa_cwm.synth.layered import rotation
from lpa_cwm.synth.pairs import Shot, VideoPairs, memmap
from lpa_cwm.synth.video_flow import ALIKE, correlation, dense_inverse_search, follow, gray_image

FRAMES = 24
STRIDES = (1, 2, 3)
"""Steps between the frames that are used; the flow goes through all frames."""
POINTS = 600
"""Points that are tracked."""
CLOSED = 1.5
"""Largest error of a round trip through the whole clip, in pixels."""
LEAST_TRACKS, LEAST_FRAMES = 16, 8
"""Least number of tracks of a clip, if possible; least number of frames in which a track stays in the frame."""
ATTEMPTS = 10
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
            if len(xy) >= LEAST_TRACKS:
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
        return frames, stride, *confirmed_tracks(frames, LEAST_FRAMES * stride, rng)

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
    confirmed = ((back - start).norm(dim=-1) <= CLOSED) & (last >= least)
    for time in last.unique().tolist():
        rows = (last == time).nonzero()[:, 0]
        confirmed[rows] &= correlation(grays[0], start[rows], grays[time], end[rows]) >= ALIKE
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
        with atomic_write(paths[file]) as aside:
            aside.write_bytes(pickle.dumps({clip.name: clip.tapvid_entry() for clip in made}))
        yield paths[file]


def is_complete_pickle(path: Path) -> bool:
    """Whether a file of clips exists and is whole; a truncated one is made again."""
    try:
        return path.exists() and bool(load_pickle(path))
    except InputError:
        return False
