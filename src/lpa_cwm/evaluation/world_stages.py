"""Evaluation of world models by stage: matches, motions, candidates, endpoints; and the error of the prediction.

The frame pairs have known motion: generated pairs, shards of pairs, or annotated videos.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.config import Selection, TrackerConfig
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.decode import localize
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW, Crop, center_of, crop_resize, inside, patch_centers, patch_of, rescale, unit_range
from lpa_cwm.jobs import progress
from lpa_cwm.masks import mask_pixels, random_masks
from lpa_cwm.protocols import Dataset, WorldModel
from lpa_cwm.registry import load_world
from lpa_cwm.responses import Responses
from lpa_cwm.rng import KeyPart, generator
from lpa_cwm.synth.layered import LayeredPairs
from lpa_cwm.synth.pair_shards import SIZE, PairShards, flow_grid, holds_shards
from lpa_cwm.synth.pairs import Example, PairSource
from lpa_cwm.training.flow_pairs import PairFolders
from lpa_cwm.types import Candidates
from lpa_cwm.worlds.learned.densify import at_quarters
from lpa_cwm.worlds.learned.network import LearnedScene
from lpa_cwm.worlds.learned.world import LearnedFactual, LearnedWorld

MIN_MOTION = 2.0
"""Points of generated pairs that move less than this, in pixels, are not evaluated."""
POINTS = 16
"""Points of a generated pair."""
MAX_ANNOTATED = 32
"""Maximum number of annotated points of a pair."""
FIRST_PAIR = 100
"""Number of the first held-out pair that is evaluated; constants were chosen on pairs before it."""


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

    @classmethod
    def seen(cls, xy: Float[Tensor, "n 2"], end: Float[Tensor, "n 2"]) -> "EvaluationPoints":
        """Points that are visible in both frames."""
        return cls(xy, end, torch.ones(len(xy), dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class EvaluationPair:
    """Two frames at working size and points to follow; pairs of natural video have no points."""

    identity: tuple[KeyPart, ...]
    """Key of the random masks."""
    source: Float[Tensor, "3 h w"]
    target: Float[Tensor, "3 h w"]
    points: EvaluationPoints | None


def generated_pairs(
    source: PairSource, indices: Iterable[int], size: int, points: int = POINTS
) -> Iterator[EvaluationPair]:
    """The pairs of a source, with random points where the motion is known."""
    for index in indices:
        example = source.pair(index, size)
        asked = None if example.flow is None else EvaluationPoints.of(example, points, index)
        yield EvaluationPair((source.name, index), unit_range(example.source), unit_range(example.target), asked)


def sharded_pairs(shards: PairShards, kind: str, count: int, points: int = POINTS) -> Iterator[EvaluationPair]:
    """About `count` evenly spaced pairs of one kind, with random points that move and are visible in both frames."""
    chosen = shards.of_kinds(kind)
    grid = rearrange(flow_grid((SIZE, SIZE)), "d h w -> (h w) d")
    for index in range(0, len(chosen), max(1, len(chosen) // count)):
        pair = chosen[index]
        flow = rearrange(pair.flow, "d h w -> (h w) d")
        places = (pair.visible.flatten() & (flow.norm(dim=-1) > MIN_MOTION)).nonzero()[:, 0]
        places = places[torch.randperm(len(places), generator=generator("points", kind, index))[:points]]
        source, target = unit_range(pair.frames)
        asked = EvaluationPoints.seen(grid[places] + flow[places], grid[places])
        yield EvaluationPair((f"{kind}/{index}",), source, target, asked)


def annotated_pairs(
    dataset: Dataset, frames: Sequence[tuple[int, int]], min_motion: float, size: int
) -> Iterator[EvaluationPair]:
    """Frame pairs of annotated videos, with the points that are visible in both frames and move far enough.

    Distances are in pixels of the working size. Videos that are too short for a pair do not have it.
    """
    working = (size, size)
    for number, name in enumerate(dataset.names):
        sample = dataset[number]
        for first, second in frames:
            if max(first, second) >= len(sample.clip):
                continue
            seen = sample.truth.visible[:, first] & sample.truth.visible[:, second]
            xy, end = (rescale(sample.truth.xy[seen, frame], sample.clip.hw, working) for frame in (first, second))
            far = ((end - xy).norm(dim=-1) > min_motion) | (min_motion == 0)
            kept = (inside(xy, working) & inside(end, working) & far).nonzero()[:MAX_ANNOTATED, 0]
            whole = Crop.full(sample.clip.hw, size)
            source, target = (crop_resize(sample.clip[frame], whole) for frame in (first, second))
            yield EvaluationPair(
                (f"{name}/{first}-{second}",), source, target, EvaluationPoints.seen(xy[kept], end[kept])
            )


RECALL_RADIUS = 4.0
"""A match or motion is right if it leads this close to the truth, in pixels."""
DELTA_THRESHOLDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Thresholds of TAP-Vid's position accuracy (Doersch et al. 2022), in pixels of the working size."""
RATES = ("match_recall", "motion_recall", "right_motion_weight", "delta")
"""Figures that are plain means; errors are divided by the mean motion."""


@dataclass(frozen=True, slots=True)
class StageOrigins:
    """Source positions of target points, as the stages of a world model estimate them."""

    matches: Float[Tensor, "n k 2"]
    """From the match hypotheses of their patches."""
    motions: Float[Tensor, "m n q 2"]
    """From the motions of their cells under each mask."""
    weight: Float[Tensor, "m n q"]
    """Weights of these motions."""

    def errors(self, xy: Float[Tensor, "n 2"]) -> dict[str, Float[Tensor, "n"]]:
        """Errors of the best choice in each stage, and how often a stage has the truth among its hypotheses."""
        match = (self.matches - xy[:, None]).norm(dim=-1).amin(-1)
        motion = (self.motions - xy[:, None]).norm(dim=-1)
        chosen = motion.gather(-1, self.weight.argmax(-1, keepdim=True))[..., 0]
        right = motion < RECALL_RADIUS
        return {
            "match_recall": (match < RECALL_RADIUS).float(),
            "motion_recall": right.any(-1).float().mean(0),
            "right_motion_weight": (self.weight * right).sum(-1).mean(0),
            "best_match": match,
            "best_motion": motion.amin(-1).mean(0),
            "chosen_motion": chosen.mean(0),
        }


def cell_of(xy: Float[Tensor, "n 2"], hw: HW, patch: int) -> Int[Tensor, "n"]:
    """Raster number of the patch that holds each point."""
    place = patch_of(xy, hw, patch)
    return place[:, 1] * (hw[1] // patch) + place[:, 0]


def learned_origins(
    scene: LearnedScene, factual: LearnedFactual, end: Float[Tensor, "n 2"], patch: int
) -> StageOrigins:
    """Source positions by the stages of the learned world model; its motions are weighted by quarters of a cell."""
    hw = scene.source.hw
    cell = cell_of(end, hw, patch)
    right, below = (end >= patch_centers(hw, patch)[cell]).long().unbind(-1)
    quarter = 2 * below + right
    matches = end[:, None] + scene.matches.offset[0, cell]
    motions = end[:, None] + at_quarters(factual.motions)[:, cell, quarter]
    return StageOrigins(matches, motions, factual.motions.weight[:, cell, quarter])


def stage_errors(world: WorldModel, scene: Any, factual: Any, points: EvaluationPoints) -> dict[str, Tensor]:
    """Errors of the stages before the response; none for world models without such stages."""
    if isinstance(world, LearnedWorld):
        return learned_origins(scene, factual, points.end, world.patch).errors(points.xy)
    return {}


def tracking_errors(response: Responses, points: EvaluationPoints, config: TrackerConfig) -> dict[str, Tensor]:
    """Endpoint errors of the mean candidate, the best candidate and the uniform aggregate; response strength."""
    candidates = Candidates.of(response)
    masks = response.shape[1]
    single = (candidates.peak - points.end[:, None]).norm(dim=-1)
    endpoint = localize(response.aggregate(torch.full(response.shape, 1 / masks)), config)
    uniform = (endpoint - points.end).norm(dim=-1)
    return {
        "single": single.mean(1),
        "best": single.amin(1),
        "uniform": uniform,
        "delta": (uniform[:, None] < uniform.new_tensor(DELTA_THRESHOLDS)).float().mean(1),
        "strength": candidates.strength.mean(1),
    }


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
        """Means over visible points; endpoint errors are relative to the mean motion."""
        result = {"hidden_error_over_copy": self.error / self.copy_error} if self.copy_error else {}
        if not self.rows:
            return result
        column = {name: torch.cat(values) for name, values in self.rows.items()}
        seen = column.pop("visible").bool()
        strength = column.pop("strength")
        motion = column.pop("motion")[seen].mean().item()
        for name, value in column.items():
            mean = value[seen].mean().item()
            result |= {name: mean} if name in RATES else {f"{name}_over_motion": mean / motion}
        if "uniform" in column:
            result["median_error"] = column["uniform"][seen].median().item()
        visible, occluded = ((strength[rows] >= visibility_threshold).double().mean().item() for rows in (seen, ~seen))
        return result | {"visibility": (visible + 1 - occluded) / 2, "motion": motion, "points": float(seen.sum())}


def hidden_error(world: WorldModel, scene: Any, factual: Any, pair: EvaluationPair) -> tuple[float, float]:
    """Mean squared error on hidden pixels, of the prediction and of a copy of the source."""
    if not isinstance(world, LearnedWorld):
        return 0.0, 0.0
    hidden = mask_pixels(factual.hidden, pair.source.shape[-1] // world.patch, world.patch)[:, None]
    errors = []
    for picture in (world.predict(scene, factual), pair.source):
        errors.append(((picture - pair.target).square() * hidden).sum() / (3 * hidden.sum()))
    return errors[0].item(), errors[1].item()


@torch.no_grad()
def evaluate_world(
    world: WorldModel, pairs: Iterable[EvaluationPair], config: TrackerConfig | None = None
) -> dict[str, float]:
    """Figures of a world model on some pairs, with its own settings if none are given."""
    config = config or world.defaults
    accumulator = ErrorAccumulator()
    for pair in pairs:
        scene = world.observe(world.describe(pair.source), world.describe(pair.target))
        patches = (pair.source.shape[-2] // world.patch) * (pair.source.shape[-1] // world.patch)
        masks = random_masks(config.masks, patches, "evaluate", *pair.identity, hidden_share=config.hidden_share)
        factual = world.imagine(scene, masks)
        error, copy_error = hidden_error(world, scene, factual, pair)
        accumulator.error += error
        accumulator.copy_error += copy_error
        points = pair.points
        if points is None or len(points.xy) == 0:
            continue
        response = world.intervene(scene, factual, points.xy)
        if not isinstance(response, Responses):
            response = Responses.from_dense(response, world.patch)
        motion = (points.end - points.xy).norm(dim=-1)
        measured = stage_errors(world, scene, factual, points) | tracking_errors(response, points, config)
        accumulator.add(visible=points.visible, motion=motion, **measured)
    return accumulator.figures(config.visibility_threshold)


PairsOf = Callable[[int], Iterable[EvaluationPair]]
"""The pairs of a set at a working size."""


@dataclass(frozen=True)
class EvaluationSets:
    """What world models are evaluated on."""

    data: tuple[Path, ...] = ()
    """Folders of sharded pairs, or annotated videos; without any, pairs are generated."""
    folders: PairFolders = field(default_factory=PairFolders)
    """What pairs are generated from."""
    pairs: int = 24
    """Pairs of each kind."""
    frame_pairs: tuple[tuple[int, int], ...] = ((0, 8),)
    """Source and target frames of annotated videos."""
    min_motion: float = 4.0
    """Minimum motion of annotated points, in pixels of the 256 raster."""
    selection: Selection = field(default_factory=Selection)
    """The part of the annotated videos that is used."""

    def opened(self) -> dict[str, PairsOf]:
        """The sets by name."""
        return {name: pairs for path in self.data for name, pairs in self._of(path).items()} or self._generated()

    def _of(self, path: Path) -> dict[str, PairsOf]:
        if holds_shards(path):
            shards = PairShards.of(path)
            kinds = {f"{path.name} {kind}": kind for kind in shards.kinds()}
            return {name: lambda _, kind=kind: sharded_pairs(shards, kind, self.pairs) for name, kind in kinds.items()}
        dataset = load_dataset(path, self.selection)
        return {
            f"{dataset.name} {frames[0]}:{frames[1]}": lambda size, frames=frames: annotated_pairs(
                dataset, [frames], self.min_motion, size
            )
            for frames in self.frame_pairs
        }

    def _generated(self) -> dict[str, PairsOf]:
        """Held-out pairs of layered scenes, and of videos and simulated scenes if there are folders."""
        layered, videos = LayeredPairs.of(self.folders.photos, "val"), self.folders.video_pairs("val")
        simulated = self.folders.simulated_pairs("val").values() if self.folders.assets else ()
        sources: list[PairSource] = [layered, *([videos] if videos else []), *simulated]
        indices = range(FIRST_PAIR, FIRST_PAIR + self.pairs)
        return {one.name: lambda size, source=one: generated_pairs(source, indices, size) for one in sources}


def evaluate_worlds(names: Sequence[str], sets: EvaluationSets) -> dict[str, dict[str, float]]:
    """Figures of every world model on every set, as `lpa-cwm eval world` prints them.

    Args:
        names: World models, each NAME or NAME:WEIGHTS.
        sets: What they are evaluated on.
    """
    worlds, opened = {name: open_world(name) for name in names}, sets.opened()
    jobs = [(label, name) for label in opened for name in worlds]
    return {
        f"{label}, {name}": evaluate_world(worlds[name], opened[label](worlds[name].size))
        for label, name in progress(jobs, len(jobs), "evaluating")
    }


def open_world(text: str) -> WorldModel:
    """A world model by its name, or NAME:FILE with other weights."""
    name, _, file = text.partition(":")
    if not file:
        return load_world(name)
    if name != "learned":
        raise InputError(f"{text!r} gives weights to {name!r}; only learned takes other weights.")
    return LearnedWorld.load(Path(file))


def figures_table(columns: dict[str, dict[str, float]]) -> str:
    """Figures side by side, one column for each source and world model."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = ["| figure | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        values = [figures.get(name, math.nan) for figures in columns.values()]
        lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(format_figure(value) for value in values) + " |")
    return "\n".join(lines)


def format_figure(value: float) -> str:
    """A figure, or a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.3f}"
