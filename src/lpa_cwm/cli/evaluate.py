"""`lpa-cwm eval ...`: predict, score, report, compare, and the paper's analyses."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional

from lpa_cwm.cli.options import (
    AdjudicatorOptions,
    Count,
    DataOptions,
    ExpertOptions,
    Figure,
    Gaps,
    InPath,
    JsonOption,
    MethodOptions,
    Name,
    OutFolder,
    Pixels,
    ScoreModel,
    ShardOption,
    Share,
    Steps,
    WorkerOptions,
    WorldOption,
)
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.variants import VARIANTS, Variant

if TYPE_CHECKING:
    from lpa_cwm.evaluation.methods import Method
    from lpa_cwm.metrics import Scores


@dataclass(frozen=True, kw_only=True)
class Predict(JsonOption):
    """Track the videos of a data set; run it again to go on where it stopped."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval predict tapvid_davis.pkl --adjudicator lpa --out runs/lpa"
    dataset: Annotated[InPath, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: OutFolder
    """Folder of the run; it holds one configuration."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: MethodOptions = field(default_factory=MethodOptions)
    """World model, adjudicator and device."""
    parallel: WorkerOptions = field(default_factory=WorkerOptions)
    """Parts of the work, and workers."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our tracker; the defaults are the world model's own."""

    def run(self) -> None:
        """Check everything, then track what is not there yet."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.compare import predict_methods
        from lpa_cwm.evaluation.manifest import manifest_of
        from lpa_cwm.evaluation.ray_cluster import executor

        method = self.chosen()
        dataset = load_dataset(self.dataset, self.selection.selection())
        runs = executor(self.parallel.executor, method.device, self.parallel.workers)
        made, present = predict_methods(dataset, manifest_of(dataset), {self.out: method}, runs, self.parallel.shard)
        if self.json:
            print(json.dumps({"out": str(self.out), "made": made, "present": present, "videos": len(dataset)}))
            return
        print(f"{made} videos tracked, {present} were there already, {len(dataset)} in all")
        print(self.out)

    def chosen(self) -> "Method":
        """What is run."""
        from lpa_cwm.evaluation.methods import Method

        name, settings = self.model.method(), self.expert.given()
        self.model.refuse_ignored(settings)
        return Method(name, self.model.world, self.model.score_model, self.model.weights, self.model.on(), settings)


@dataclass(frozen=True, kw_only=True)
class Score(JsonOption):
    """Measure the predictions of a run by CMC and TAP-Vid, beside the trivial predictors."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval score runs/mine --dataset tapvid_davis.pkl"
    run_folder: Annotated[InPath, Positional]
    """What `lpa-cwm eval predict` wrote, or prediction files of any other tracker (see docs/predictions.md)."""
    dataset: InPath | None = None
    """The data set, if it is no longer where the run found it or if another program made the predictions."""
    partial: bool = False
    """Accept a run that lacks videos, and count them as failures."""
    motion: Pixels | None = None
    """Path, in pixels of the 256 raster, from which a track is dynamic (L_motion); 4 unless given."""
    coverage: Share | None = None
    """Share of its visible frames from which a track is complete (c); 0.8 unless given."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that another program's predictions are for; a run of ours knows its own."""

    def run(self) -> None:
        """Measure, write scores.json, print the means."""
        from lpa_cwm.evaluation.score import open_run, score, write_scores
        from lpa_cwm.metrics import Protocol

        subject = open_run(self.run_folder, self.dataset, self.selection.selection())
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


@dataclass(frozen=True, kw_only=True)
class Report(JsonOption):
    """Compare scored runs: one self-contained page, and every table as CSV, Markdown and LaTeX."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval report runs/lpa runs/raft --out report"
    runs: Annotated[tuple[InPath, ...], Positional]
    """Run folders that `lpa-cwm eval score` has scored, those of one data set being compared; sweeps' folders too."""
    out: OutFolder = Path("report")
    """Folder to write to."""

    def run(self) -> None:
        """Read scores, write the report, print where it is."""
        from lpa_cwm.report.write import write_report

        if not self.runs:
            raise InputError("No run was given; name one or more scored run folders.")
        page = write_report(list(self.runs), self.out)
        print(json.dumps({"page": str(page), "tables": str(self.out / "tables")}) if self.json else page)


@dataclass(frozen=True, kw_only=True)
class Compare(ShardOption):
    """Track a data set with several methods, score and compare them; ours share what the world model is asked."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval compare tapvid_davis.pkl --methods uniform apa lpa raft --out runs/davis"
    dataset: Annotated[InPath, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: OutFolder
    """Folder of the runs and the report; run again to go on where it stopped."""
    methods: tuple[Name, ...] = ADJUDICATORS
    """Methods to compare: uniform, apa, lpa and baselines (see `lpa-cwm list-trackers`)."""
    score_model: ScoreModel = "compact"
    """Score model of apa."""
    weights: InPath | None = None
    """LPA weights other than the bundled ones."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model, adjudicator and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our methods; the defaults are the world model's own."""

    def run(self) -> None:
        """Track, score, report."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.compare import compare
        from lpa_cwm.report.write import write_report

        methods = self.chosen()
        left = compare(load_dataset(self.dataset, self.selection.selection()), methods, shard=self.shard)
        if left:
            print(f"{left} videos are left to other shards; the shard that tracks the last one writes the report.")
            return
        print(write_report(list(methods), self.out / "report"))

    def chosen(self) -> "dict[Path, Method]":
        """The methods by the folders of their runs."""
        from lpa_cwm.baselines.registry import get_baseline
        from lpa_cwm.evaluation.methods import Method

        if len(set(self.methods)) < len(self.methods) or not self.methods:
            raise InputError(f"The methods are {', '.join(self.methods) or 'none'}; name each once, and at least one.")
        methods, device = {}, self.model.on()
        for name in self.methods:
            ours = name in ADJUDICATORS
            if not ours:
                get_baseline(name)
            weights, settings = self.weights if name == "lpa" else None, self.expert.given() if ours else {}
            folder = self.out / "runs" / name.replace("/", "_")
            methods[folder] = Method(name, self.model.world, self.score_model, weights, device, settings)
        return methods


@dataclass(frozen=True, kw_only=True)
class Ablate:
    """Train the variants of LPA, track a data set with every variant, score and compare; run again to go on."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval ablate data/val --cache cache/train --steps 4000 --out runs/ablation"
    dataset: Annotated[InPath, Positional]
    """Annotated videos that no training saw."""
    cache: tuple[InPath, ...]
    """Candidates to train on, from `lpa-cwm data cache`."""
    out: OutFolder
    """Folder of trainings, runs and the report."""
    trainings: OutFolder | None = None
    """Folder of the trainings, to share them between data sets; by default one in `out`."""
    only: tuple[Name, ...] = ()
    """Names of the variants to run; all when empty."""
    steps: Steps = 10_000
    """Updates of each training."""
    autocast: bool = False
    """Train in bfloat16."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model, adjudicator and device."""

    def run(self) -> None:
        """Train every row, track with all of them, then the report."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.compare import compare
        from lpa_cwm.report.write import write_report

        dataset = load_dataset(self.dataset, self.selection.selection())
        rows = {self.out / "runs" / row.name: self.row(row) for row in self.chosen()}
        compare(dataset, rows)
        print(write_report(list(rows), self.out / "report"))

    def chosen(self) -> list[Variant]:
        """The rows asked for, in the table's order."""
        known = [variant.name for variant in VARIANTS]
        for name in self.only:
            if name not in known:
                raise InputError(f"{name!r} is no variant; choose among {', '.join(known)}.")
        return [variant for variant in VARIANTS if not self.only or variant.name in self.only]

    def trained(self, variant: Variant) -> Path:
        """The variant's weights; variants that differ only in inference share a training."""
        from lpa_cwm.cli.train import TrainLpa

        name = variant.name if variant.training else "full"
        folder = (self.trainings or self.out / "training") / name
        options: dict[str, Any] = {"steps": self.steps, "autocast": self.autocast, "device": self.model.on()}
        options |= variant.training
        TrainLpa(cache=self.cache, out=folder, **options).run()
        return folder / "lpa.safetensors"

    def row(self, variant: Variant) -> "Method":
        """What is run for a row."""
        from lpa_cwm.evaluation.methods import Method

        weights = self.trained(variant) if variant.method == "lpa" else None
        where = {"world": self.model.world, "device": self.model.on()}
        return Method(variant.method, weights=weights, settings=variant.settings, **where)


@dataclass(frozen=True, kw_only=True)
class Sweep(JsonOption):
    """Measure final end-point error and time per query for M in 5, 10, 20 and R in 0, 1, 2."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval sweep data/val --videos 10 --out runs/sweep"
    dataset: Annotated[InPath, Positional]
    """Annotated videos that no training saw."""
    videos: Count = 10
    """Videos used."""
    queries: Count = 4
    """Queries per video, all of one frame pair."""
    gaps: Gaps = (1, 1)
    """Fewest and most frames between source and target; the paper's are adjacent."""
    out: OutFolder | None = None
    """Keep what is measured in this folder: run again to go on, and give it to `lpa-cwm eval report`."""
    model: AdjudicatorOptions = field(default_factory=AdjudicatorOptions)
    """World model, adjudicator and device."""

    def run(self) -> None:
        """Print a row per setting as it is measured."""
        from lpa_cwm import registry
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.sweep import sweep
        from lpa_cwm.files import pin_settings
        from lpa_cwm.training.pair_sampling import TrackCorrespondences

        name, device = self.model.adjudicator_name(), self.model.on()
        dataset = load_dataset(self.dataset)
        names = dataset.names[: self.videos]
        source = TrackCorrespondences(dataset, names, pairs=1, queries=self.queries, gaps=self.gaps)
        tracker = registry.load_cwm(name, device=device, **self.model.names())
        if self.out:
            pin_settings(self.out / "settings.json", self.settings())
        if not self.json:
            print("| M | R | end-point error, px | s per query | queries |\n|---|---|---|---|---|")
        for cell in sweep(tracker, source, self.out):
            row = f"| {cell.masks} | {cell.passes} | {cell.error:.3f} | {cell.seconds:.3f} | {cell.queries} |"
            print(json.dumps(asdict(cell)) if self.json else row, flush=True)

    def settings(self) -> dict[str, Any]:
        """What the figures depend on."""
        from lpa_cwm.registry import fingerprint, fingerprint_of

        name = self.model.adjudicator_name()
        named = {"dataset": self.dataset.name, "method": name, "world": self.model.world, "gaps": list(self.gaps)}
        weights = self.model.weights
        content = fingerprint_of([weights]) if weights else fingerprint(self.model.world, adjudicator=name)
        return named | {"videos": self.videos, "queries": self.queries, "weights": content}


@dataclass(frozen=True, kw_only=True)
class Audit(JsonOption):
    """Compare adjudicators on cached candidates whose true endpoints are known."""

    EXAMPLE: ClassVar[str] = "lpa-cwm eval audit cache/val --within 8 --out audit.png"
    cache: Annotated[InPath, Positional]
    """Candidates of videos that the training never saw, from `lpa-cwm data cache`."""
    weights: InPath | None = None
    """LPA weights other than the bundled ones."""
    within: Pixels | None = None
    """Only sets in which a candidate comes within this many pixels: the choice matters there."""
    out: Figure | None = None
    """Write the figure here (.png, .pdf or .svg)."""

    def run(self) -> None:
        """Weigh, summarize, draw."""
        import torch

        from lpa_cwm.adjudicators.lpa import load_lpa
        from lpa_cwm.evaluation.audit import audit, counts_of_right
        from lpa_cwm.metrics.measures import plain
        from lpa_cwm.registry import bundled_lpa
        from lpa_cwm.report.audit import choice, draw, table
        from lpa_cwm.training.feature_cache import read
        from lpa_cwm.training.lpa import weigh
        from lpa_cwm.types import Judgement

        groups, videos = read(self.cache)
        seen = groups.seen
        rows = seen if self.within is None else seen[groups.least[seen] <= self.within]
        if not len(rows):
            raise InputError(f"No group of {self.cache} can be audited; give visible points, or a wider --within.")
        groups, videos = groups.at(rows), [videos[row] for row in rows.tolist()]
        given = {
            "uniform": Judgement.of(torch.ones_like(groups.analytic)),
            "apa": Judgement.of(groups.analytic),
            "lpa": weigh(load_lpa(self.weights or bundled_lpa()), groups, torch.arange(len(groups))),
        }
        beliefs, right = audit(groups, videos, given), counts_of_right(groups)
        if self.out:
            draw(beliefs, self.out)
        if self.json:
            counted = {"groups": len(groups), "videos": len(set(videos)), "right": right}
            counted["written"] = self.out and str(self.out)
            print(json.dumps(counted | {"beliefs": {name: plain(asdict(belief)) for name, belief in beliefs.items()}}))
            return
        print(f"{len(groups)} groups of {len(set(videos))} videos")
        print(table(beliefs))
        print(choice(right))
        if self.out:
            print(self.out)


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
