"""A method's measures on a data set, video by video, and the file that carries them from scoring to reporting."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.errors import InputError
from lpa_cwm.metrics.cmc import COVERAGE, MOTION, cmc_from_counts, cmc_of
from lpa_cwm.metrics.comparison import Measures, align, check_shape
from lpa_cwm.metrics.shapes import Bool, Float, Int
from lpa_cwm.metrics.tapvid import Mode, tapvid_of, tapvid_tracks
from lpa_cwm.validation import read_json, reading, structure

FORMAT = "lpa-cwm scores 1"

SWEPT = ("coverage", "dca_avg", "shown_avg", "vis_ba", "of1")
"""Measures followed while the visibility threshold moves."""


@dataclass(frozen=True)
class Truth:
    """The annotation of one video, in pixels of the 256 x 256 raster."""

    xy: Float[np.ndarray, "n t 2"]
    visible: Bool[np.ndarray, "n t"]
    query_frame: Int[np.ndarray, "n"]


@dataclass(frozen=True)
class Prediction:
    """Predictions for one video, in pixels of the 256 x 256 raster; positions that are not finite are missing."""

    xy: Float[np.ndarray, "n t 2"]
    visible: Bool[np.ndarray, "n t"]
    score: Float[np.ndarray, "n t"] | None = None
    """The larger, the more visible; lets the threshold of visibility be swept."""
    seconds: float | None = None
    """Time that the whole video took."""


def static_point(truth: Truth) -> Prediction:
    """A point that never moves and is always visible."""
    start = truth.xy[np.arange(len(truth.xy)), truth.query_frame]
    return Prediction(np.repeat(start[:, None], truth.xy.shape[1], axis=1), np.ones_like(truth.visible))


def ground_truth(truth: Truth) -> Prediction:
    """The annotation itself."""
    return Prediction(truth.xy, truth.visible)


TRIVIAL: dict[str, Callable[[Truth], Prediction]] = {"static point": static_point, "ground truth": ground_truth}
"""Rows of every table: the floor, which needs no tracker, and the ceiling, which no tracker exceeds."""


@dataclass(frozen=True)
class Protocol:
    """Choices that must agree for two tables to be comparable."""

    mode: Mode = "first"
    """Queries at the first visible frame, or strided through the clip."""
    motion: float = MOTION
    """Path, in pixels of the 256 raster, from which a track is dynamic (L_motion)."""
    coverage: float = COVERAGE
    """Share of its visible frames from which a track is complete (c)."""


def measure(
    prediction: Prediction, truth: Truth, protocol: Protocol | None = None, thresholds: Iterable[float] = ()
) -> Measures:
    """Every measure of one video; with a score, also CMC at each visibility threshold."""
    protocol = protocol or Protocol()
    comparison = align(prediction.xy, prediction.visible, truth.xy, truth.visible, truth.query_frame)
    own = cmc_of(comparison, protocol.motion, protocol.coverage).merged(tapvid_of(comparison, protocol.mode))
    if prediction.seconds is not None:
        asked = max(int(own.counts["frames"].sum()), 1)
        own.values["latency"] = 1000 * prediction.seconds / asked
    if prediction.score is None:
        return own
    score = check_shape(np.asarray(prediction.score), comparison.visible.shape, "visibility scores")
    swept = [cmc_of(comparison.shown_where(score >= level), protocol.motion, protocol.coverage) for level in thresholds]
    return replace(own, sweep={name: [one[name] for one in swept] for name in SWEPT})


def sweep_thresholds(scores: Iterable[ArrayLike], levels: int = 21) -> list[float]:
    """Thresholds spaced by the share of points they hide, from none to nearly all, videos weighing alike."""
    finite = (flat[np.isfinite(flat)] for flat in map(np.ravel, scores))
    quantiles = [np.quantile(one, np.linspace(0, 1, 101), method="nearest") for one in finite if one.size]
    if not quantiles:
        return []
    together = np.concatenate(quantiles)
    return np.unique(np.quantile(together, np.linspace(0, 1, levels), method="nearest")).tolist()


@dataclass(frozen=True)
class Scores:
    """Measures of one method on one data set."""

    dataset: str
    method: str
    videos: dict[str, Measures]
    protocol: Protocol = field(default_factory=Protocol)
    manifest: str = ""
    """Identity of the videos, tracks and frames that were scored; only scores of the same one are compared."""
    thresholds: list[float] = field(default_factory=list)
    """Visibility thresholds to which each video's sweep belongs."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Configuration, versions, and where the predictions are."""
    reference: bool = False
    """A trivial predictor, not a method."""

    def column(self, name: str) -> Float[np.ndarray, "v"]:
        """One measure of all videos, NaN where it is undefined."""
        return np.array([video.values.get(name, np.nan) for video in self.videos.values()], dtype=np.float64)

    @property
    def task(self) -> tuple[str, str, Protocol, frozenset[str]]:
        """Data and protocol; only scores of the same task are compared."""
        return self.dataset, self.manifest, self.protocol, frozenset(self.videos)

    def in_order_of(self, other: "Scores") -> "Scores":
        """The same videos in another's order."""
        return replace(self, videos={name: self.videos[name] for name in other.videos})

    def at(self, motion: float, coverage: float) -> "Scores":
        """CMC with other thresholds, from the counts."""
        protocol = replace(self.protocol, motion=motion, coverage=coverage)
        videos = {name: cmc_from_counts(video.counts, motion, coverage) for name, video in self.videos.items()}
        return replace(self, videos=videos, protocol=protocol)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        fields = {
            name: getattr(self, name) for name in ("dataset", "method", "manifest", "thresholds", "notes", "reference")
        }
        videos = {name: video.to_dict() for name, video in self.videos.items()}
        return fields | {"protocol": asdict(self.protocol), "videos": videos}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Scores":
        """The inverse of `to_dict`."""
        empty = structure({**plain, "videos": {}}, cls)
        given = structure(plain["videos"], dict[str, dict[str, dict[str, Any]]], "videos")
        return replace(empty, videos={name: _measures(video, empty) for name, video in given.items()})


def _measures(plain: dict[str, dict[str, Any]], scores: Scores) -> Measures:
    """Measures of one video; those of its tracks are computed from the counts."""
    protocol = scores.protocol
    counts = {name: _numbers(column) for name, column in plain["counts"].items()}
    if len({column.shape[-1:] for column in counts.values()}) != 1 or not all(map(np.ndim, counts.values())):
        raise ValueError("its counts are of different numbers of tracks")
    cmc, tapvid = cmc_from_counts(counts, protocol.motion, protocol.coverage), tapvid_tracks(counts)
    tracks = cmc.tracks | tapvid
    if plain["values"].keys() - {"latency"} != cmc.values.keys() | tapvid.keys():
        raise ValueError("its measures have other names")
    values = {name: float(_numbers([value])[0]) for name, value in plain["values"].items()}
    sweep = {name: _numbers(column).tolist() for name, column in plain["sweep"].items()}
    if sweep and sweep.keys() != set(SWEPT):
        raise ValueError("its sweeps have other names")
    if any(not isinstance(column, list) or len(column) != len(scores.thresholds) for column in sweep.values()):
        raise ValueError("its sweeps have another number of thresholds")
    return Measures(values, tracks, counts, sweep)


def _numbers(values: Any) -> Float[np.ndarray, "*k n"]:
    """None becomes NaN."""
    numbers = np.array(values, dtype=np.float64)
    if np.isinf(numbers).any():
        raise ValueError("it holds an infinite number")
    return numbers


def dump_scores(scores: Iterable[Scores]) -> str:
    """The text of a score file: the method's scores first, then those of the trivial predictors."""
    return json.dumps({"format": FORMAT, "scores": [one.to_dict() for one in scores]}, allow_nan=False)


def load_scores(path: Path | str) -> list[Scores]:
    """Read a score file."""
    with reading(path, "a score file", "`lpa-cwm eval score` writes one"):
        plain = structure(read_json(Path(path)), dict[str, Any])
        found = structure(plain["format"], str, "format")
        if found == FORMAT:
            scores = [Scores.from_dict(one) for one in structure(plain["scores"], list[Any], "scores")]
            if not scores:
                raise ValueError("it holds no scores")
            return scores
    raise InputError(f"{path} is of the format {found!r}; {FORMAT!r} was expected: score the run again.")
