"""The report: one self-contained page with figures, tables, worst videos and definitions, and every table as files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float
from PIL import Image

from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import rescale
from lpa_cwm.io.predictions import find_predictions, read_prediction
from lpa_cwm.metrics import METRICS, Scores, curve, difference
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.report import svg, sweep
from lpa_cwm.report.results import COVERAGES, MOTIONS, MethodSet, load_method_sets, tables
from lpa_cwm.report.svg import Line
from lpa_cwm.report.tables import Table, to_csv, to_html, to_latex, to_markdown
from lpa_cwm.types import Sample

AXES = ("dca_avg", "coverage", "vis_ba", "lcc")
"""One measure for each dimension of CMC, as in the paper."""
HERE = Path(__file__).parent
WRITERS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
WORST = 4
"""Videos that are shown of each method."""
FRAMES = 3
"""Frames that are shown of each video."""
SIDE = 512
"""Longer side of a shown frame, in pixels."""


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    names: Sequence[str] = (),
    dataset: Dataset | None = None,
    command: str = "",
) -> Path:
    """Compare scored runs and show sweeps: `index.html`, and every table as CSV, Markdown and LaTeX in `tables/`.

    `names` are the names of the rows, one for each run. A data set that is open already is not read again for the
    pictures. `command` is the command line, which the page shows.
    """
    if not runs:
        raise InputError("No run was given; name one or more scored run folders.")
    sweeps = [run for run in runs if sweep.is_sweep(run)]
    folders = [run for run in runs if run not in sweeps]
    sections = [(one, list(tables(one))) for one in load_method_sets(folders, names)]
    named = [(scored.dataset, table) for scored, found in sections for table in found]
    for start, table in named + [(folder.name, sweep.sweep_table(folder)) for folder in sweeps]:
        name = quote(f"{start}_{table.slug}", safe=" ")
        for suffix, to_text in WRITERS.items():
            _write(out / "tables" / f"{name}.{suffix}", to_text(replace(table, slug=name)))
    return _write(out / "index.html", page(sections, sweeps, dataset, command))


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as aside:
        aside.write_text(text)
    return path


def page(
    sections: list[tuple[MethodSet, list[Table]]],
    sweeps: Sequence[Path] = (),
    dataset: Dataset | None = None,
    command: str = "",
) -> str:
    """The whole page; nothing in it is fetched from elsewhere."""
    names = [scored.dataset for scored, _ in sections] + [folder.name for folder in sweeps]
    title = "Point tracks: " + ", ".join(names)
    bodies = "".join(section(scored, tables, dataset) for scored, tables in sections) + "".join(map(swept, sweeps))
    sentences = [conclusion(scored) for scored, _ in sections] + [sweep.conclusion(folder) for folder in sweeps]
    made = f"{date.today()}{f' · {command}' if command else ''}"
    summary = f"<p>{escape(' '.join(sentences))}</p><p class=note>{escape(made)}</p>"
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{(HERE / 'page.css').read_text()}</style></head><body>"
        f'<header><h1>{escape(title)}</h1>{summary}<nav>{links}<a href="#measures">Measures</a></nav></header>'
        f"<main>{bodies}{definitions()}</main><script>{(HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def conclusion(scored: MethodSet) -> str:
    """One sentence: the method with the highest DCA, and its lead over the next one on the same videos."""
    found = {one.method: scored.estimates[one.method]["dca_avg"] for one in scored.methods}
    known = {name: one for name, one in found.items() if one.value == one.value}
    if not known:
        return f"On {scored.dataset} DCA is undefined: no track moves far enough."
    show = METRICS["dca_avg"].show
    order = sorted(scored.methods, key=lambda one: -known[one.method].value if one.method in known else np.inf)
    best, value = order[0], known[order[0].method]
    videos = f"{value.videos} video{'s' if value.videos > 1 else ''}"
    if len(known) == 1:
        return f"On {scored.dataset} ({videos}) {best.method} has a DCA of {show(value.value)} %."
    second = order[1]
    lead = difference(best, second, ["dca_avg"])["dca_avg"]
    span = f"{show(lead.estimate.value)} points (95 % interval {show(lead.estimate.low)} to {show(lead.estimate.high)})"
    if lead.clear:
        return (
            f"On {scored.dataset} ({videos}) {best.method} has the highest DCA, {show(value.value)} %: "
            f"{span} more than {second.method}."
        )
    return (
        f"On {scored.dataset} ({videos}) {best.method} has the highest DCA, {show(value.value)} %, but its lead "
        f"over {second.method} is not clear: {span}."
    )


def section(scored: MethodSet, tables: list[Table], dataset: Dataset | None = None) -> str:
    """Everything about one data set."""
    by_slug = {table.slug: table for table in tables}
    drawn = "".join((cmc_radar(scored), *sensitivities(by_slug), *threshold_curves(scored)))
    heading = f'<h2 id="{escape(scored.dataset)}">{escape(scored.dataset)}</h2><p class=lead>{facts(scored)}</p>'
    open_tables = "".join(_titled(table) for table in tables if not table.folded)
    folded = "".join(_folded(table) for table in tables if table.folded)
    return f"{heading}<div class=figures>{drawn}</div>{open_tables}{worst(scored, dataset)}{folded}{settings(scored)}"


def swept(folder: Path) -> str:
    """How many masks and re-evaluations pay."""
    heading = f'<h2 id="{escape(folder.name)}">{escape(folder.name)}</h2>'
    return f"{heading}<div class=figures>{sweep.charts(folder)}</div>{_titled(sweep.sweep_table(folder))}"


def _titled(table: Table) -> str:
    return f"<h3>{escape(table.title)}</h3>{to_html(table)}"


def _folded(table: Table) -> str:
    search = '<input class=filter type=search placeholder="keep rows that contain …">'
    return f"<details><summary>{escape(table.title)}</summary>{search}{to_html(table)}</details>"


def facts(scored: MethodSet) -> str:
    """What was measured, in one line."""
    first = scored.methods[0]
    counts = [video.counts for video in first.videos.values()]
    tracks = sum(len(one["seen"]) for one in counts)
    dynamic = sum(int(video.tracks["dynamic"].sum()) for video in first.videos.values())
    points, visible = (int(sum(one[name].sum() for one in counts)) for name in ("frames", "visible"))
    text = f"{len(counts)} videos, {tracks} tracks of which {dynamic} dynamic, {points} evaluated points, "
    text += f"{visible / max(points, 1):.0%} of them visible. Queries: {first.protocol.mode}. "
    return escape(text + (f"Manifest {first.manifest}." if first.manifest else ""))


def cmc_radar(scored: MethodSet) -> str:
    """The four dimensions of CMC as a radar."""
    names = [(METRICS[name].dimension.capitalize(), METRICS[name].label) for name in AXES]
    lines = []
    for scores in scored.all_rows:
        found = scored.estimates[scores.method]
        values = [(0.0, found[name].value if name in found else np.nan) for name in AXES]
        lines.append(Line(scores.method, values, scores.reference))
    return svg.radar("CMC at a glance", names, lines)


def sensitivities(tables: dict[str, Table]) -> Iterator[str]:
    """Charts of the two sensitivity tables."""
    kinds = (("by_motion", MOTIONS, "L_motion, px", "DCA, %"), ("by_coverage", COVERAGES, "c", "CTS4, %"))
    for slug, xs, x_label, y_label in kinds:
        table = tables[slug]
        lines = []
        for row in table.rows:
            ys = [cell.value for cell in row.cells[1:] if isinstance(cell.value, float)]
            lines.append(Line(row.cells[0].text, list(zip(xs, ys, strict=True)), row.reference))
        yield svg.chart(table.title, x_label, y_label, lines, xs)


def threshold_curves(scored: MethodSet) -> Iterator[str]:
    """Accuracy against coverage while the visibility threshold moves, if scores were given."""
    kinds = (("shown_avg", "Accuracy of what is shown"), ("dca_avg", "DCA"))
    swept = {scores.method: curve(scores) for scores in scored.methods}
    for name, title in kinds:
        lines = [_curve_line(scored, method, found, name) for method, found in swept.items()]
        if any(line.points for line in lines):
            yield svg.chart(f"{title} against coverage", "Coverage, %", f"{title}, %", lines)


def _curve_line(scored: MethodSet, method: str, found: dict[str, list[float]], name: str) -> Line:
    """A method's curve in percent; its own threshold is marked."""
    points = [(100 * x, 100 * y) for x, y in zip(found.get("coverage", []), found.get(name, []), strict=True)]
    own = scored.estimates[method]
    return Line(method, points, marked=(100 * own["coverage"].value, 100 * own[name].value))


def worst(scored: MethodSet, dataset: Dataset | None = None) -> str:
    """For each method, frames of the videos with its lowest DCA; empty if the data set is not at hand."""
    dataset = dataset or reopen_dataset(scored.methods[0])
    if dataset is None:
        return ""
    parts = []
    for scores in scored.methods:
        for video in worst_videos(scores):
            images = "".join(video_frames(scored.folders[scores.method], dataset, video))
            caption = f"{scores.method} · {video} · DCA {METRICS['dca_avg'].show(scores.videos[video]['dca_avg'])} %"
            parts.append(f"<p><b>{escape(caption)}</b></p><div class=strip>{images}</div>" if images else "")
    if not any(parts):
        return ""
    colors = (("truth", svg.TRUTH), ("prediction, hollow where predicted occluded", svg.PREDICTED))
    key = "".join(f'<i style="background:{color}"></i>{name}' for name, color in colors)
    note = f'<p class="note key">Points that are visible in truth, joined with their predictions.{key}</p>'
    return f"<h3>Worst videos</h3>{note}{''.join(parts)}"


def worst_videos(scores: Scores, number: int = WORST) -> list[str]:
    """The videos with the lowest DCA, where it is defined."""
    known = {name: video["dca_avg"] for name, video in scores.videos.items() if video["dca_avg"] == video["dca_avg"]}
    return sorted(known, key=lambda name: known[name])[:number]


def reopen_dataset(scores: Scores) -> Dataset | None:
    """The data set that was scored, if it is still at its path."""
    where, chosen = scores.notes.get("dataset"), scores.notes.get("selection")
    if not where or chosen is None or not Path(where).exists():
        return None
    return load_dataset(where, Selection(**chosen | {"videos": tuple(chosen["videos"])}))


def video_frames(folder: Path, dataset: Dataset, video: str) -> Iterator[str]:
    """A few frames of a video with true and predicted points; none if the run lacks the video."""
    path = find_predictions(folder, [video]).get(video)
    if video not in dataset.names or path is None:
        return
    sample = dataset[list(dataset.names).index(video)]
    tracks, frames = sample.truth.visible.shape
    prediction = read_prediction(path, tracks, frames)
    first = int(sample.queries.frame.min())
    for frame in np.linspace(first, frames - 1, FRAMES + 1).round().astype(int)[1:].tolist():
        drawn = draw_frame(sample, prediction.xy[:, frame], prediction.visible[:, frame], frame, video)
        yield f"<figure>{drawn}<figcaption>frame {frame}</figcaption></figure>"


def draw_frame(
    sample: Sample, xy: Float[np.ndarray, "n 2"], visible: Bool[np.ndarray, "n"], frame: int, title: str
) -> str:
    """One frame with the tracks that are visible in truth after their query."""
    pixels = Image.fromarray(rearrange(sample.clip[frame], "c h w -> h w c").cpu().numpy())
    scale = SIDE / max(pixels.size)
    shown = pixels.resize((max(round(pixels.width * scale), 1), max(round(pixels.height * scale), 1)))
    hw = shown.height, shown.width
    rows = ((sample.queries.frame < frame) & sample.truth.visible[:, frame]).numpy()
    truth = rescale(sample.truth.xy[:, frame], sample.clip.hw, hw).numpy()
    predicted = rescale(torch.from_numpy(xy), (SIZE, SIZE), hw).numpy()
    return svg.frame_with_points(shown, truth[rows], predicted[rows], visible[rows], f"{title}, frame {frame}")


def settings(scored: MethodSet) -> str:
    """What is known about each method's run."""
    notes = {scores.method: scores.notes for scores in scored.methods if scores.notes}
    if not notes:
        return ""
    text = escape(json.dumps(notes, indent=1, ensure_ascii=False))
    return f"<details><summary>Settings</summary><pre>{text}</pre></details>"


def definitions() -> str:
    """Each measure's own declaration."""
    rows = "".join(
        f"<dt>{escape(metric.label)} {metric.arrow}</dt><dd>{escape(metric.definition)} [{metric.unit}]</dd>"
        for metric in METRICS.values()
    )
    return f'<h2 id="measures">Measures</h2><dl>{rows}</dl>'
