"""Shadows of the lamp, and the dimness close to the ground, from maps of the bodies along one direction."""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor

from lpa_cwm.geometry import axis_centers
from lpa_cwm.simulator.poses import FramePoints, Numbers, Points
from lpa_cwm.simulator.scene import Scene

HALF = 12.0
"""The maps cover the ground from minus to plus this."""
FAR = 40.0
BIAS, SOFT = 0.05, 0.12
"""A body that is less than the first above a point does not shade it, and shades it fully from their sum on."""
PENUMBRA = 0.09
NEARBY = 0.4
"""Height over which the ground's dimness under a body fades."""
TAPS = np.array([(0.0, 0.0)] + [(np.cos(a), np.sin(a)) for a in np.arange(5) * 2 * np.pi / 5], dtype=np.float32)

Map = Float32[np.ndarray, "h w"]


@dataclass
class Silhouettes:
    """For points of the ground, how far along a line through them (from the ground) the bodies begin.

    Bodies that hardly moved are not looked at again; which moments share a look depends on the motion alone.
    """

    scene: Scene
    direction: Float[np.ndarray, "3"]
    empty: float
    """The value where there is no body."""
    texels: int
    _known: dict[int, tuple[int, tuple[slice, slice], Map]] = field(default_factory=dict)

    def at(self, moment: int) -> Map:
        """The map at a moment."""
        whole = np.full((self.texels, self.texels), self.empty, dtype=np.float32)
        for number in range(len(self.scene.meshes)):
            window, part = self._body(number, moment)
            whole[window] = np.minimum(whole[window], part)
        return whole

    def _body(self, number: int, moment: int) -> tuple[tuple[slice, slice], Map]:
        stand = int(self.scene.motion.stands[moment, number])
        if number not in self._known or self._known[number][0] != stand:
            self._known[number] = (stand, *self._look(number, stand))
        return self._known[number][1:]

    def _look(self, number: int, moment: int) -> tuple[tuple[slice, slice], Map]:
        mesh, size = self.scene.meshes[number], self.scene.scale[number]
        pose = self.scene.motion.poses[moment, number]
        corners = size * mesh.box @ pose.rotation.T + pose.position
        shadow = corners[:, :2] - corners[:, 2:] * self.direction[:2] / self.direction[2]
        texel = 2 * HALF / self.texels
        low = np.clip(np.floor((shadow.min(0) + HALF) / texel), 0, self.texels).astype(int)
        high = np.clip(np.ceil((shadow.max(0) + HALF) / texel), 0, self.texels).astype(int)
        x, y = (texel * axis_centers(first, last) - HALF for first, last in zip(low, high, strict=True))
        window = (slice(low[1], high[1]), slice(low[0], high[0]))
        # Rays from far away through every texel, in the body's own coordinates.
        origin = (-FAR * self.direction - pose.position) @ pose.rotation / size
        across, along = (
            np.outer(ticks, pose.rotation[axis] / size).astype(np.float32) for axis, ticks in enumerate((x, y))
        )
        start = (across + (along + origin.astype(np.float32))[:, None]).reshape(-1, 3)
        towards = np.broadcast_to((self.direction @ pose.rotation).astype(np.float32), start.shape)
        reach = mesh.rays.run(start, towards, query="DISTANCE") * np.float32(size) - np.float32(FAR)
        return window, np.minimum(reach, np.float32(self.empty)).reshape(len(y), len(x))


@dataclass
class Shadows:
    """Which share of the lamp, and of the light from around, reaches points at a moment."""

    scene: Scene
    texels: int

    def __post_init__(self) -> None:
        towards = self.scene.environment.light.towards[:, 0]
        self._lamp = Silhouettes(self.scene, -towards, 0.0, self.texels)
        self._below = Silhouettes(self.scene, np.array([0.0, 0.0, 1.0]), FAR, self.texels // 6)
        self._moment, self._maps = -1, (torch.empty(0, 0),) * 3

    def of(self, moment: int, point: Points) -> tuple[Numbers, Numbers]:
        """Share of the lamp, share of the surroundings."""
        if moment != self._moment:
            lamp = torch.from_numpy(self._lamp.at(moment))
            self._moment, self._maps = moment, (lamp, nearest_around(lamp), dimness(self._below.at(moment)))
        return self._sunlit(point), self._open(point)

    def _sunlit(self, point: Points) -> Numbers:
        towards = self.scene.environment.light.towards
        foot = point[:2] - point[2] * (towards[:2] / towards[2])
        own = point[2] * np.float32(-1 / towards[2, 0]) - np.float32(BIAS)
        lit = np.ones_like(own)
        near = np.flatnonzero(own > read(self._maps[1], foot))
        foot, own = foot.take(near, axis=1), own[near]
        hidden = np.zeros_like(own)
        for offset in TAPS * np.float32(PENUMBRA):
            above = own - read(self._maps[0], foot + offset[:, None])
            hidden += np.clip(above * np.float32(1 / SOFT), 0, 1)
        lit[near] -= hidden * np.float32(1 / len(TAPS))
        return lit

    def _open(self, point: Points) -> Numbers:
        near = np.exp(np.maximum(point[2], 0) * np.float32(-1 / NEARBY))
        return 1 - near * read(self._maps[2], point[:2])


def read(values: Float[Tensor, "m m"], ground: FramePoints) -> Numbers:
    """A map's values at points of the ground; beyond the map, those of its border."""
    grid = torch.from_numpy(ground * np.float32(1 / HALF)).T[None, None]
    return F.grid_sample(values[None, None], grid, padding_mode="border", align_corners=False)[0, 0, 0].numpy()


def nearest_around(heights: Float[Tensor, "m m"]) -> Float[Tensor, "k k"]:
    """A coarser map that is nowhere above any value within reach of a penumbra: where it is clear, all is clear."""
    wide = F.max_pool2d(-heights[None], (1, 9), stride=(1, 3), padding=(0, 4))
    return -F.max_pool2d(wide, (9, 1), stride=(3, 1), padding=(4, 0))[0]


def dimness(height: Map) -> Float[Tensor, "m m"]:
    """Share of the light from around that the ground loses, given how high above it the bodies begin."""
    cover = 0.85 * torch.exp(-torch.from_numpy(height).clamp(min=0) / NEARBY)[None]
    return F.avg_pool2d(cover, 3, stride=1, padding=1)[0]
