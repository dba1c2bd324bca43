"""The data that a folder holds for the paper's experiments, and the runs, trainings and candidates made from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lpa_cwm import registry
from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.config import ADJUDICATORS, PRESETS, WORLD, PresetName, Selection
from lpa_cwm.datasets.tapvid import has_clips, has_track_data, track_tables
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.compare import PAPER_VARIANTS, ablate, compare, open_pairs, sweep
from lpa_cwm.evaluation.predict import Method, open_dataset
from lpa_cwm.files import data_files, pin_settings
from lpa_cwm.jobs import progress
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.results import MethodSet, SweepCell, load_method_sets
from lpa_cwm.report.tables import same_name
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.feature_cache import FeatureRecorder, RecordingJob, fill_cache
from lpa_cwm.training.lpa import LpaTraining, train_lpa
from lpa_cwm.training.pair_sampling import PairSampler, training_pairs

DATASETS = ("DAVIS", "Kinetics", "RoboTAP")
"""The data sets of the paper, in the order of its tables."""
PUBLISHED = ("smurf", "gmrw", "doduo", "cotracker3", "raft", "sea-raft")
"""The baselines of the paper, in the order of its tables."""
PAIRS, QUERIES = 4, 8
"""Frame pairs per video, and most queries per pair, of cached candidates."""
LOCALIZATION = tuple(f"{name}-{kind}" for kind in ("windowed", "standard") for name in ADJUDICATORS)
"""Variants of Table 2 that need no training of their own."""


@dataclass(frozen=True)
class PaperData:
    """Data by their part in the paper."""

    benchmarks: tuple[Path, ...]
    """Annotated videos in TAP-Vid's formats."""
    train: Path | None = None
    """Videos with known motion to train LPA on: MOVi-F's records, or annotated videos."""
    val: Path | None = None
    """The same, held out."""
    left_out: tuple[str, ...] = ()
    """What was found and cannot be used, as sentences."""

    @property
    def held_out(self) -> Path:
        """Where candidates are audited and settings swept: held-out videos, or the first benchmark without them."""
        return self.val or self.benchmarks[0]


def find_data(paths: Sequence[Path]) -> PaperData:
    """Find benchmarks and motion data in files, in folders and in their subfolders.

    Folders called `train` and `val`, or folders with TFRecord files, are motion data; all other pickles and folders of
    pickles or with Kinetics' csv are benchmarks. A file is one benchmark. Benchmarks of the paper come first.
    """
    found = [_find_in(path) for path in paths]
    benchmarks = sorted({path for one in found for path in one.benchmarks}, key=_order)
    if not benchmarks:
        given = ", ".join(map(str, paths)) or "Nothing"
        left = " ".join(reason for one in found for reason in one.left_out)
        raise InputError(f"{given} holds no benchmark; expected TAP-Vid pickles, or folders of them. {left}".strip())
    train = next((one.train for one in found if one.train), None)
    val = next((one.val for one in found if one.val), None)
    return PaperData(tuple(benchmarks), train, val, tuple(reason for one in found for reason in one.left_out))


def _order(path: Path) -> tuple[int, str]:
    """The paper's order of data sets, then the alphabet's."""
    place = next((place for place, name in enumerate(DATASETS) if same_name(name, path.stem)), len(DATASETS))
    return place, str(path)


def _find_in(path: Path) -> PaperData:
    if path.is_file():
        return PaperData((path,))
    if not path.is_dir():
        raise InputError(f"There is no {path}; expected a folder with data sets, or one TAP-Vid pickle.")
    inner = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    records = next((one for one in (path, *inner) if data_files(one, "*.tfrecord-*")), None)
    named = {one.name: one for one in inner if one.name in ("train", "val") and has_track_data(one)}
    left_out: list[str] = []
    benchmarks = list(data_files(path, "*.pkl"))
    benchmarks += [one for one in track_tables(path) if _usable(one, left_out)]
    for folder in inner:
        if folder.name not in named and folder != records:
            benchmarks += _benchmark_in(folder, left_out)
    parts = (records, records) if records else (named.get("train"), named.get("val"))
    return PaperData(tuple(benchmarks), *parts, left_out=tuple(left_out))


def _benchmark_in(folder: Path, left_out: list[str]) -> list[Path]:
    """A folder's only pickle; the folder, if it has several, or a csv of tracks with clips."""
    pickles = data_files(folder, "*.pkl")
    if pickles:
        return pickles if len(pickles) == 1 else [folder]
    usable = [path for path in track_tables(folder) if _usable(path, left_out)]
    return [folder] if usable else []


def _usable(table: Path, left_out: list[str]) -> bool:
    """Whether a csv of tracks has clips; if not, that is noted."""
    found = has_clips(table)
    if not found:
        left_out.append(f"{table} is left out: none of its clips is in its folder or below.")
    return found


@dataclass(frozen=True)
class PaperRun:
    """All inputs of the tables and figures; each is made when it is first needed and kept in `out`."""

    data: PaperData
    out: Path
    world: str = WORLD
    score_model: str = "compact"
    weights: Path | None = None
    """LPA weights; without them LPA is trained if there are training videos, else the bundled weights are used."""
    device: str = "cpu"
    preset: PresetName = "paper"
    settings: Mapping[str, Any] = field(default_factory=lambda: PRESETS["paper"].tracker)
    """Of the tracker."""
    methods: tuple[str, ...] = ()
    """Rows: adjudicators, also as ADJUDICATOR@WORLD, and baselines; by default all of the paper that can run here."""
    selection: Selection = field(default_factory=Selection)
    """The part of each benchmark that is used."""
    steps: int = 10_000
    autocast: bool = False
    queries: int = 40
    """Queries of the sweep of M and R."""
    cases: str = ""
    """Name of the benchmark whose frames figures show; all benchmarks in turn if empty."""
    command: str = ""

    def pin(self) -> None:
        """Claim the folder for these settings."""
        weights = registry.fingerprint_of([self.weights]) if self.weights else None
        names = {"world": self.world, "score_model": self.score_model, "weights": weights, "preset": self.preset}
        paths = {"benchmarks": [str(path) for path in self.data.benchmarks], "val": str(self.data.val)}
        counts = {"steps": self.steps, "queries": self.queries, "methods": list(self.rows), "cases": self.cases}
        selected = {name: str(value) for name, value in vars(self.selection).items()}
        bundled = registry.fingerprint(self.world, self.score_model, "" if self.weights else "lpa")
        settings = {"settings": dict(self.settings), "selection": selected, "bundled_weights": bundled}
        pin_settings(self.out / "settings.json", names | paths | counts | settings)

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the methods."""
        runnable = (name for name in PUBLISHED if BASELINES[name].missing() is None)
        return self.methods or (*runnable, *ADJUDICATORS)

    def method(self, name: str) -> Method:
        """A row by its name; ADJUDICATOR@WORLD uses another world model."""
        adjudicator, _, world = name.partition("@")
        if adjudicator not in ADJUDICATORS:
            return Method(name, device=self.device)
        weights = self.lpa if adjudicator == "lpa" else None
        label = f"{adjudicator} ({world})" if world else ""
        settings = dict(self.settings)
        return Method(adjudicator, world or self.world, self.score_model, weights, self.device, settings, label)

    @cached_property
    def datasets(self) -> list[Dataset]:
        """The selected parts of the benchmarks."""
        return [open_dataset(path, self.selection) for path in self.data.benchmarks]

    @property
    def shown(self) -> list[Dataset]:
        """The benchmarks whose frames figures show."""
        return [data for data in self.datasets if self.cases in ("", data.name)]

    @cached_property
    def method_sets(self) -> list[MethodSet]:
        """All methods, tracked and scored on all benchmarks."""
        found = []
        for dataset in self.datasets:
            rows = [self.method(name) for name in self.rows]
            result = compare(dataset, self.out / "runs" / dataset.name, rows, command=self.command)
            found += load_method_sets(list(result.folders.values()))
        return found

    @cached_property
    def ablation(self) -> MethodSet:
        """The variants of Table 2 on the first benchmark; without training videos only those without a training."""
        trained = self.trains
        result = ablate(
            self.datasets[0],
            [self.out / "candidates/train"] if trained else [],
            self.out / "ablation" / self.datasets[0].name,
            variants=PAPER_VARIANTS if trained else LOCALIZATION,
            trainings=self.out / "training",
            training=self.training,
            weights=None if trained else self.lpa,
            world=self.world,
            score_model=self.score_model,
            settings=dict(self.settings),
            device=self.device,
            command=self.command,
        )
        return load_method_sets(list(result.folders.values()))[0]

    @property
    def trains(self) -> bool:
        """Whether LPA and its variants are trained here."""
        return self.data.train is not None and self.weights is None

    @property
    def training(self) -> LpaTraining:
        """The full training of LPA."""
        return LpaTraining.of_preset(self.preset, steps=self.steps, autocast=self.autocast)

    @cached_property
    def lpa(self) -> Path:
        """Weights of LPA: the given ones, else trained ones, else the bundled ones."""
        if self.weights:
            return self.weights
        if self.data.train is None:
            return registry.bundled_lpa()
        chosen = PRESETS[self.preset].cache
        source = training_pairs(self.data.train, PAIRS, QUERIES, chosen["gaps"], chosen["hidden"])
        folder = self.fill(source, self.out / "candidates/train")
        return train_lpa([folder], self.out / "training/full", self.training, self.device)

    @cached_property
    def candidates(self) -> Path:
        """Cached candidates of held-out videos."""
        source = open_pairs(self.data.held_out, QUERIES, PRESETS[self.preset].cache["gaps"], PAIRS)
        return self.fill(source, self.out / "candidates/val")

    def fill(self, source: PairSampler, folder: Path) -> Path:
        """Cache the candidates of all videos of a source."""
        job = RecordingJob(source, self.recorder)
        for _ in progress(fill_cache(job, folder), len(source.videos), "candidates"):
            pass
        return folder

    def recorder(self) -> FeatureRecorder:
        """The recorder of candidates."""
        apa = APA(registry.load_score_model(self.score_model, self.device))
        settings = {**self.settings, "masks": PRESETS[self.preset].cache["masks"]}
        return FeatureRecorder(registry.load_world(self.world), apa, settings, device=self.device)

    @cached_property
    def sweep_cells(self) -> Sequence[SweepCell]:
        """Error and time for all M and R."""
        return list(
            sweep(
                self.data.held_out,
                self.out / "sweep",
                queries=self.queries,
                videos=min(10, self.queries),
                gaps=(1, 1),
                world=self.world,
                weights=self.lpa,
                settings=dict(self.settings),
                device=self.device,
            )
        )

    def tracker(self, adjudicator: str = "lpa") -> CwmTracker:
        """One of our trackers."""
        named = {"score_model": self.score_model, "weights": self.lpa, "device": self.device}
        tracker = registry.load_cwm(adjudicator, self.world, **named)
        return replace(tracker, config=replace(tracker.config, **self.settings))
