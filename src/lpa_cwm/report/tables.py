"""A table as data: what each cell says, how it sorts, and which is best; `formats` writes it down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lpa_cwm.metrics import METRICS, Difference, Estimate, Metric


@dataclass(frozen=True, slots=True)
class Column:
    """One column; with a metric, its label, unit, arrow and bold are the metric's."""

    key: str
    label: str
    metric: Metric | None = None

    @property
    def head(self) -> str:
        """Label and arrow."""
        return f"{self.label} {self.metric.arrow}".strip() if self.metric else self.label


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry: its text, the value it sorts by, and what else is known."""

    text: str
    value: float | str = ""
    details: tuple[str, ...] = ()
    """What stands small beside it: an interval, a share of videos won."""
    undefined: int = 0
    """Videos on which the value is not defined and which it leaves out."""
    spread: tuple[float, float] | None = None
    """Ends of the 95 % interval, in the unit of the value."""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of one row; a reference never is the best and stands apart."""

    cells: tuple[Cell, ...]
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Title, columns, rows, and how many rows a page shows."""

    slug: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    shown: int | None = None
    """Rows on the page and in Markdown and LaTeX; the CSV has all."""
    folded: bool = False
    """Closed on the page until asked for."""

    @property
    def short(self) -> tuple[Row, ...]:
        """The rows that are shown."""
        return self.rows[: self.shown]


def metric_column(name: str, label: str | None = None) -> Column:
    """The column of a declared measure."""
    metric = METRICS[name]
    return Column(name, label or metric.label, metric)


def text(words: str) -> Cell:
    """A cell of words."""
    return Cell(words, words)


def whole(number: int) -> Cell:
    """A cell with a count."""
    return Cell(str(number), float(number))


def number(value: float, metric: Metric) -> Cell:
    """A measure without an interval."""
    return Cell(metric.show(value), value * metric.scale)


def estimated(estimate: Estimate, metric: Metric) -> Cell:
    """A mean over videos with its interval and the number of videos left out."""
    low, high = estimate.low * metric.scale, estimate.high * metric.scale
    known = low == low
    return Cell(
        metric.show(estimate.value),
        estimate.value * metric.scale,
        (f"{low:.1f} … {high:.1f}",) if known else (),
        estimate.undefined,
        (low, high) if known else None,
    )


def differing(difference: Difference, metric: Metric) -> Cell:
    """A paired difference with its interval and the share of videos won; best where it is clearly a gain."""
    cell = estimated(difference.estimate, metric)
    won = () if difference.won != difference.won else (f"won {difference.won:.0%}",)
    won += (f"tied {difference.tied:.0%}",) if difference.tied > 0 else ()
    gain = difference.estimate.value > 0 if metric.higher_is_better else difference.estimate.value < 0
    sign = "+" if difference.estimate.value > 0 else ""
    clear = difference.clear and gain and metric.higher_is_better is not None
    return replace(cell, text=sign + cell.text, details=cell.details + won, best=clear)


def with_best(columns: Sequence[Column], rows: Iterable[Row]) -> tuple[Row, ...]:
    """Mark the best method of each column whose metric has a direction, if there are several."""
    rows = list(rows)
    rivals = [index for index, row in enumerate(rows) if not row.reference]
    for place, column in enumerate(columns):
        metric = column.metric
        if metric is None or metric.higher_is_better is None or len(rivals) < 2:
            continue
        values = {index: rows[index].cells[place].value for index in rivals}
        known = {index: value for index, value in values.items() if isinstance(value, float) and value == value}
        best = (max if metric.higher_is_better else min)(known.values(), default=None)
        for index in (index for index, value in known.items() if value == best):
            cells = list(rows[index].cells)
            cells[place] = replace(cells[place], best=True)
            rows[index] = replace(rows[index], cells=tuple(cells))
    return tuple(rows)
