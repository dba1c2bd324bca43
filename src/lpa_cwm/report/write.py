"""From run folders to a report folder."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from lpa_cwm.files import written_aside
from lpa_cwm.report.contest import load_contests
from lpa_cwm.report.formats import to_csv, to_latex, to_markdown
from lpa_cwm.report.page import page
from lpa_cwm.report.results import tables

WRITERS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}


def write_report(runs: list[Path], out: Path) -> Path:
    """Compare scored runs: `index.html`, and every table as CSV, Markdown and LaTeX in `tables/`."""
    sections = [(contest, list(tables(contest))) for contest in load_contests(runs)]
    for contest, found in sections:
        for table in found:
            name = quote(f"{contest.dataset}_{table.slug}", safe=" ")
            for suffix, to_text in WRITERS.items():
                _write(out / "tables" / f"{name}.{suffix}", to_text(replace(table, slug=name)))
    return _write(out / "index.html", page(sections))


def _write(path: Path, text: str) -> Path:
    with written_aside(path) as aside:
        aside.write_text(text)
    return path
