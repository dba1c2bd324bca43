"""Prediction runs: resumable and divisible, with the same bytes on one machine and on many.

A method is an adjudicator on a world model, or a baseline, with all settings of its predictions. A run is one folder of
predictions, one configuration, and one manifest of the data; `run.json` records them.

The manifest is a hash over the content of videos, tracks and frames. Two selections have the same hash if and only if
they hold the same videos with the same frames, queries and truth. The order of the videos and the name of the file do
not matter; the order of the tracks does, because predictions follow it.
"""

import json
import platform
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from lpa_cwm import registry
from lpa_cwm.baselines.flow_trackers import working_size
from lpa_cwm.baselines.registry import get_baseline
from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD, Selection, TrackerConfig
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.files import pin_settings
from lpa_cwm.geometry import HW, rescale
from lpa_cwm.io.predictions import (
    configuration_of,
    is_complete_prediction,
    predicted_videos,
    prediction_path,
    write_prediction,
)
from lpa_cwm.jobs import Executor, Shard, execute, progress, run_local
from lpa_cwm.metrics import Prediction
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset, WorldModel
from lpa_cwm.tracker import track_both_ways, track_many
from lpa_cwm.types import Clip, Queries, Sample, Tracks
from lpa_cwm.validation import read_json, reading, structure

FORMAT = "lpa-cwm run 1"
TrackAll = Callable[[Clip, Queries], dict[str, Tracks]]
"""Tracks one clip with several methods; results by their keys."""


@dataclass(frozen=True)
class VideoDigest:
    """Size of one video, and hashes of its queries with their truth and of its frames."""

    tracks: int
    frames: int
    truth: str
    pixels: str


@dataclass(frozen=True)
class Manifest:
    """The videos of a selection by name."""

    videos: dict[str, VideoDigest]

    @cached_property
    def hash(self) -> str:
        """Equal for equal content."""
        return digest(self.to_dict())

    def check(self, other: "Manifest") -> None:
        """Refuse another selection and name the first difference."""
        if self.hash == other.hash:
            return
        absent, added = self.videos.keys() - other.videos.keys(), other.videos.keys() - self.videos.keys()
        if absent or added:
            examples = ", ".join(sorted(absent or added)[:3])
            what = f"lacks {len(absent)} of its videos" if absent else f"has {len(added)} other videos"
            raise mismatch(f"{what}, such as {examples}")
        name = min(name for name, video in self.videos.items() if video != other.videos[name])
        mine, theirs = asdict(self.videos[name]), asdict(other.videos[name])
        raise mismatch(f"has other {next(part for part in mine if mine[part] != theirs[part])} in the video {name}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of names."""
        return {name: asdict(self.videos[name]) for name in sorted(self.videos)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Manifest":
        """The inverse of `to_dict`."""
        return cls({name: VideoDigest(**video) for name, video in plain.items()})


def mismatch(what: str) -> InputError:
    """An error about data that differ from those of the run."""
    return InputError(f"The data set {what}; the run was made from other data; give the same file and selection.")


def manifest_of(dataset: Dataset) -> Manifest:
    """Read and hash every video once; bad videos are found before any work begins."""
    return Manifest({name: _digest_video(dataset, index) for index, name in enumerate(dataset.names)})


def _digest_video(dataset: Dataset, index: int) -> VideoDigest:
    sample = dataset[index]
    return VideoDigest(len(sample.queries), len(sample.clip), _digest_truth(sample), dataset.fingerprint(index))


def _digest_truth(sample: Sample) -> str:
    """Hash queries and truth, without the positions of occluded points."""
    visible = sample.truth.visible
    known = sample.truth.xy.where(visible[..., None], 0)
    whole = blake2b(repr(tuple(visible.shape)).encode(), digest_size=16)
    for part in (sample.queries.xy, sample.queries.frame, visible, known):
        whole.update(part.contiguous().numpy().tobytes())
    return whole.hexdigest()


def digest(plain: dict[str, Any]) -> str:
    """Hash of plain values, independent of the order of their names."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class EvaluationRun:
    """Everything that determines the predictions, and where they come from."""

    method: str
    settings: dict[str, Any]
    dataset: str
    """Path of the data set when the run began."""
    selection: Selection
    manifest: Manifest
    software: dict[str, str] = field(default_factory=dict)
    label: str = ""
    """Name of the row in tables; the method's name if empty."""

    @property
    def hash(self) -> str:
        """Hash of the configuration: method, settings and data."""
        return digest({"method": self.method, "settings": self.settings, "manifest": self.manifest.hash})

    def create(self, folder: Path) -> None:
        """Claim a folder by writing `run.json`; refuse a folder that holds another run."""
        load_run(folder)
        compared = {"method": self.method, "settings": self.settings, "manifest": self.manifest.to_dict()}
        notes = {"format": FORMAT, "hash": self.hash, "selection": asdict(self.selection)}
        notes |= {name: getattr(self, name) for name in ("dataset", "software", "label")}
        pin_settings(folder / "run.json", compared, notes)
        self.check_files(folder, damaged=False)

    def check_files(self, folder: Path, damaged: bool = True) -> None:
        """Refuse prediction files of other configurations, and `damaged` ones unless they will be made again."""
        for path in predicted_videos(folder).values():
            if (damaged or is_complete_prediction(path)) and configuration_of(path) != self.hash:
                raise InputError(f"{path} is not of this run's configuration; a folder holds one run; remove it.")


def load_run(folder: Path) -> EvaluationRun | None:
    """The run of a folder; None without `run.json`, as when another program wrote the predictions."""
    path = folder / "run.json"
    if not path.exists():
        return None
    with reading(path, "the description of a run", "restore it or give another folder"):
        plain = structure(read_json(path), dict[str, Any])
        return structure(
            {one.name: plain[one.name] for one in fields(EvaluationRun) if one.name != "label"}
            | {"manifest": {"videos": plain["manifest"]}, "label": plain.get("label", "")},
            EvaluationRun,
        )


def software() -> dict[str, str]:
    """Versions of Python, torch, numpy and this package, and the commit if the code is a checkout."""
    found = {name: version(name) for name in ("lpa-cwm", "torch", "numpy")}
    commit = _commit(Path(__file__))
    return {"python": platform.python_version(), **found, **({"commit": commit} if commit else {})}


def _commit(file: Path) -> str | None:
    """The commit of a file that git tracks; a checkout around an installed package is not its own."""
    git = ["git", "-C", str(file.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@dataclass(frozen=True)
class Method:
    """One row of a table."""

    name: str
    """An adjudicator or a baseline."""
    world: str = WORLD
    score_model: str = "compact"
    weights: Path | None = None
    """LPA weights other than the bundled ones."""
    device: str = "cpu"
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the tracker's configuration that differ from the world model's defaults."""
    label: str = ""
    """Name of the row; the method's name if empty."""

    def __post_init__(self) -> None:
        if self.settings and not self.ours:
            names = ", ".join("--" + name.replace("_", "-") for name in self.settings)
            raise InputError(f"{self.name} does not take {names}; leave out what only uniform, apa and lpa have.")

    @property
    def ours(self) -> bool:
        """Whether it is an adjudicator on a world model."""
        return self.name in ADJUDICATORS

    @property
    def row(self) -> str:
        """Name of the row in tables, and of the run's folder."""
        return self.label or self.name

    def config(self, world: WorldModel) -> TrackerConfig:
        """Settings of the tracker."""
        return world.defaults.changed(self.settings)

    def identity(self, world: WorldModel | None) -> dict[str, Any]:
        """Everything that determines the predictions; weights by a hash of their content."""
        if world is None:
            return get_baseline(self.name).identity()
        score_model = self.score_model if self.name == "apa" else ""
        return {
            "world": self.world,
            **({"score_model": score_model} if score_model else {}),
            "config": asdict(self.config(world)),
            "weights": registry.fingerprint_of([self.weights]) if self.weights else None,
            "bundled_weights": registry.fingerprint(self.world, score_model, "" if self.weights else self.name),
        }


def make_tracker(methods: Sequence[tuple[str, Method]], worlds: Mapping[str, WorldModel]) -> TrackAll:
    """One function that tracks with all methods; methods with the same world model and settings share candidates."""
    groups: dict[Any, list[tuple[str, Method]]] = {}
    for key, method in methods:
        shared = (method.world, method.device, tuple(sorted(method.settings.items()))) if method.ours else key
        groups.setdefault(shared, []).append((key, method))
    trackers = [
        _cwm(group, worlds[group[0][1].world]) if group[0][1].ours else _baseline(*group[0])
        for group in groups.values()
    ]
    return lambda clip, queries: {key: tracks for track in trackers for key, tracks in track(clip, queries).items()}


def _cwm(methods: Sequence[tuple[str, Method]], world: WorldModel) -> TrackAll:
    """Adjudicators on one world model."""
    first = methods[0][1]
    adjudicators = {
        key: registry.load_adjudicator(one.name, one.score_model, one.weights, one.device) for key, one in methods
    }
    config = first.config(world)

    def track(clip: Clip, queries: Queries) -> dict[str, Tracks]:
        return track_many(world, adjudicators, clip, queries, config=config, device=first.device)

    return track


def _baseline(key: str, method: Method) -> TrackAll:
    """A baseline, evaluated as in TAP-Vid: on frames of 256 x 256 pixels."""
    tracker = get_baseline(method.name).load(device=method.device)

    def track(clip: Clip, queries: Queries) -> dict[str, Tracks]:
        resized, asked = working_size(clip, queries, SIZE, kept=len(clip))
        tracks = tracker.track(resized, asked)
        return {key: replace(tracks, xy=rescale(tracks.xy, resized.hw, clip.hw))}

    return track


class PredictCounts(NamedTuple):
    """Numbers of videos."""

    made: int
    """Tracked now."""
    present: int
    """Tracked before."""
    videos: int
    """All videos of the data set."""


@dataclass(frozen=True)
class PredictJob:
    """The videos of a data set as pieces of work; each worker loads the trackers once."""

    dataset: Dataset
    make_tracker: Callable[[], TrackAll]

    def setup(self) -> Callable[[int], dict[str, Prediction]]:
        """The function that tracks the video of an index."""
        track = self.make_tracker()
        return lambda index: predict_sample(track, self.dataset[index], self.dataset.selection)


def predict(
    dataset: Dataset | Path | str,
    out: Path | str,
    method: Method | str = ADJUDICATOR,
    *,
    selection: Selection | None = None,
    executor: Executor = run_local,
    shard: Shard | None = None,
) -> PredictCounts:
    """Track the videos of a data set with one method and write one prediction file per video.

    Args:
        dataset: A file or folder of TAP-Vid format, or an object that is a `Dataset`.
        out: Folder of the prediction files; videos that it has already are not tracked again.
        method: Name of an adjudicator or a baseline, or a `Method` with settings.
        selection: Part of the data set; everything by default.
        executor: How the work is done: here, or on a Ray cluster.
        shard: Part of the videos, for several machines.

    Examples:
        >>> import pickle, tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> points, occluded = np.full((2, 4, 2), 0.5, np.float32), np.zeros((2, 4), bool)
        >>> video = {"video": np.zeros((4, 32, 32, 3), np.uint8), "points": points, "occluded": occluded}
        >>> _ = Path(f"{folder}/data.pkl").write_bytes(pickle.dumps({"still": video}))

        >>> predict(f"{folder}/data.pkl", f"{folder}/run", "static").made
        1
    """
    data = open_dataset(dataset, selection)
    chosen = Method(method) if isinstance(method, str) else method
    return predict_methods(data, manifest_of(data), {Path(out): chosen}, executor, shard)


def open_dataset(dataset: Dataset | Path | str, selection: Selection | None = None) -> Dataset:
    """A data set by its path, or the data set itself."""
    return load_dataset(dataset, selection) if isinstance(dataset, Path | str) else dataset


def predict_methods(
    dataset: Dataset,
    manifest: Manifest,
    methods: Mapping[Path, Method],
    executor: Executor = run_local,
    shard: Shard | None = None,
) -> PredictCounts:
    """Write the runs of several methods, each into its folder; methods share candidates where that is possible."""
    versions, path = software(), str(dataset.path.resolve())
    names = {one.world for one in methods.values() if one.ours}
    worlds = {name: registry.load_world(name) for name in sorted(names)}
    runs = {}
    for folder, method in methods.items():
        identity = method.identity(worlds.get(method.world) if method.ours else None)
        runs[folder] = EvaluationRun(
            method.name, identity, path, dataset.selection, manifest, versions, label=method.label
        )
    keyed = [(str(folder), method) for folder, method in methods.items()]
    return write_runs(PredictJob(dataset, partial(make_tracker, keyed, worlds)), runs, executor, shard)


def write_runs(
    job: PredictJob,
    runs: Mapping[Path, EvaluationRun],
    executor: Executor = run_local,
    shard: Shard | None = None,
) -> PredictCounts:
    """Track the videos that any of the runs lacks; the job's trackers are keyed by the runs' folders."""
    for folder, run in runs.items():
        run.create(folder)
    names, made = job.dataset.names, 0
    mine = (shard or Shard()).of(len(names))
    todo = [index for index in untracked(names, runs) if index in mine]
    found = execute(executor, job, todo, min(runs) / "run.json", lambda index: is_tracked(names[index], runs))
    for index, tracked in progress(found, len(todo), ", ".join(run.label or run.method for run in runs.values())):
        for folder, run in runs.items():
            write_prediction(folder, names[index], tracked[str(folder)], run.hash)
        made += 1
    return PredictCounts(made, len(mine) - made, len(names))


def untracked(names: Sequence[str], folders: Collection[Path]) -> list[int]:
    """Indices of the videos that lack a file in one of the folders."""
    return [index for index, name in enumerate(names) if not is_tracked(name, folders)]


def is_tracked(name: str, folders: Collection[Path]) -> bool:
    """Whether all folders have the whole file of a video."""
    return all(is_complete_prediction(prediction_path(folder, name)) for folder in folders)


def predict_sample(track: TrackAll, sample: Sample, selection: Selection) -> dict[str, Prediction]:
    """Track the queries of one video, strided ones both ways; frames are decoded before the clock starts."""
    for frame in range(len(sample.clip)):
        _ = sample.clip[frame]
    start = time.perf_counter()
    strided = selection.queries == "strided"
    tracks = track_both_ways(track, sample.clip, sample.queries) if strided else track(sample.clip, sample.queries)
    seconds = time.perf_counter() - start if len(tracks) == 1 else None
    return {name: to_prediction(one, sample.clip.hw, seconds) for name, one in tracks.items()}


def to_prediction(tracks: Tracks, hw: HW, seconds: float | None = None) -> Prediction:
    """Tracks as arrays of a prediction file: positions are scaled from the clip's size to the 256 x 256 raster."""
    xy = rescale(tracks.xy, hw, (SIZE, SIZE))
    score = None if tracks.strength is None else tracks.strength.cpu().numpy()
    return Prediction(xy.cpu().numpy(), tracks.visible.cpu().numpy(), score, seconds)
