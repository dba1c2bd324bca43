"""The paper's charts: CMC radar, threshold sensitivity and heat maps; colors and names of methods in all figures."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lpa_cwm.errors import require
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics import METRICS
from lpa_cwm.metrics.scores import estimates
from lpa_cwm.report.results import COVERAGES, MOTIONS, MethodSet, SweepCell
from lpa_cwm.reproduction.tables import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


AXES = ("dca_avg", "coverage", "vis_ba", "lcc")
"""One measure for each dimension of CMC (Figure 5)."""
FORMS = {"pdf": {"CreationDate": None}, "png": {}}
"""Files of a figure, and the metadata that make them equal for equal content."""
DEPLOYED = (10, 1)
"""M and R of the paper's main comparison."""
METHOD_COLORS = {
    "uniform": "#e69f00",
    "apa": "#1e88e5",
    "lpa": "#d81b60",
    "raft": "#2e8b57",
    "sea-raft": "#7e57c2",
    "cotracker3": "#00acc1",
    "smurf": "#8d6e63",
    "gmrw": "#78909c",
    "doduo": "#9e9d24",
    "lk": "#546e7a",
    "dis-gaps": "#bf6d3a",
}
"""Adjudicators and the paper's baselines: a method has one color in all figures."""
OTHER_COLORS = ("#455a64", "#bf6d3a", "#6b4c9a", "#33691e")
WIDTHS = {"uniform": 3.4, "apa": 2.4, "lpa": 1.5}
"""Ours lie over each other in this order, so that equal lines are seen."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
OURS = ("uniform", "apa", "lpa")


def new_figure(width: float, height: float, pad: float = 0.04) -> "Figure":
    """An empty figure; sizes and the space around axes in inches."""
    require("matplotlib", "report")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    space = 0.02 if pad >= 0.04 else 0.0
    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad, wspace=space, hspace=space)
    return Figure(figsize=(width, height), layout=layout)


def save_figure(figure: "Figure", out: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG."""
    paths = [out / f"{name}.{form}" for form in FORMS]
    for path, metadata in zip(paths, FORMS.values(), strict=True):
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=160, metadata=metadata)
    return paths


def color_of(method: str) -> str:
    """The color that a method has throughout; other world models do not change it."""
    name = method.partition(" (")[0]
    return METHOD_COLORS.get(name) or OTHER_COLORS[sum(map(ord, name)) % len(OTHER_COLORS)]


def line_style(method: str) -> dict[str, Any]:
    """Color, label and form of a method's line; lines of other world models are dashed."""
    name, _, world = method.partition(" (")
    form = {"linewidth": 1.2 if world else WIDTHS.get(name, 1.2), "linestyle": "--" if world else "-"}
    return {"color": color_of(method), "label": label_of(method)} | form


def draw_radar(axes: Any, scored: MethodSet) -> None:
    """The four dimensions of CMC, one polygon per method, on polar axes."""
    angles = np.linspace(0, 2 * np.pi, len(AXES), endpoint=False)
    closed = [*angles, angles[0]]
    for scores in scored.methods:
        found = scored.estimates[scores.method]
        known = [found[metric].value if metric in found else math.nan for metric in AXES]
        # Undefined values are at the center.
        values = [100 * value if value == value else 0.0 for value in known]
        axes.plot(closed, [*values, values[0]], **line_style(scores.method))
        if scores.method == "lpa":
            axes.fill(closed, [*values, values[0]], color=color_of("lpa"), alpha=0.12)
    axes.set_theta_offset(np.pi / 2)
    axes.set_ylim(0, 100)
    axes.set_rlabel_position(45)
    axes.set_yticks([25, 50, 75, 100], labels=["25", "50", "75", "100"], fontsize=6, color="#777777")
    axes.set_xticks(angles, labels=[""] * len(angles))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines["polar"].set_color("#bbbbbb")
    places = (("center", "bottom"), ("right", "center"), ("center", "top"), ("left", "center"))
    for metric, angle, (across, along) in zip(AXES, angles, places, strict=True):
        known = [metric in found and found[metric].value == found[metric].value for found in scored.estimates.values()]
        words = (
            f"{METRICS[metric].dimension.capitalize()}\n{METRICS[metric].label}{'' if any(known) else ', undefined'}"
        )
        axes.text(angle, 106, words, ha=across, va=along, fontsize=8)


def radar_figure(scored: MethodSet) -> "Figure":
    """CMC at a glance (Figure 5)."""
    figure = new_figure(4.4, 4.2)
    axes = figure.add_subplot(projection="polar")
    draw_radar(axes, scored)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    return figure


def sensitivity_figure(scored: MethodSet) -> "Figure":
    """DCA by motion threshold and CTS4 by coverage threshold, with the default settings dashed (Figure C.1)."""
    protocol = scored.methods[0].protocol
    figure = new_figure(8.4, 3.4)
    left, right = figure.subplots(1, 2)
    motion, coverage = (protocol.motion, "motion threshold $L_{motion}$, px"), (protocol.coverage, "coverage $c$")
    panels = (
        (left, "(a)", "dca_avg", [(x, protocol.coverage) for x in MOTIONS], MOTIONS, *motion),
        (right, "(b)", "cts_4", [(protocol.motion, x) for x in COVERAGES], COVERAGES, *coverage),
    )
    for axes, letter, metric, settings, xs, usual, label in panels:
        for place, scores in enumerate(scored.methods):
            values = np.stack([scores.at(*setting).column(metric) for setting in settings], axis=1)
            means = [100 * one.value for one in estimates(values)]
            marker = MARKERS[place % len(MARKERS)]
            axes.plot(xs, means, marker=marker, markersize=4.5, **line_style(scores.method))
        axes.axvline(usual, color="#888888", linestyle="--", linewidth=1, zorder=0)
        axes.set_xticks(xs)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_ylabel(f"{METRICS[metric].label}, %")
        axes.set_title(letter, fontsize=9, loc="left")
        trim(axes)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=7, frameon=False)
    return figure


def trim(axes: "Axes") -> None:
    """Only the lower and the left spine, and light horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)


def sweep_figure(cells: Sequence[SweepCell]) -> "Figure":
    """Heat maps of final end-point error and time per query over M and R (Figure E.1); a frame marks M = 10, R = 1."""
    from matplotlib.patches import Rectangle

    masks, passes = sorted({cell.masks for cell in cells}), sorted({cell.passes for cell in cells})
    known = {(cell.masks, cell.passes): cell for cell in cells}
    figure = new_figure(8.4, 3.4)
    panels = (
        ("error", "(a) Final deployed endpoint EPE, px", "viridis_r"),
        ("seconds", "(b) Time per query, s", "magma_r"),
    )
    for axes, (name, title, colors) in zip(figure.subplots(1, 2), panels, strict=True):
        values = np.array([[getattr(known[m, r], name) for r in passes] for m in masks])
        image = axes.imshow(values, cmap=colors, aspect="auto")
        middle = (values.min() + values.max()) / 2
        for (row, column), value in np.ndenumerate(values):
            color = "white" if value > middle else "black"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=color, fontsize=9)
        if DEPLOYED[0] in masks and DEPLOYED[1] in passes:
            corner = passes.index(DEPLOYED[1]) - 0.5, masks.index(DEPLOYED[0]) - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#d1495b", linewidth=2.5, clip_on=False))
        axes.set_xticks(range(len(passes)), [f"R = {r}" for r in passes])
        axes.set_yticks(range(len(masks)), [f"M = {m}" for m in masks])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.9)
    return figure
