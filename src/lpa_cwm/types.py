"""The values that travel between stages.

Axes: n queries or tracks, m candidates (masks), t frames, h w pixels, p patches. A point is `xy` as in `geometry`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW, pixel_centers, rescale
from lpa_cwm.responses import Responses, join_masks

PATH_NAMES = ("log2_gap", "source_belief", "source_given", "log_step", "log2_age")
"""Statistics of a candidate's path through time: frames between source and target; reliability of the point's position
in the source (response strength in units of the visibility threshold; 1 if the position was given); whether it was
given; distance in pixels from the point's last visible position; and frames since then."""


@runtime_checkable
class Frames(Protocol):
    """Frames by number, as uint8 [3 h w]: a tensor [t 3 h w], or a file that is decoded on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames of one video; the name is part of the identity that fixes all randomness.

    Examples:
        >>> clip = Clip(torch.zeros(5, 3, 32, 48, dtype=torch.uint8), "black", fps=12.0)
        >>> len(clip), clip.hw
        (5, (32, 48))
    """

    frames: Frames
    """Frames by number, uint8 [3 h w]; a tensor [t 3 h w], or frames that are decoded on demand."""
    name: str
    """Identity of the video; it fixes the masks."""
    fps: float = 24.0
    """Frames per second."""

    def __repr__(self) -> str:
        return f"Clip({self.name!r}, {len(self)} frames, {self.fps:g} per second)"

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
class ReversedFrames:
    """Frames of a clip from the last to the first."""

    clip: Clip

    def __len__(self) -> int:
        return len(self.clip)

    def __getitem__(self, index: int) -> Tensor:
        return self.clip[len(self.clip) - 1 - index]


@dataclass(frozen=True, slots=True)
class Queries:
    """Points to track, each given in a frame of its own, in the clip's pixels.

    Examples:
        >>> points = Queries(torch.tensor([[120.0, 80.0], [200.0, 140.0]]), frame=torch.tensor([0, 12]))
        >>> len(points)
        2
    """

    xy: Float[Tensor, "n 2"]
    """Positions in pixels; (0, 0) is the corner of the image."""
    frame: Int[Tensor, "n"]
    """Frame number of each position."""
    track: Int[Tensor, "n"] | None = None
    """Track numbers from 0 on; further positions of a track correct it. By default every point is a track."""

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def tracks(self) -> Int[Tensor, "n"]:
        """Number of the track of each point."""
        return torch.arange(len(self.frame)) if self.track is None else self.track


@dataclass(frozen=True, slots=True)
class Grid:
    """Queries on a regular grid in the middle of equal cells of one frame, whatever the clip's size.

    Examples:
        >>> Grid(2).on((100, 200)).xy.tolist()
        [[50.0, 25.0], [150.0, 25.0], [50.0, 75.0], [150.0, 75.0]]
    """

    side: int
    """Points a side."""
    frame: int = 0
    """Frame of the points."""

    def on(self, hw: HW) -> Queries:
        """The grid's points in a clip of this size.

        Args:
            hw: Height and width of the clip's frames, in pixels.
        """
        if self.side < 1:
            raise InputError(f"A grid of {self.side} points a side was asked for; give at least 1.")
        cells = (self.side, self.side)
        xy = rescale(pixel_centers(cells).flatten(0, 1), cells, hw)
        return Queries(xy, torch.full((self.side**2,), self.frame))


@dataclass(frozen=True, slots=True)
class Tracks:
    """Position and visibility of each point in each frame; NaN and hidden before its query.

    Examples:
        >>> tracks = Tracks(torch.rand(3, 5, 2), torch.ones(3, 5, dtype=torch.bool))
        >>> tracks
        Tracks(3 tracks, 5 frames, visible 100%)
        >>> len(tracks), tracks[0]
        (3, Tracks(1 track, 5 frames, visible 100%))
    """

    xy: Float[Tensor, "n t 2"]
    """Positions in the clip's pixels; that of a hidden point is a guess."""
    visible: Bool[Tensor, "n t"]
    """Whether the point is visible."""
    strength: Float[Tensor, "n t"] | None = None
    """Response strength of the final pass: the visibility rule compares it with a threshold."""
    support: Float[Tensor, "n t"] | None = None
    """Effective number of candidates, exp of the entropy of the weights."""
    spread: Float[Tensor, "n t"] | None = None
    """Root-mean-square spread of the final response distribution, in the clip's pixels."""
    confidence: Float[Tensor, "n t"] | None = None
    """Probability that the point is visible and within 8 pixels of the estimate at 256 x 256; 1 where it is given."""

    @classmethod
    def at_queries(cls, clip: Clip, queries: Queries) -> "Tracks":
        """Tracks to be filled: each query visible in its own frame; NaN and hidden elsewhere.

        Args:
            clip: The clip, for its number of frames.
            queries: The points, one track each.
        """
        rows = torch.arange(len(queries), device=queries.xy.device)
        xy = queries.xy.new_full((len(queries), len(clip), 2), torch.nan)
        xy[rows, queries.frame] = queries.xy
        visible = torch.zeros(xy.shape[:2], dtype=torch.bool, device=xy.device)
        visible[rows, queries.frame] = True
        return cls(xy, visible)

    def __repr__(self) -> str:
        count, frames = self.visible.shape
        known = int((~self.xy[..., 0].isnan()).sum())
        seen = int(self.visible.sum()) / max(1, known)
        return f"Tracks({count} track{'s' * (count != 1)}, {frames} frames, visible {seen:.0%})"

    def __len__(self) -> int:
        return len(self.visible)

    def __getitem__(self, rows: "int | slice | list[int] | Tensor") -> "Tracks":
        """Some of the tracks, with all their frames."""
        chosen = [rows] if isinstance(rows, int) else rows
        return Tracks(**{name: value[chosen] for name, value in self.known().items()})

    def _repr_html_(self) -> str:
        from lpa_cwm.io.visualization import player_html

        return player_html(self)

    @classmethod
    def load(cls, path: Path | str) -> "Tracks":
        """Read tracks that `save` wrote as `.npz`, `.csv` or `.json`.

        Args:
            path: The file; its suffix names the format.
        """
        from lpa_cwm.io.tracks import load_tracks

        return load_tracks(Path(path))

    def save(self, path: Path | str, format: str | None = None, clip: Clip | None = None) -> None:
        """Write `.csv` (a row per point and frame), `.json`, `.npz` (arrays), `.h5` (DeepLabCut) or `.xml` (CVAT).

        Args:
            path: The file; its suffix names the format.
            format: `tapvid` (.npz), `coco` (.json), `cvat` (.xml) or `deeplabcut` (.csv, .h5) instead.
            clip: The clip that was tracked, for the times, the name and the frame size.
        """
        from lpa_cwm.io.tracks import TrackSource, save_tracks

        source = TrackSource() if clip is None else TrackSource(None, clip.fps, clip.hw, clip.name)
        save_tracks(self, Path(path), source, format)

    def play(self, clip: Clip) -> Any:
        """A player for notebooks with the clip's frames below the tracks.

        Args:
            clip: The clip that was tracked.
        """
        from lpa_cwm.io.visualization import TrackPlayer

        return TrackPlayer(self, clip)

    def to_pandas(self) -> Any:
        """A data frame with a row per point and frame; needs pandas."""
        from lpa_cwm.io.tracks import to_pandas

        return to_pandas(self)

    def to_supervision(self, frame: int) -> Any:
        """The points of one frame as supervision's `KeyPoints`; needs supervision.

        Args:
            frame: Number of the frame.
        """
        from lpa_cwm.io.tracks import to_supervision

        return to_supervision(self, frame)

    def reversed(self) -> "Tracks":
        """The same tracks from the last frame to the first."""
        return Tracks(**{name: value.flip(1) for name, value in self.known().items()})

    def where(self, mask: Bool[Tensor, "n t"], other: "Tracks") -> "Tracks":
        """These tracks where the mask is true, the others elsewhere; fields that both know.

        Args:
            mask: Where these tracks are taken.
            other: Tracks of the same shape.
        """
        mask, theirs = mask.to(self.visible.device), other.known()
        return Tracks(
            **{
                name: torch.where(mask[..., None] if value.ndim == 3 else mask, value, theirs[name])
                for name, value in self.known().items()
                if name in theirs
            }
        )

    def known(self) -> dict[str, Tensor]:
        """The fields that are not None."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def overlay(self, clip: Clip, tail: int = 12, **style: Any) -> Iterator[UInt8[Tensor, "3 h w"]]:
        """The clip's frames with the tracks drawn on them.

        Args:
            clip: The clip that was tracked.
            tail: Frames that a tail reaches back.
            style: Other fields of `OverlayStyle`: `dot_size`, `numbers`, `color_by`, `side_by_side`, `scale`.
        """
        from lpa_cwm.io.visualization import OverlayStyle, overlay

        return overlay(self, clip, OverlayStyle(tail=tail, **style))


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
    """The source frame, RGB in [0, 1]."""
    target: Float[Tensor, "3 h w"]
    """The target frame."""
    xy: Float[Tensor, "n 2"]
    """Points of the source frame, in its pixels."""
    derived: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Values that an adjudicator computes once per source frame, by its own key; shared by all pairs of the source."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """For each query one signed response per mask (Eq. 1), and where it is strongest (Eq. 2)."""

    response: Responses
    """Responses of all queries and masks."""
    magnitude: Float[Tensor, "r q"]
    """L1 norm over the channels, for the pixels of the response's blocks."""
    peak: Float[Tensor, "n m 2"]
    """Center of the pixel of the largest magnitude."""
    strength: Float[Tensor, "n m"]
    """The largest magnitude."""
    path: Float[Tensor, "n m 3"] | None = None
    """The first three of `PATH_NAMES`, if they are known."""
    last_xy: Float[Tensor, "n 2"] | None = None
    """Last visible position of each point, in working pixels."""
    age: Float[Tensor, "n"] | None = None
    """Frames since then."""

    def by_path(self, gap: int, reliability: Float[Tensor, "n"] | None = None) -> "Candidates":
        """The same candidates with the path to their source: its distance in frames, and its reliability.

        Args:
            gap: Frames between the source and the target.
            reliability: That of each point's position in the source; None if the position was given.
        """
        given = torch.ones_like(self.strength) if reliability is None else torch.zeros_like(self.strength)
        trust = given if reliability is None else reliability[:, None].expand_as(given)
        return replace(self, path=torch.stack((torch.full_like(given, gap).log2(), trust, given), dim=-1))

    @classmethod
    def of(cls, response: Responses) -> "Candidates":
        """Candidates from the responses alone.

        Args:
            response: Responses of all queries and masks.
        """
        magnitude = response.magnitude()
        return cls(response, magnitude, *response.peaks(magnitude))

    @classmethod
    def join(cls, parts: "list[Candidates]") -> "Candidates":
        """One set per query from several sets of the same queries.

        Args:
            parts: Candidates of the same queries from several sources.
        """
        if len(parts) == 1:
            return parts[0]
        response, order = join_masks([part.response for part in parts])
        paths = [part.path for part in parts if part.path is not None]
        return cls(
            response,
            torch.cat([part.magnitude for part in parts])[order],
            torch.cat([part.peak for part in parts], dim=1),
            torch.cat([part.strength for part in parts], dim=1),
            torch.cat(paths, dim=1) if len(paths) == len(parts) else None,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an adjudicator decides about the candidates of each query."""

    weights: Float[Tensor, "n m"]
    """Non-negative, sum to one."""
    visibility: Float[Tensor, "n"]
    """Factor of the response strength that is compared with the visibility threshold; 1 leaves it as it is."""

    @classmethod
    def of(cls, weights: Float[Tensor, "n m"]) -> "Judgement":
        """Normalize weights to sum to one per query, uniform where all are zero; the visibility factor is 1.

        Args:
            weights: Weight of each candidate; those of a query sum to one.

        Examples:
            >>> Judgement.of(torch.full((1, 4), 0.25)).visibility
            tensor([1.])
        """
        total = weights.sum(1, keepdim=True)
        normalized = torch.where(total > 0, weights / total, 1 / weights.shape[1])
        return cls(normalized, torch.ones_like(normalized[:, 0]))

    @property
    def support(self) -> Float[Tensor, "n"]:
        """Effective number of candidates, exp of the weights' entropy: 1 for one-hot, M for uniform."""
        return torch.special.entr(self.weights).sum(-1).exp()
