"""The figures of the paper's tables 1-4, and which of our methods they belong to."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lpa_cwm.metrics import Scores

_ADJUDICATED = {"uniform": "Uniform", "apa": "APA", "lpa": "LPA"}


@dataclass(frozen=True)
class Figure:
    """One number of the paper, in the unit of its table."""

    table: str
    """main, ablation, thresholds or visibility."""
    dataset: str
    method: str
    metric: str
    value: float


@cache
def figures() -> tuple[Figure, ...]:
    """Every number of the four tables."""
    with (Path(__file__).parent / "paper.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(Figure(table, dataset, method, metric, float(value)) for table, dataset, method, metric, value in rows)


def figures_of(scores: Scores) -> Iterator[Figure]:
    """The paper's numbers for a method on a data set, each metric once per name that the paper gives the method."""
    names, dataset = paper_names(scores), _letters(scores.dataset)
    given = set()
    for figure in figures():
        key = figure.method, figure.metric
        if figure.method in names and _letters(figure.dataset) in dataset and key not in given:
            given.add(key)
            yield figure


def paper_names(scores: Scores) -> set[str]:
    """What the paper calls a method; its ablations name the localization too."""
    weights = _ADJUDICATED.get(scores.method.partition(" ")[0])
    if weights is None:
        return {figure.method for figure in figures() if _letters(figure.method) == _letters(scores.method)}
    if setting(scores.notes, "localize") == "standard":
        return {f"{weights} + Std."}
    return {f"{weights}-CWM" if weights != "Uniform" else "Uniform CWM"}


def setting(notes: dict[str, Any], name: str) -> Any:
    """A setting wherever it stands in the notes, or None."""
    if name in notes:
        return notes[name]
    inner = (setting(value, name) for value in notes.values() if isinstance(value, dict))
    return next((value for value in inner if value is not None), None)


def _letters(name: str) -> str:
    """A name without case and punctuation."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())
