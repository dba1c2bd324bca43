"""Evaluation of the compact world model on held-out pairs: prediction error, and tracking error by stage."""

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
from lpa_cwm.worlds.layered.world import LayeredMotionFactual, LayeredMotionScene, LayeredMotionWorld

MIN_MOTION = 2.0
"""Points that move less than this, in pixels, are not evaluated."""


@dataclass(frozen=True, slots=True)
class EvaluationPoints:
    """Points of the source with their true endpoints and visibility in the target."""

    xy: Float[Tensor, "n 2"]
    end: Float[Tensor, "n 2"]
    visible: Bool[Tensor, "n"]

    @classmethod
    def of(cls, example: Example, count: int, index: int) -> "EvaluationPoints":
        """Random points of an example with known motion: up to `count` that move, half as many that get occluded."""
        assert example.flow is not None
        assert example.visible is not None
        draw = generator("world", "points", index)
        chosen = []
        for places, most in ((example.flow.norm(dim=0) > MIN_MOTION, count), (~example.visible, count // 2)):
            every = places.nonzero()
            chosen.append(every[torch.randperm(len(every), generator=draw)[:most]])
        rows, columns = torch.cat(chosen).unbind(-1)
        xy = center_of(torch.stack((columns, rows), dim=-1))
        return cls(xy, xy + example.flow[:, rows, columns].T, example.visible[rows, columns])


@dataclass
class ErrorAccumulator:
    """Measurements by point and by pair."""

    error: float = 0.0
    copy_error: float = 0.0
    rows: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, **values: Tensor) -> None:
        """One value per point."""
        for name, value in values.items():
            self.rows.setdefault(name, []).append(value)

    def figures(self, visibility_threshold: float) -> dict[str, float]:
        """Means; endpoint errors are of visible points and relative to the mean motion."""
        result = {"hidden_error_over_copy": self.error / max(self.copy_error, 1e-12)}
        if not self.rows:
            return result
        column = {name: torch.cat(values) for name, values in self.rows.items()}
        seen = column.pop("visible").bool()
        strength = column.pop("strength")
        motion = column.pop("motion")[seen].mean().item()
        result |= {f"{name}_over_motion": value[seen].mean().item() / motion for name, value in column.items()}
        shown, gone = ((strength[rows] >= visibility_threshold).double().mean().item() for rows in (seen, ~seen))
        return result | {"motion": motion, "visibility": (shown + 1 - gone) / 2, "points": float(seen.sum())}


def hidden_error(
    world: LayeredMotionWorld, scene: LayeredMotionScene, factual: LayeredMotionFactual
) -> tuple[float, float]:
    """Mean squared error on hidden pixels, of the prediction and of a copy of the source."""
    hidden = factual.hidden_pixels[:, None]
    errors = []
    for picture in (world.predict(scene, factual), scene.source.image):
        errors.append(((picture - scene.target).square() * hidden).sum() / (3 * hidden.sum()))
    return errors[0].item(), errors[1].item()


def stage_errors(
    scene: LayeredMotionScene, factual: LayeredMotionFactual, points: EvaluationPoints, hw: tuple[int, int]
) -> dict[str, Tensor]:
    """Errors of the motion at the points' endpoints if all later stages chose best: a lower bound per stage."""
    column, row = index_of(points.end, hw).unbind(-1)
    cell = patch_of(points.end, hw, PATCH)
    cell = cell[:, 1] * (hw[1] // PATCH) + cell[:, 0]
    center = patch_centers(hw, PATCH)[cell]
    offset = scene.matches.hypotheses.offset[0, cell]
    matched = (center[:, None] + offset - (points.xy + center - points.end)[:, None]).norm(dim=-1)
    field = source_positions(factual.mixture.motions, hw)[:, :, row, column]
    shift = center_of(torch.stack((column, row), dim=-1)) - points.end
    error = (field - points.xy - shift).norm(dim=-1)
    weight = factual.mixture.weight[:, :, row, column]
    chosen = error.gather(1, weight.argmax(1, keepdim=True))[:, 0]
    return {"best_match": matched.amin(1), "best_motion": error.amin(1).mean(0), "chosen_motion": chosen.mean(0)}


def tracking_errors(
    world: LayeredMotionWorld,
    scene: LayeredMotionScene,
    factual: LayeredMotionFactual,
    points: EvaluationPoints,
    config: TrackerConfig,
) -> dict[str, Tensor]:
    """Endpoint errors of the mean candidate, the best candidate and the uniform aggregate; response strength."""
    candidates = Candidates.of(world.intervene(scene, factual, points.xy))
    uniform = torch.full(candidates.response.shape, 1 / len(factual.hidden))
    single = (candidates.peak - points.end[:, None]).norm(dim=-1)
    endpoint = localize(candidates.response.aggregate(uniform), config)
    return {
        "single": single.mean(1),
        "best": single.amin(1),
        "uniform": (endpoint - points.end).norm(dim=-1),
        "strength": candidates.strength.mean(1),
    }


def evaluate_world(
    world: LayeredMotionWorld, pairs: PairSource, indices: Iterable[int], config: TrackerConfig, points: int = 16
) -> dict[str, float]:
    """Figures on the given pairs of a source."""
    accumulator = ErrorAccumulator()
    for index in indices:
        example = pairs.pair(index, world.size)
        source, target = (world.describe(unit_range(frame)) for frame in (example.source, example.target))
        scene = world.observe(source, target)
        patches = (world.size // world.patch) ** 2
        factual = world.imagine(scene, random_masks(config.masks, patches, "evaluate", pairs.name, index))
        error, copy_error = hidden_error(world, scene, factual)
        accumulator.error += error
        accumulator.copy_error += copy_error
        if example.flow is None:
            continue
        asked = EvaluationPoints.of(example, points, index)
        if len(asked.xy) == 0:
            continue
        motion = (asked.end - asked.xy).norm(dim=-1)
        measured = tracking_errors(world, scene, factual, asked, config)
        stages = stage_errors(scene, factual, asked, (world.size, world.size))
        accumulator.add(visible=asked.visible, motion=motion, **measured, **stages)
    return accumulator.figures(config.visibility_threshold)


def figures_table(columns: dict[str, dict[str, float]]) -> str:
    """Figures side by side, one source per column."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = ["| figure | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        values = [figures.get(name, math.nan) for figures in columns.values()]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(format_figure(value) for value in values) + " |")
    return "\n".join(lines)


def format_figure(value: float) -> str:
    """A figure, or a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.3f}"
