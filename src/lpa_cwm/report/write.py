"""From run folders to a report folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from lpa_cwm.files import atomic_write
from lpa_cwm.protocols import Dataset
from lpa_cwm.report import sweep
from lpa_cwm.report.contest import load_contests
from lpa_cwm.report.formats import to_csv, to_latex, to_markdown
from lpa_cwm.report.page import page
from lpa_cwm.report.results import tables

WRITERS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}


def write_report(
    runs: list[Path], out: Path, *, names: Sequence[str] = (), dataset: Dataset | None = None, command: str = ""
) -> Path:
    """Compare scored runs and show sweeps: `index.html`, and every table as CSV, Markdown and LaTeX in `tables/`.

    A data set that is open already is not read again for the pictures.
    """
    sweeps = [run for run in runs if sweep.is_sweep(run)]
    sections = [
        (contest, list(tables(contest))) for contest in load_contests([run for run in runs if run not in sweeps])
    ]
    named = [(contest.dataset, table) for contest, found in sections for table in found]
    for start, table in named + [(folder.name, sweep.table(folder)) for folder in sweeps]:
        name = quote(f"{start}_{table.slug}", safe=" ")
        for suffix, to_text in WRITERS.items():
            _write(out / "tables" / f"{name}.{suffix}", to_text(replace(table, slug=name)))
    return _write(out / "index.html", page(sections, sweeps, dataset))


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as aside:
        aside.write_text(text)
    return path
