"""Every table of the report, from a contest's scores."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from lpa_cwm.metrics import METRICS, THRESHOLDS, Scores, curve, difference, summarize
from lpa_cwm.metrics.scores import SWEPT
from lpa_cwm.metrics.summary import estimates
from lpa_cwm.report.contest import Contest
from lpa_cwm.report.paper import PaperFigure, figures_of
from lpa_cwm.report.tables import (
    Cell,
    Column,
    Row,
    Table,
    differing,
    estimated,
    metric_column,
    number,
    text,
    whole,
    with_best,
)

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


def tables(contest: Contest) -> Iterator[Table]:
    """All tables of a data set, in reading order."""
    protocol = contest.methods[0].protocol
    c, motion = f"{protocol.coverage:g}", f"{protocol.motion:g}"
    yield overview(contest, "cmc", "Completeness-aware Motion Correspondence", CMC, f"L_motion = {motion} px, c = {c}.")
    yield overview(contest, "cmc_by_distance", "CMC by distance", CMC_BY_DISTANCE)
    tapvid = f"TAP-Vid {protocol.mode.capitalize()}"
    yield overview(contest, "tapvid", tapvid, TAPVID)
    yield overview(contest, "tapvid_by_distance", f"{tapvid} by distance", TAPVID_BY_DISTANCE)
    yield paired(contest)
    yield from sensitivity(contest)
    yield from swept(contest)
    yield from against_paper(contest)
    yield from by_subset(contest)
    yield by_video(contest)
    yield by_track(contest)


def overview(contest: Contest, slug: str, title: str, names: tuple[str, ...], note: str = "") -> Table:
    """Methods as rows, measures as columns, with intervals."""
    present = [name for name in names if any(name in found for found in contest.estimates.values())]
    columns = (Column("method", "Method"), *(metric_column(name, _label(name, contest)) for name in present))
    rows = [_overview_row(contest, scores, present) for scores in contest.everyone]
    return Table(slug, title, columns, with_best(columns, rows), f"{note} {_INTERVAL}".strip())


_INTERVAL = "Small: 95 % interval over resampled videos; n undef.: videos left out because it is undefined on them."


def _label(name: str, contest: Contest) -> str:
    """Complete@c is named by its c."""
    return METRICS[name].label.replace("@c", f"@{contest.methods[0].protocol.coverage:g}".replace("@0.", "@."))


def _overview_row(contest: Contest, scores: Scores, names: list[str]) -> Row:
    found = contest.estimates[scores.method]
    cells = (estimated(found[name], METRICS[name]) if name in found else Cell("–", float("nan")) for name in names)
    return Row((text(scores.method), *cells), scores.reference)


def paired(contest: Contest) -> Table:
    """Each method against each other, on the same videos."""
    columns = (Column("first", "Method"), Column("second", "minus"), *(metric_column(name) for name in COMPARED))
    rows = []
    pairs = [(first, second) for second, first in combinations(contest.methods, 2)]
    pairs += [(first, second) for first in contest.methods for second in contest.references]
    for first, second in pairs:
        found = difference(first, second, list(COMPARED))
        cells = (differing(found[name], METRICS[name]) for name in COMPARED)
        rows.append(Row((text(first.method), text(second.method), *cells), second.reference))
    note = "Differences on the same videos with their 95 % interval and the share of videos won; bold: a gain whose "
    return Table("paired", "Paired differences", columns, tuple(rows), f"{note}interval leaves zero out.")


def sensitivity(contest: Contest) -> Iterator[Table]:
    """What other thresholds of motion and of coverage would have said."""
    protocol = contest.methods[0].protocol
    motions = {f"{value:g} px": (value, protocol.coverage) for value in MOTIONS}
    coverages = {f"c = {value:g}": (protocol.motion, value) for value in COVERAGES}
    paths = np.concatenate([video.counts["path"] for video in contest.methods[0].videos.values()])
    left = ", ".join(f"{(paths >= motion).sum()} at {motion:g} px" for motion in MOTIONS)
    yield resettled(contest, "by_motion", "DCA by motion threshold", "dca_avg", motions, f"Dynamic tracks: {left}.")
    yield resettled(contest, "by_coverage", "CTS4 by coverage threshold", "cts_4", coverages)


Settings = dict[str, tuple[float, float]]


def resettled(contest: Contest, slug: str, title: str, name: str, settings: Settings, note: str = "") -> Table:
    """One measure under several thresholds of motion and coverage."""
    columns = (Column("method", "Method"), *(Column(label, label, METRICS[name]) for label in settings))
    rows = []
    for scores in contest.everyone:
        values = [scores.at(*setting).column(name) for setting in settings.values()]
        cells = (estimated(one, METRICS[name]) for one in estimates(np.stack(values, axis=1)))
        rows.append(Row((text(scores.method), *cells), scores.reference))
    return Table(slug, title, columns, with_best(columns, rows), note)


def swept(contest: Contest) -> Iterator[Table]:
    """Measures at each threshold of visibility, for methods that give scores."""
    if not any(scores.thresholds for scores in contest.methods):
        return
    columns = (Column("method", "Method"), Column("threshold", "visible from"), *map(metric_column, SWEPT))
    rows = [row for scores in contest.everyone for row in _swept_rows(contest, scores)]
    note = "Visibility as given, then decided by the predictor's score; a video that shows nothing has no Acc. shown."
    yield Table("sweep", "Visibility threshold", columns, tuple(rows), note, folded=True)


def _swept_rows(contest: Contest, scores: Scores) -> Iterator[Row]:
    own = (estimated(contest.estimates[scores.method][name], METRICS[name]) for name in SWEPT)
    yield Row((text(scores.method), Cell("as given", float("nan")), *own), scores.reference)
    found = curve(scores)
    for place, level in enumerate(scores.thresholds if found else []):
        cells = (number(found[name][place], METRICS[name]) for name in SWEPT)
        yield Row((text(scores.method), Cell(f"{level:.4g}", level), *cells), scores.reference)


def against_paper(contest: Contest) -> Iterator[Table]:
    """Paper, ours, difference, for what the paper also reports."""
    columns = ("Method", "In the paper", "Measure", "Paper", "Ours", "Difference")
    rows = [
        _paper_row(contest, scores, figure)
        for scores in contest.methods
        for figure in figures_of(scores)
        if figure.metric in contest.estimates[scores.method]
    ]
    if rows:
        heads = tuple(Column(head.lower().replace(" ", "_"), head) for head in columns)
        note = "The paper's subset of videos, tracks and frames is not published; its figures carry no intervals."
        yield Table("paper", "Paper and ours", heads, tuple(rows), note)


def _paper_row(contest: Contest, scores: Scores, figure: PaperFigure) -> Row:
    metric = METRICS[figure.metric]
    ours = estimated(contest.estimates[scores.method][figure.metric], metric)
    gap = float(ours.value) - figure.value
    paper = Cell(f"{figure.value:.2f}", figure.value)
    label = f"{_label(metric.name, contest)} {metric.arrow}".strip()
    return Row((text(scores.method), text(figure.method), text(label), paper, ours, Cell(f"{gap:+.2f}", gap)))


def subset_of(name: str) -> str:
    """What stands before the first slash, or of a simulated clip its recipe."""
    found = re.match(r"([^/]+?)(?:/|-(?:train|val)-\d)", name)
    return found[1] if found else ""


def by_subset(contest: Contest) -> Iterator[Table]:
    """Means of the subsets that the videos' names tell; none if it is one."""
    subsets: dict[str, list[str]] = {}
    for name in contest.methods[0].videos:
        subsets.setdefault(subset_of(name), []).append(name)
    if len(subsets) < 2:
        return
    heads = (Column("subset", "Subset"), Column("method", "Method"), Column("videos", "videos"))
    columns = (*heads, *map(metric_column, PER_VIDEO))
    rows = []
    for subset, names in subsets.items():
        some = [replace(scores, videos={name: scores.videos[name] for name in names}) for scores in contest.everyone]
        found = [summarize(scores, list(PER_VIDEO)) for scores in some]
        for scores, means in zip(some, found, strict=True):
            cells = (estimated(means[metric], METRICS[metric]) for metric in PER_VIDEO)
            rows.append(Row((text(subset), text(scores.method), whole(len(names)), *cells), scores.reference))
    yield Table("subsets", "Subsets", columns, tuple(rows), _INTERVAL)


def by_video(contest: Contest) -> Table:
    """One row for each video and method."""
    facts = (Column("tracks", "tracks"), Column("dynamic", "dynamic"), Column("points", "points"))
    columns = (Column("video", "Video"), Column("method", "Method"), *facts, *map(metric_column, PER_VIDEO))
    rows = []
    for name in contest.methods[0].videos:
        for scores in contest.everyone:
            video = scores.videos[name]
            size = (len(video.counts["seen"]), int(video.tracks["dynamic"].sum()), int(video.counts["frames"].sum()))
            cells = (number(video.values[metric], METRICS[metric]) for metric in PER_VIDEO)
            rows.append(Row((text(name), text(scores.method), *map(whole, size), *cells), scores.reference))
    note = "points: evaluated frames, added up over tracks."
    return Table("videos", "Videos", columns, tuple(rows), note, folded=True)


def by_track(contest: Contest) -> Table:
    """One row for each track and method, the worst first."""
    heads = (("video", "Video"), ("track", "Track"), ("method", "Method"), ("path", "path px"), ("dynamic", "dynamic"))
    columns = (*(Column(*head) for head in heads), *map(metric_column, PER_TRACK))
    rows = [row for scores in contest.everyone for row in _track_rows(scores)]
    rows.sort(key=_badness)
    note = "Dynamic tracks with the lowest DCA first."
    return Table("tracks", "Tracks", columns, tuple(rows), note, WORST_TRACKS, folded=True)


def _track_rows(scores: Scores) -> Iterator[Row]:
    for name, video in scores.videos.items():
        for track, (path, dynamic) in enumerate(zip(video.tracks["path"], video.tracks["dynamic"], strict=True)):
            cells = (number(float(video.tracks[metric][track]), METRICS[metric]) for metric in PER_TRACK)
            facts = (text(name), whole(track), text(scores.method), Cell(f"{path:.1f}", float(path)))
            yield Row((*facts, text("yes" if dynamic else "no"), *cells), scores.reference)


def _badness(row: Row) -> tuple[bool, bool, float]:
    """Methods' dynamic tracks by their accuracy, then the others, then references."""
    accuracy = row.cells[5].value
    known = isinstance(accuracy, float) and accuracy == accuracy
    return row.reference, row.cells[4].text != "yes", float(accuracy) if known else math.inf
