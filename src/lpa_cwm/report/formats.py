"""A table as CSV, Markdown, LaTeX or a piece of HTML."""

import csv
import io
from collections.abc import Iterable
from html import escape

from lpa_cwm.report.tables import Cell, Column, Row, Table

LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
LATEX |= {"δ": r"$\delta$", "–": "--", "…": r"\,..\,", "≥": r"$\geq$", "×": r"$\times$"}


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
    return "\n".join([*lines, "", *_notes(table), ""])


def _pipes(parts: Iterable[str]) -> str:
    return "| " + " | ".join(part.replace("|", r"\|") for part in parts) + " |"


def _markdown(cell: Cell) -> str:
    words = f"**{cell.text}**" if cell.best else cell.text
    return f"{words} ({'; '.join(_small(cell))})" if _small(cell) else words


def to_latex(table: Table) -> str:
    """A booktabs table; references below a rule of their own."""
    head = " & ".join(_tex(column.head) for column in table.columns)
    rows = [_tex_row(row) for row in table.short if not row.reference]
    apart = [_tex_row(row) for row in table.short if row.reference]
    body = [*rows, *([r"\midrule"] if rows and apart else []), *apart]
    caption = " ".join([f"{table.title}.", *_notes(table)])
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_tex(caption)}}}",
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
    words = rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
    small = "".join(rf"\\{{\tiny {_tex(line)}}}" for line in _small(cell))
    return rf"\shortstack[r]{{{words}{small}}}" if small else words


def _tex(words: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in words)


def to_html(table: Table) -> str:
    """A sortable table."""
    heads = "".join(_html_head(column) for column in table.columns)
    rows = "".join(_html_row(row) for row in table.short)
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in _notes(table))
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
    more = "".join(f"<small>{escape(small)}</small>" for small in _small(cell))
    if isinstance(cell.value, str):
        return f"<td>{words}{more}</td>"
    return f'<td class=num data-value="{_plain(cell.value)}">{words}{more}</td>'


def _small(cell: Cell) -> tuple[str, ...]:
    """What stands beside the value."""
    return cell.details + ((f"{cell.undefined} undef.",) if cell.undefined else ())


def _notes(table: Table) -> list[str]:
    """What is to be said under the table."""
    hidden = len(table.rows) - len(table.short)
    more = f"{len(table.short)} of {len(table.rows)} rows; the CSV file has all." if hidden else ""
    return [note for note in (table.note, more) if note]
