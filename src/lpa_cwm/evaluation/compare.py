"""Several methods on one data set: predicted, scored and reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lpa_cwm.config import ADJUDICATORS, Selection
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.methods import Method
from lpa_cwm.evaluation.predict import open_dataset, predict_methods, untracked
from lpa_cwm.evaluation.run import manifest_of
from lpa_cwm.evaluation.score import ScoredRun, score_run, write_scores
from lpa_cwm.metrics import Scores
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.page import write_report
from lpa_cwm.sharding import Executor, Shard, run_local


@dataclass(frozen=True)
class CompareResult:
    """What a comparison wrote."""

    folders: dict[str, Path]
    """Run folder of each row."""
    untracked: int
    """Videos that other shards still have to track; without them there are no scores and no report."""
    scores: dict[str, Scores]
    """Scores of each row."""
    report: Path | None
    """Page of the report."""


def compare(
    dataset: Dataset | Path | str,
    out: Path | str,
    methods: Sequence[Method | str] = ADJUDICATORS,
    *,
    selection: Selection | None = None,
    executor: Executor = run_local,
    shard: Shard | None = None,
    command: str = "",
) -> CompareResult:
    """Track a data set with several methods, score them and write a report; the data are read and hashed once."""
    rows = [Method(one) if isinstance(one, str) else one for one in methods]
    names = [one.row for one in rows]
    if len(set(names)) < len(names) or not names:
        raise InputError(f"The methods are {', '.join(names) or 'none'}; name each once, and at least one.")
    out, data = Path(out), open_dataset(dataset, selection)
    folders = {name: out / "runs" / name.replace("/", "_") for name in names}
    manifest = manifest_of(data)
    predict_methods(data, manifest, dict(zip(folders.values(), rows, strict=True)), executor, shard)
    if left := len(untracked(data.names, folders.values())):
        return CompareResult(folders, left, {}, None)
    scores = {}
    for name, folder in folders.items():
        found = score_run(ScoredRun.of(folder, data, manifest))
        write_scores(folder, found)
        scores[name] = found[0]
    report = write_report(list(folders.values()), out / "report", dataset=data, command=command)
    return CompareResult(folders, 0, scores, report)
