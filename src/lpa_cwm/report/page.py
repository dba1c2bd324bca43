"""The report: one self-contained page with SVG figures, tables, worst videos and definitions; every table as files."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from lpa_cwm.io.visualization import jpeg_url
from lpa_cwm.metrics import METRICS, Scores, curve, difference
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.report import results
from lpa_cwm.report.results import COVERAGES, MOTIONS, MethodSet, load_method_sets, tables
from lpa_cwm.report.tables import Table, to_csv, to_html, to_latex, to_markdown
from lpa_cwm.types import Sample

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#444444")
"""Distinct for color-blind readers too (Okabe and Ito 2008)."""
GRAYS = ("#9aa0a6", "#c3c7cc")
RULE = "#e3e6ea"
TRUTH, PREDICTED = "#2ecc71", "#ff5722"
RADIUS = 6.0
QUALITY = 82
"""Quality of JPEG pictures."""


@dataclass(frozen=True)
class Curve:
    """A named sequence of points; a reference is dashed and gray."""

    name: str
    points: Sequence[tuple[float, float]]
    reference: bool = False
    marked: tuple[float, float] | None = None
    """One highlighted point, such as the method's own setting."""


def line_colors(lines: Sequence[Curve]) -> list[str]:
    """A color for each method, a gray for each reference."""
    places = [sum(other.reference == line.reference for other in lines[:place]) for place, line in enumerate(lines)]
    palettes = [GRAYS if line.reference else COLORS for line in lines]
    return [palette[place % len(palette)] for palette, place in zip(palettes, places, strict=True)]


def svg_figure(width: int, height: int, content: str, lines: Sequence[Curve], title: str) -> str:
    """Drawing, title and legend as one figure."""
    keys = ""
    for line, color in zip(lines, line_colors(lines), strict=True):
        stroke = "dashed" if line.reference else "solid"
        keys += f'<span><i style="border-top:3px {stroke} {color}"></i>{escape(line.name)}</span>'
    drawing = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{content}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}<div class=legend>{keys}</div></figure>"


def svg_text(x: float, y: float, text: str, anchor: str = "middle", vertical: bool = False) -> str:
    """Text at a point."""
    rotation = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if vertical else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rotation}>{escape(text)}</text>'


@dataclass(frozen=True)
class RadarAxes:
    """Axes from a center, at which the value is 0, to a rim, at which it is 1."""

    axes: int
    width: int = 360
    height: int = 290
    rim: float = 84

    def at(self, axis: int, value: float) -> tuple[float, float]:
        """Position of a value on an axis; undefined values are at the center."""
        angle = math.pi * (2 * axis / self.axes - 0.5)
        length = 0 if value != value else value * self.rim
        return self.width / 2 + length * math.cos(angle), self.height / 2 + length * math.sin(angle)

    def polygon(self, values: Iterable[float], style: str) -> str:
        """A closed line through one value of each axis."""
        corners = " ".join("{:.1f},{:.1f}".format(*self.at(axis, value)) for axis, value in enumerate(values))
        return f'<polygon points="{corners}" {style}/>'

    def name(self, axis: int, label: str, below: str) -> str:
        """The axis' two names, one below the other, outside the rim."""
        x, y = self.at(axis, 1.08)
        across, down = x - self.width / 2, y - self.height / 2
        anchor = "middle" if abs(across) < 1 else ("start" if across > 0 else "end")
        top = y if abs(across) >= 1 else y + (-14 if down < 0 else 10)
        return svg_text(x, top, label, anchor) + svg_text(x, top + 14, below, anchor)


def radar(title: str, axes: Sequence[tuple[str, str]], lines: Sequence[Curve]) -> str:
    """Each line's values, fractions in the order of the axes, as a polygon."""
    drawing = RadarAxes(len(axes))
    parts = [drawing.polygon([ring] * len(axes), f'fill="none" stroke="{RULE}"') for ring in (0.25, 0.5, 0.75, 1.0)]
    parts += [drawing.name(axis, *names) for axis, names in enumerate(axes)]
    for line, color in zip(lines, line_colors(lines), strict=True):
        look = 'fill="none" stroke-dasharray="5 4"' if line.reference else f'fill="{color}" fill-opacity="0.08"'
        parts.append(drawing.polygon([value for _, value in line.points], f'{look} stroke="{color}" stroke-width="2"'))
    return svg_figure(drawing.width, drawing.height, "".join(parts), lines, title)


@dataclass(frozen=True)
class LineAxes:
    """Two axes with ticks, mapped to pixels."""

    xs: Sequence[float]
    ys: Sequence[float]
    width: int = 360
    height: int = 290
    left: int = 56
    right: int = 16
    top: int = 10
    bottom: int = 44

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        across = (x - self.xs[0]) / (self.xs[-1] - self.xs[0])
        up = (y - self.ys[0]) / (self.ys[-1] - self.ys[0])
        wide, high = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + across * wide, self.height - self.bottom - up * high

    def scales(self, x_label: str, y_label: str) -> str:
        """Rules, ticks and names of the axes."""
        middle = (self.left + self.width - self.right) / 2, (self.top + self.height - self.bottom) / 2
        parts = [svg_text(middle[0], self.height - 8.0, x_label), svg_text(16.0, middle[1], y_label, vertical=True)]
        for x in self.xs:
            place, foot = self.at(x, self.ys[0])
            parts.append(svg_text(place, foot + 17, f"{x:g}"))
        for y in self.ys:
            left, place = self.at(self.xs[0], y)
            parts.append(f'<path d="M{left:.1f},{place:.1f} H{self.width - self.right}" stroke="{RULE}"/>')
            parts.append(svg_text(left - 7, place + 4, f"{y:g}", "end"))
        return "".join(parts)

    def line(self, line: Curve, color: str) -> str:
        """A line with a dot at each point and a ring around the marked one."""
        places = [self.at(x, y) for x, y in line.points if x == x and y == y]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if line.reference else ""
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>' for x, y in places)
        if line.marked and line.marked[1] == line.marked[1]:
            x, y = self.at(*line.marked)
            dots += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#fff" stroke="{color}" stroke-width="2.5"/>'
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>{dots}'


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Curve], xs: Sequence[float] = ()) -> str:
    """Lines over common axes, in the units of the labels; empty if no point is defined."""
    points = [point for line in lines for point in (*line.points, *filter(None, [line.marked]))]
    known = [(x, y) for x, y in points if x == x and y == y]
    if not known:
        return ""
    drawing = LineAxes(xs or ticks([x for x, _ in known]), ticks([y for _, y in known]))
    drawn = "".join(drawing.line(line, color) for line, color in zip(lines, line_colors(lines), strict=True))
    return svg_figure(drawing.width, drawing.height, drawing.scales(x_label, y_label) + drawn, lines, title)


def ticks(values: Sequence[float], about: int = 5) -> list[float]:
    """Round numbers at equal distances around the values."""
    low, high = min(values), max(values)
    rough = max(high - low, abs(high) * 0.01, 1e-9) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 10) for place in range(first, max(last, first + 1) + 1)]


def frame_with_points(
    frame: Image.Image,
    truth: Float[np.ndarray, "n 2"],
    predicted: Float[np.ndarray, "n 2"],
    visible: Bool[np.ndarray, "n"],
    title: str,
) -> str:
    """A video frame with true points, predictions (hollow where predicted occluded) and lines between them.

    Points are in pixels of the frame.
    """
    parts = [f'<image href="{jpeg_url(frame, QUALITY)}" width="{frame.width}" height="{frame.height}"></image>']
    for (x, y), (u, v), shown in zip(truth.tolist(), predicted.tolist(), visible.tolist(), strict=True):
        if math.isfinite(u) and math.isfinite(v):
            line = f"M{x:.1f},{y:.1f} L{u:.1f},{v:.1f}"
            parts.append(f'<path d="{line}" stroke="{PREDICTED}" stroke-opacity="0.7" stroke-width="2"></path>')
            fill = PREDICTED if shown else "none"
            parts.append(_ring(u, v, f'fill="{fill}" fill-opacity="0.8" stroke="{PREDICTED}" stroke-width="2"'))
        parts.append(_ring(x, y, f'fill="none" stroke="{TRUTH}" stroke-width="3"'))
    box = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg {box} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _ring(x: float, y: float, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" {style}></circle>'


AXES = ("dca_avg", "coverage", "vis_ba", "lcc")
"""One measure for each dimension of CMC, as in the paper."""
HERE = Path(__file__).parent
WRITERS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
WORST_VIDEOS = 4
"""Videos that are shown of each method."""
FRAMES_PER_VIDEO = 3
"""Frames that are shown of each video."""
MAX_FRAME_SIDE = 512
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
    sweeps = [run for run in runs if results.is_sweep(run)]
    folders = [run for run in runs if run not in sweeps]
    sections = [(one, list(tables(one))) for one in load_method_sets(folders, names)]
    named = [(scored.dataset, table) for scored, found in sections for table in found]
    for start, table in named + [(folder.name, results.sweep_table(folder)) for folder in sweeps]:
        name = quote(f"{start}_{table.slug}", safe=" ")
        for suffix, to_text in WRITERS.items():
            _write(out / "tables" / f"{name}.{suffix}", to_text(replace(table, slug=name)))
    return _write(out / "index.html", page(sections, sweeps, dataset, command))


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as temporary:
        temporary.write_text(text)
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
    bodies = "".join(section(scored, tables, dataset) for scored, tables in sections) + "".join(
        map(sweep_section, sweeps)
    )
    sentences = [conclusion(scored) for scored, _ in sections] + [results.sweep_conclusion(folder) for folder in sweeps]
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
    """The section of one data set."""
    by_slug = {table.slug: table for table in tables}
    drawn = "".join((cmc_radar(scored), *sensitivities(by_slug), *threshold_curves(scored)))
    heading = f'<h2 id="{escape(scored.dataset)}">{escape(scored.dataset)}</h2><p class=lead>{run_facts(scored)}</p>'
    open_tables = "".join(_titled(table) for table in tables if not table.folded)
    folded = "".join(_folded(table) for table in tables if table.folded)
    rest = worst_section(scored, dataset) + folded + settings(scored)
    return f"{heading}<div class=figures>{drawn}</div>{open_tables}{rest}"


def sweep_section(folder: Path) -> str:
    """Results of sweeps over masks and re-evaluations."""
    heading = f'<h2 id="{escape(folder.name)}">{escape(folder.name)}</h2>'
    return f"{heading}<div class=figures>{sweep_charts(folder)}</div>{_titled(results.sweep_table(folder))}"


def _titled(table: Table) -> str:
    return f"<h3>{escape(table.title)}</h3>{to_html(table)}"


def _folded(table: Table) -> str:
    search = '<input class=filter type=search placeholder="keep rows that contain …">'
    return f"<details><summary>{escape(table.title)}</summary>{search}{to_html(table)}</details>"


def run_facts(scored: MethodSet) -> str:
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
        lines.append(Curve(scores.method, values, scores.reference))
    return radar("CMC at a glance", names, lines)


def sensitivities(tables: dict[str, Table]) -> Iterator[str]:
    """Charts of the two sensitivity tables."""
    kinds = (("by_motion", MOTIONS, "L_motion, px", "DCA, %"), ("by_coverage", COVERAGES, "c", "CTS4, %"))
    for slug, xs, x_label, y_label in kinds:
        table = tables[slug]
        lines = []
        for row in table.rows:
            ys = [cell.value for cell in row.cells[1:] if isinstance(cell.value, float)]
            lines.append(Curve(row.cells[0].text, list(zip(xs, ys, strict=True)), row.reference))
        yield chart(table.title, x_label, y_label, lines, xs)


def threshold_curves(scored: MethodSet) -> Iterator[str]:
    """Accuracy against coverage while the visibility threshold moves, if scores were given."""
    kinds = (("shown_avg", "Accuracy of what is shown"), ("dca_avg", "DCA"))
    swept = {scores.method: curve(scores) for scores in scored.methods}
    for name, title in kinds:
        lines = [_visibility_curve(scored, method, found, name) for method, found in swept.items()]
        if any(line.points for line in lines):
            yield chart(f"{title} against coverage", "Coverage, %", f"{title}, %", lines)


def _visibility_curve(scored: MethodSet, method: str, found: dict[str, list[float]], name: str) -> Curve:
    """A method's curve in percent; its own threshold is marked."""
    points = [(100 * x, 100 * y) for x, y in zip(found.get("coverage", []), found.get(name, []), strict=True)]
    own = scored.estimates[method]
    return Curve(method, points, marked=(100 * own["coverage"].value, 100 * own[name].value))


def worst_section(scored: MethodSet, dataset: Dataset | None = None) -> str:
    """For each method, frames of the videos with its lowest DCA; empty if the data set is not available."""
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
    colors = (("truth", TRUTH), ("prediction, hollow where predicted occluded", PREDICTED))
    key = "".join(f'<i style="background:{color}"></i>{name}' for name, color in colors)
    note = f'<p class="note key">Points that are visible in truth, joined with their predictions.{key}</p>'
    return f"<h3>Worst videos</h3>{note}{''.join(parts)}"


def worst_videos(scores: Scores, number: int = WORST_VIDEOS) -> list[str]:
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
    for frame in np.linspace(first, frames - 1, FRAMES_PER_VIDEO + 1).round().astype(int)[1:].tolist():
        drawn = draw_truth_and_tracks(sample, prediction.xy[:, frame], prediction.visible[:, frame], frame, video)
        yield f"<figure>{drawn}<figcaption>frame {frame}</figcaption></figure>"


def draw_truth_and_tracks(
    sample: Sample, xy: Float[np.ndarray, "n 2"], visible: Bool[np.ndarray, "n"], frame: int, title: str
) -> str:
    """One frame with the tracks that are visible in truth after their query."""
    pixels = Image.fromarray(rearrange(sample.clip[frame], "c h w -> h w c").cpu().numpy())
    scale = MAX_FRAME_SIDE / max(pixels.size)
    shown = pixels.resize((max(round(pixels.width * scale), 1), max(round(pixels.height * scale), 1)))
    hw = shown.height, shown.width
    rows = ((sample.queries.frame < frame) & sample.truth.visible[:, frame]).numpy()
    truth = rescale(sample.truth.xy[:, frame], sample.clip.hw, hw).numpy()
    predicted = rescale(torch.from_numpy(xy), (SIZE, SIZE), hw).numpy()
    return frame_with_points(shown, truth[rows], predicted[rows], visible[rows], f"{title}, frame {frame}")


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


def sweep_charts(folder: Path) -> str:
    """Error and time against M, a line for each R."""
    cells = results.read_cells(folder)
    masks = sorted({float(cell.masks) for cell in cells})
    drawn = ""
    for title, label, name in (("Error", "end-point error, px", "error"), ("Time", "s per query", "seconds")):
        lines = [
            Curve(
                f"R = {passes}", [(float(cell.masks), getattr(cell, name)) for cell in cells if cell.passes == passes]
            )
            for passes in sorted({cell.passes for cell in cells})
        ]
        drawn += chart(f"{title} by masks and re-evaluations", "M", label, lines, masks if len(masks) > 1 else ())
    return drawn
