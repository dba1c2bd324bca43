"""Shadows of the lamp, and the dimness close to the ground, from maps of the bodies along one direction."""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor

from lpa_cwm.data.sim.scene import Scene

HALF = 12.0
"""The maps cover the ground from minus to plus this."""
FAR = 40.0
BIAS, SOFT = 0.05, 0.12
"""A body that is less than the first above a point does not shade it, and shades it fully from their sum on."""
PENUMBRA = 0.09
NEARBY = 0.4
"""Height over which the ground's dimness under a body fades."""
TAPS = np.array([(0.0, 0.0)] + [(np.cos(a), np.sin(a)) for a in np.arange(5) * 2 * np.pi / 5], dtype=np.float32)

Map = Float32[np.ndarray, "m m"]


@dataclass
class Silhouettes:
    """For points of the ground, how far along a line through them (from the ground) the bodies begin.

    Bodies that did not move since the last moment are not looked at again.
    """

    scene: Scene
    direction: Float32[np.ndarray, "3"]
    empty: float
    """The value where there is no body."""
    texels: int
    _known: dict[int, tuple[bytes, tuple[slice, slice], Map]] = field(default_factory=dict)

    def at(self, moment: int) -> Map:
        """The map at a moment."""
        whole = np.full((self.texels, self.texels), self.empty, dtype=np.float32)
        for number in range(len(self.scene.meshes)):
            window, part = self._body(number, moment)
            whole[window] = np.minimum(whole[window], part)
        return whole

    def _body(self, number: int, moment: int) -> tuple[tuple[slice, slice], Map]:
        pose = self.scene.motion.poses[moment, number]
        state = np.concatenate((pose.position, pose.rotation.ravel())).round(4).tobytes()
        if number not in self._known or self._known[number][0] != state:
            self._known[number] = (state, *self._look(number, moment))
        return self._known[number][1:]

    def _look(self, number: int, moment: int) -> tuple[tuple[slice, slice], Map]:
        mesh, size = self.scene.meshes[number], self.scene.scale[number]
        pose = self.scene.motion.poses[moment, number]
        corners = size * mesh.box @ pose.rotation.T + pose.position
        shadow = corners[:, :2] - corners[:, 2:] * self.direction[:2] / self.direction[2]
        texel = 2 * HALF / self.texels
        low = np.clip(np.floor((shadow.min(0) + HALF) / texel), 0, self.texels).astype(int)
        high = np.clip(np.ceil((shadow.max(0) + HALF) / texel), 0, self.texels).astype(int)
        x, y = np.meshgrid(np.arange(low[0], high[0]), np.arange(low[1], high[1]))
        window = (slice(low[1], high[1]), slice(low[0], high[0]))
        if not x.size:
            return window, np.zeros(x.shape, dtype=np.float32)
        flat = texel * (np.stack((x.ravel(), y.ravel()), axis=-1) + 0.5) - HALF
        ground = np.concatenate((flat, np.zeros_like(flat[:, :1])), axis=-1)
        start = (ground - FAR * self.direction - pose.position) @ pose.rotation / size
        towards = np.broadcast_to((self.direction @ pose.rotation).astype(np.float32), start.shape)
        reach = mesh.rays.run(start.astype(np.float32), towards, query="DISTANCE") * np.float32(size) - np.float32(FAR)
        return window, np.minimum(reach, self.empty).reshape(x.shape).astype(np.float32)


@dataclass
class Shadows:
    """Which share of the lamp, and of the light from around, reaches points at a moment."""

    scene: Scene
    texels: int

    def __post_init__(self) -> None:
        towards = self.scene.environment.light.towards
        self._lamp = Silhouettes(self.scene, -towards, 0.0, self.texels)
        self._below = Silhouettes(self.scene, np.array([0, 0, 1], dtype=np.float32), FAR, self.texels // 2)
        self._moment, self._maps = -1, (torch.empty(0), torch.empty(0))

    def of(
        self, moment: int, point: Float32[np.ndarray, "n 3"]
    ) -> tuple[Float32[np.ndarray, "n"], Float32[np.ndarray, "n"]]:
        """Share of the lamp, share of the surroundings."""
        if moment != self._moment:
            lamp = torch.from_numpy(self._lamp.at(moment))
            self._moment, self._maps = moment, (lamp, dimness(self._below.at(moment)))
        return self._sunlit(point), self._open(point)

    def _sunlit(self, point: Float32[np.ndarray, "n 3"]) -> Float32[np.ndarray, "n"]:
        towards = self.scene.environment.light.towards
        foot = point[:, :2] - point[:, 2:] * (towards[:2] / towards[2])
        own = -point[:, 2] / towards[2] - np.float32(BIAS)
        total = np.zeros(len(point), dtype=np.float32)
        for offset in TAPS * np.float32(PENUMBRA):
            above = own - read(self._maps[0], foot + offset)
            total += np.clip(above / np.float32(SOFT), 0, 1)
        return 1 - total / len(TAPS)

    def _open(self, point: Float32[np.ndarray, "n 3"]) -> Float32[np.ndarray, "n"]:
        near = np.exp(-np.maximum(point[:, 2], 0) / np.float32(NEARBY))
        return 1 - near * read(self._maps[1], point[:, :2])


def read(values: Float[Tensor, "m m"], ground: Float32[np.ndarray, "n 2"]) -> Float32[np.ndarray, "n"]:
    """A map's values at points of the ground; beyond the map, those of its border."""
    grid = torch.from_numpy(ground / np.float32(HALF))[None, None]
    return F.grid_sample(values[None, None], grid, padding_mode="border", align_corners=False)[0, 0, 0].numpy()


def dimness(height: Map) -> Float[Tensor, "m m"]:
    """Share of the light from around that the ground loses, given how high above it the bodies begin."""
    cover = torch.from_numpy(0.85 * np.exp(-np.maximum(height, 0) / NEARBY).astype(np.float32))[None]
    reach = max(1, round(0.25 * len(height) / (2 * HALF)))
    for _ in range(2):
        cover = F.avg_pool2d(cover, 2 * reach + 1, stride=1, padding=reach)
    return cover[0]
