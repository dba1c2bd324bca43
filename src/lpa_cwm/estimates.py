"""Estimates of all tracks in one frame, and the calibrated probability that a point is visible and found.

A logistic regression (Platt scaling: Platt, 1999) reads what the tracker knows about an estimate. It gives the
*confidence*: the probability that the point can be seen in the frame and lies within eight pixels of the estimate at a
frame size of 256 x 256. A point is reported as visible if its confidence reaches a threshold. As in TAPIR (Doersch et
al., 2023), a point that is probably lost is therefore reported as hidden. `lpa-cwm train confidence` fits the
regression.
"""

import math
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lpa_cwm.config import Calibration, TrackerConfig
from lpa_cwm.geometry import HW, constant, sample_pixels
from lpa_cwm.pair_tracking import PairResult
from lpa_cwm.probe import ObservedPair
from lpa_cwm.types import Tracks

EVIDENCE = ("native_strength", "color_change", "spread")
"""Fields of `PairResult` that the regression reads, each by its logarithm; the spread at a frame size of 256 x 256."""
MIN_EVIDENCE = 1e-3
"""Smaller values count as this one."""
UNKNOWN = (MIN_EVIDENCE, MIN_EVIDENCE, 256.0)
"""Values of `EVIDENCE` where they are not known."""
PATCH_SAMPLES, SAMPLE_STEP = 9, 2.0
"""Side of the compared squares in samples, and their distance in pixels at a frame size of 256 x 256."""
SIZE = 256
FOUND_WITHIN = 8.0
"""Pixels at a frame size of 256 x 256."""


def compare_appearance(observed: ObservedPair, xy: Float[Tensor, "n 2"], result: PairResult) -> PairResult:
    """The result with the change of color between the squares around the query and around the endpoint."""
    ticks = torch.arange(PATCH_SAMPLES) - PATCH_SAMPLES // 2
    around = torch.cartesian_prod(ticks, ticks) * sampling_step(observed.source.hw)
    # Frames are on the host, and so are the points: one copy each way.
    ends = torch.stack((xy, result.xy)).cpu()
    here, there = (
        sample_pixels(frame.native, points[:, None] + around)
        for frame, points in zip((observed.source, observed.target), ends, strict=True)
    )
    return replace(result, color_change=(here - there).abs().mean((1, 2)).to(xy))


def sampling_step(hw: HW) -> float:
    """Distance of the compared samples in pixels of a frame: the same extent in all frames, relative to their size."""
    return max(1.0, SAMPLE_STEP * math.prod(hw) ** 0.5 / SIZE)


def evidence(result: PairResult, hw: HW) -> Float[Tensor, "n e"]:
    """Logarithms of `EVIDENCE` of estimates in a frame of this size."""
    relative = replace(result, spread=result.spread * (SIZE / math.prod(hw) ** 0.5))
    values = torch.stack([getattr(relative, name) for name in EVIDENCE], dim=1)
    unknown = constant(UNKNOWN, values.dtype, values.device)
    return torch.where(values.isnan(), unknown, values).clamp(min=MIN_EVIDENCE).log()


def confidence(calibration: Calibration, evidence: Float[Tensor, "n e"]) -> Float[Tensor, "n"]:
    """Probability that each point is visible and found."""
    weights = constant(calibration.weights, evidence.dtype, evidence.device)
    return (evidence @ weights[:-1] + weights[-1]).sigmoid()


@dataclass(frozen=True, slots=True)
class FrameEstimate:
    """Position and visibility of every track in one frame; NaN and hidden before its query."""

    xy: Float[Tensor, "n 2"]
    """Positions in the frame's pixels."""
    visible: Bool[Tensor, "n"]
    """Whether the point is visible."""
    strength: Float[Tensor, "n"]
    """As in `Tracks`."""
    support: Float[Tensor, "n"]
    """As in `Tracks`."""
    spread: Float[Tensor, "n"]
    """As in `Tracks`."""
    confidence: Float[Tensor, "n"]
    """1 where the position is given; NaN without a calibration."""
    evidence: Float[Tensor, "n e"]
    """Inputs of the confidence."""

    @classmethod
    def empty(cls, tracks: int) -> "FrameEstimate":
        """An estimate without positions.

        Args:
            tracks: Number of tracks.
        """
        place, hidden = torch.full((tracks, 2), torch.nan), torch.zeros(tracks, dtype=torch.bool)
        strength, support, spread, confidence = torch.full((4, tracks), torch.nan).unbind()
        evidence = torch.full((tracks, len(EVIDENCE)), torch.nan)
        return cls(place, hidden, strength, support, spread, confidence, evidence)

    def set_rows(self, rows: Int[Tensor, "k"], result: PairResult, hw: HW, config: TrackerConfig) -> None:
        """Store the results of some tracks, and decide which are visible.

        Args:
            rows: Numbers of the tracks.
            result: Their endpoints.
            hw: Height and width of the frame.
            config: Has the calibration, or the strength, from which a point counts as visible.
        """
        known = evidence(result, hw)
        values = {name: getattr(result, name) for name in ("xy", "strength", "support", "spread")}
        values["evidence"] = known
        if config.calibration is None:
            values["visible"] = result.strength >= config.visibility_threshold
        else:
            values["confidence"] = confidence(config.calibration, known)
            values["visible"] = values["confidence"] >= config.calibration.threshold
        # One copy: each makes the host wait for a GPU.
        flat = [value.view(len(rows), -1) for value in values.values()]
        columns = torch.cat(flat, dim=1).cpu().split([value.shape[1] for value in flat], dim=1)
        for name, column in zip(values, columns, strict=True):
            mine = getattr(self, name)
            mine[rows] = column.view(len(rows), *mine.shape[1:]).to(mine.dtype)


@dataclass
class EstimateTable:
    """The estimates of consecutive frames; later ones may have more tracks.

    They are copied into a few large tensors. Small tensors that outlive a frame would fragment the heap, and memory
    would grow with the clip.
    """

    frames: int = 0
    """Frames that were appended."""
    tracks: int = 0
    """Tracks of the last frame."""
    columns: dict[str, Shaped[Tensor, "room tracks *e"]] = field(default_factory=dict)
    """For each field of an estimate its values, with room for further frames."""

    def __len__(self) -> int:
        return self.frames

    def append(self, estimate: FrameEstimate) -> None:
        """Copy the estimates of the next frame.

        Args:
            estimate: The estimates of all tracks.
        """
        self.tracks = len(estimate.visible)
        for entry in fields(estimate):
            value = getattr(estimate, entry.name)
            column = self._with_room(entry.name, value)
            column[self.frames, : self.tracks] = value
        self.frames += 1

    def to_tracks(self, total: int | None = None, first: int = 0) -> Tracks:
        """Tracks through all frames; NaN and hidden in those that were not reached.

        Args:
            total: Number of frames; by default those that were appended.
            first: Frame from which on the tracks are asked for.
        """
        total = self.frames if total is None else total
        values = {entry.name: self.stacked(entry.name, first) for entry in fields(Tracks)}
        if bool(values["confidence"].isnan().all()):
            del values["confidence"]
        missing = total - self.frames
        return Tracks(**{name: _filled(value, value.shape[1] + missing, dim=1) for name, value in values.items()})

    def stacked(self, name: str, first: int = 0) -> Shaped[Tensor, "tracks frames *e"]:
        """One field of all tracks in all frames.

        Args:
            name: The field of `FrameEstimate`.
            first: Frame from which on it is asked for.
        """
        return self.columns[name][first : self.frames, : self.tracks].transpose(0, 1).contiguous()

    def _with_room(self, name: str, value: Shaped[Tensor, "tracks *e"]) -> Shaped[Tensor, "room n *e"]:
        """The column of a field, enlarged if the next frame does not fit."""
        column = self.columns.get(name, value.new_empty(0, *value.shape))
        if self.frames == len(column):
            column = _filled(column, max(64, 2 * len(column)), dim=0)
        if len(value) > column.shape[1]:
            column = _filled(column, len(value), dim=1)
        self.columns[name] = column
        return column


def _filled(values: Shaped[Tensor, "*s"], length: int, dim: int) -> Shaped[Tensor, "*s2"]:
    """Padded along one dimension with NaN and hidden."""
    shape = list(values.shape)
    shape[dim] = length - shape[dim]
    empty = False if values.dtype == torch.bool else torch.nan
    return torch.cat([values, values.new_full(shape, empty)], dim=dim) if shape[dim] > 0 else values
