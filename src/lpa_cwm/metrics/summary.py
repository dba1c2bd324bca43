"""From videos to a data set: means with equal video weight, their intervals, and differences between methods."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lpa_cwm.errors import InputError
from lpa_cwm.metrics.comparison import ratio
from lpa_cwm.metrics.registry import METRICS
from lpa_cwm.metrics.scores import Scores
from lpa_cwm.metrics.shapes import Float

DRAWS = 10_000
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
    """Every measure of a method, averaged over videos."""
    names = names or measured(scores)
    table = np.stack([scores.column(name) for name in names], axis=1)
    return dict(zip(names, estimates(table), strict=True))


def measured(scores: Scores) -> list[str]:
    """Names of the measures that some video has, in the order of their declaration."""
    present = {name for video in scores.videos.values() for name in video.values}
    return [name for name in METRICS if name in present]


def difference(first: Scores, second: Scores, names: list[str] | None = None) -> dict[str, Difference]:
    """`first` minus `second`, paired by video."""
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


def estimates(table: Float[np.ndarray, "v k"], draws: int = DRAWS) -> list[Estimate]:
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
