"""From prediction files to scores, without any model; wrong conventions are recognized at the query frame.

A tracker is given a point in the query frame and should return that point there. Predictions that miss it by a scale,
an exchange of x and y, a constant offset or a permutation of the tracks follow another convention than
`docs/predictions.md`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from lpa_cwm.config import Selection
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.predict import EvaluationRun, Manifest, load_run, manifest_of, open_dataset
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import rescale
from lpa_cwm.io.predictions import find_predictions, frame_count, predicted_videos, read_prediction
from lpa_cwm.metrics import TRIVIAL, Prediction, Protocol, Scores, Truth, dump_scores, measure, sweep_thresholds
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.types import Sample

MIN_POINTS = 4
"""Minimum number of points for a conclusion."""
MAX_QUERY_ERROR = 1.0
"""Median distance in pixels up to which predictions meet the query points under a convention."""
OFFSET_TOLERANCE = 0.05
"""Largest deviation in pixels from a constant offset of half a pixel."""


@dataclass(frozen=True)
class QueryErrors:
    """Query points of one video, and the predictions in the query frames."""

    query: Float[np.ndarray, "n 2"]
    predicted: Float[np.ndarray, "n 2"]
    """Predicted position of each track in its own query frame."""
    moved: Bool[np.ndarray, "n"]
    """Whether another row of the predictions is nearer to the query point than the track's own."""
    nearest: Float[np.ndarray, "n"]
    """Distance of the query point to the nearest row."""
    hidden: Bool[np.ndarray, "n"]
    """Whether the track is called hidden in its own query frame."""

    @classmethod
    def of(cls, prediction: Prediction, truth: Truth) -> "QueryErrors":
        """Compare one video; tracks without a finite prediction in the query frame are left out."""
        rows = np.arange(len(truth.xy))
        query = truth.xy[rows, truth.query_frame].astype(np.float64)
        # Entry [i, j]: where row j is predicted in the query frame of track i.
        there = prediction.xy.astype(np.float64)[:, truth.query_frame].swapaxes(0, 1)
        distance = np.linalg.norm(there - query[:, None], axis=-1)
        distance[np.isnan(distance)] = np.inf
        known = np.isfinite(there[rows, rows]).all(axis=-1)
        moved = distance.min(axis=1) < distance[rows, rows]
        hidden = ~prediction.visible[rows, truth.query_frame]
        return cls(query[known], there[rows, rows][known], moved[known], distance.min(axis=1)[known], hidden[known])


def check_conventions(videos: Sequence[QueryErrors]) -> Iterator[str]:
    """One sentence about the convention that explains the errors at the query frames; none if they are small."""
    videos = [video for video in videos if len(video.query)]
    query = np.concatenate([np.zeros((0, 2)), *(video.query for video in videos)])
    predicted = np.concatenate([np.zeros((0, 2)), *(video.predicted for video in videos)])
    if len(query) < MIN_POINTS:
        return
    if (share := np.concatenate([video.hidden for video in videos]).mean()) > 0.5:
        yield (
            f"{share:.0%} of the tracks are hidden at their query frame, where they are visible by definition; "
            "`visible` is true where a point can be seen: check that it is not inverted."
        )
    miss = _median_distance(predicted, query)
    offset = np.median(predicted - query, axis=0)
    if miss > OFFSET_TOLERANCE and np.allclose(np.abs(offset), 0.5, atol=OFFSET_TOLERANCE):
        if _median_distance(predicted - offset, query) <= OFFSET_TOLERANCE:
            yield _sentence(
                miss, f"are off by ({offset[0]:+.1f}, {offset[1]:+.1f})", "the center of a pixel is at +0.5"
            )
        return
    if miss <= MAX_QUERY_ERROR:
        return
    yield from _explain(videos, predicted, query, miss)


def _explain(
    videos: Sequence[QueryErrors], predicted: Float[np.ndarray, "n 2"], query: Float[np.ndarray, "n 2"], miss: float
) -> Iterator[str]:
    """The first convention under which predictions that miss the query points meet them."""
    moved = np.concatenate([video.moved for video in videos])
    nearest = np.concatenate([video.nearest for video in videos])
    scale, swapped_scale = _scale(predicted, query), _scale(predicted[:, ::-1], query)
    if _median_distance(predicted[:, ::-1], query) <= MAX_QUERY_ERROR:
        yield _sentence(miss, "have x and y exchanged", "`xy` is column first, then row")
    elif np.median(nearest) <= MAX_QUERY_ERROR and moved.mean() > 0.5:
        yield _sentence(miss, "are in another order of tracks", "rows follow the order of the queries")
    elif _median_distance((predicted + 1) * SIZE / 2, query) <= MAX_QUERY_ERROR:
        rule = f"points are in pixels of the {SIZE} x {SIZE} raster"
        yield _sentence(miss, "are from -1 to 1 instead of pixels", rule)
    elif _median_distance(predicted * scale, query) <= MAX_QUERY_ERROR:
        yield _sentence(miss, _unit(scale), f"points are in pixels of the {SIZE} x {SIZE} raster")
    elif _median_distance(predicted[:, ::-1] * swapped_scale, query) <= MAX_QUERY_ERROR:
        rule = f"`xy` is column first, in pixels of the {SIZE} x {SIZE} raster"
        yield _sentence(miss, f"have x and y exchanged and {_unit(swapped_scale)}", rule)
    else:
        yield (
            f"At the query frame the predictions are {miss:.1f} px from the query points (median); "
            "expected the query points themselves: check units, x and y, and the order of tracks."
        )


def _sentence(miss: float, what: str, rule: str) -> str:
    return f"The predictions {what}: they miss the query points by {miss:.1f} px (median); {rule}."


def _unit(scale: Float[np.ndarray, "2"]) -> str:
    """The unit of predictions that this factor turns into pixels of the raster."""
    width, height = SIZE / scale
    if np.allclose((width, height), 1, rtol=0.02):
        return "are from 0 to 1 instead of pixels"
    return f"are in pixels of a raster of about {width:.0f} x {height:.0f}"


def _scale(predicted: Float[np.ndarray, "n 2"], query: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "2"]:
    """Least-squares factor of each axis from predictions to query points."""
    return (predicted * query).sum(axis=0) / np.maximum((predicted**2).sum(axis=0), 1e-12)


def _median_distance(first: Float[np.ndarray, "n 2"], second: Float[np.ndarray, "n 2"]) -> float:
    return float(np.median(np.linalg.norm(first - second, axis=-1)))


@dataclass(frozen=True)
class ScoredRun:
    """A folder of predictions, the data they are for, and the run that made them."""

    folder: Path
    dataset: Dataset
    manifest: Manifest
    run: EvaluationRun | None
    """None if another program wrote the predictions."""
    label: str = ""
    """Name of the row; by default the run's, or the folder's."""

    @classmethod
    def of(cls, folder: Path, dataset: Dataset, manifest: Manifest, label: str = "") -> "ScoredRun":
        """The run in a folder; refused if it is not of these data."""
        run = load_run(folder)
        if run:
            run.manifest.check(manifest)
            run.check_files(folder)
        return cls(folder, dataset, manifest, run, label)

    @cached_property
    def files(self) -> dict[str, Path]:
        """Prediction files by video."""
        return find_predictions(self.folder, self.dataset.names)

    @property
    def missing(self) -> list[str]:
        """Videos without predictions."""
        return [name for name in self.dataset.names if name not in self.files]

    @property
    def method(self) -> str:
        """Name of the row in tables."""
        return self.label or (self.folder.name if self.run is None else self.run.label or self.run.method)

    def pairs(self) -> Iterator[tuple[str, Prediction, Truth]]:
        """Name, prediction and truth of each video; a missing prediction is NaN and never visible."""
        for index, name in enumerate(self.dataset.names):
            truth = truth_of(self.dataset[index])
            path = self.files.get(name)
            yield name, read_prediction(path, *truth.visible.shape) if path else never_visible(truth), truth

    def notes(self) -> dict[str, Any]:
        """Where the figures come from."""
        known = {} if self.run is None else {"settings": self.run.settings, "software": self.run.software}
        selection = asdict(self.dataset.selection)
        return {"predictions": str(self.folder), "dataset": str(self.dataset.path), "selection": selection, **known}


def score(
    folder: Path | str,
    dataset: Dataset | Path | str | None = None,
    *,
    selection: Selection | None = None,
    protocol: Protocol | None = None,
    partial: bool = False,
    label: str = "",
) -> list[Scores]:
    """Score a folder of predictions and the trivial predictors, and write `scores.json` beside the predictions.

    Sentences about what looks wrong are in `notes["notices"]` of the first result.

    Args:
        folder: Folder of the prediction files.
        dataset: The data; needed only if the folder has no `run.json` or the data have moved.
        selection: Part of the data set that the predictions are for, if there is no `run.json`.
        protocol: Thresholds of motion and coverage; by default the paper's.
        partial: Whether videos without predictions count as failures; otherwise they are refused.
        label: Name in tables; by default the method's or the folder's.

    Examples:
        >>> import pickle, tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> points, occluded = np.full((2, 4, 2), 0.5, np.float32), np.zeros((2, 4), bool)
        >>> video = {"video": np.zeros((4, 32, 32, 3), np.uint8), "points": points, "occluded": occluded}
        >>> _ = Path(f"{folder}/data.pkl").write_bytes(pickle.dumps({"still": video}))

        >>> from lpa_cwm.evaluation.predict import predict
        >>> _ = predict(f"{folder}/data.pkl", f"{folder}/run", "static")
        >>> ours, static, truth = score(f"{folder}/run")
        >>> ours.videos["still"]["aj"]
        1.0
    """
    scores = score_run(open_run(Path(folder), dataset, selection, label), protocol, partial)
    write_scores(Path(folder), scores)
    return scores


def open_run(
    folder: Path, dataset: Dataset | Path | str | None = None, selection: Selection | None = None, label: str = ""
) -> ScoredRun:
    """A folder of predictions with its data; refused if they do not belong together."""
    known = load_run(folder)
    if known:
        data = open_dataset(dataset or known.dataset, known.selection)
    elif dataset and predicted_videos(folder):
        data = open_dataset(dataset, selection)
    else:
        lack = "predictions" if dataset else "run.json to say what it is for; give --dataset"
        raise InputError(f"{folder} has no {lack}; expected what `lpa-cwm eval predict` or another tracker wrote.")
    return ScoredRun.of(folder, data, manifest_of(data), label)


def score_run(run: ScoredRun, protocol: Protocol | None = None, partial: bool = False) -> list[Scores]:
    """Scores of the predictions, followed by those of the trivial predictors."""
    if run.missing and not partial:
        examples = ", ".join(run.missing[:3])
        raise InputError(
            f"{run.folder} lacks {len(run.missing)} of {len(run.dataset)} videos, such as {examples}; "
            "finish it with `lpa-cwm eval predict`, or count them as failures with --partial."
        )
    protocol = replace(protocol or Protocol(), mode=run.dataset.selection.queries)
    thresholds = sweep_thresholds(one.score for _, one, _ in run.pairs() if one.score is not None)
    tables: dict[str, dict[str, Any]] = {name: {} for name in ("", *TRIVIAL)}
    for name, prediction, truth in run.pairs():
        tables[""][name] = measure(prediction, truth, protocol, thresholds)
        for trivial, predict in TRIVIAL.items():
            tables[trivial][name] = measure(predict(truth), truth, protocol)
    shared = {"dataset": run.dataset.name, "protocol": protocol, "manifest": run.manifest.hash}
    notes = run.notes() | {"missing": run.missing, "notices": list(notices(run))}
    own = Scores(method=run.method, videos=tables[""], thresholds=thresholds, notes=notes, **shared)
    return [own, *(Scores(method=name, videos=tables[name], reference=True, **shared) for name in TRIVIAL)]


def notices(run: ScoredRun) -> Iterator[str]:
    """Sentences about predictions of another program that look wrong or were changed before scoring."""
    if run.run is not None:
        return
    sizes = {
        name: (frame_count(run.files[name]), video.frames)
        for name, video in run.manifest.videos.items()
        if name in run.files
    }
    longer = {name: size for name, size in sizes.items() if size[0] > size[1]}
    for name, (given, used) in list(longer.items())[:1]:
        others = f", as in {len(longer) - 1} other video{'s' * (len(longer) > 2)}" if len(longer) > 1 else ""
        yield f"The predictions of {name} have {given} frames{others}; the first {used} were scored."
    yield from check_conventions([QueryErrors.of(one, truth) for _, one, truth in run.pairs()])


def write_scores(folder: Path, scores: list[Scores]) -> Path:
    """Write `scores.json` beside the predictions."""
    path = folder / "scores.json"
    with atomic_write(path) as temporary:
        temporary.write_text(dump_scores(scores))
    return path


def never_visible(truth: Truth) -> Prediction:
    """The prediction of a missing video."""
    nowhere = np.full(truth.xy.shape, np.nan, dtype=np.float32)
    # The least score, so that sweeping the visibility threshold counts the video as missing throughout.
    never = np.full(truth.visible.shape, -np.inf, dtype=np.float32)
    return Prediction(nowhere, np.zeros_like(truth.visible), never)


def truth_of(sample: Sample) -> Truth:
    """The annotation of a video as arrays, in pixels of the 256 x 256 raster."""
    xy = rescale(sample.truth.xy, sample.clip.hw, (SIZE, SIZE))
    return Truth(xy.numpy(), sample.truth.visible.numpy(), sample.queries.frame.numpy())
