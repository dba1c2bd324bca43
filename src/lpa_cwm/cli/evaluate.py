"""`lpa-cwm eval ...`: predict, score, report, compare, the paper's analyses, world models; `lpa-cwm paper`."""

import json
import math
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional

from lpa_cwm.cli.options import (
    AdjudicatorOptions,
    DataOptions,
    ExpertOptions,
    JsonOption,
    MethodOptions,
    PresetOption,
    ScoreModelOption,
    ShardOption,
    SourceOptions,
    TrainingOptions,
    WeightsOption,
    WorkerOptions,
    WorldOption,
    check_method,
)
from lpa_cwm.cli.values import Count, Figure, FramePair, Gaps, InPath, Name, OutFolder, Pixels, Share, Text
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError, require

if TYPE_CHECKING:
    from lpa_cwm.metrics import Scores
    from lpa_cwm.reproduction.inputs import PaperRun


def command_line() -> str:
    """This command as it is typed."""
    return shlex.join(["lpa-cwm", *sys.argv[1:]])


@dataclass(frozen=True, kw_only=True)
class Predict(JsonOption):
    """Track the videos of a data set; run it again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval predict tapvid_davis.pkl --adjudicator lpa --out runs/lpa"
    dataset: Annotated[InPath, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: OutFolder
    """Folder of the run; it holds one configuration."""
    name: Text | None = None
    """Name of the row in tables; by default the method's."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: MethodOptions = field(default_factory=MethodOptions)
    """World model, adjudicator and device."""
    parallel: WorkerOptions = field(default_factory=WorkerOptions)
    """Sharding and workers."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our tracker; the defaults are the world model's own."""

    def run(self) -> None:
        """Check everything, then track the missing videos."""
        from lpa_cwm.evaluation.predict import Method, predict
        from lpa_cwm.jobs import executor

        name, settings, device = self.model.method(), self.expert.given(), self.model.on()
        method = Method(name, device=device, settings=settings, label=self.name or "", **self.model.names())
        workers = executor(self.parallel.executor, device, self.parallel.workers)
        selection, shard = self.selection.selection(), self.parallel.shard
        counts = predict(self.dataset, self.out, method, selection=selection, executor=workers, shard=shard)
        if self.json:
            print(json.dumps({"out": str(self.out), **counts._asdict()}))
            return
        print(f"{counts.made} videos tracked, {counts.present} were there already, {counts.videos} in all")
        print(self.out)


@dataclass(frozen=True, kw_only=True)
class Score(JsonOption):
    """Score the predictions of a run under CMC and TAP-Vid, beside two trivial predictors."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval score runs/mine --dataset tapvid_davis.pkl"
    run_folder: Annotated[InPath, Positional]
    """Folder of `lpa-cwm eval predict`, or of prediction files of any other tracker (see docs/predictions.md)."""
    dataset: InPath | None = None
    """The data set, if it is no longer where the run found it or if another program made the predictions."""
    partial: bool = False
    """Accept a run with missing videos; they count as failures."""
    name: Text | None = None
    """Name of the row in tables; by default the run's method, or the name of the folder."""
    motion: Pixels | None = None
    """Minimum path length of a dynamic track, in pixels of the 256 raster (L_motion); 4 unless given."""
    coverage: Share | None = None
    """Minimum coverage of a complete track, as a share of its visible frames (c); 0.8 unless given."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that another program's predictions are for; our runs record theirs."""

    def run(self) -> None:
        """Score, write scores.json, print the means."""
        from lpa_cwm.evaluation.score import score
        from lpa_cwm.metrics import Protocol

        motion = Protocol.motion if self.motion is None else self.motion
        coverage = Protocol.coverage if self.coverage is None else self.coverage
        scores = score(
            self.run_folder,
            self.dataset,
            selection=self.selection.selection(),
            protocol=Protocol(motion=motion, coverage=coverage),
            partial=self.partial,
            label=self.name or "",
        )
        path, notes = self.run_folder / "scores.json", scores[0].notes
        if self.json:
            print(json.dumps(summary(scores) | {"written": str(path)}))
            return
        print(score_lines(scores))
        if missing := len(notes["missing"]):
            print(f"{missing} of {len(scores[0].videos)} videos have no predictions and count as failures")
        for sentence in notes["notices"]:
            print(f"Notice: {sentence}")
        print(path)


@dataclass(frozen=True, kw_only=True)
class Report(JsonOption):
    """Report scored runs: one self-contained page, and every table as CSV, Markdown and LaTeX."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval report runs/lpa runs/raft --out report"
    runs: Annotated[tuple[InPath, ...], Positional]
    """Folders of scored runs and of sweeps; runs on the same data set are compared."""
    out: OutFolder = Path("report")
    """Folder to write to."""
    name: tuple[Name, ...] = ()
    """Names of the rows, one for each run; by default the methods'."""

    def run(self) -> None:
        """Read scores, write the report, print its path."""
        from lpa_cwm.report.page import write_report

        page = write_report(list(self.runs), self.out, names=self.name, command=command_line())
        print(json.dumps({"page": str(page), "tables": str(self.out / "tables")}) if self.json else page)


@dataclass(frozen=True, kw_only=True)
class Compare(ShardOption, ScoreModelOption, WeightsOption):
    """Track a data set with several methods, score and compare them; our methods share candidates."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval compare tapvid_davis.pkl --methods uniform apa lpa raft --out runs/davis"
    dataset: Annotated[InPath, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: OutFolder
    """Folder of the runs and the report; run the command again to resume."""
    methods: tuple[Name, ...] = ADJUDICATORS
    """Methods to compare: uniform, apa, lpa and baselines (see `lpa-cwm list-trackers`)."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model, adjudicator and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our methods; the defaults are the world model's own."""

    def run(self) -> None:
        """Track, score, report."""
        from lpa_cwm.evaluation.compare import compare
        from lpa_cwm.evaluation.predict import Method

        device, methods = self.model.on(), []
        for name in self.methods:
            check_method(name)
            weights = self.weights if name == "lpa" else None
            settings = self.expert.given() if name in ADJUDICATORS else {}
            methods.append(Method(name, self.model.world, self.score_model, weights, device, settings))
        selection = self.selection.selection()
        result = compare(self.dataset, self.out, methods, selection=selection, shard=self.shard, command=command_line())
        if result.report is None:
            left = result.untracked
            print(f"{left} videos are left to other shards; the shard that tracks the last one writes the report.")
            return
        print(result.report)


@dataclass(frozen=True, kw_only=True)
class Ablate(TrainingOptions, ScoreModelOption):
    """Train the variants of LPA, track a data set with every variant, score and compare; run again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval ablate data/val --cache cache/train --steps 4000 --out runs/ablation"
    dataset: Annotated[InPath, Positional]
    """Annotated videos that were not used for training."""
    cache: tuple[InPath, ...]
    """Candidates to train on, from `lpa-cwm data cache`."""
    out: OutFolder
    """Folder of trainings, runs and the report."""
    only: tuple[Name, ...] = ()
    """Names of the variants to run; all of the preset when empty."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of the tracker; the defaults are the world model's own. The preset also applies to the trainings."""

    def run(self) -> None:
        """Train and track all variants, then write the report."""
        from lpa_cwm.evaluation.compare import PAPER_VARIANTS, ablate
        from lpa_cwm.training.lpa import LpaTraining

        result = ablate(
            self.dataset,
            self.cache,
            self.out,
            variants=self.only or (PAPER_VARIANTS if self.expert.preset == "paper" else ()),
            training=LpaTraining.of_preset(self.expert.preset, steps=self.steps, autocast=self.autocast),
            world=self.model.world,
            score_model=self.score_model,
            settings=self.expert.given(),
            device=self.model.on(),
            selection=self.selection.selection(),
            command=command_line(),
        )
        print(result.report)


@dataclass(frozen=True, kw_only=True)
class Sweep(JsonOption):
    """Measure final end-point error and time per query for M in 5, 10, 20 and R in 0, 1, 2."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval sweep data/val --videos 10 --out runs/sweep"
    dataset: Annotated[InPath, Positional]
    """Annotated videos that were not used for training, or a folder of MOVi-F records."""
    videos: Count = 10
    """Videos used."""
    queries: Count = 40
    """Queries in all, the same number from each video."""
    frame_gaps: Gaps = (1, 1)
    """Minimum and maximum number of frames between source and target; 1 1 (adjacent frames) in the paper."""
    out: OutFolder | None = None
    """Folder for the results: run again to resume, and give it to `lpa-cwm eval report`."""
    model: AdjudicatorOptions = field(default_factory=AdjudicatorOptions)
    """World model, adjudicator and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of the tracker other than masks and re-evaluations."""

    def run(self) -> None:
        """Print a row per setting as it is measured."""
        from lpa_cwm.evaluation.compare import sweep

        cells = sweep(
            self.dataset,
            self.out,
            videos=self.videos,
            queries=self.queries,
            gaps=self.frame_gaps,
            adjudicator=self.model.adjudicator_name(),
            settings=self.expert.given(),
            device=self.model.on(),
            **self.model.names(),
        )
        if not self.json:
            print("| M | R | end-point error, px | s per query | queries |\n|---|---|---|---|---|")
        for cell in cells:
            row = f"| {cell.masks} | {cell.passes} | {cell.error:.3f} | {cell.seconds:.3f} | {cell.queries} |"
            print(json.dumps(asdict(cell)) if self.json else row, flush=True)


@dataclass(frozen=True, kw_only=True)
class Audit(JsonOption, PresetOption, WeightsOption):
    """Compare adjudicators on cached candidates whose true endpoints are known."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval audit cache/val --within 8 --out audit.png"
    cache: Annotated[InPath, Positional]
    """Candidates of videos that were not used for training, from `lpa-cwm data cache`."""
    within: Pixels | None = None
    """Use only sets with a candidate within this many pixels of the truth."""
    out: Figure | None = None
    """Write the figure here (.png, .pdf or .svg)."""

    def run(self) -> None:
        """Compute the statistics, print them, draw the figure."""
        from lpa_cwm.evaluation.audit import audit, audit_table, describe_histogram, draw_audit
        from lpa_cwm.metrics.comparison import plain

        result = audit(self.cache, self.weights, self.within, unweighted=self.preset == "paper")
        if self.out:
            draw_audit(result.stats, self.out)
        if self.json:
            print(json.dumps(plain(asdict(result)) | {"written": self.out and str(self.out)}))
            return
        print(f"{result.sets} candidate sets of {result.videos} videos")
        print(audit_table(result.stats))
        print(describe_histogram(result.n_correct))
        if self.out:
            print(self.out)


def summary(scores: "list[Scores]") -> dict[str, object]:
    """Plain values: every measure of the method and of the trivial predictors, with its interval."""
    from lpa_cwm.metrics import summarize
    from lpa_cwm.metrics.comparison import plain

    methods = {
        one.method: {
            name: {key: plain(value) for key, value in asdict(estimate).items()}
            for name, estimate in summarize(one).items()
        }
        for one in scores
    }
    own = scores[0]
    notes = {name: own.notes[name] for name in ("missing", "notices")}
    return {"dataset": own.dataset, "manifest": own.manifest, **notes, "methods": methods}


def score_lines(scores: "list[Scores]") -> str:
    """Means with intervals, a line per measure; those at single thresholds are left to the report."""
    from lpa_cwm.metrics import METRICS, summarize

    summaries = [summarize(one) for one in scores]
    names = [name for name in summaries[0] if not METRICS[name].averaged]
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


@dataclass(frozen=True, kw_only=True)
class EvaluateWorld(JsonOption):
    """Evaluate world models by stage, side by side: matches, motions, candidates and endpoints.

    Without data, on generated held-out pairs.
    """

    EXAMPLE: ClassVar[str] = "lpa-cwm eval world tapvid_davis.pkl --frame-pairs 0:8 0:20"
    data: Annotated[tuple[InPath, ...], Positional] = ()
    """Folders of `lpa-cwm data pairs`, or annotated videos of TAP-Vid format."""
    worlds: tuple[Name, ...] = ("learned",)
    """World models, each NAME or NAME:WEIGHTS."""
    pairs: Count = 24
    """Generated pairs of each kind."""
    frame_pairs: tuple[FramePair, ...] = ((0, 8),)
    """Source and target frames of annotated videos."""
    min_motion: Pixels = 4.0
    """Minimum motion of annotated points, in pixels of the 256 raster; 0 keeps all."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the annotated videos that is used."""
    sources: SourceOptions = field(default_factory=SourceOptions)
    """Sources of generated pairs, which are used without data."""

    def run(self) -> None:
        """Print a table with one column for each set and world model."""
        from lpa_cwm.evaluation.world_stages import EvaluationSets, evaluate_worlds, figures_table

        folders, selection = self.sources.folders(), self.selection.selection()
        sets = EvaluationSets(self.data, folders, self.pairs, self.frame_pairs, self.min_motion, selection)
        columns = evaluate_worlds(self.worlds, sets)
        if not self.json:
            print(figures_table(columns))
            return
        known = {
            column: {name: value for name, value in figures.items() if not math.isnan(value)}
            for column, figures in columns.items()
        }
        print(json.dumps(known))


@dataclass(frozen=True, kw_only=True)
class Paper(JsonOption, TrainingOptions, ScoreModelOption, WeightsOption):
    """Make every table and figure of the paper from the given data and world model; run again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm paper --data data --world learned --out paper --dry-run"
    data: tuple[InPath, ...]
    """TAP-Vid pickles, and folders with benchmarks and, for training, MOVi-F records or folders `train` and `val`."""
    out: OutFolder = Path("paper")
    """Folder of tables, figures, runs and trainings."""
    only: tuple[Name, ...] = ()
    """Names of the parts to make, as --dry-run lists them; all when empty."""
    methods: tuple[Name, ...] = ()
    """Rows of the tables: uniform, apa, lpa (also lpa@WORLD) and baselines; all of the paper that can run if empty."""
    cases: Name | None = None
    """Benchmark whose frames the figures show, by its name in the tables; all in turn unless given."""
    sweep_queries: Count = 40
    """Queries of the sweep of masks and re-evaluations."""
    dry_run: bool = False
    """List the parts, their cost and what is missing, and stop; one frame pair is tracked to time it."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of each benchmark that is used."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model and device."""
    expert: ExpertOptions = field(default_factory=lambda: ExpertOptions(preset="paper"))
    """Settings of the tracker. The preset, by default the paper's, also applies to the training of LPA."""

    def run(self) -> None:
        """Print each part when it is finished."""
        from lpa_cwm.reproduction.parts import dry_run, make_parts

        require("matplotlib", "report")
        run = self.paper_run()
        if self.dry_run:
            self.print_plan(run, dry_run(run, self.only))
            return
        for result in make_parts(run, self.only):
            text = f"{result.paper:11} {', '.join(result.files)} ({result.seconds:g} s)"
            print(json.dumps(asdict(result)) if self.json else text, flush=True)
        if not self.json:
            print(self.out / "index.md")

    def paper_run(self, command: str = "") -> "PaperRun":
        """The inputs of all parts; names are checked before any work. The index names the command."""
        from lpa_cwm.registry import WORLDS
        from lpa_cwm.reproduction.inputs import PaperRun, find_data

        for name in self.methods:
            method, _, world = name.partition("@")
            check_method(method)
            if world and world not in WORLDS:
                raise InputError(f"{name!r} names no known world model; choose one of {', '.join(WORLDS)}.")
        data = find_data(self.data)
        names = [path.name if path.is_dir() else path.stem for path in data.benchmarks]
        if self.cases is not None and self.cases not in names:
            raise InputError(f"--cases is {self.cases!r}; expected one of the benchmarks {', '.join(names)}.")
        return PaperRun(
            data,
            self.out,
            self.model.world,
            self.score_model,
            self.weights,
            self.model.on(),
            self.expert.preset,
            self.expert.given(),
            self.methods,
            self.selection.selection(),
            self.steps,
            self.autocast,
            self.sweep_queries,
            self.cases or "",
            command or command_line(),
        )

    def print_plan(self, run: "PaperRun", plan: list[dict[str, object]]) -> None:
        """Print the parts, their cost and what is missing."""
        from lpa_cwm.reproduction.parts import needs_of_baselines

        if self.json:
            print(json.dumps({"parts": plan, "baselines": needs_of_baselines(run)}))
            return
        print("| part | in the paper | about s | done | lacks or differs |\n|---|---|---|---|---|")
        for part in plan:
            done = "yes" if part["done"] else "no"
            print(f"| {part['name']} | {part['paper']} | {part['seconds']} | {done} | {part['lacks']} |")
        paths = ", ".join(str(path) for path in run.data.benchmarks)
        print(f"benchmarks: {paths}; training: {run.data.train or 'none'}; held out: {run.data.val or 'none'}")
        for sentence in run.data.left_out:
            print(sentence)
        if run.data.train and not run.weights:
            print(f"further: candidates of {run.data.train}, and trainings of {run.steps} updates")
        for name, lack in needs_of_baselines(run).items():
            print(f"{name}: {lack}")
