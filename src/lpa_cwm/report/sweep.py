"""A sweep of masks and re-evaluations in the report: one table, two charts."""

from pathlib import Path

import numpy as np

from lpa_cwm.evaluation.sweep import FILE, Cell, measured
from lpa_cwm.metrics import METRICS
from lpa_cwm.metrics.summary import estimates
from lpa_cwm.report.figures import Line, chart
from lpa_cwm.report.tables import Cell as Entry
from lpa_cwm.report.tables import Column, Row, Table, estimated, whole, with_best

ERROR = METRICS["ad"]
"""Declares unit and direction of an end-point error."""


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep, and not a run."""
    return (folder / FILE).exists()


def table(folder: Path) -> Table:
    """Error with its interval over videos, and time, for each setting."""
    columns = (
        Column("masks", "M"),
        Column("passes", "R"),
        Column("error", "End-point error, px", ERROR),
        Column("seconds", "s per query"),
        Column("queries", "queries"),
    )
    rows = with_best(columns, [row(cell) for cell in measured(folder)])
    note = "Means over videos with 95 % intervals over resampled videos; each query alone, models in memory."
    return Table("sweep", "Masks and re-evaluations", columns, rows, note)


def row(cell: Cell) -> Row:
    """One setting."""
    (error,) = estimates(np.array(cell.by_video)[:, None])
    seconds = Entry(f"{cell.seconds:.3f}", cell.seconds)
    return Row((whole(cell.masks), whole(cell.passes), estimated(error, ERROR), seconds, whole(cell.queries)))


def charts(folder: Path) -> str:
    """Error and time against M, a line for each R."""
    cells = measured(folder)
    masks = sorted({float(cell.masks) for cell in cells})
    drawn = ""
    for title, label, name in (("Error", "end-point error, px", "error"), ("Time", "s per query", "seconds")):
        lines = [
            Line(f"R = {passes}", [(float(cell.masks), getattr(cell, name)) for cell in cells if cell.passes == passes])
            for passes in sorted({cell.passes for cell in cells})
        ]
        drawn += chart(f"{title} by masks and re-evaluations", "M", label, lines, masks if len(masks) > 1 else ())
    return drawn
