"""Re-evaluation at the clip's own resolution: small crops around a point and around the place where it was found.

The first pass sees whole frames at the size of the world model. Here every point has pairs of crops in the clip's own
pixels: around its position in a source frame, and around its endpoint in the target. Fresh masks are drawn over the
crops; the responses of all sources count alike, as in the paper's re-evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import distribution
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import constant, unit_range
from lpa_cwm.masks import balanced_masks
from lpa_cwm.protocols import CropWorldModel, WorldModel
from lpa_cwm.rng import KeyPart

CROP = 64
"""Side of the crops in pixels of the clip."""
HIDDEN_SHARE = 2 / 3
"""Of the patches of a crop; with nine tenths hidden, too few would be left to tell how the point moves."""
MASKS = 3
"""Per source; together they hide every patch."""
AT_ONCE = 32
"""Points whose crops are in memory at once on a CPU."""
MAX_DESCRIBED = 1024
"""Described crops that a frame keeps; each takes 150 kB."""


@dataclass(frozen=True, slots=True)
class PointSource:
    """Where points were in an earlier frame."""

    frame: UInt8[Tensor, "3 h w"]
    xy: Float[Tensor, "n 2"]
    described: dict[tuple[int, int], Any] = field(default_factory=dict)
    """Crops of the frame as the world model describes them, by their corners; those of a query serve all targets."""

    def rows(self, rows: Int[Tensor, "k"] | slice) -> "PointSource":
        """Some of the points."""
        return PointSource(self.frame, self.xy[rows], self.described)

    def corners(self, patch: int) -> Int[Tensor, "n 2"]:
        """Corners of the points' crops."""
        return corners(self.xy, (self.frame.shape[-2], self.frame.shape[-1]), patch)

    def describe(self, world: CropWorldModel) -> list[Any]:
        """The crops of all points, each described once."""
        places = [(x, y) for x, y in self.corners(world.patch).tolist()]
        new = [place for place in dict.fromkeys(places) if place not in self.described]
        if new:
            crops = torch.stack([cut(self.frame, place) for place in new]).to(self.xy.device)
            found = dict(zip(new, world.describe_crops(crops), strict=True))
            if len(self.described) + len(new) > MAX_DESCRIBED:
                return [found[place] if place in found else self.described[place] for place in places]
            self.described.update(found)
        return [self.described[place] for place in places]


@dataclass(frozen=True, slots=True)
class NativeEndpoint:
    """Endpoints found in native crops, in pixels of the frame."""

    xy: Float[Tensor, "n 2"]
    strength: Float[Tensor, "n"]
    """Mean over the candidates of their largest magnitude."""
    spread: Float[Tensor, "n"]

    def put_stronger(self, rows: Int[Tensor, "k"], other: "NativeEndpoint") -> None:
        """Overwrite those of some rows whose other endpoint has the stronger response."""
        better = other.strength > self.strength[rows]
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            mine[rows] = torch.where(better[:, None] if theirs.ndim > 1 else better, theirs, mine[rows])


@dataclass(frozen=True, slots=True)
class NativeRefiner:
    """Re-evaluates endpoints in one target frame."""

    world: WorldModel
    target: UInt8[Tensor, "3 h w"]
    config: TrackerConfig
    identity: tuple[KeyPart, ...]
    """Fixes the masks."""

    def refine(self, sources: Sequence[PointSource], center: Float[Tensor, "n 2"]) -> NativeEndpoint:
        """Endpoints near `center` by fresh masks in native crops around it and around the points of every source."""
        hidden, at_once = self._masks(len(sources)).to(center.device), crops_at_once(center.device, self.config)
        parts = [
            self._refine_some([source.rows(some) for source in sources], center[some], hidden)
            for some in (slice(first, first + at_once) for first in range(0, len(center), at_once))
        ]
        return NativeEndpoint(*(torch.cat([getattr(p, entry.name) for p in parts]) for entry in fields(NativeEndpoint)))

    def _refine_some(
        self, sources: Sequence[PointSource], center: Float[Tensor, "n 2"], hidden: Bool[Tensor, "k m p"]
    ) -> NativeEndpoint:
        world = self.world
        if not isinstance(world, CropWorldModel):
            raise InputError(
                "Re-evaluation `native` was asked for, but this world model cannot answer in crops; "
                "use the world model `learned`, or re-evaluation `joint` or `query`."
            )
        corner = corners(center, (self.target.shape[-2], self.target.shape[-1]), world.patch)
        there = torch.stack([cut(self.target, place) for place in corner.tolist()]).to(center.device)
        here = [source.describe(world) for source in sources]
        xy = torch.stack([source.xy - source.corners(world.patch) for source in sources])
        response = world.respond(here, there, xy, center - corner, hidden)
        start = distribution(response.mean_where_hidden(hidden.flatten(0, 1)), self.config)
        strength = response.peaks(response.magnitude())[1].mean(1)
        return NativeEndpoint(start.decode(self.config.subpixel) + corner, strength, start.moments()[1])

    def _masks(self, sources: int) -> Bool[Tensor, "k m p"]:
        """Masks of every source, the same for all points."""
        patches = (CROP // self.world.patch) ** 2
        keys = [(*self.identity, "native", number) for number in range(sources)]
        return torch.stack([balanced_masks(MASKS, patches, *key, hidden_share=HIDDEN_SHARE) for key in keys])


def crops_at_once(device: torch.device, config: TrackerConfig) -> int:
    """Points whose crops are in memory at once; a GPU takes as many as queries of a first pass."""
    return AT_ONCE if device.type == "cpu" else config.batch


def corners(xy: Float[Tensor, "n 2"], hw: tuple[int, int], patch: int) -> Int[Tensor, "n 2"]:
    """Corners of crops around points, in whole pixels, shifted to stay inside frames that are large enough.

    Elsewhere a point is in the middle of a patch next to the crop's middle: most of its response lies in that patch.
    """
    room = constant((max(hw[1] - CROP, 0), max(hw[0] - CROP, 0)), torch.long, xy.device)
    return torch.minimum((xy - (CROP - patch) / 2).round().long().clamp(min=0), room)


def cut(frame: UInt8[Tensor, "3 h w"], corner: Sequence[int]) -> Float[Tensor, "3 s s"]:
    """A crop in [0, 1]; beyond a frame that is smaller its border is repeated."""
    x, y = corner
    part = unit_range(frame[:, y : y + CROP, x : x + CROP])
    down, right = CROP - part.shape[-2], CROP - part.shape[-1]
    if not (down or right):
        return part
    return torch.nn.functional.pad(part[None], (0, right, 0, down), mode="replicate")[0]
