"""The published figures of the paper's tables, and the rows that our methods belong to."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lpa_cwm.metrics import Scores

ADJUDICATORS = {"uniform": ("Uniform CWM", "Uniform"), "apa": ("APA-CWM", "APA"), "lpa": ("LPA-CWM", "LPA")}
"""Of each adjudicator the row of the main table, and the beginning of its rows with other localizations."""
ABLATIONS = {
    "uniform-windowed": "Uniform + Win.",
    "apa-windowed": "APA + Win.",
    "lpa-windowed": "LPA + Win.",
    "uniform-standard": "Uniform + Std.",
    "apa-standard": "APA + Std.",
    "lpa-standard": "LPA + Std.",
    "no-interaction": "w/o candidate-set interaction",
    "response-and-scalars": "Response + scalar cues only",
    "no-visibility-head": None,
    "kl-only": "KL only",
    "kl-and-coordinate": "KL + coordinate supervision",
    "kl-and-best": "KL + best-candidate supervision",
    "no-decoded": None,
    "paper-objective": "Full objective",
}
"""Row of each variant of `lpa-cwm eval ablate`; None for variants that the paper does not have."""


@dataclass(frozen=True)
class PaperFigure:
    """One number of the paper, in the unit of its table."""

    table: str
    """main, ablation, thresholds or visibility."""
    dataset: str
    method: str
    metric: str
    value: float


@cache
def paper_figures() -> tuple[PaperFigure, ...]:
    """Every number of the four tables."""
    with (Path(__file__).parent / "paper.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(PaperFigure(*row[:4], value=float(row[4])) for row in rows)


def figures_of(scores: Scores) -> Iterator[PaperFigure]:
    """The paper's numbers for a method on a data set; a metric that two tables repeat is given once."""
    row = paper_row(scores)
    given = set()
    for figure in paper_figures():
        if figure.method == row and same_name(figure.dataset, scores.dataset) and figure.metric not in given:
            given.add(figure.metric)
            yield figure


def paper_row(scores: Scores) -> str | None:
    """Name of a method's row in the paper, by its own name or the name in front of a bracket."""
    name = scores.method.partition(" (")[0]
    if name in ABLATIONS:
        return ABLATIONS[name]
    if name in ADJUDICATORS:
        main, short = ADJUDICATORS[name]
        return f"{short} + Std." if setting(scores.notes, "windows") == 0 else main
    rows = (figure.method for figure in paper_figures())
    return next((row for row in rows if _letters(row) == _letters(name)), None)


def setting(notes: dict[str, Any], name: str) -> Any:
    """A setting by its name at any depth of the notes, or None."""
    if name in notes:
        return notes[name]
    inner = (setting(value, name) for value in notes.values() if isinstance(value, dict))
    return next((value for value in inner if value is not None), None)


def same_name(published: str, dataset: str) -> bool:
    """Whether a data set is called as one of the paper's, as in tapvid_davis and DAVIS."""
    return _letters(published) in _letters(dataset)


def _letters(name: str) -> str:
    """A name without case and punctuation."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())
