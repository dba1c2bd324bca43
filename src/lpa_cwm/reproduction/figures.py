"""The paper's figures: CMC radar, threshold sensitivity, heat maps, cases, teaser, localization, NSG evidence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.adjudicators.apa import APA, to_score_frame
from lpa_cwm.config import evenly_spaced
from lpa_cwm.errors import require
from lpa_cwm.explain import Explanation
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import HALF_PIXEL, rescale, to_continuous_index
from lpa_cwm.io.predictions import find_predictions, read_prediction
from lpa_cwm.metrics import METRICS
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.metrics.scores import estimates
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.page import COLORS
from lpa_cwm.report.results import COVERAGES, MOTIONS, MethodSet, SweepCell
from lpa_cwm.types import Candidates, Pair, Sample

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


QUERIES = 5
"""Queries of a qualitative case."""
METHOD_COLORS = {"uniform": "#f4a300", "apa": "#2f9bff", "lpa": "#ff3b6b"}
OTHER_COLORS = ("#35d07f", "#c77dff", "#ffe14d", "#4de1ff")
RADIUS = 6
"""Of APA's neighborhood, in pixels."""


@dataclass(frozen=True)
class Case:
    """One frame pair and a few queries; chosen without looking at any prediction."""

    dataset: Dataset
    video: str
    source: int
    target: int
    rows: Int[np.ndarray, "k"]

    @property
    def sample(self) -> Sample:
        """The video."""
        return self.dataset[list(self.dataset.names).index(self.video)]

    def predicted(self, folder: Path) -> Float[np.ndarray, "k 2"]:
        """Predicted endpoints of the queries in pixels of the 256 x 256 raster."""
        sample = self.sample
        path = find_predictions(folder, [self.video])[self.video]
        return read_prediction(path, *sample.truth.visible.shape).xy[self.rows, self.target]

    def truth(self, frame: int) -> Float[np.ndarray, "k 2"]:
        """True positions in the same pixels."""
        sample = self.sample
        return rescale(sample.truth.xy[self.rows, frame], sample.clip.hw, (SIZE, SIZE)).numpy()

    def errors(self, folder: Path) -> Float[np.ndarray, "k"]:
        """End-point errors of a run."""
        return np.linalg.norm(self.predicted(folder) - self.truth(self.target), axis=-1)


def find_case(dataset: Dataset, video: str, turn: int = 0) -> Case | None:
    """A case of a video: its query frame with most queries, and a frame in which five of them, or most, are visible.

    The first turn takes the latest such frame, and each further turn one at half the distance of the turn before.
    """
    sample = dataset[list(dataset.names).index(video)]
    starts = sample.queries.frame.tolist()
    source = max(sorted(set(starts)), key=starts.count)
    asked = (sample.queries.frame == source).nonzero()[:, 0]
    counts = sample.truth.visible[asked].sum(0)[source + 1 :]
    if len(counts) == 0 or int(counts.max()) == 0:
        return None
    targets = (source + 1 + (counts >= min(QUERIES, int(counts.max()))).nonzero()[:, 0]).tolist()
    target = targets[-1]
    for _ in range(turn):
        nearer = [frame for frame in targets if frame - source <= (target - source) / 2]
        if not nearer:
            return None
        target = nearer[-1]
    seen = asked[sample.truth.visible[asked, target]].tolist()
    return Case(dataset, video, source, target, np.array(evenly_spaced(seen, QUERIES)))


def find_cases(datasets: Sequence[Dataset], number: int) -> list[Case]:
    """Cases of all data sets in turn, videos evenly spaced; further frames of the same videos if these are too few."""
    each = -(-number // len(datasets))
    names = [evenly_spaced(data.names, each) for data in datasets]
    found: list[Case] = []
    turn = 0
    while len(found) < number:
        columns = [
            [find_case(data, name, turn) for name in chosen] for data, chosen in zip(datasets, names, strict=True)
        ]
        turns = [case for place in range(each) for column in columns for case in column[place : place + 1] if case]
        if not turns:
            break
        found += turns
        turn += 1
    return found[:number]


def to_picture(frame: Tensor) -> np.ndarray:
    """A frame with channels last."""
    return rearrange(frame, "c h w -> h w c").cpu().numpy()


def color_of(method: str, place: int) -> str:
    """The color that a method has throughout."""
    return METHOD_COLORS.get(method.partition(" (")[0], OTHER_COLORS[place % len(OTHER_COLORS)])


def draw_case(axes: Any, case: Case, folder: Path | None, color: str) -> None:
    """The target with lines from queries to predictions, truth as rings, and a badge; the source without a folder."""
    sample = case.sample
    frame = case.source if folder is None else case.target
    axes.imshow(to_picture(sample.clip[frame]), aspect="auto")
    axes.set_axis_off()

    def placed(xy: np.ndarray) -> np.ndarray:
        return to_continuous_index(rescale(torch.from_numpy(xy), (SIZE, SIZE), sample.clip.hw)).numpy()

    start, end = placed(case.truth(case.source)), placed(case.truth(case.target))
    if folder is None:
        axes.scatter(*start.T, s=22, color="#ffffff", edgecolors="#000000", linewidths=0.8)
        return
    found = placed(case.predicted(folder))
    for one, other in zip(start, found, strict=True):
        axes.plot(*zip(one, other, strict=True), color=color, linewidth=1.6)
    axes.scatter(*start.T, s=7, color=color)
    axes.scatter(*found.T, s=24, color=color, edgecolors="#000000", linewidths=0.6)
    axes.scatter(*end.T, s=60, facecolors="none", edgecolors="#ffffff", linewidths=1.2)
    badge = {"boxstyle": "round,pad=0.25", "facecolor": color, "edgecolor": "none", "alpha": 0.9}
    text = f"{np.mean(case.errors(folder)):.1f} px"
    axes.text(0.03, 0.95, text, transform=axes.transAxes, va="top", fontsize=7, color="#000000", bbox=badge)
    height, width = sample.clip.hw
    axes.set_xlim(-HALF_PIXEL, width - HALF_PIXEL)
    axes.set_ylim(height - HALF_PIXEL, -HALF_PIXEL)


def qualitative_figure(cases: Sequence[Case], columns: Sequence[tuple[str, Mapping[str, Path]]]) -> "Figure":
    """Rows of cases, columns of methods; `columns` has the run folder of each method by data set."""
    figure = new_figure(1.75 * (len(columns) + 1), 1.3 * len(cases))
    grid = figure.subplots(len(cases), len(columns) + 1, squeeze=False)
    for row, case in zip(grid, cases, strict=True):
        draw_case(row[0], case, None, "#ffffff")
        for place, (method, folders) in enumerate(columns):
            draw_case(row[place + 1], case, folders[case.dataset.name], color_of(method, place))
    for axes, title in zip(grid[0], ("queries", *(name for name, _ in columns)), strict=True):
        axes.set_title(title, fontsize=8)
    return figure


def teaser_figure(
    cases: Sequence[Case], before: Mapping[str, Path], after: Mapping[str, Path], scored: MethodSet
) -> "Figure":
    """The three cases in which the second method gains most over the first, and the CMC radar (Figure 1)."""

    def gain(case: Case) -> float:
        return float(case.errors(before[case.dataset.name]).mean() - case.errors(after[case.dataset.name]).mean())

    best = sorted(cases, key=gain, reverse=True)[:3]
    figure = new_figure(9.6, 1.5 * len(best) + 0.4)
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.9, 1))
    left, right = halves
    grid = left.subplots(len(best), 3, squeeze=False)
    for row, case in zip(grid, best, strict=True):
        draw_case(row[0], case, None, "#ffffff")
        draw_case(row[1], case, before[case.dataset.name], METHOD_COLORS["uniform"])
        draw_case(row[2], case, after[case.dataset.name], METHOD_COLORS["lpa"])
    for axes, title in zip(grid[0], ("queries", "Uniform CWM", "LPA-CWM"), strict=True):
        axes.set_title(title, fontsize=8)
    axes = right.add_subplot(projection="polar")
    draw_radar(axes, scored)
    right.legend(loc="outside lower center", ncols=3, fontsize=6, frameon=False)
    return figure


def windowed_figure(explained: Explanation) -> "Figure":
    """The response distribution before and after each Gaussian window, flat and in 3D (Figure 3)."""
    steps = explained.distributions.cpu()
    figure = new_figure(2.6 * len(steps), 5.0)
    scale = steps.shape[-1] // 64
    for place, values in enumerate(steps):
        relative = (values / values.max()).numpy()
        # The maximum of each block keeps narrow peaks visible.
        coarse = relative.reshape(64, scale, 64, scale).max((1, 3))
        flat = figure.add_subplot(2, len(steps), place + 1)
        flat.imshow(np.sqrt(coarse), cmap="inferno")
        flat.set_title(rf"$\pi^{{({place})}}$, peak {values.max():.1e}", fontsize=9)
        flat.set_axis_off()
        solid: Any = figure.add_subplot(2, len(steps), len(steps) + place + 1, projection="3d")
        x, y = np.meshgrid(np.arange(64) * scale, np.arange(64) * scale)
        solid.plot_surface(x, y, coarse, cmap="inferno", rcount=64, ccount=64, linewidth=0)
        solid.set_zlim(0, 1)
        solid.tick_params(labelsize=5)
    return figure


def evidence_figure(apa: APA, pair: Pair, candidates: Candidates) -> "Figure":
    """Frame, change, score magnitude, alignment, map P and the candidates of one query (Figure A.1)."""
    from matplotlib.patches import Circle

    score = apa.score_of(pair).cpu().double()
    change = (to_score_frame(pair.target) - to_score_frame(pair.source)).cpu().double()
    p = apa.gradient(pair)
    panels = (
        ("observed change", change.norm(dim=0), "inferno"),
        ("score magnitude", score.norm(dim=0), "inferno"),
        ("|score · change|", (score * change).sum(0).abs().clamp(min=1e-9).log(), "inferno"),
        ("map P (log)", p.clamp(min=1e-9).log(), "viridis"),
    )
    figure = new_figure(11.4, 2.3)
    grid = figure.subplots(1, 6)
    grid[0].imshow(to_picture(pair.source.clamp(0, 1)))
    grid[0].plot(*to_continuous_index(pair.xy[0].cpu()).tolist(), "+", color="#ffd166", markersize=10)
    grid[0].set_title("reference frame", fontsize=8)
    for axes, (title, values, colors) in zip(grid[1:5], panels, strict=True):
        low, high = np.quantile(values.numpy(), (0.02, 0.98))
        axes.imshow(values.numpy(), cmap=colors, vmin=low, vmax=high)
        axes.set_title(title, fontsize=8)
    grid[5].imshow(to_picture(pair.target.clamp(0, 1)))
    weights = apa(pair, candidates).weights[0].tolist()
    for (x, y), weight in zip(to_continuous_index(candidates.peak[0].cpu()).tolist(), weights, strict=True):
        grid[5].add_patch(Circle((x, y), RADIUS, fill=False, edgecolor="#ef476f", linewidth=0.5 + 6 * weight))
    grid[5].set_title("candidates, width by weight", fontsize=8)
    for axes in grid:
        axes.set_axis_off()
    return figure
