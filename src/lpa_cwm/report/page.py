"""One self-contained page: figures, sortable tables, pictures, definitions."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from lpa_cwm.metrics import METRICS, curve
from lpa_cwm.protocols import Dataset
from lpa_cwm.report import figures, pictures, sweep
from lpa_cwm.report.contest import Contest
from lpa_cwm.report.figures import Line
from lpa_cwm.report.formats import to_html
from lpa_cwm.report.results import COVERAGES, MOTIONS
from lpa_cwm.report.tables import Table

AXES = ("dca_avg", "coverage", "vis_ba", "lcc")
"""One measure for each dimension of CMC, as in the paper."""
HERE = Path(__file__).parent


def page(
    sections: list[tuple[Contest, list[Table]]], sweeps: Sequence[Path] = (), dataset: Dataset | None = None
) -> str:
    """The whole page; nothing in it is fetched from elsewhere."""
    names = [contest.dataset for contest, _ in sections] + [folder.name for folder in sweeps]
    title = "Point tracks: " + ", ".join(names)
    bodies = "".join(section(contest, tables, dataset) for contest, tables in sections) + "".join(map(swept, sweeps))
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{(HERE / 'page.css').read_text()}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><nav>{links}<a href="#measures">Measures</a></nav></header>'
        f"<main>{bodies}{definitions()}</main><script>{(HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def section(contest: Contest, tables: list[Table], dataset: Dataset | None = None) -> str:
    """Everything about one data set."""
    by_slug = {table.slug: table for table in tables}
    drawn = "".join((summary(contest), *sensitivities(by_slug), *threshold_curves(contest)))
    heading = f'<h2 id="{escape(contest.dataset)}">{escape(contest.dataset)}</h2><p class=lead>{facts(contest)}</p>'
    open_tables = "".join(_titled(table) for table in tables if not table.folded)
    folded = "".join(_folded(table) for table in tables if table.folded)
    return f"{heading}<div class=figures>{drawn}</div>{open_tables}{worst(contest, dataset)}{folded}{settings(contest)}"


def swept(folder: Path) -> str:
    """How many masks and re-evaluations pay."""
    heading = f'<h2 id="{escape(folder.name)}">{escape(folder.name)}</h2>'
    return f"{heading}<div class=figures>{sweep.charts(folder)}</div>{_titled(sweep.table(folder))}"


def _titled(table: Table) -> str:
    return f"<h3>{escape(table.title)}</h3>{to_html(table)}"


def _folded(table: Table) -> str:
    search = '<input class=filter type=search placeholder="keep rows that contain …">'
    return f"<details><summary>{escape(table.title)}</summary>{search}{to_html(table)}</details>"


def facts(contest: Contest) -> str:
    """What was measured, in one line."""
    first = contest.methods[0]
    counts = [video.counts for video in first.videos.values()]
    tracks = sum(len(one["seen"]) for one in counts)
    dynamic = sum(int(video.tracks["dynamic"].sum()) for video in first.videos.values())
    points, visible = (int(sum(one[name].sum() for one in counts)) for name in ("frames", "visible"))
    text = f"{len(counts)} videos, {tracks} tracks of which {dynamic} dynamic, {points} evaluated points, "
    text += f"{visible / max(points, 1):.0%} of them visible. Queries: {first.protocol.mode}. "
    return escape(text + (f"Manifest {first.manifest}." if first.manifest else ""))


def summary(contest: Contest) -> str:
    """The four dimensions of CMC as a radar."""
    names = [(METRICS[name].dimension.capitalize(), METRICS[name].label) for name in AXES]
    lines = []
    for scores in contest.everyone:
        found = contest.estimates[scores.method]
        values = [(0.0, found[name].value if name in found else np.nan) for name in AXES]
        lines.append(Line(scores.method, values, scores.reference))
    return figures.radar("CMC at a glance", names, lines)


def sensitivities(tables: dict[str, Table]) -> Iterator[str]:
    """Charts of the two sensitivity tables."""
    kinds = (("by_motion", MOTIONS, "L_motion, px", "DCA, %"), ("by_coverage", COVERAGES, "c", "CTS4, %"))
    for slug, xs, x_label, y_label in kinds:
        table = tables[slug]
        lines = []
        for row in table.rows:
            ys = [cell.value for cell in row.cells[1:] if isinstance(cell.value, float)]
            lines.append(Line(row.cells[0].text, list(zip(xs, ys, strict=True)), row.reference))
        yield figures.chart(table.title, x_label, y_label, lines, xs)


def threshold_curves(contest: Contest) -> Iterator[str]:
    """Accuracy against coverage while the visibility threshold moves, if scores were given."""
    kinds = (("shown_avg", "Accuracy of what is shown"), ("dca_avg", "DCA"))
    swept = {scores.method: curve(scores) for scores in contest.methods}
    for name, title in kinds:
        lines = [_curve_line(contest, method, found, name) for method, found in swept.items()]
        if any(line.points for line in lines):
            yield figures.chart(f"{title} against coverage", "Coverage, %", f"{title}, %", lines)


def _curve_line(contest: Contest, method: str, found: dict[str, list[float]], name: str) -> Line:
    """A method's curve in percent; its own threshold is marked."""
    points = [(100 * x, 100 * y) for x, y in zip(found.get("coverage", []), found.get(name, []), strict=True)]
    own = contest.estimates[method]
    return Line(method, points, marked=(100 * own["coverage"].value, 100 * own[name].value))


def worst(contest: Contest, dataset: Dataset | None = None) -> str:
    """For each method, frames of the videos on which it does worst; nothing without the data set."""
    parts = []
    dataset = dataset or pictures.open_dataset(contest.methods[0])
    if dataset is None:
        return ""
    for scores in contest.methods:
        for video in pictures.worst_videos(scores):
            drawn = pictures.pictures(contest.folders[scores.method], dataset, video)
            images = "".join(
                f'<figure><img src="{one.source}" alt="{escape(video)}, {one.caption}">'
                f"<figcaption>{one.caption}</figcaption></figure>"
                for one in drawn
            )
            caption = f"{scores.method} · {video} · DCA {METRICS['dca_avg'].show(scores.videos[video]['dca_avg'])} %"
            parts.append(f"<p><b>{escape(caption)}</b></p><div class=strip>{images}</div>" if images else "")
    if not any(parts):
        return ""
    inks = (("truth", pictures.TRUTH), ("prediction, hollow where called hidden", pictures.PREDICTED))
    key = "".join(f'<i style="background:rgb{ink}"></i>{name}' for name, ink in inks)
    note = f'<p class="note key">Points that are visible in truth, joined with their predictions.{key}</p>'
    return f"<h3>Worst videos</h3>{note}{''.join(parts)}"


def settings(contest: Contest) -> str:
    """What is known about each method's run."""
    notes = {scores.method: scores.notes for scores in contest.methods if scores.notes}
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
