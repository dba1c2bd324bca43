"""Simulated clips: frames, exact motion between any two frames, and training pairs."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float32, Int16, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.rng import KeyPart, numpy_rng
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.camera import Camera, RayHits
from lpa_cwm.simulator.poses import Points
from lpa_cwm.simulator.render import FrameRenderer, RenderSettings, raster_centers
from lpa_cwm.simulator.scene import SceneConfig, SimulatedScene, sample_scene, scene_config
from lpa_cwm.synth.pairs import Example

TRACK_FRAMES = 8
"""Number of frames in which the points of tracks are sampled."""


@dataclass(frozen=True)
class DenseFlow:
    """Optical flow and visibility of each pixel from one frame to another."""

    offset: Float32[np.ndarray, "h w 2"]
    """(dx, dy); NaN where the point is behind the camera."""
    visible: Bool[np.ndarray, "h w"]
    """Whether the point is inside the other frame and not occluded."""


@dataclass(frozen=True)
class PointTracks:
    """Ground-truth tracks of material points."""

    xy: Float32[np.ndarray, "n t 2"]
    visible: Bool[np.ndarray, "n t"]
    body: Int16[np.ndarray, "n"]


@dataclass(frozen=True, eq=False)
class SimulatedClip:
    """The frames of one scene; frames and hits are computed when they are read, once."""

    name: str
    scene: SimulatedScene
    settings: RenderSettings
    _hits: dict[int, RayHits] = field(default_factory=dict, repr=False)
    _pictures: dict[int, UInt8[np.ndarray, "h w 3"]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.scene.config.frames

    @cached_property
    def _camera(self) -> Camera:
        return Camera(self.scene, self.settings.size)

    @cached_property
    def _renderer(self) -> FrameRenderer:
        return FrameRenderer(self._camera, self.settings)

    def hits(self, frame: int) -> RayHits:
        """Ray hits of the pixel centers of a frame."""
        if frame not in self._hits:
            self._hits[frame] = self._camera.cast(self.scene.moment(frame), raster_centers(self.settings.size))
        return self._hits[frame]

    def picture(self, frame: int) -> UInt8[np.ndarray, "h w 3"]:
        """Render a frame."""
        if frame not in self._pictures:
            self._pictures[frame] = self._renderer.picture(frame, self.hits(frame))
        return self._pictures[frame]

    def body(self, frame: int) -> Int16[np.ndarray, "h w"]:
        """Body index per pixel: 0 is the environment, k is body k - 1."""
        return self.hits(frame).body.reshape(self.settings.size, self.settings.size)

    def flow(self, source: int, target: int) -> DenseFlow:
        """Flow from one frame to another; the target may be one frame outside the clip."""
        size, hits = self.settings.size, self.hits(source)
        moment = self.scene.moment(target)
        xy, seen = self._camera.project_visible(moment, self.scene.place(hits.local, hits.body, moment))
        offset = np.ascontiguousarray((xy - raster_centers(size)).T)
        return DenseFlow(offset.reshape(size, size, 2), seen.reshape(size, size))

    def tracks(self, count: int) -> PointTracks:
        """Tracks of random points: a third each on moving bodies, resting bodies and the environment."""
        local, body = self._points(count)
        xy = np.empty((count, len(self), 2), dtype=np.float32)
        seen = np.empty((count, len(self)), dtype=bool)
        for frame in range(len(self)):
            moment = self.scene.moment(frame)
            place, seen[:, frame] = self._camera.project_visible(moment, self.scene.place(local, body, moment))
            xy[:, frame] = place.T
        return PointTracks(xy, seen, body)

    def _points(self, count: int) -> tuple[Points, Int16[np.ndarray, "n"]]:
        """Material points that are visible in at least one frame."""
        rng = numpy_rng("tracks", self.name)
        frames = rng.permutation(len(self))[:TRACK_FRAMES].tolist()
        each = -(-8 * count // len(frames))
        found = []
        for frame in frames:
            xy = rng.uniform(0, self.settings.size, (2, each)).astype(np.float32)
            found.append(self._camera.cast(self.scene.moment(frame), xy))
        local = np.concatenate([hits.local for hits in found], axis=1)
        body = np.concatenate([hits.body for hits in found])
        kind = np.concatenate(([0], 1 + self.scene.moving))[body]
        share = (1 / np.bincount(kind, minlength=3).clip(1))[kind]
        chosen = rng.choice(len(body), count, replace=False, p=share / share.sum())
        return local[:, chosen], body[chosen]


def simulate_clip(
    identity: tuple[KeyPart, ...], config: SceneConfig | str, assets: Assets, settings: RenderSettings | None = None
) -> SimulatedClip:
    """The clip of an identity; the scene does not depend on the frame size."""
    known = scene_config(config) if isinstance(config, str) else config
    name = "-".join([known.name, assets.split, *map(str, identity)])
    return SimulatedClip(name, sample_scene(known, assets, identity), settings or RenderSettings())


STEPS = 3


def channels_first(image: np.ndarray) -> Tensor:
    """[h w c] to [c h w]."""
    return rearrange(torch.from_numpy(image), "h w c -> c h w").contiguous()


@dataclass(frozen=True)
class SimulatedPairs:
    """Simulated clips as a source of pairs with exact flow and visibility.

    Simulation and rendering dominate the cost, so each clip gives six pairs: three steps of a random walk through its
    frames, each in both directions.
    """

    config: SceneConfig
    assets: Assets
    seed: int = 0
    gaps: tuple[int, int] = (1, 8)
    """Minimum and maximum number of frames between source and target."""
    name: str = "simulated"
    _last: dict[tuple[int, int], SimulatedClip] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.gaps[0] <= self.gaps[1] <= self.config.frames // 2:
            raise InputError(
                f"The gaps are {self.gaps}; expected the fewest and the most frames from source to target, from 1 to "
                f"{self.config.frames // 2}, half the clip."
            )

    def __getstate__(self) -> dict[str, Any]:
        # Embree scenes cannot be pickled; the other process makes them again.
        return {**self.__dict__, "_last": {}}

    def pair(self, index: int, size: int) -> Example:
        """Pair `index` at `size` x `size` pixels."""
        number, turn = divmod(index, 2 * STEPS)
        clip = self._clip(number, size)
        source, target = self._walk(number)[turn // 2 :][:2][:: -1 if turn % 2 else 1]
        flow = clip.flow(source, target)
        return Example(
            source=channels_first(clip.picture(source)),
            target=channels_first(clip.picture(target)),
            flow=channels_first(flow.offset),
            visible=torch.from_numpy(flow.visible),
        )

    def _walk(self, number: int) -> list[int]:
        """Frames of the random walk, each a gap away from the previous one."""
        rng = numpy_rng("simulated pairs", self.config.name, self.assets.split, self.seed, number)
        last = self.config.frames - 1
        frames = [int(rng.integers(last + 1))]
        for gap in rng.integers(self.gaps[0], self.gaps[1] + 1, STEPS).tolist():
            reached = [frame for frame in (frames[-1] - gap, frames[-1] + gap) if 0 <= frame <= last]
            frames.append(reached[int(rng.integers(len(reached)))])
        return frames

    def _clip(self, number: int, size: int) -> SimulatedClip:
        """Clip `number`; the last clip is kept, because its pairs are read in sequence."""
        if (number, size) not in self._last:
            self._last.clear()
            self._last[number, size] = simulate_clip(
                (self.seed, number), self.config, self.assets, RenderSettings(size)
            )
        return self._last[number, size]
