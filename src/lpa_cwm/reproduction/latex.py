"""Tables in LaTeX as the paper sets them: groups of columns, blocks of rows, shaded rows, small print below values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from lpa_cwm.report.tables import Cell, Column, Row, Table, escape_latex, table_notes

PACKAGES = "% Needs booktabs, multirow, graphicx and tabularx, and xcolor with the option table."
LABELS = {"delta_avg": r"$<\delta_{\mathrm{avg}}^{x}$"}
SIGNS = {"+": "$+$", "-": "$-$"}


@dataclass(frozen=True)
class Layout:
    """How the paper sets a table.

    The first text column becomes a rotated name beside its rows (`side`), a title above them (`title`), or stays.
    """

    first: Literal["side", "title", "plain"] = "plain"
    groups: tuple[tuple[str, int], ...] = ()
    """Titles over neighboring columns of values, and the number of columns of each."""
    columns: str = ""
    """Types of all columns if there are no values; X columns share the width of the text."""
    shaded: frozenset[int] = frozenset()
    """Rows of the family of methods that the paper is about."""
    stronger: frozenset[tuple[int, int]] = frozenset()
    """Cells of other methods that are better than the best of the family, by row and column."""


def to_paper_latex(table: Table, layout: Layout) -> str:
    """A floating table of the width of the text."""
    heads = [column for column in table.columns if column.metric is None]
    texts = heads if not layout.columns else table.columns
    shown = texts[1:] if layout.first == "title" else texts
    types = layout.columns or _types(layout, len(shown), len(table.columns) - len(texts))
    begin, end = r"\resizebox{\linewidth}{!}{%", "}"
    inner = rf"\begin{{tabular}}{{{types}}}", r"\end{tabular}"
    if "X" in types:
        begin, end = "", ""
        inner = rf"\begin{{tabularx}}{{\linewidth}}{{{types}}}", r"\end{tabularx}"
    caption = escape_latex(" ".join(table_notes(table)))
    lines = [
        PACKAGES,
        r"\begin{table*}[!t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{1.8pt}\renewcommand{\arraystretch}{1.06}",
        rf"\caption{{\textbf{{{escape_latex(table.title)}.}} {caption}}}",
        rf"\label{{tab:{table.slug.replace('_', '-')}}}",
        begin,
        inner[0],
        r"\toprule",
        *_head(table.columns, len(shown), len(texts) - len(shown), layout),
        r"\midrule",
        *_body(table, layout, len(shown)),
        r"\bottomrule",
        inner[1] + end,
        r"\end{table*}",
        "",
    ]
    return "\n".join(line for line in lines[:-1] if line) + "\n"


def _types(layout: Layout, texts: int, values: int) -> str:
    """Centered values behind left-aligned text, with lines between groups."""
    counts = [count for _, count in layout.groups] or [values]
    left = ["c", *["l"] * (texts - 1)] if layout.first == "side" else ["l"] * texts
    return "|".join([*left, *("c" * count for count in counts)])


def _head(columns: Sequence[Column], texts: int, left_out: int, layout: Layout) -> Iterator[str]:
    labels = [_label(column) for column in columns[left_out:]]
    if not layout.groups:
        yield " & ".join(labels) + r" \\"
        return
    wide = [rf"\multicolumn{{{count}}}{{c}}{{\textbf{{{escape_latex(title)}}}}}" for title, count in layout.groups]
    yield " & ".join([rf"\multirow{{2}}{{*}}{{{label}}}" for label in labels[:texts]] + wide) + r" \\"
    first, rules = texts + 1, []
    for _, count in layout.groups:
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    yield "".join(rules)
    yield " & ".join([""] * texts + labels[texts:]) + r" \\"


def _label(column: Column) -> str:
    if column.metric is None:
        return rf"\textbf{{{escape_latex(column.label)}}}"
    key = column.key.rpartition(" ")[2]
    return LABELS.get(key, escape_latex(column.label)) + escape_latex(column.metric.arrow)


def _body(table: Table, layout: Layout, texts: int) -> Iterator[str]:
    """Rows in blocks of equal first cells."""
    numbered = list(enumerate(table.short))
    if layout.first == "plain":
        yield from (_row(number, row.cells, layout, 0) for number, row in numbered)
        return
    width = texts + sum(column.metric is not None for column in table.columns)
    for place, (name, group) in enumerate(groupby(numbered, key=lambda one: one[1].cells[0].text)):
        if place:
            yield r"\midrule"
        rows = list(group)
        if layout.first == "title":
            yield rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{escape_latex(name)}}}}} \\"
            yield r"\midrule"
            yield from (_row(number, row.cells[1:], layout, 1) for number, row in rows)
        else:
            side = rf"\multirow{{{len(rows)}}}{{*}}{{\rotatebox{{90}}{{\textbf{{{escape_latex(name)}}}}}}}"
            yield from _beside(side, rows, layout)


def _beside(side: str, rows: Sequence[tuple[int, Row]], layout: Layout) -> Iterator[str]:
    for place, (number, row) in enumerate(rows):
        # The cell of the name is not shaded.
        first = r"\cellcolor{white}" if number in layout.shaded else ""
        name = side if place == 0 else ""
        yield _row(number, row.cells[1:], layout, 1, f"{first}{name} & ")


def _row(number: int, cells: Sequence[Cell], layout: Layout, skipped: int, before: str = "") -> str:
    shade = r"\rowcolor{blue!10} " if number in layout.shaded else ""
    parts = []
    for place, cell in enumerate(cells, skipped):
        mark = r"\cellcolor{gray!15}" if (number, place) in layout.stronger else ""
        parts.append(mark + _cell(cell))
    return shade + before + " & ".join(parts) + r" \\"


def _cell(cell: Cell) -> str:
    words = rf"\textbf{{{escape_latex(cell.text)}}}" if cell.best else escape_latex(cell.text)
    if not cell.details:
        return words
    small = ", ".join(
        SIGNS.get(detail[0], escape_latex(detail[0])) + escape_latex(detail[1:]) for detail in cell.details
    )
    return rf"\shortstack{{{words}\\{{\tiny {small}}}}}"


def stronger_cells(table: Table, external: Sequence[bool], blocks: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Cells of external methods that are better than all others of their block, by row and column."""
    found = set()
    for place, column in enumerate(table.columns):
        if column.metric is None or column.metric.higher_is_better is None:
            continue
        sign = 1 if column.metric.higher_is_better else -1
        values = [row.cells[place].value for row in table.rows]
        for block in set(blocks):
            rows = [number for number, one in enumerate(blocks) if one == block]
            known = {n: sign * v for n in rows if isinstance(v := values[n], float) and v == v}
            own = max((known[n] for n in known if not external[n]), default=float("inf"))
            found |= {(n, place) for n in known if external[n] and known[n] > own}
    return frozenset(found)
