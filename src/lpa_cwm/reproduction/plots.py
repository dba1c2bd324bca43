"""Figures of numbers, laid out as the paper's: CMC radar, threshold sensitivity, and heat maps of masks and passes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lpa_cwm.errors import require
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics import METRICS
from lpa_cwm.metrics.summary import estimates
from lpa_cwm.report.results import COVERAGES, MOTIONS, MethodSet
from lpa_cwm.report.svg import COLORS
from lpa_cwm.report.sweep import SweepCell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("dca_avg", "coverage", "vis_ba", "lcc")
"""One measure for each dimension of CMC (Figure 5)."""
FORMS = {"pdf": {"CreationDate": None}, "png": {}}
"""Files of a figure, and the metadata that make them equal for equal content."""
DEPLOYED = (10, 1)
"""M and R of the paper's main comparison."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; sizes in inches."""
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", out: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG."""
    paths = [out / f"{name}.{form}" for form in FORMS]
    for path, metadata in zip(paths, FORMS.values(), strict=True):
        with atomic_write(path) as aside:
            figure.savefig(aside, dpi=160, metadata=metadata)
    return paths


def method_colors(scored: MethodSet) -> dict[str, str]:
    """A color for each method."""
    return {one.method: COLORS[place % len(COLORS)] for place, one in enumerate(scored.methods)}


def draw_radar(axes: Any, scored: MethodSet) -> None:
    """The four dimensions of CMC, one polygon per method, on polar axes."""
    angles = np.linspace(0, 2 * np.pi, len(AXES), endpoint=False)
    closed = [*angles, angles[0]]
    for name, color in method_colors(scored).items():
        found = scored.estimates[name]
        known = [found[metric].value if metric in found else math.nan for metric in AXES]
        # Undefined values are at the center.
        values = [100 * value if value == value else 0.0 for value in known]
        axes.plot(closed, [*values, values[0]], color=color, linewidth=1.4, label=name)
        axes.fill(closed, [*values, values[0]], color=color, alpha=0.06)
    axes.set_theta_offset(np.pi / 2)
    axes.set_ylim(0, 100)
    axes.set_yticks([25, 50, 75, 100], labels=["25", "50", "75", ""], fontsize=6, color="#777777")
    labels = [f"{METRICS[name].dimension.capitalize()}\n{METRICS[name].label}" for name in AXES]
    axes.set_xticks(angles, labels=labels, fontsize=8)
    axes.tick_params(axis="x", pad=16)


def radar_figure(scored: MethodSet) -> "Figure":
    """CMC at a glance (Figure 5)."""
    figure = new_figure(4.6, 4.2)
    axes = figure.add_subplot(projection="polar")
    draw_radar(axes, scored)
    axes.set_title(f"CMC on {scored.dataset}", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    return figure


def sensitivity_figure(scored: MethodSet) -> "Figure":
    """DCA by motion threshold and CTS4 by coverage threshold, with the default settings dashed (Figure C.1)."""
    protocol = scored.methods[0].protocol
    figure = new_figure(8.4, 3.3)
    left, right = figure.subplots(1, 2)
    panels = (
        (left, "dca_avg", [(x, protocol.coverage) for x in MOTIONS], MOTIONS, protocol.motion, "$L_{motion}$, px"),
        (right, "cts_4", [(protocol.motion, x) for x in COVERAGES], COVERAGES, protocol.coverage, "coverage $c$"),
    )
    for axes, metric, settings, xs, usual, label in panels:
        for scores in scored.methods:
            values = np.stack([scores.at(*setting).column(metric) for setting in settings], axis=1)
            means = [100 * one.value for one in estimates(values)]
            axes.plot(xs, means, "o-", color=method_colors(scored)[scores.method], markersize=4, label=scores.method)
        axes.axvline(usual, color="#888888", linestyle="--", linewidth=1)
        axes.set_xticks(xs)
        axes.set_xlabel(label)
        axes.set_ylabel(f"{METRICS[metric].label}, %")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=7, frameon=False)
    return figure


def sweep_figure(cells: Sequence[SweepCell]) -> "Figure":
    """Heat maps of final end-point error and time per query over M and R (Figure E.1); a frame marks M = 10, R = 1."""
    from matplotlib.patches import Rectangle

    masks, passes = sorted({cell.masks for cell in cells}), sorted({cell.passes for cell in cells})
    known = {(cell.masks, cell.passes): cell for cell in cells}
    figure = new_figure(8.4, 3.4)
    panels = (("error", "(a) Final endpoint EPE, px", "viridis_r"), ("seconds", "(b) Time per query, s", "magma_r"))
    for axes, (name, title, colors) in zip(figure.subplots(1, 2), panels, strict=True):
        values = np.array([[getattr(known[m, r], name) for r in passes] for m in masks])
        image = axes.imshow(values, cmap=colors, aspect="auto")
        middle = (values.min() + values.max()) / 2
        for (row, column), value in np.ndenumerate(values):
            color = "white" if value > middle else "black"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=color, fontsize=9)
        if DEPLOYED[0] in masks and DEPLOYED[1] in passes:
            corner = passes.index(DEPLOYED[1]) - 0.5, masks.index(DEPLOYED[0]) - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#d1495b", linewidth=2.5))
        axes.set_xticks(range(len(passes)), [f"R = {r}" for r in passes])
        axes.set_yticks(range(len(masks)), [f"M = {m}" for m in masks])
        axes.set_title(title, fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.9)
    return figure
