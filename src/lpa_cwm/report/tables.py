"""Tables of the report: cells, columns and rows as CSV, Markdown, LaTeX or HTML; the paper's published figures."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from lpa_cwm.metrics import METRICS, Difference, Estimate, Metric, Scores

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


LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
LATEX |= {"δ": r"$\delta$", "–": "--", "…": r"\,..\,", "≥": r"$\geq$", "×": r"$\times$"}


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
    """Small print beside the value: an interval, a share of videos won."""
    undefined: int = 0
    """Videos on which the value is undefined; the mean leaves them out, and a note of the table names them."""
    spread: tuple[float, float] | None = None
    """Ends of the 95 % interval, in the unit of the value."""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of one row; references are never marked as best and are set apart."""

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
    """Collapsed on the page."""

    @property
    def short(self) -> tuple[Row, ...]:
        """The rows that are shown."""
        return self.rows[: self.shown]


def metric_column(name: str, label: str | None = None) -> Column:
    """The column of a declared measure."""
    metric = METRICS[name]
    return Column(name, label or metric.label, metric)


def text_cell(words: str) -> Cell:
    """A cell of text."""
    return Cell(words, words)


def count_cell(number: int) -> Cell:
    """A cell with a count."""
    return Cell(str(number), float(number))


def value_cell(value: float, metric: Metric) -> Cell:
    """A measure without an interval."""
    return Cell(metric.show(value), value * metric.scale)


def estimate_cell(estimate: Estimate, metric: Metric) -> Cell:
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


def difference_cell(difference: Difference, metric: Metric) -> Cell:
    """A paired difference with its interval and the share of videos won; best where it is clearly a gain."""
    cell = estimate_cell(difference.estimate, metric)
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


def to_csv(table: Table) -> str:
    """All rows; a measure with an interval takes four columns."""
    spread = [any(row.cells[place].spread for row in table.rows) for place in range(len(table.columns))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    heads = zip(table.columns, spread, strict=True)
    writer.writerow([name for column, wide in heads for name in _csv_names(column, wide)])
    for row in table.rows:
        writer.writerow([part for cell, wide in zip(row.cells, spread, strict=True) for part in _csv_parts(cell, wide)])
    return file.getvalue()


def _csv_names(column: Column, wide: bool) -> list[str]:
    name = column.key
    return [name, f"{name}_low", f"{name}_high", f"{name}_undefined"] if wide else [name]


def _csv_parts(cell: Cell, wide: bool) -> list[str]:
    parts = [_plain(cell.value)]
    if wide:
        low, high = cell.spread or ("", "")
        parts += [_plain(low), _plain(high), str(cell.undefined)]
    return parts


def _plain(value: float | str) -> str:
    """Six digits after the point at most; nothing where it is undefined."""
    if isinstance(value, str):
        return value
    return "" if value != value else f"{value:.6f}".rstrip("0").rstrip(".")


def to_markdown(table: Table) -> str:
    """A pipe table under its title."""
    lines = [f"### {table.title}", "", _pipes(column.head for column in table.columns)]
    lines.append("|" + "|".join("---" if place == 0 else "---:" for place in range(len(table.columns))) + "|")
    lines += [_pipes(_markdown(cell) for cell in row.cells) for row in table.short]
    return "\n".join([*lines, "", *table_notes(table), ""])


def _pipes(parts: Iterable[str]) -> str:
    return "| " + " | ".join(part.replace("|", r"\|") for part in parts) + " |"


def _markdown(cell: Cell) -> str:
    words = f"**{cell.text}**" if cell.best else cell.text
    return f"{words} ({'; '.join(cell.details)})" if cell.details else words


def to_latex(table: Table) -> str:
    """A booktabs table; references below a rule of their own."""
    head = " & ".join(escape_latex(column.head) for column in table.columns)
    rows = [_tex_row(row) for row in table.short if not row.reference]
    apart = [_tex_row(row) for row in table.short if row.reference]
    body = [*rows, *([r"\midrule"] if rows and apart else []), *apart]
    caption = " ".join([f"{table.title}.", *table_notes(table)])
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{tab:{table.slug}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _tex_row(row: Row) -> str:
    return " & ".join(_tex_cell(cell) for cell in row.cells) + r" \\"


def _tex_cell(cell: Cell) -> str:
    words = rf"\textbf{{{escape_latex(cell.text)}}}" if cell.best else escape_latex(cell.text)
    small = "".join(rf"\\{{\tiny {escape_latex(line)}}}" for line in cell.details)
    return rf"\shortstack[r]{{{words}{small}}}" if small else words


def escape_latex(words: str) -> str:
    """Words with LaTeX's own characters and signs replaced."""
    return "".join(LATEX.get(letter, letter) for letter in words)


def to_html(table: Table) -> str:
    """A sortable table."""
    heads = "".join(_html_head(column) for column in table.columns)
    rows = "".join(_html_row(row) for row in table.short)
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in table_notes(table))
    return (
        f"<div class=scroll><table class=sortable><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{notes}"
    )


def _html_head(column: Column) -> str:
    metric = column.metric
    if metric is None:
        return f"<th>{escape(column.label)}</th>"
    ascending = "true" if metric.higher_is_better is False else "false"
    title = escape(f"{metric.definition} [{metric.unit}]", quote=True)
    return f'<th class=num data-ascending={ascending} title="{title}">{escape(column.head)}</th>'


def _html_row(row: Row) -> str:
    kind = " class=reference" if row.reference else ""
    return f"<tr{kind}>{''.join(map(_html_cell, row.cells))}</tr>"


def _html_cell(cell: Cell) -> str:
    words = f"<b>{escape(cell.text)}</b>" if cell.best else escape(cell.text)
    more = "".join(f"<small>{escape(small)}</small>" for small in cell.details)
    if isinstance(cell.value, str):
        return f"<td>{words}{more}</td>"
    return f'<td class=num data-value="{_plain(cell.value)}">{words}{more}</td>'


def table_notes(table: Table) -> list[str]:
    """Sentences under the table: its own note, undefined values, and rows that are only in the CSV file."""
    hidden = len(table.rows) - len(table.short)
    more = f"{len(table.short)} of {len(table.rows)} rows; the CSV file has all." if hidden else ""
    return [note for note in (table.note, _undefined_note(table), more) if note]


def _undefined_note(table: Table) -> str:
    """One sentence with the columns that leave out videos, and the numbers of these videos."""
    parts = []
    for place, column in enumerate(table.columns):
        counts = sorted({row.cells[place].undefined for row in table.rows} - {0})
        if counts:
            numbers = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
            parts.append(f"{column.label} on {numbers} video{'s' if counts != [1] else ''}")
    return f"Undefined and left out of the mean: {', '.join(parts)}." if parts else ""
