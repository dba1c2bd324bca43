"""A method's measures on a data set, video by video; their file; means, intervals and differences of methods.

Means give every video the same weight.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lpa_cwm.errors import InputError
from lpa_cwm.metrics.comparison import METRICS, Bool, Float, Int, Measures, align, check_shape, ratio
from lpa_cwm.metrics.measures import COVERAGE, MOTION, Mode, cmc_from_counts, cmc_of, tapvid_of, tapvid_tracks
from lpa_cwm.validation import read_json, reading, structure

FORMAT = "lpa-cwm scores 1"

SWEEP_MEASURES = ("coverage", "dca_avg", "shown_avg", "vis_ba", "of1")
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
    """Every measure of one video; with a score, also CMC at each visibility threshold.

    Args:
        prediction: What a tracker says.
        truth: The annotation.
        protocol: Query mode and thresholds; by default the paper's.
        thresholds: Visibility thresholds at which CMC is computed too.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> annotated = Truth(truth, seen, np.array([0]))
        >>> measure(Prediction(truth, seen), annotated)["dca_avg"]
        1.0
    """
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
    return replace(own, sweep={name: [one[name] for one in swept] for name in SWEEP_MEASURES})


def sweep_thresholds(scores: Iterable[ArrayLike], levels: int = 21) -> list[float]:
    """Thresholds spaced by the share of points they hide, from none to nearly all; all videos have the same weight."""
    finite = (flat[np.isfinite(flat)] for flat in map(np.ravel, scores))
    quantiles = [np.quantile(one, np.linspace(0, 1, 101), method="nearest") for one in finite if one.size]
    if not quantiles:
        return []
    together = np.concatenate(quantiles)
    return np.unique(np.quantile(together, np.linspace(0, 1, levels), method="nearest")).tolist()


@dataclass(frozen=True)
class Scores:
    """Measures of one method on one data set.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> annotated = Truth(truth, seen, np.array([0]))
        >>> scores = Scores("mine", "perfect", {"a video": measure(ground_truth(annotated), annotated)})
        >>> scores.column("dca_avg")
        array([1.])
    """

    dataset: str
    """Name of the data set."""
    method: str
    """Name of the method."""
    videos: dict[str, Measures]
    """Measures by video."""
    protocol: Protocol = field(default_factory=Protocol)
    """Query mode and thresholds."""
    manifest: str = ""
    """Identity of the videos, tracks and frames that were scored; only scores of the same one are compared."""
    thresholds: list[float] = field(default_factory=list)
    """Visibility thresholds to which each video's sweep belongs."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Configuration, versions, and where the predictions are."""
    reference: bool = False
    """A trivial predictor, not a method."""

    def column(self, name: str) -> Float[np.ndarray, "v"]:
        """One measure of all videos, NaN where it is undefined.

        Args:
            name: Name of the measure; `lpa_cwm.metrics.METRICS` declares all.
        """
        return np.array([video.values.get(name, np.nan) for video in self.videos.values()], dtype=np.float64)

    @property
    def task(self) -> tuple[str, str, Protocol, frozenset[str]]:
        """Data and protocol; only scores of the same task are compared."""
        return self.dataset, self.manifest, self.protocol, frozenset(self.videos)

    def in_order_of(self, other: "Scores") -> "Scores":
        """The same videos in another's order.

        Args:
            other: Scores of the same videos.
        """
        return replace(self, videos={name: self.videos[name] for name in other.videos})

    def at(self, motion: float, coverage: float) -> "Scores":
        """CMC with other thresholds, from the counts.

        Args:
            motion: Path in pixels from which a track is dynamic.
            coverage: Share of its visible frames from which a track is complete.
        """
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
        """The inverse of `to_dict`.

        Args:
            plain: What `to_dict` returned.
        """
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
    if sweep and sweep.keys() != set(SWEEP_MEASURES):
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


BOOTSTRAP_DRAWS = 10_000
_CHUNK = 500


@dataclass(frozen=True)
class Estimate:
    """A mean over videos with its 95 % video-bootstrap interval (NaN below two videos)."""

    value: float
    low: float
    high: float
    videos: int
    """Videos on which the measure is defined; the others are left out."""
    undefined: int


@dataclass(frozen=True)
class Difference:
    """One method minus another on the same videos."""

    estimate: Estimate
    won: float
    """Share of videos on which the first is better; NaN for measures without a direction."""
    tied: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.estimate.low > 0 or self.estimate.high < 0


def summarize(scores: Scores, names: list[str] | None = None) -> dict[str, Estimate]:
    """Every measure of a method, averaged over videos.

    Args:
        scores: Scores of one method.
        names: Names of the measures; by default all that some video has.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> annotated = Truth(truth, seen, np.array([0]))
        >>> scores = Scores("mine", "perfect", {"a video": measure(ground_truth(annotated), annotated)})
        >>> summarize(scores, ["dca_avg"])["dca_avg"].value
        1.0
    """
    names = names or measured(scores)
    table = np.stack([scores.column(name) for name in names], axis=1)
    return dict(zip(names, estimates(table), strict=True))


def measured(scores: Scores) -> list[str]:
    """Names of the measures that some video has, in the order of their declaration."""
    present = {name for video in scores.videos.values() for name in video.values}
    return [name for name in METRICS if name in present]


def difference(first: Scores, second: Scores, names: list[str] | None = None) -> dict[str, Difference]:
    """`first` minus `second`, paired by video.

    Args:
        first: Scores of one method.
        second: Scores of another method on the same data.
        names: Names of the measures; by default all that both have.

    Examples:
        >>> import numpy as np
        >>> truth = np.cumsum(np.full((1, 6, 2), 2.0), axis=1)
        >>> seen = np.ones((1, 6), bool)

        >>> annotated = Truth(truth, seen, np.array([0]))
        >>> moving, still = (
        ...     Scores("mine", name, {"a video": measure(rule(annotated), annotated)})
        ...     for name, rule in (("perfect", ground_truth), ("still", static_point))
        ... )
        >>> difference(moving, still, ["coverage"])["coverage"].estimate.value
        0.0
    """
    if first.task != second.task:
        raise InputError(
            f"{first.method} and {second.method} were scored on different videos, tracks, frames or protocols; "
            "score both on the same manifest to compare them."
        )
    second = second.in_order_of(first)
    names = names or [name for name in measured(first) if name in measured(second)]
    table = np.stack([first.column(name) - second.column(name) for name in names], axis=1)
    return {
        name: Difference(estimate, *won_and_tied(column, METRICS[name].higher_is_better))
        for name, estimate, column in zip(names, estimates(table), table.T, strict=True)
    }


def won_and_tied(differences: Float[np.ndarray, "v"], higher_is_better: bool | None) -> tuple[float, float]:
    """Shares of the defined differences that favor the first method, and that favor neither."""
    known = differences[~np.isnan(differences)]
    if not known.size or higher_is_better is None:
        return float("nan"), float("nan")
    better = known > 0 if higher_is_better else known < 0
    return float(better.mean()), float((known == 0).mean())


def estimates(table: Float[np.ndarray, "v k"], draws: int = BOOTSTRAP_DRAWS) -> list[Estimate]:
    """Mean of each column over its defined rows, with the interval over resampled rows."""
    defined = ~np.isnan(table)
    known, filled = defined.sum(axis=0), np.where(defined, table, 0)
    resampled = np.concatenate([ratio(w @ filled, w @ defined) for w in resamples(len(table), draws)])
    found = []
    for column, value, videos in zip(resampled.T, ratio(filled.sum(axis=0), known), known.tolist(), strict=True):
        low, high = np.quantile(column[~np.isnan(column)], (0.025, 0.975)) if videos > 1 else (np.nan, np.nan)
        found.append(Estimate(float(value), float(low), float(high), videos, len(table) - videos))
    return found


def resamples(videos: int, draws: int) -> Iterator[Float[np.ndarray, "chunk v"]]:
    """Number of times each video occurs in each bootstrap resample, in chunks; equal for equal numbers of videos."""
    rng = np.random.default_rng(videos)
    for start in range(0, draws, _CHUNK):
        size = min(_CHUNK, draws - start)
        yield rng.multinomial(videos, np.full(videos, 1 / videos), size=size).astype(np.float64)


def curve(scores: Scores) -> dict[str, list[float]]:
    """Each swept measure at each visibility threshold, averaged over the videos that have a score."""
    swept = [video.sweep for video in scores.videos.values() if video.sweep]
    if not swept:
        return {}
    tables = {name: np.array([one[name] for one in swept]) for name in swept[0]}
    known = {name: ~np.isnan(table) for name, table in tables.items()}
    return {
        name: ratio(np.where(known[name], table, 0).sum(axis=0), known[name].sum(axis=0)).tolist()
        for name, table in tables.items()
    }
