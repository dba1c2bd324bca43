"""`lpa-cwm score`: prediction files in, measures out, without any model."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.config import Selection

if TYPE_CHECKING:
    from lpa_cwm.metrics import Scores


@dataclass(frozen=True)
class Score:
    """Measure the predictions of a run by CMC and TAP-Vid, beside the trivial predictors."""

    run_folder: Annotated[Path, Positional]
    """What `lpa-cwm predict` wrote, or prediction files of any other tracker (see docs/predictions.md)."""
    dataset: Path | None = None
    """The data set, if it is no longer where the run found it or if another program made the predictions."""
    partial: bool = False
    """Accept a run that lacks videos, and count them as failures."""
    json: bool = False
    """Print the summary for machines."""
    motion: float | None = None
    """Path, in pixels of the 256 raster, from which a track is dynamic (L_motion); 4 unless given."""
    coverage: float | None = None
    """Share of its visible frames from which a track is complete (c); 0.8 unless given."""
    selection: Annotated[Selection, OmitArgPrefixes] = field(default_factory=Selection)
    """The part of the data set that another program's predictions are for; a run of ours knows its own."""

    def run(self) -> None:
        """Measure, write scores.json, print the means."""
        from lpa_cwm.evaluation.score import open_run, score, write_scores
        from lpa_cwm.metrics import Protocol

        subject = open_run(self.run_folder, self.dataset, self.selection)
        motion = Protocol.motion if self.motion is None else self.motion
        coverage = Protocol.coverage if self.coverage is None else self.coverage
        scores = score(subject, Protocol(motion=motion, coverage=coverage), self.partial)
        path = write_scores(self.run_folder, scores)
        if self.json:
            print(json.dumps(summary(scores) | {"written": str(path)}))
            return
        print(table(scores))
        if missing := len(subject.missing):
            print(f"{missing} of {len(subject.dataset)} videos have no predictions and count as failures")
        print(path)


def summary(scores: "list[Scores]") -> dict[str, object]:
    """Plain values: every measure of the method and of the trivial predictors, with its interval."""
    from lpa_cwm.metrics import summarize
    from lpa_cwm.metrics.measures import plain

    methods = {
        one.method: {
            name: {key: plain(value) for key, value in asdict(estimate).items()}
            for name, estimate in summarize(one).items()
        }
        for one in scores
    }
    own = scores[0]
    return {"dataset": own.dataset, "manifest": own.manifest, "missing": own.notes["missing"], "methods": methods}


def table(scores: "list[Scores]") -> str:
    """Means with intervals, a line per measure; those at single thresholds are left to the report."""
    from lpa_cwm.metrics import METRICS, summarize

    summaries = [summarize(one) for one in scores]
    names = [name for name in summaries[0] if not re.search(r"_\d+$", name) or name.startswith("cts")]
    lines = [f"{'':14}" + "".join(f"{one.method:>26}" for one in scores) + "   undefined on"]
    for name in names:
        metric = METRICS[name]
        cells = []
        for estimates in summaries:
            if name not in estimates:
                cells.append(f"{'':26}")
                continue
            estimate = estimates[name]
            interval = f"[{metric.show(estimate.low)}, {metric.show(estimate.high)}]"
            cells.append(f"{metric.show(estimate.value):>8} {interval:>17}")
        undefined = summaries[0][name].undefined
        note = f"   {undefined} of {len(scores[0].videos)} videos" if undefined else ""
        lines.append(f"{metric.label:10} {metric.unit:>3}" + "".join(cells) + note)
    return "\n".join(lines)
