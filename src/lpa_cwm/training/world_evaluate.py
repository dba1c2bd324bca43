"""How well a compact world model predicts and what limits it, on pairs it never saw, some with known motion."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import localize
from lpa_cwm.geometry import center_of, index_of, patch_centers, patch_of
from lpa_cwm.masks import random_masks
from lpa_cwm.rng import generator
from lpa_cwm.sampling import unit_range
from lpa_cwm.synth.pairs import Example, PairSource
from lpa_cwm.types import Candidates
from lpa_cwm.worlds.layered.block_matching import PATCH
from lpa_cwm.worlds.layered.render import source_positions
from lpa_cwm.worlds.layered.world import LayeredFactual, LayeredMotionWorld, LayeredScene

MOVING = 2.0
"""Motions shorter than this, in pixels, are left out of the figures on motion."""


@dataclass(frozen=True, slots=True)
class Points:
    """Points of the source, where they go and whether they can be seen there."""

    xy: Float[Tensor, "n 2"]
    goal: Float[Tensor, "n 2"]
    visible: Bool[Tensor, "n"]

    @classmethod
    def of(cls, example: Example, count: int, index: int) -> "Points":
        """Random points of an example with known motion: at most `count` that move, half as many that get hidden."""
        assert example.flow is not None
        assert example.visible is not None
        draw = generator("world", "points", index)
        chosen = []
        for places, most in ((example.flow.norm(dim=0) > MOVING, count), (~example.visible, count // 2)):
            every = places.nonzero()
            chosen.append(every[torch.randperm(len(every), generator=draw)[:most]])
        rows, columns = torch.cat(chosen).unbind(-1)
        xy = center_of(torch.stack((columns, rows), dim=-1))
        return cls(xy, xy + example.flow[:, rows, columns].T, example.visible[rows, columns])


@dataclass
class Tally:
    """What was measured, point by point and pair by pair."""

    error: float = 0.0
    copying: float = 0.0
    rows: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, **values: Tensor) -> None:
        """One value per point."""
        for name, value in values.items():
            self.rows.setdefault(name, []).append(value)

    def figures(self, visible_from: float) -> dict[str, float]:
        """The means; end-point errors are of visible points and relative to the mean motion."""
        result = {"hidden_error_over_copy": self.error / max(self.copying, 1e-12)}
        if not self.rows:
            return result
        column = {name: torch.cat(values) for name, values in self.rows.items()}
        seen = column.pop("visible").bool()
        strength = column.pop("strength")
        motion = column.pop("motion")[seen].mean().item()
        result |= {f"{name}_over_motion": value[seen].mean().item() / motion for name, value in column.items()}
        shown, gone = ((strength[rows] >= visible_from).double().mean().item() for rows in (seen, ~seen))
        return result | {"motion": motion, "visibility": (shown + 1 - gone) / 2, "points": float(seen.sum())}


def hidden_error(world: LayeredMotionWorld, scene: LayeredScene, factual: LayeredFactual) -> tuple[float, float]:
    """Mean squared error on hidden pixels, of the prediction and of a copy of the source."""
    hidden = factual.hidden_pixels[:, None]
    errors = []
    for picture in (world.predict(scene, factual), scene.source.image):
        errors.append(((picture - scene.target).square() * hidden).sum() / (3 * hidden.sum()))
    return errors[0].item(), errors[1].item()


def stage_errors(
    scene: LayeredScene, factual: LayeredFactual, points: Points, hw: tuple[int, int]
) -> dict[str, Tensor]:
    """Errors of the motion at the points' goals, had the later stages chosen best: what each stage can still reach."""
    column, row = index_of(points.goal, hw).unbind(-1)
    cell = patch_of(points.goal, hw, PATCH)
    cell = cell[:, 1] * (hw[1] // PATCH) + cell[:, 0]
    center = patch_centers(hw, PATCH)[cell]
    offset = scene.matches.hypotheses.offset[0, cell]
    matched = (center[:, None] + offset - (points.xy + center - points.goal)[:, None]).norm(dim=-1)
    field = source_positions(factual.mixture.motions, hw)[:, :, row, column]
    shift = center_of(torch.stack((column, row), dim=-1)) - points.goal
    error = (field - points.xy - shift).norm(dim=-1)
    weight = factual.mixture.weight[:, :, row, column]
    chosen = error.gather(1, weight.argmax(1, keepdim=True))[:, 0]
    return {"best_match": matched.amin(1), "best_motion": error.amin(1).mean(0), "chosen_motion": chosen.mean(0)}


def trace(
    world: LayeredMotionWorld, scene: LayeredScene, factual: LayeredFactual, points: Points, method: TrackerConfig
) -> dict[str, Tensor]:
    """End-point errors of single candidates, their mean, the best of them, and the uniform aggregate; strength."""
    candidates = Candidates.of(world.intervene(scene, factual, points.xy))
    uniform = torch.full(candidates.response.shape, 1 / len(factual.hidden))
    single = (candidates.peak - points.goal[:, None]).norm(dim=-1)
    endpoint = localize(candidates.response.aggregate(uniform), method)
    return {
        "single": single.mean(1),
        "best": single.amin(1),
        "uniform": (endpoint - points.goal).norm(dim=-1),
        "strength": candidates.strength.mean(1),
    }


def evaluate(
    world: LayeredMotionWorld, pairs: PairSource, indices: Iterable[int], method: TrackerConfig, points: int = 16
) -> dict[str, float]:
    """Figures on some pairs of a source, with the masks of the method."""
    tally = Tally()
    for index in indices:
        example = pairs.pair(index, world.size)
        source, target = (world.describe(unit_range(frame)) for frame in (example.source, example.target))
        scene = world.observe(source, target)
        patches = (world.size // world.patch) ** 2
        factual = world.imagine(scene, random_masks(method.masks, patches, "evaluate", pairs.name, index))
        error, copying = hidden_error(world, scene, factual)
        tally.error += error
        tally.copying += copying
        if example.flow is None:
            continue
        asked = Points.of(example, points, index)
        if len(asked.xy) == 0:
            continue
        motion = (asked.goal - asked.xy).norm(dim=-1)
        measured = trace(world, scene, factual, asked, method)
        stages = stage_errors(scene, factual, asked, (world.size, world.size))
        tally.add(visible=asked.visible, motion=motion, **measured, **stages)
    return tally.figures(method.visibility_threshold)


def table(columns: dict[str, dict[str, float]]) -> str:
    """Figures side by side, one source per column."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = ["| figure | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        values = [figures.get(name, math.nan) for figures in columns.values()]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(shown(value) for value in values) + " |")
    return "\n".join(lines)


def shown(value: float) -> str:
    """A figure, or a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.3f}"
