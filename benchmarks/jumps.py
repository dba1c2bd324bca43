"""Jumps and gaps of tracks, for folders of predictions that `lpa-cwm eval predict` wrote, and for the ground truth.

python benchmarks/jumps.py RUN... [--dataset DATA]

A step is the motion of a point from one frame to the next, in pixels of the 256 x 256 raster, after the query and where
the truth is visible in both frames. Predicted steps are measured between predicted positions, whatever the predicted
visibility. A gap is a stretch of frames predicted as hidden, with predicted visible frames before and after it, while
the truth is visible throughout. Each row also says how often a position is missing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from tyro.conf import Positional

from lpa_cwm.evaluation.score import open_run

LARGE = 20.0
"""Length in pixels from which a step is called a jump."""


def step_lengths(xy, counted):
    """Lengths of the steps between frames that are both counted; NaN where a position is missing."""
    steps = np.linalg.norm(np.diff(xy.astype(np.float64), axis=1), axis=-1)
    return steps[counted[:, 1:] & counted[:, :-1]]


def count_gaps(predicted, visible):
    """Stretches visible, hidden, visible of a predicted track inside the stretches where the truth is visible."""
    gaps = 0
    for shown, true in zip(predicted, visible, strict=True):
        seen = lost = False
        for now, known in zip(shown, true, strict=True):
            gaps += known and now and lost
            lost = known and not now and (seen or lost)
            seen = known and now
    return gaps


def row(name, lengths, gaps, tracks):
    """One line of the table."""
    known = lengths[np.isfinite(lengths)]
    missing = f"{100 * (1 - len(known) / len(lengths)):6.2f}" if len(lengths) else "   n/a"
    figures = (
        f"{100 * (known > LARGE).mean():8.3f} {np.percentile(known, 99):8.2f}"
        if len(known)
        else f"{'n/a':>8} {'n/a':>8}"
    )
    return f"{name:32} {figures} {gaps / tracks:10.3f} {missing:>9}"


@dataclass(frozen=True)
class Jumps:
    """Print one row per folder, and one for the ground truth of each data set."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Folders of predictions."""
    dataset: Path | None = None
    """Data set, if it has moved or the folder has no run.json."""

    def run(self):
        print(f"{'':32} {'> 20 px':>8} {'99th':>8} {'gaps':>10} {'missing':>9}")
        print(f"{'':32} {'%':>8} {'px':>8} {'per track':>10} {'%':>9}")
        truths = {}
        for folder in self.runs:
            run = open_run(folder, self.dataset)
            predicted, true, gaps, tracks = [], [], 0, 0
            for _, prediction, truth in run.pairs():
                after = np.arange(truth.visible.shape[1]) >= truth.query_frame[:, None]
                counted = truth.visible & after
                predicted.append(step_lengths(prediction.xy, counted))
                true.append(step_lengths(truth.xy, counted))
                gaps += count_gaps(prediction.visible, counted)
                tracks += len(counted)
            print(row(run.method, np.concatenate(predicted), gaps, tracks))
            truths[run.manifest.hash] = row(f"ground truth of {run.dataset.name}", np.concatenate(true), 0, tracks)
        print(*truths.values(), sep="\n")


if __name__ == "__main__":
    tyro.cli(Jumps).run()
