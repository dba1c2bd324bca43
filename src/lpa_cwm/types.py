"""The values that travel between stages.

Axes: n queries or tracks, m candidates (masks), t frames, h w pixels, p patches. A point is `xy` as in `geometry`.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.geometry import HW


@runtime_checkable
class Frames(Protocol):
    """Frames by number, as uint8 [3 h w]; a tensor [t 3 h w] is one, a file decoded on demand another."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames of one video; the name is part of the identity that fixes all randomness."""

    frames: Frames
    name: str
    fps: float = 24.0

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        return self.frames[index]

    @property
    def hw(self) -> HW:
        """Height and width of the frames."""
        height, width = self.frames[0].shape[-2:]
        return height, width


@dataclass(frozen=True, slots=True)
class Queries:
    """Points to follow, each given in a frame of its own, in the clip's pixels."""

    xy: Float[Tensor, "n 2"]
    frame: Int[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.frame)


@dataclass(frozen=True, slots=True)
class Tracks:
    """Where each point is in each frame and whether it can be seen; NaN and hidden before its query."""

    xy: Float[Tensor, "n t 2"]
    visible: Bool[Tensor, "n t"]
    strength: Float[Tensor, "n t"] | None = None
    """Response strength of the final pass: the visibility rule compares it with a threshold."""
    support: Float[Tensor, "n t"] | None = None
    """Effective number of candidates that were believed, exp of the weights' entropy."""
    spread: Float[Tensor, "n t"] | None = None
    """Root-mean-square spread of the final response distribution, in the clip's pixels."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One annotated video."""

    clip: Clip
    queries: Queries
    truth: Tracks


@dataclass(frozen=True, slots=True)
class Pair:
    """Source and target frame at working size, RGB in [0, 1], and the points queried in the source."""

    source: Float[Tensor, "3 h w"]
    target: Float[Tensor, "3 h w"]
    xy: Float[Tensor, "n 2"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """For each query one signed response per mask, and the point where it is strongest (Eq. 1-2)."""

    response: Float[Tensor, "n m 3 h w"]
    peak: Float[Tensor, "n m 2"]
