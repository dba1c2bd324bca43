"""From prediction files to measures, without any model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation import predictions
from lpa_cwm.evaluation.manifest import Manifest, manifest_of
from lpa_cwm.evaluation.run import Run, load_run
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import rescale
from lpa_cwm.metrics import TRIVIAL, Prediction, Protocol, Scores, Truth, dump_scores, measure, sweep_thresholds
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.types import Sample


@dataclass(frozen=True)
class ScoredRun:
    """A folder of predictions, the data they are for, and what is known about them."""

    folder: Path
    dataset: Dataset
    manifest: Manifest
    run: Run | None
    """None when another program wrote the predictions."""

    @classmethod
    def of(cls, folder: Path, dataset: Dataset, manifest: Manifest) -> "ScoredRun":
        """The run in a folder; refused if it is not of these data."""
        run = load_run(folder)
        if run:
            run.manifest.check(manifest)
            run.check(folder)
        return cls(folder, dataset, manifest, run)

    @property
    def missing(self) -> list[str]:
        """Videos without predictions."""
        return [name for name in self.dataset.names if not predictions.file_of(self.folder, name).exists()]

    @property
    def method(self) -> str:
        """What the predictions are called in tables."""
        return self.folder.name if self.run is None else self.run.method

    def notes(self) -> dict[str, Any]:
        """Where the figures come from."""
        known = {} if self.run is None else {"settings": self.run.settings, "software": self.run.software}
        selection = asdict(self.dataset.selection)
        return {"predictions": str(self.folder), "dataset": str(self.dataset.path), "selection": selection, **known}


def open_run(folder: Path, dataset: Path | None = None, selection: Selection | None = None) -> ScoredRun:
    """Find out what a folder's predictions are for, and refuse what does not belong together."""
    known = load_run(folder)
    if known:
        data = load_dataset(dataset or known.dataset, known.selection)
    elif dataset and any(predictions.videos_in(folder)):
        data = load_dataset(dataset, selection)
    else:
        lack = "predictions" if dataset else "run.json to say what it is for; give --dataset"
        raise InputError(f"{folder} has no {lack}; expected what `lpa-cwm eval predict` or another tracker wrote.")
    return ScoredRun.of(folder, data, manifest_of(data))


def score(run: ScoredRun, protocol: Protocol | None = None, partial: bool = False) -> list[Scores]:
    """Measure the predictions, and beside them the trivial predictors; missing videos fail if `partial`."""
    missing = run.missing
    if missing and not partial:
        some = ", ".join(missing[:3])
        raise InputError(
            f"{run.folder} lacks {len(missing)} of {len(run.dataset)} videos, such as {some}; "
            "finish it with `lpa-cwm eval predict`, or count them as failures with --partial."
        )
    protocol = replace(protocol or Protocol(), mode=run.dataset.selection.queries)
    thresholds = sweep_thresholds(one.score for _, one, _ in _pairs(run) if one.score is not None)
    tables: dict[str, dict[str, Any]] = {name: {} for name in ("", *TRIVIAL)}
    for name, prediction, truth in _pairs(run):
        tables[""][name] = measure(prediction, truth, protocol, thresholds)
        for trivial, predict in TRIVIAL.items():
            tables[trivial][name] = measure(predict(truth), truth, protocol)
    shared = {"dataset": run.dataset.name, "protocol": protocol, "manifest": run.manifest.hash}
    notes = run.notes() | {"missing": missing}
    own = Scores(method=run.method, videos=tables[""], thresholds=thresholds, notes=notes, **shared)
    return [own, *(Scores(method=name, videos=tables[name], reference=True, **shared) for name in TRIVIAL)]


def write_scores(folder: Path, scores: list[Scores]) -> Path:
    """Write `scores.json` beside the predictions."""
    path = folder / "scores.json"
    with atomic_write(path) as aside:
        aside.write_text(dump_scores(scores))
    return path


def _pairs(run: ScoredRun) -> Iterator[tuple[str, Prediction, Truth]]:
    """Each video's prediction and truth; a missing one is nowhere and never visible."""
    missing = set(run.missing)
    for index, name in enumerate(run.dataset.names):
        truth = _truth(run.dataset[index])
        tracks, frames = truth.visible.shape
        if name in missing:
            nowhere = np.full((tracks, frames, 2), np.nan, dtype=np.float32)
            # The least score, so that sweeping the visibility threshold counts the video as missing throughout.
            never = np.full((tracks, frames), -np.inf, dtype=np.float32)
            yield name, Prediction(nowhere, np.zeros((tracks, frames), dtype=bool), never), truth
        else:
            yield name, predictions.read(run.folder, name, tracks, frames), truth


def _truth(sample: Sample) -> Truth:
    """Truth in pixels of the 256 x 256 raster."""
    xy = rescale(sample.truth.xy, sample.clip.hw, (SIZE, SIZE))
    return Truth(xy.numpy(), sample.truth.visible.numpy(), sample.queries.frame.numpy())
