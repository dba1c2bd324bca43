"""What measuring one video gives: values of the video, the same of each track, and the counts behind them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpa_cwm.metrics.registry import METRICS
from lpa_cwm.metrics.shapes import Shaped

Columns = dict[str, Shaped[np.ndarray, "... _"]]
"""By name, one number (or one per threshold) for each track."""


@dataclass(frozen=True)
class Measures:
    """Measures by name, as fractions or pixels; undefined ones are NaN. Prints as a table."""

    values: dict[str, float]
    """Of the video."""
    tracks: Columns
    """Of each track by itself."""
    counts: Columns
    """What was counted on each track; everything else follows from it."""
    sweep: dict[str, list[float]] = field(default_factory=dict)
    """Values of the video at each threshold of the predictor's visibility score."""

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __str__(self) -> str:
        wide = max(map(len, self.values), default=0)
        rows = (METRICS[name] for name in self.values)
        return "\n".join(f"{row.name:{wide}} {row.show(self[row.name]):>8} {row.unit}" for row in rows)

    def merged(self, other: "Measures") -> "Measures":
        """Measures of both kinds of the same video."""
        return Measures(self.values | other.values, self.tracks | other.tracks, self.counts | other.counts)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, undefined values as None; `tracks` is left out, for it follows from `counts`."""
        return {
            "values": {name: plain(value) for name, value in self.values.items()},
            "counts": {name: plain(column.tolist()) for name, column in self.counts.items()},
            "sweep": {name: plain(column) for name, column in self.sweep.items()},
        }


def plain(value: Any) -> Any:
    """The same number, or nested lists and dictionaries of numbers, with None for NaN, which JSON cannot hold."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return None if value != value else value


def with_total(counts: Columns, names: Iterable[str], chosen: slice | Shaped[np.ndarray, "n"] = slice(None)) -> Columns:
    """Columns with one more entry: the chosen tracks added up, as if they were one long track."""
    totals = ((name, counts[name], counts[name][..., chosen].sum(axis=-1, keepdims=True)) for name in names)
    return {name: np.concatenate((column, total), axis=-1) for name, column, total in totals}


def by_threshold(name: str, rows: Shaped[np.ndarray, "k n"], thresholds: Iterable[int]) -> Columns:
    """Rows under the names `name_1`, `name_2`, ..."""
    return {f"{name}_{threshold}": row for threshold, row in zip(thresholds, rows, strict=True)}


def apart(columns: Columns) -> tuple[Columns, dict[str, float]]:
    """Measures of the tracks, and those of the last entry, in which they were added up."""
    tracks = {name: column[:-1] for name, column in columns.items()}
    return tracks, {name: float(column[-1]) for name, column in columns.items()}
