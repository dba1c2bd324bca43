"""Methods scored on the same data and sweeps of settings, and every table about them."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics import METRICS, THRESHOLDS, Estimate, Scores, curve, difference, load_scores, summarize
from lpa_cwm.metrics.scores import SWEEP_MEASURES, estimates
from lpa_cwm.report.tables import (
    Cell,
    Column,
    PaperFigure,
    Row,
    Table,
    count_cell,
    difference_cell,
    estimate_cell,
    figures_of,
    metric_column,
    text_cell,
    value_cell,
    with_best,
)
from lpa_cwm.validation import read_json, reading, structure

CMC = (
    "coverage",
    "complete",
    "dca_avg",
    "shown_avg",
    "cts_4",
    "cts_8",
    "vis_ba",
    "of1",
    "lcc",
    "lcc_ceiling",
    "fragmentation",
)
TAPVID = ("aj", "delta_avg", "oa", "ad", "md", "ad_query", "md_query", "latency")
CMC_BY_DISTANCE = (*(f"dca_{k}" for k in THRESHOLDS), "dca_avg")
TAPVID_BY_DISTANCE = tuple(f"{kind}_{k}" for kind in ("jaccard", "delta") for k in THRESHOLDS)
COMPARED = ("dca_avg", "coverage", "complete", "cts_4", "vis_ba", "of1", "lcc", "aj", "delta_avg", "oa", "ad")
PER_VIDEO = ("dca_avg", "coverage", "cts_4", "vis_ba", "lcc", "aj", "delta_avg", "oa", "ad", "md")
PER_TRACK = ("dca_avg", "coverage", "lcc", "fragmentation", "aj", "delta_avg", "oa", "ad", "md")
MOTIONS = (2.0, 4.0, 8.0)
COVERAGES = (0.6, 0.7, 0.8, 0.9)
WORST_TRACKS = 100


@dataclass(frozen=True)
class MethodSet:
    """Methods and trivial predictors on one data set, each under a name of its own."""

    methods: tuple[Scores, ...]
    references: tuple[Scores, ...]
    folders: dict[str, Path]
    """Where each method's predictions are."""

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.methods[0].dataset

    @property
    def all_rows(self) -> tuple[Scores, ...]:
        """Methods, then references."""
        return self.methods + self.references

    @cached_property
    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Every measure of every row, averaged over videos."""
        return {scores.method: summarize(scores) for scores in self.all_rows}


def load_method_sets(folders: Sequence[Path], names: Sequence[str] = ()) -> list[MethodSet]:
    """Read the score files of runs and group them by data set; `names` replace the names of the methods."""
    if names and len(names) != len(folders):
        raise InputError(f"{len(names)} names were given for {len(folders)} runs; give one for each run, or none.")
    found: dict[str, list[tuple[Path, list[Scores]]]] = {}
    for place, folder in enumerate(folders):
        scores = load_scores(folder / "scores.json")
        if not scores or not scores[0].videos:
            raise InputError(f"{folder / 'scores.json'} holds no videos; score the run again.")
        if names:
            scores[0] = replace(scores[0], method=names[place])
        found.setdefault(scores[0].dataset, []).append((folder, scores))
    return [_method_set(entries) for entries in found.values()]


def _method_set(entries: list[tuple[Path, list[Scores]]]) -> MethodSet:
    """Check that all runs have the same task, and add the folders to equal names."""
    (first_folder, (first, *references)), *_ = entries
    for folder, (own, *_) in entries:
        if own.task != first.task:
            raise InputError(
                f"{folder} and {first_folder} are both of {own.dataset}, but of other videos, tracks, frames or "
                "thresholds; report them apart, or score both on the same manifest."
            )
    times = Counter(own.method for _, (own, *_) in entries)
    names = [own.method if times[own.method] == 1 else f"{own.method} ({folder.name})" for folder, (own, *_) in entries]
    methods = tuple(replace(own, method=name) for name, (_, (own, *_)) in zip(names, entries, strict=True))
    return MethodSet(
        tuple(scores.in_order_of(first) for scores in methods),
        tuple(scores for scores in references if scores.reference),
        {name: folder for name, (folder, _) in zip(names, entries, strict=True)},
    )


def tables(scored: MethodSet) -> Iterator[Table]:
    """All tables of a data set, in reading order."""
    protocol = scored.methods[0].protocol
    c, motion = f"{protocol.coverage:g}", f"{protocol.motion:g}"
    yield overview(scored, "cmc", "Completeness-aware Motion Correspondence", CMC, f"L_motion = {motion} px, c = {c}.")
    yield overview(scored, "cmc_by_distance", "CMC by distance", CMC_BY_DISTANCE)
    tapvid = f"TAP-Vid {protocol.mode.capitalize()}"
    yield overview(scored, "tapvid", tapvid, TAPVID)
    yield overview(scored, "tapvid_by_distance", f"{tapvid} by distance", TAPVID_BY_DISTANCE)
    yield paired_table(scored)
    yield from sensitivity(scored)
    yield from visibility_sweep(scored)
    yield from against_paper(scored)
    yield from by_subset(scored)
    yield by_video(scored)
    yield by_track(scored)


def overview(scored: MethodSet, slug: str, title: str, names: tuple[str, ...], note: str = "") -> Table:
    """Methods as rows, measures as columns, with intervals."""
    present = [name for name in names if any(name in found for found in scored.estimates.values())]
    columns = (Column("method", "Method"), *(metric_column(name, _label(name, scored)) for name in present))
    rows = [_overview_row(scored, scores, present) for scores in scored.all_rows]
    return Table(slug, title, columns, with_best(columns, rows), f"{note} {_INTERVAL}".strip())


_INTERVAL = "Small: 95 % interval over resampled videos."


def _label(name: str, scored: MethodSet) -> str:
    """Complete@c is named by its c."""
    return METRICS[name].label.replace("@c", f"@{scored.methods[0].protocol.coverage:g}".replace("@0.", "@."))


def _overview_row(scored: MethodSet, scores: Scores, names: list[str]) -> Row:
    found = scored.estimates[scores.method]
    cells = (estimate_cell(found[name], METRICS[name]) if name in found else Cell("–", float("nan")) for name in names)
    return Row((text_cell(scores.method), *cells), scores.reference)


def paired_table(scored: MethodSet) -> Table:
    """Each method against each other, on the same videos."""
    columns = (Column("first", "Method"), Column("second", "minus"), *(metric_column(name) for name in COMPARED))
    rows = []
    pairs = [(first, second) for second, first in combinations(scored.methods, 2)]
    pairs += [(first, second) for first in scored.methods for second in scored.references]
    for first, second in pairs:
        found = difference(first, second, list(COMPARED))
        cells = (difference_cell(found[name], METRICS[name]) for name in COMPARED)
        rows.append(Row((text_cell(first.method), text_cell(second.method), *cells), second.reference))
    note = "Differences on the same videos with their 95 % interval and the share of videos won; bold: a gain whose "
    return Table("paired", "Paired differences", columns, tuple(rows), f"{note}interval leaves zero out.")


def sensitivity(scored: MethodSet) -> Iterator[Table]:
    """Tables of DCA and CTS4 under other thresholds of motion and coverage."""
    protocol = scored.methods[0].protocol
    motions = {f"{value:g} px": (value, protocol.coverage) for value in MOTIONS}
    coverages = {f"c = {value:g}": (protocol.motion, value) for value in COVERAGES}
    paths = np.concatenate([video.counts["path"] for video in scored.methods[0].videos.values()])
    left = ", ".join(f"{(paths >= motion).sum()} at {motion:g} px" for motion in MOTIONS)
    yield threshold_table(
        scored, "by_motion", "DCA by motion threshold", "dca_avg", motions, f"Dynamic tracks: {left}."
    )
    yield threshold_table(scored, "by_coverage", "CTS4 by coverage threshold", "cts_4", coverages)


Settings = dict[str, tuple[float, float]]


def threshold_table(scored: MethodSet, slug: str, title: str, name: str, settings: Settings, note: str = "") -> Table:
    """One measure under several thresholds of motion and coverage."""
    columns = (Column("method", "Method"), *(Column(label, label, METRICS[name]) for label in settings))
    rows = []
    for scores in scored.all_rows:
        values = [scores.at(*setting).column(name) for setting in settings.values()]
        cells = (estimate_cell(one, METRICS[name]) for one in estimates(np.stack(values, axis=1)))
        rows.append(Row((text_cell(scores.method), *cells), scores.reference))
    return Table(slug, title, columns, with_best(columns, rows), note)


def visibility_sweep(scored: MethodSet) -> Iterator[Table]:
    """Measures at each threshold of visibility, for methods that give scores."""
    if not any(scores.thresholds for scores in scored.methods):
        return
    columns = (Column("method", "Method"), Column("threshold", "visible from"), *map(metric_column, SWEEP_MEASURES))
    rows = [row for scores in scored.all_rows for row in _swept_rows(scored, scores)]
    note = "Visibility as given, then decided by the predictor's score; a video that shows nothing has no Acc. shown."
    yield Table("sweep", "Visibility threshold", columns, tuple(rows), note, folded=True)


def _swept_rows(scored: MethodSet, scores: Scores) -> Iterator[Row]:
    own = (estimate_cell(scored.estimates[scores.method][name], METRICS[name]) for name in SWEEP_MEASURES)
    yield Row((text_cell(scores.method), Cell("as given", float("nan")), *own), scores.reference)
    found = curve(scores)
    for place, level in enumerate(scores.thresholds if found else []):
        cells = (value_cell(found[name][place], METRICS[name]) for name in SWEEP_MEASURES)
        yield Row((text_cell(scores.method), Cell(f"{level:.4g}", level), *cells), scores.reference)


def against_paper(scored: MethodSet) -> Iterator[Table]:
    """Paper, ours, difference, for what the paper also reports."""
    columns = ("Method", "In the paper", "Measure", "Paper", "Ours", "Difference")
    rows = [
        _paper_row(scored, scores, figure)
        for scores in scored.methods
        for figure in figures_of(scores)
        if figure.metric in scored.estimates[scores.method]
    ]
    if rows:
        heads = tuple(Column(head.lower().replace(" ", "_"), head) for head in columns)
        note = "The paper's subset of videos, tracks and frames is not published; its figures carry no intervals."
        yield Table("paper", "Paper and ours", heads, tuple(rows), note)


def _paper_row(scored: MethodSet, scores: Scores, figure: PaperFigure) -> Row:
    metric = METRICS[figure.metric]
    ours = estimate_cell(scored.estimates[scores.method][figure.metric], metric)
    paper = Cell(f"{figure.value:.2f}", figure.value)
    label = f"{_label(metric.name, scored)} {metric.arrow}".strip()
    return Row(
        (
            text_cell(scores.method),
            text_cell(figure.method),
            text_cell(label),
            paper,
            ours,
            gap_cell(ours, figure.value),
        )
    )


def gap_cell(ours: Cell, paper: float) -> Cell:
    """Ours minus the paper's figure; a dash where ours is undefined."""
    gap = float(ours.value) - paper
    return Cell(f"{gap:+.2f}" if gap == gap else "–", gap)


def subset_of(name: str) -> str:
    """Subset of a video: its name up to the first slash, or the recipe of a simulated clip."""
    found = re.match(r"([^/]+?)(?:/|-(?:train|val)-\d)", name)
    return found[1] if found else ""


def by_subset(scored: MethodSet) -> Iterator[Table]:
    """Means of the subsets that the videos' names tell; none if it is one."""
    subsets: dict[str, list[str]] = {}
    for name in scored.methods[0].videos:
        subsets.setdefault(subset_of(name), []).append(name)
    if len(subsets) < 2:
        return
    heads = (Column("subset", "Subset"), Column("method", "Method"), Column("videos", "videos"))
    columns = (*heads, *map(metric_column, PER_VIDEO))
    rows = []
    for subset, names in subsets.items():
        some = [replace(scores, videos={name: scores.videos[name] for name in names}) for scores in scored.all_rows]
        found = [summarize(scores, list(PER_VIDEO)) for scores in some]
        for scores, means in zip(some, found, strict=True):
            cells = (estimate_cell(means[metric], METRICS[metric]) for metric in PER_VIDEO)
            rows.append(
                Row((text_cell(subset), text_cell(scores.method), count_cell(len(names)), *cells), scores.reference)
            )
    yield Table("subsets", "Subsets", columns, tuple(rows), _INTERVAL)


def by_video(scored: MethodSet) -> Table:
    """One row for each video and method."""
    facts = (Column("tracks", "tracks"), Column("dynamic", "dynamic"), Column("points", "points"))
    columns = (Column("video", "Video"), Column("method", "Method"), *facts, *map(metric_column, PER_VIDEO))
    rows = []
    for name in scored.methods[0].videos:
        for scores in scored.all_rows:
            video = scores.videos[name]
            size = (len(video.counts["seen"]), int(video.tracks["dynamic"].sum()), int(video.counts["frames"].sum()))
            cells = (value_cell(video.values[metric], METRICS[metric]) for metric in PER_VIDEO)
            rows.append(
                Row((text_cell(name), text_cell(scores.method), *map(count_cell, size), *cells), scores.reference)
            )
    note = "points: evaluated frames, added up over tracks."
    return Table("videos", "Videos", columns, tuple(rows), note, folded=True)


def by_track(scored: MethodSet) -> Table:
    """One row for each track and method, the worst first."""
    heads = (("video", "Video"), ("track", "Track"), ("method", "Method"), ("path", "path px"), ("dynamic", "dynamic"))
    columns = (*(Column(*head) for head in heads), *map(metric_column, PER_TRACK))
    rows = [row for scores in scored.all_rows for row in _track_rows(scores)]
    rows.sort(key=_sort_key)
    note = "Dynamic tracks with the lowest DCA first."
    return Table("tracks", "Tracks", columns, tuple(rows), note, WORST_TRACKS, folded=True)


def _track_rows(scores: Scores) -> Iterator[Row]:
    for name, video in scores.videos.items():
        for track, (path, dynamic) in enumerate(zip(video.tracks["path"], video.tracks["dynamic"], strict=True)):
            cells = (value_cell(float(video.tracks[metric][track]), METRICS[metric]) for metric in PER_TRACK)
            facts = (text_cell(name), count_cell(track), text_cell(scores.method), Cell(f"{path:.1f}", float(path)))
            yield Row((*facts, text_cell("yes" if dynamic else "no"), *cells), scores.reference)


def _sort_key(row: Row) -> tuple[bool, bool, float]:
    """Methods' dynamic tracks by their accuracy, then the others, then references."""
    accuracy = row.cells[5].value
    known = isinstance(accuracy, float) and accuracy == accuracy
    return row.reference, row.cells[4].text != "yes", float(accuracy) if known else math.inf


FILE = "sweep.json"
"""The measured cells in the folder of a sweep."""
ERROR = METRICS["ad"]
"""Declares unit and direction of an end-point error."""


@dataclass(frozen=True)
class SweepCell:
    """One setting of masks and re-evaluations."""

    masks: int
    passes: int
    error: float
    """Mean final end-point error in pixels of the 256 x 256 raster."""
    seconds: float
    """Median time of one query alone in its batch, models and frames in memory, describing the frames included."""
    queries: int
    by_video: list[float]
    """Mean error of the queries of each video."""


def read_cells(folder: Path) -> list[SweepCell]:
    """The cells that a folder holds."""
    path = folder / FILE
    if not path.exists():
        return []
    with reading(path, "a list of the cells of a sweep", "remove it and run `lpa-cwm eval sweep` again"):
        cells = structure(read_json(path), list[SweepCell])
        if any(min(cell.masks, cell.queries, len(cell.by_video)) < 1 for cell in cells):
            raise ValueError("a cell has no masks, queries or videos")
        return cells


def write_cells(cells: list[SweepCell], folder: Path) -> None:
    """Write all cells; a stopped sweep continues after the last one."""
    with atomic_write(folder / FILE) as temporary:
        temporary.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep instead of a run."""
    return (folder / FILE).exists()


def sweep_table(folder: Path) -> Table:
    """Error with its interval over videos, and time, for each setting."""
    columns = (
        Column("masks", "M"),
        Column("passes", "R"),
        Column("error", "End-point error, px", ERROR),
        Column("seconds", "s per query"),
        Column("queries", "queries"),
    )
    rows = with_best(columns, [_row(cell) for cell in read_cells(folder)])
    note = "Means over videos with 95 % intervals over resampled videos; each query alone, models in memory."
    return Table("sweep", "Masks and re-evaluations", columns, rows, note)


def _row(cell: SweepCell) -> Row:
    """One setting."""
    (error,) = estimates(np.array(cell.by_video)[:, None])
    seconds = Cell(f"{cell.seconds:.3f}", cell.seconds)
    return Row(
        (
            count_cell(cell.masks),
            count_cell(cell.passes),
            estimate_cell(error, ERROR),
            seconds,
            count_cell(cell.queries),
        )
    )


def sweep_conclusion(folder: Path) -> str:
    """One sentence: the setting with the lowest error."""
    best = min(read_cells(folder), key=lambda cell: cell.error)
    return (
        f"In {folder.name} the lowest end-point error is {best.error:.2f} px with M = {best.masks} and "
        f"R = {best.passes} ({best.seconds:.2f} s per query, {best.queries} queries)."
    )
