"""Experiments with several runs: methods side by side, the paper's ablations (Table 2), and its sweep (Figure E1).

`compare` predicts, scores and reports several methods on one data set. `ablate` does so for named variants of training
and inference. `sweep` measures error and time by number of masks and of re-evaluations, on the same queries and masks:
as in the paper, 40 queries of 10 held-out videos with nested mask sets, where the masks of M = 5 are the first five of
M = 10 and M = 20.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import torch

from lpa_cwm import registry
from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD, Selection
from lpa_cwm.datasets.movif import MoviClips, entries_of
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.predict import Method, manifest_of, open_dataset, predict_methods, untracked
from lpa_cwm.evaluation.score import ScoredRun, score_run, write_scores
from lpa_cwm.files import data_files, pin_settings
from lpa_cwm.geometry import Crop, crop_resize, rescale
from lpa_cwm.jobs import Executor, Shard, run_local
from lpa_cwm.metrics import Scores
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.probe import ObservedPair, PreparedFrame
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.page import write_report
from lpa_cwm.report.results import SweepCell, read_cells, write_cells
from lpa_cwm.report.tables import ABLATIONS
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.lpa import LpaTraining, train_lpa
from lpa_cwm.training.pair_sampling import Correspondence, FlowPairSampler, PairSampler, TrackPairSampler


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
    """Track a data set with several methods, score them and write a report; the data are read and hashed once.

    Args:
        dataset: A file or folder of TAP-Vid format, or an object that is a `Dataset`.
        out: Folder of the runs and of the report.
        methods: Names of adjudicators and baselines, or `Method`s with settings.
        selection: Part of the data set; everything by default.
        executor: How the work is done: here, or on a Ray cluster.
        shard: Part of the videos, for several machines.
        command: Command that the report names as its origin.

    Examples:
        >>> import pickle, tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> points, occluded = np.full((2, 4, 2), 0.5, np.float32), np.zeros((2, 4), bool)
        >>> video = {"video": np.zeros((4, 32, 32, 3), np.uint8), "points": points, "occluded": occluded}
        >>> _ = Path(f"{folder}/data.pkl").write_bytes(pickle.dumps({"still": video}))

        >>> result = compare(f"{folder}/data.pkl", f"{folder}/all", ["static"])
        >>> result.report.name
        'index.html'
    """
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


Block = Literal["architecture", "objective", "localization"]


@dataclass(frozen=True)
class Variant:
    """One row of the ablation table."""

    name: str
    block: Block
    method: str = "lpa"
    training: dict[str, bool] = field(default_factory=dict)
    """Options of the training that differ from the full ones."""
    objective: dict[str, float] = field(default_factory=dict)
    """Weights of loss terms that differ from the full ones."""
    settings: dict[str, int] = field(default_factory=dict)
    """Settings of the tracker that differ from the given ones."""

    def of_training(self, training: LpaTraining) -> LpaTraining:
        """The training of this variant; variants that differ only in inference share the full one."""
        return replace(training, **self.training, objective=replace(training.objective, **self.objective))


STANDARD = {"windows": 0}
"""Standard localization: the maximum of the response distribution without Gaussian windows."""

VARIANTS = (
    Variant("uniform-windowed", "localization", "uniform"),
    Variant("apa-windowed", "localization", "apa"),
    Variant("lpa-windowed", "localization"),
    Variant("uniform-standard", "localization", "uniform", settings=STANDARD),
    Variant("apa-standard", "localization", "apa", settings=STANDARD),
    Variant("lpa-standard", "localization", settings=STANDARD),
    Variant("no-interaction", "architecture", training={"interaction": False}),
    Variant("response-and-scalars", "architecture", training={"visual": False}),
    Variant("no-visibility-head", "architecture", training={"visibility_head": False}),
    Variant("kl-only", "objective", objective={"coordinate": 0.0, "rank": 0.0, "visibility": 0.0, "decoded": 0.0}),
    Variant("kl-and-coordinate", "objective", objective={"rank": 0.0, "visibility": 0.0, "decoded": 0.0}),
    Variant("kl-and-best", "objective", objective={"coordinate": 0.0, "visibility": 0.0, "decoded": 0.0}),
    Variant("no-decoded", "objective", objective={"decoded": 0.0}),
    Variant("paper-objective", "objective", objective={"visibility": 0.0, "decoded": 0.0}),
)
"""`uniform-windowed` is the reference of the architecture block, `lpa-windowed` the full model of all three blocks."""


PAPER_VARIANTS = tuple(variant.name for variant in VARIANTS if ABLATIONS[variant.name])
"""The variants that the paper has."""


def ablate(
    dataset: Dataset | Path | str,
    caches: Sequence[Path],
    out: Path | str,
    *,
    variants: Sequence[str] = (),
    trainings: Path | None = None,
    training: LpaTraining | None = None,
    weights: Path | None = None,
    world: str = WORLD,
    score_model: str = "compact",
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
    selection: Selection | None = None,
    command: str = "",
) -> CompareResult:
    """Train the variants of LPA, track a data set with every variant, score and report; all variants if none is named.

    `training` is the full training, and `weights` are those of the full LPA if it is trained already. `settings` are
    the tracker's, which a variant's own settings override.
    """
    folder, training = trainings or Path(out) / "training", training or LpaTraining()
    methods = []
    for variant in find_variants(variants):
        changed = variant.of_training(training)
        own = None
        if variant.method == "lpa":
            full = changed == training
            name = "full" if full else variant.name
            own = weights if full and weights else train_lpa(caches, folder / name, changed, device)
        chosen = {**(settings or {}), **variant.settings}
        methods.append(Method(variant.method, world, score_model, own, device, chosen, variant.name))
    return compare(dataset, out, methods, selection=selection, command=command)


def find_variants(names: Sequence[str]) -> list[Variant]:
    """The variants of these names in the order of the table; all if no name is given."""
    known = [variant.name for variant in VARIANTS]
    for name in names:
        if name not in known:
            raise InputError(f"{name!r} is no variant; choose among {', '.join(known)}.")
    return [variant for variant in VARIANTS if not names or variant.name in names]


MASKS, PASSES = (5, 10, 20), (0, 1, 2)
PAIRS = 8
"""Frame pairs of a video in which enough moving queries are sought."""


def sweep(
    dataset: Path | str,
    out: Path | None = None,
    *,
    videos: int = 10,
    queries: int = 40,
    gaps: tuple[int, int] = (1, 1),
    adjudicator: str = ADJUDICATOR,
    world: str = WORLD,
    score_model: str = "compact",
    weights: Path | None = None,
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
) -> Iterator[SweepCell]:
    """Yield error and time for M in 5, 10, 20 and R in 0, 1, 2; cells that `out` holds are not measured again.

    The data set is TAP-Vid data or a folder of MOVi-F records, of which held-out videos are used.
    """
    per_video = -(-queries // videos)
    source = open_pairs(Path(dataset), per_video, gaps)
    tracker = registry.load_cwm(
        adjudicator, world, score_model=score_model, weights=weights, device=device, **(settings or {})
    )
    if out:
        score = score_model if adjudicator == "apa" else ""
        bundled = registry.fingerprint(world, score, "" if weights else adjudicator)
        names = {"dataset": Path(dataset).name, "adjudicator": adjudicator, "world": world, "score_model": score}
        counts = {"videos": videos, "queries": queries, "gaps": list(gaps), "settings": settings or {}}
        files = {"bundled_weights": bundled, "weights": registry.fingerprint_of([weights]) if weights else None}
        pin_settings(out / "settings.json", names | counts | files)
    chosen = choose_queries(source, videos, queries)
    found = sum(len(pair.xy) for pairs in chosen for pair in pairs)
    if (found, len(chosen)) != (queries, videos):
        asked = f"{queries} queries of {videos} videos were asked for"
        warnings.warn(f"{asked}; {found} of {len(chosen)} that move were found.", stacklevel=2)
    return sweep_pairs(tracker, chosen, out)


def open_pairs(path: Path, queries: int, gaps: tuple[int, int], pairs: int = PAIRS) -> PairSampler:
    """Frame pairs with known endpoints: tracks of annotated videos, or flow of held-out MOVi-F records."""
    if path.is_dir() and data_files(path, "*.tfrecord-*"):
        return FlowPairSampler(held_out_records(path), pairs, queries)
    dataset = load_dataset(path)
    return TrackPairSampler(dataset, dataset.names, pairs, queries, gaps)


def held_out_records(folder: Path) -> MoviClips:
    """All records of the official validation files; without such files the held-out part of the training files."""
    entries = [entry for path in data_files(folder, "*validation.tfrecord-*") for entry in entries_of(path)]
    return MoviClips(tuple(entries), "val") if entries else MoviClips.of(folder, "val")


def choose_queries(source: PairSampler, videos: int, queries: int) -> list[list[Correspondence]]:
    """An equal number of queries from each of the first videos in which enough points move.

    If fewer videos have enough, videos with fewer queries are taken too.
    """
    per_video = -(-queries // videos)
    chosen, few = [], []
    for number in range(len(source.videos)):
        pairs = list(_first_queries(source.pairs_of(number), per_video))
        found = sum(len(pair.xy) for pair in pairs)
        if pairs:
            (chosen if found == per_video else few).append(pairs)
        if len(chosen) == videos:
            break
    if not chosen and not few:
        raise InputError("Nothing moves between the frames that were drawn; sweep videos with motion, or wider gaps.")
    return list(_limit((chosen + few)[:videos], queries))


def _first_queries(pairs: Iterator[Correspondence], most: int) -> Iterator[Correspondence]:
    """Pairs cut to this number of queries in all."""
    for pair in pairs:
        if most <= 0:
            return
        yield replace(pair, xy=pair.xy[:most], end=pair.end[:most])
        most -= len(pair.xy)


def _limit(videos: Sequence[list[Correspondence]], most: int) -> Iterator[list[Correspondence]]:
    """Videos cut to this number of queries in all."""
    for pairs in videos:
        kept = list(_first_queries(iter(pairs), most))
        most -= sum(len(pair.xy) for pair in kept)
        if kept:
            yield kept


def sweep_pairs(
    tracker: CwmTracker, videos: Sequence[Sequence[Correspondence]], folder: Path | None = None
) -> Iterator[SweepCell]:
    """All settings of a tracker on the given queries."""
    done = {(cell.masks, cell.passes): cell for cell in read_cells(folder)} if folder else {}
    for masks in MASKS:
        for passes in PASSES:
            if (masks, passes) not in done:
                setting = replace(tracker, config=replace(tracker.config, masks=masks, passes=passes))
                done[masks, passes] = measure_cell(setting, videos)
                if folder:
                    write_cells(list(done.values()), folder)
            yield done[masks, passes]


def measure_cell(tracker: CwmTracker, videos: Sequence[Sequence[Correspondence]]) -> SweepCell:
    """One setting on all queries."""
    found = [[one for pair in pairs for one in errors_and_times(tracker, pair)] for pairs in videos]
    errors, times = zip(*(one for video in found for one in video), strict=True)
    by_video = [fmean(error for error, _ in video) for video in found]
    return SweepCell(tracker.config.masks, tracker.config.passes, fmean(errors), median(times), len(errors), by_video)


@torch.inference_mode()
def errors_and_times(tracker: CwmTracker, pair: Correspondence) -> Iterator[tuple[float, float]]:
    """End-point error and seconds of each query.

    The time includes describing (encoding) both frames, but not resizing them and moving them to the device.
    """
    world, identity = tracker.world, ("clip", *pair.identity)
    frames = pair.source, pair.target
    resized = [crop_resize(one, Crop.full((one.shape[-2], one.shape[-1]), world.size)) for one in frames]
    moved = [one.to(tracker.device) for one in resized]
    for xy, end in zip(pair.xy.to(tracker.device), pair.end, strict=True):
        synchronize(tracker.device)
        start = time.perf_counter()
        source, target = [
            PreparedFrame(frame, one, world.describe(one)) for frame, one in zip(frames, moved, strict=True)
        ]
        observed = ObservedPair(world, source, target, identity, tracker.config)
        result = tracker.track_pair(observed, xy[None])
        synchronize(tracker.device)
        seconds = time.perf_counter() - start
        miss = rescale(result.xy[0].cpu() - end, observed.source.hw, (SIZE, SIZE))
        yield miss.norm().item(), seconds


def synchronize(device: str) -> None:
    """Wait until a GPU has finished, so that the clock measures work and not its queue."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
