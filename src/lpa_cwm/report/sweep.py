"""A sweep of masks and re-evaluations: its file, its table and its charts."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lpa_cwm.files import atomic_write
from lpa_cwm.metrics import METRICS
from lpa_cwm.metrics.scores import estimates
from lpa_cwm.report.svg import Line, chart
from lpa_cwm.report.tables import Cell, Column, Row, Table, count_cell, estimate_cell, with_best
from lpa_cwm.validation import read_json, reading, structure

FILE = "sweep.json"
"""The measured cells in the folder of a sweep."""
ERROR = METRICS["ad"]
"""Declares unit and direction of an end-point error."""


@dataclass(frozen=True)
class SweepCell:
    """One setting of masks and re-evaluations."""

    masks: int
    passes: int
    error: float
    """Mean final end-point error in pixels of the 256 x 256 raster."""
    seconds: float
    """Median time of one query alone in its batch, models and frames in memory, describing the frames included."""
    queries: int
    by_video: list[float]
    """Mean error of the queries of each video."""


def read_cells(folder: Path) -> list[SweepCell]:
    """The cells that a folder holds."""
    path = folder / FILE
    if not path.exists():
        return []
    with reading(path, "a list of the cells of a sweep", "remove it and run `lpa-cwm eval sweep` again"):
        cells = structure(read_json(path), list[SweepCell])
        if any(min(cell.masks, cell.queries, len(cell.by_video)) < 1 for cell in cells):
            raise ValueError("a cell has no masks, queries or videos")
        return cells


def write_cells(cells: list[SweepCell], folder: Path) -> None:
    """Write all cells; a stopped sweep continues after the last one."""
    with atomic_write(folder / FILE) as aside:
        aside.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep instead of a run."""
    return (folder / FILE).exists()


def sweep_table(folder: Path) -> Table:
    """Error with its interval over videos, and time, for each setting."""
    columns = (
        Column("masks", "M"),
        Column("passes", "R"),
        Column("error", "End-point error, px", ERROR),
        Column("seconds", "s per query"),
        Column("queries", "queries"),
    )
    rows = with_best(columns, [_row(cell) for cell in read_cells(folder)])
    note = "Means over videos with 95 % intervals over resampled videos; each query alone, models in memory."
    return Table("sweep", "Masks and re-evaluations", columns, rows, note)


def _row(cell: SweepCell) -> Row:
    """One setting."""
    (error,) = estimates(np.array(cell.by_video)[:, None])
    seconds = Cell(f"{cell.seconds:.3f}", cell.seconds)
    return Row(
        (
            count_cell(cell.masks),
            count_cell(cell.passes),
            estimate_cell(error, ERROR),
            seconds,
            count_cell(cell.queries),
        )
    )


def conclusion(folder: Path) -> str:
    """One sentence: the setting with the lowest error."""
    best = min(read_cells(folder), key=lambda cell: cell.error)
    return (
        f"In {folder.name} the lowest end-point error is {best.error:.2f} px with M = {best.masks} and "
        f"R = {best.passes} ({best.seconds:.2f} s per query, {best.queries} queries)."
    )


def charts(folder: Path) -> str:
    """Error and time against M, a line for each R."""
    cells = read_cells(folder)
    masks = sorted({float(cell.masks) for cell in cells})
    drawn = ""
    for title, label, name in (("Error", "end-point error, px", "error"), ("Time", "s per query", "seconds")):
        lines = [
            Line(f"R = {passes}", [(float(cell.masks), getattr(cell, name)) for cell in cells if cell.passes == passes])
            for passes in sorted({cell.passes for cell in cells})
        ]
        drawn += chart(f"{title} by masks and re-evaluations", "M", label, lines, masks if len(masks) > 1 else ())
    return drawn
