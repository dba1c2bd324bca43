"""The paper's figures with frames: qualitative cases, teaser, windowed localization and the evidence of APA."""

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
from lpa_cwm.explain import Explanation
from lpa_cwm.geometry import HALF_PIXEL, rescale, to_continuous_index
from lpa_cwm.io.predictions import find_predictions, read_prediction
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.results import MethodSet
from lpa_cwm.reproduction.figures import color_of, draw_radar, new_figure
from lpa_cwm.reproduction.tables import label_of
from lpa_cwm.types import Candidates, Pair, Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


QUERIES = 5
"""Queries of a qualitative case."""
RADIUS = 6
"""Of APA's neighborhood, in pixels."""
MIN_MODE_DISTANCE = 16
"""Pixels from the peak of a distribution beyond which another mode is a second one."""
CORNERS = {"upper left": (0.0, 0.0), "upper right": (1.0, 0.0), "lower left": (0.0, 1.0), "lower right": (1.0, 1.0)}
"""Places of a badge, as fractions of width and height."""


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

    The first turn takes the latest such frame, and each further turn one at half the distance of the turn before; then
    come the frames in between.
    """
    sample = dataset[list(dataset.names).index(video)]
    starts = sample.queries.frame.tolist()
    source = max(sorted(set(starts)), key=starts.count)
    asked = (sample.queries.frame == source).nonzero()[:, 0]
    counts = sample.truth.visible[asked].sum(0)[source + 1 :]
    if len(counts) == 0 or int(counts.max()) == 0:
        return None
    targets = (source + 1 + (counts >= min(QUERIES, int(counts.max()))).nonzero()[:, 0]).tolist()
    chosen = [targets[-1]]
    while nearer := [frame for frame in targets if frame - source <= (chosen[-1] - source) / 2]:
        chosen.append(nearer[-1])
    chosen += [frame for frame in reversed(targets) if frame not in chosen]
    if turn >= len(chosen):
        return None
    target = chosen[turn]
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


def free_corner(case: Case) -> str:
    """The corner of the picture that is farthest from the points, for the badge; the same for every method."""
    points = np.concatenate((case.truth(case.source), case.truth(case.target))) / SIZE
    return max(CORNERS, key=lambda name: np.linalg.norm(points - np.array(CORNERS[name]), axis=1).min())


def draw_case(axes: Any, case: Case, folder: Path | None, color: str) -> None:
    """The target with lines from queries to predictions, truth as rings, and a badge; the source without a folder."""
    from matplotlib.patheffects import Normal, Stroke

    sample = case.sample
    frame = case.source if folder is None else case.target
    axes.imshow(to_picture(sample.clip[frame]))
    axes.set_axis_off()

    def placed(xy: np.ndarray) -> np.ndarray:
        return to_continuous_index(rescale(torch.from_numpy(xy), (SIZE, SIZE), sample.clip.hw)).numpy()

    start, end = placed(case.truth(case.source)), placed(case.truth(case.target))
    outline = [Stroke(linewidth=2.6, foreground="#000000"), Normal()]
    if folder is None:
        axes.scatter(*start.T, s=20, color="#ffffff", edgecolors="#000000", linewidths=0.9)
        return
    found = placed(case.predicted(folder))
    axes.scatter(*end.T, s=58, facecolors="none", edgecolors="#000000", linewidths=2.2)
    axes.scatter(*end.T, s=58, facecolors="none", edgecolors="#ffffff", linewidths=1.2)
    for one, other in zip(start, found, strict=True):
        axes.plot(*zip(one, other, strict=True), color=color, linewidth=1.5, path_effects=outline)
    axes.scatter(*found.T, s=18, color=color, edgecolors="#000000", linewidths=0.7, zorder=3)
    draw_badge(axes, f"{np.mean(case.errors(folder)):.1f} px", color, free_corner(case))
    height, width = sample.clip.hw
    axes.set_xlim(-HALF_PIXEL, width - HALF_PIXEL)
    axes.set_ylim(height - HALF_PIXEL, -HALF_PIXEL)


def draw_badge(axes: Any, text: str, color: str, corner: str) -> None:
    """A small label in a corner."""
    along, across = corner.split()
    box = {"boxstyle": "round,pad=0.25", "facecolor": color, "edgecolor": "#ffffff", "linewidth": 0.5}
    x, y = (0.04 if across == "left" else 0.96), (0.95 if along == "upper" else 0.05)
    along = "top" if along == "upper" else "bottom"
    axes.text(x, y, text, transform=axes.transAxes, ha=across, va=along, fontsize=6.5, color="#ffffff", bbox=box)


def case_grid(figure: Any, cases: Sequence[Case], columns: int, blocks: int = 1) -> np.ndarray:
    """Axes for cases in rows of equal picture width, side by side in some blocks; one row of axes for each case."""
    rows = -(-len(cases) // blocks)
    shapes = [max(case.sample.clip.hw[0] / case.sample.clip.hw[1] for case in cases[row::rows]) for row in range(rows)]
    # A narrow empty column sets blocks apart.
    widths = ([1.0] * columns + [0.06]) * blocks
    ratios = {"height_ratios": shapes, "width_ratios": widths[:-1]}
    grid = figure.subplots(rows, len(widths) - 1, squeeze=False, gridspec_kw=ratios)
    for axes in grid.flat:
        axes.set_axis_off()
    starts = range(0, len(widths), columns + 1)
    return np.concatenate([grid[:, start : start + columns] for start in starts])


def grid_height(cases: Sequence[Case], width: float, blocks: int = 1) -> float:
    """Height of such a grid in inches, for pictures of this width."""
    rows = -(-len(cases) // blocks)
    shapes = [max(case.sample.clip.hw[0] / case.sample.clip.hw[1] for case in cases[row::rows]) for row in range(rows)]
    return sum(shapes) * width + 0.03 * rows + 0.16


def qualitative_figure(
    cases: Sequence[Case], columns: Sequence[tuple[str, Mapping[str, Path]]], blocks: int = 1
) -> "Figure":
    """Rows of cases, columns of methods; `columns` has the run folder of each method by data set (Figures 4, F.1)."""
    width, count = 1.6 if blocks == 1 else 1.25, len(columns) + 1
    figure = new_figure(width * count * blocks, grid_height(cases, width, blocks), pad=0.015)
    grid = case_grid(figure, cases, count, blocks)
    for row, case in zip(grid, cases, strict=False):
        draw_case(row[0], case, None, "#ffffff")
        for place, (method, folders) in enumerate(columns):
            draw_case(row[place + 1], case, folders[case.dataset.name], color_of(method))
    for first in range(0, len(grid), len(grid) // blocks):
        for axes, title in zip(grid[first], ("Source", *(label_of(name) for name, _ in columns)), strict=True):
            axes.set_title(title, fontsize=8, pad=3)
    return figure


def teaser_figure(
    cases: Sequence[Case], before: Mapping[str, Path], after: Mapping[str, Path], scored: MethodSet
) -> "Figure":
    """The three cases in which the second method gains most over the first, and the CMC radar (Figure 1)."""

    def gain(case: Case) -> float:
        return float(case.errors(before[case.dataset.name]).mean() - case.errors(after[case.dataset.name]).mean())

    best = sorted(cases, key=gain, reverse=True)[:3]
    height = max(3.4, grid_height(best, 1.7))
    figure = new_figure(1.7 * 3 + 3.6, height, pad=0.02)
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.7 * 3, 3.6))
    left, right = halves
    grid = case_grid(left, best, 3)
    for row, case in zip(grid, best, strict=True):
        draw_case(row[0], case, None, "#ffffff")
        draw_case(row[1], case, before[case.dataset.name], color_of("uniform"))
        draw_case(row[2], case, after[case.dataset.name], color_of("lpa"))
    for axes, title in zip(grid[0], ("Source", label_of("uniform"), label_of("lpa")), strict=True):
        axes.set_title(title, fontsize=8, pad=3)
    axes = right.add_subplot(projection="polar")
    draw_radar(axes, scored)
    axes.set_title(f"CMC on {scored.dataset}", fontsize=8, pad=36)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=7, frameon=False)
    return figure


def spread_of(distribution: Float[Tensor, "h w"]) -> float:
    """Root mean square distance from the mean, in pixels (sigma of Eq. 9)."""
    shares = distribution.double() / distribution.sum()
    axes = [torch.arange(length, dtype=torch.double) for length in shares.shape]
    marginals = shares.sum(1), shares.sum(0)
    squares = ((share * (axis - (share * axis).sum()) ** 2).sum() for share, axis in zip(marginals, axes, strict=True))
    return float(sum(squares)) ** 0.5


def second_mode(distribution: Float[Tensor, "h w"]) -> float:
    """Height of the largest value apart from the peak over the background, the median, relative to the peak."""
    height, width = distribution.shape
    row, column = divmod(int(distribution.argmax()), width)
    y, x = torch.arange(height)[:, None] - row, torch.arange(width) - column
    far = (y**2 + x**2).to(distribution.device) > MIN_MODE_DISTANCE**2
    return float(((distribution * far).max() - distribution.median()).clamp(min=0) / distribution.max())


def windowed_figure(explained: Explanation) -> "Figure":
    """The response distribution before and after each Gaussian window, flat and in 3D (Figure 3)."""
    steps = explained.distributions.cpu()
    figure = new_figure(2.3 * len(steps), 4.4)
    scale = steps.shape[-1] // 64
    for place, values in enumerate(steps):
        relative = (values / values.max()).numpy()
        # The maximum of each block keeps narrow peaks visible.
        coarse = relative.reshape(64, scale, 64, scale).max((1, 3))
        flat = figure.add_subplot(2, len(steps), place + 1)
        flat.imshow(np.sqrt(coarse), cmap="inferno", vmin=0, vmax=1)
        words = rf"$\sigma$ = {spread_of(values):.1f} px, second mode {second_mode(values):.2f}"
        flat.set_title(rf"$\pi^{{({place})}}$: {words}", fontsize=8)
        flat.set_axis_off()
        solid: Any = figure.add_subplot(2, len(steps), len(steps) + place + 1, projection="3d")
        x, y = np.meshgrid(np.arange(64) * scale, np.arange(64) * scale)
        solid.plot_surface(x, y, coarse, cmap="inferno", vmin=0, vmax=1, rcount=64, ccount=64, linewidth=0)
        solid.set_zlim(0, 1)
        # As in the flat map, y grows towards the viewer.
        solid.view_init(elev=32, azim=-70)
        solid.invert_yaxis()
        solid.set_xticks([0, 128, 256])
        solid.set_yticks([0, 128, 256])
        solid.set_zticks([0, 0.5, 1])
        solid.tick_params(labelsize=5, pad=-2)
    return figure


def disagreement(candidates: Candidates) -> Float[Tensor, "q"]:
    """Mean distance of the peaks of each query from their median."""
    return (candidates.peak - candidates.peak.median(1, keepdim=True).values).norm(dim=-1).mean(1)


def evidence_figure(apa: APA, pair: Pair, candidates: Candidates) -> "Figure":
    """Frame, change, score magnitude, alignment, map P and the candidates of one query (Figure A.1)."""
    from matplotlib.patches import Circle

    score = apa.score_of(pair).cpu().double()
    change = (to_score_frame(pair.target) - to_score_frame(pair.source)).cpu().double()
    p = apa.gradient(pair)
    maps = (
        ("(b) Observed change $|\\Delta x|$", change.norm(dim=0), "inferno"),
        ("(c) Score magnitude $|s|$", score.norm(dim=0), "inferno"),
        ("(d) Alignment $|\\langle s, \\Delta x\\rangle|$, log", (score * change).sum(0).abs(), "inferno"),
        ("(e) Map $P$, log", p, "viridis"),
    )
    figure = new_figure(11.4, 2.2, pad=0.02)
    grid = figure.subplots(1, 6)
    row = int(disagreement(candidates).argmax())
    grid[0].imshow(to_picture(pair.source.clamp(0, 1)))
    x, y = to_continuous_index(pair.xy[row].cpu()).tolist()
    grid[0].scatter(x, y, s=46, facecolors="#ffd166", edgecolors="#000000", linewidths=1.2)
    grid[0].set_title("(a) Source and query", fontsize=8)
    for axes, (title, values, colors) in zip(grid[1:5], maps, strict=True):
        shown = (values.clamp(min=1e-9).log() if title.endswith("log") else values).cpu().numpy()
        low, high = np.quantile(shown, (0.02, 0.98))
        axes.imshow(shown, cmap=colors, vmin=low, vmax=high)
        axes.set_title(title, fontsize=8)
    grid[5].imshow(to_picture(pair.target.clamp(0, 1)))
    weights = apa(pair, candidates).weights[row]
    relative = (weights / weights.max()).tolist()
    for (x, y), weight in zip(to_continuous_index(candidates.peak[row].cpu()).tolist(), relative, strict=True):
        for color, wide in (("#000000", 1.2), ("#ffd166", 0.0)):
            ring = Circle((x, y), RADIUS, fill=False, edgecolor=color, linewidth=0.4 + 2.2 * weight + wide)
            grid[5].add_patch(ring)
    grid[5].set_title("(f) Peaks, width by APA's weight", fontsize=8)
    for axes in grid:
        axes.set_axis_off()
    return figure
