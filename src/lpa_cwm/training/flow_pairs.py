"""Training data of the learned world model: pairs from photographs, videos and objects, and batches of them.

Pairs with flow are made before training and kept in shards. A batch has crops of sharded pairs, and of natural video
without flow. It is a function of its index, so training can resume at any step with any number of workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from lpa_cwm.errors import InputError
from lpa_cwm.files import pin_settings
from lpa_cwm.geometry import unit_range
from lpa_cwm.jobs import Shard
from lpa_cwm.pair_tracking import NATIVE_SIDE
from lpa_cwm.rng import generator, numpy_rng, seed_of
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pair_shards import (
    FLOW_STRIDE,
    LAYERED_KINDS,
    SETTINGS,
    SHARD_PAIRS,
    SIMULATED_KINDS,
    VIDEO_KINDS,
    FlowPair,
    FlowSource,
    PairShards,
    ReversedFlow,
    flow_grid,
    layered_sources,
    write_shards,
)
from lpa_cwm.synth.pairs import PairSource, Split, VideoPairs, decode_folder, video_stills
from lpa_cwm.synth.video_flow import VideoTracks, video_sources

if TYPE_CHECKING:
    from lpa_cwm.simulator.clip import SimulatedPairs

PROCEDURAL = 0.05
"""Share of procedural pictures among photographs and frames of videos."""
RECIPES = {"movi": "simulated", "hard": "simulated_hard"}
"""Names of the sources of simulated pairs, by the recipe of their scenes."""
SHARES = (0.4, 0.2, 0.3, 0.1)
"""Shares of layered pairs, simulated pairs, natural video with flow and natural video without, if all are given."""
PairKind = Literal["layered", "simulated", "video"]
ALIGNED = 0.4
"""Probability that the crops of a pair are shifted against each other by its motion at a random point."""
CENTERED = 0.9
"""The same of crops as small as those of the re-evaluation at native resolution: both are around a random point."""
CENTER_ERROR = 6.0
"""Standard deviation of the point's distance from the middle of such a crop along each axis, in pixels."""
BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


@dataclass(frozen=True)
class PairFolders:
    """Folders that pairs are made from; without any, pictures and objects are procedural."""

    photos: Path | None = None
    """Photographs for layered scenes."""
    natural: Path | None = None
    """Videos."""
    assets: Path | None = None
    """Objects and textures for simulated scenes."""
    cache: Path = Path("runs/natural")
    """Where decoded videos are kept."""

    def video_pairs(self, split: Split) -> VideoPairs | None:
        """Pairs of the videos, if there are any."""
        return None if self.natural is None else VideoPairs.of(self.natural, self.cache, split)

    def simulated_pairs(self, split: Split) -> "dict[str, SimulatedPairs]":
        """Simulated pairs by the recipe of their scenes."""
        from lpa_cwm.simulator.assets import Assets
        from lpa_cwm.simulator.clip import SimulatedPairs
        from lpa_cwm.simulator.scene import scene_config

        assets = Assets.of(self.assets, split)
        return {
            recipe: SimulatedPairs(scene_config(recipe), assets, name=f"{name}_{split}")
            for recipe, name in RECIPES.items()
        }

    def layered_flow(self, split: Split) -> tuple[dict[str, FlowSource], tuple[Path, ...]]:
        """Sources of layered pairs, and the pictures they use."""
        pool = ImagePool.of(self.photos, split, procedural=PROCEDURAL)
        if self.natural is not None:
            shots = decode_folder(self.natural, self.cache)
            stills = video_stills(shots, split, self.cache / "stills" / split)
            # Without photographs the pool was all procedural.
            pool = replace(pool, files=pool.files + stills, procedural=PROCEDURAL)
        return layered_sources(pool), pool.files

    def simulated_flow(self, split: Split) -> tuple[dict[str, FlowSource], tuple[Path, ...]]:
        """Sources of simulated pairs, and the objects and pictures they use."""
        by_recipe = self.simulated_pairs(split)
        recipes = [by_recipe[name] for name in ("hard", "movi")]
        assets = recipes[0].assets
        sources = {kind: ReversedFlow(pairs) for kind, pairs in zip(SIMULATED_KINDS, recipes, strict=True)}
        return sources, assets.objects + assets.panoramas + assets.photographs.files

    def video_flow(self, split: Split) -> tuple[dict[str, FlowSource], tuple[Path, ...]]:
        """Sources of pairs of natural video, and the decoded clips they use."""
        pairs = self.needed_videos(split)
        return video_sources(pairs), tuple(dict.fromkeys(shot.frames for shot in pairs.shots))

    def video_tracks(self, split: Split, tracks: int, seed: int) -> VideoTracks:
        """Annotated clips of the videos; occluders show the photographs."""
        return VideoTracks(self.needed_videos(split), ImagePool.of(self.photos, split), tracks, seed)

    def needed_videos(self, split: Split) -> VideoPairs:
        """Pairs of the videos, without which there is nothing to make."""
        pairs = self.video_pairs(split)
        if pairs is None:
            raise InputError("No videos were given; give a folder of videos with --natural.")
        return pairs

    def flow_sources(self, kind: PairKind, split: Split) -> tuple[dict[str, FlowSource], tuple[Path, ...]]:
        """Sources of the pairs of a kind, and the files they use."""
        known = {"layered": self.layered_flow, "simulated": self.simulated_flow, "video": self.video_flow}
        return known[kind](split)


def make_pairs(
    folders: PairFolders,
    out: Path,
    kind: PairKind = "layered",
    split: Split = "train",
    pairs: int = 3000,
    shard: Shard | None = None,
) -> Iterator[Path]:
    """Make pairs with backward flow in shards, as `lpa-cwm data pairs` does; shards that exist are kept.

    Args:
        folders: What the pairs are made from.
        out: Folder of the shards.
        kind: Layered scenes, simulated scenes, or natural video with the flow that a round trip confirms.
        split: Which part of the pictures, videos and objects is used.
        pairs: Pairs in all.
        shard: Which part of the work is done; by default all.
    """
    sources, files = folders.flow_sources(kind, split)
    content = f"{seed_of(*(path.name for path in files)):016x}"
    pin_settings(out / SETTINGS, {"kind": kind, "split": split, "files": content})
    yield from write_shards(out, sources, (shard or Shard()).of(-(-pairs // SHARD_PAIRS)))


class Stage(NamedTuple):
    """A part of a training: its first step, the side of the crops in pixels, and the pairs per step and process."""

    first: int
    size: int
    batch: int


@dataclass(frozen=True, slots=True)
class FlowBatch:
    """Crops of several pairs."""

    source: Float[Tensor, "b 3 s s"]
    target: Float[Tensor, "b 3 s s"]
    flow: Float[Tensor, "b h4 w4 2"]
    """Backward flow at the centers of squares of four pixels."""
    visible: Bool[Tensor, "b h4 w4"]
    """Whether the source crop shows the point."""
    labeled: Bool[Tensor, "b h4 w4"]
    """Whether visibility in the source is known; it is unknown everywhere in natural video without flow."""

    def to(self, device: str) -> "FlowBatch":
        """The same batch on a device."""
        return FlowBatch(*(getattr(self, entry.name).to(device) for entry in fields(self)))


@dataclass(frozen=True, slots=True)
class FlowCrop:
    """Crops of one pair; `flow` is NaN where nothing is known."""

    source: UInt8[Tensor, "3 s s"]
    target: UInt8[Tensor, "3 s s"]
    flow: Float[Tensor, "2 h4 w4"]
    visible: Bool[Tensor, "h4 w4"]

    def augment(self, rng: np.random.Generator) -> "FlowCrop":
        """Random flips, transposition and permutation of the color channels."""
        source, target, flow, visible = self.source, self.target, self.flow, self.visible
        for axis, sign in ((-1, (-1.0, 1.0)), (-2, (1.0, -1.0))):
            if rng.random() < 0.5:
                source, target, flow, visible = (part.flip(axis) for part in (source, target, flow, visible))
                flow = flow * torch.tensor(sign)[:, None, None]
        if rng.random() < 0.5:
            source, target, flow, visible = (part.transpose(-1, -2) for part in (source, target, flow, visible))
            flow = flow.flip(0)
        order = torch.from_numpy(rng.permutation(3)) if rng.random() < 0.3 else torch.arange(3)
        return FlowCrop(source[order], target[order], flow, visible)


def crop_pair(pair: FlowPair, size: int, rng: np.random.Generator) -> FlowCrop:
    """Random crops of both frames, sometimes shifted against each other so that a typical motion becomes small."""
    first, second = crop_corners(pair, size, rng)
    corners = (FLOW_STRIDE * first, FLOW_STRIDE * second)
    source, target = (frame[:, y : y + size, x : x + size] for frame, (x, y) in zip(pair.frames, corners, strict=True))
    side, (x, y) = size // FLOW_STRIDE, second
    shift = torch.from_numpy(FLOW_STRIDE * (second - first)).float()[:, None, None]
    flow = pair.flow[:, y : y + side, x : x + side] + shift
    return FlowCrop(source, target, flow, pair.visible[y : y + side, x : x + side])


def crop_corners(pair: FlowPair, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the crops of the source and of the target, in steps of the flow."""
    room = (pair.frames.shape[-1] - size) // FLOW_STRIDE
    first = rng.integers(0, room + 1, 2) if room else np.zeros(2, dtype=int)
    if not room or rng.random() >= (CENTERED if size <= NATIVE_SIDE else ALIGNED) or not bool(pair.visible.any()):
        return first, first
    cell = int(rng.choice(np.flatnonzero(pair.visible.numpy().ravel())))
    typical = pair.flow.flatten(1)[:, cell].numpy() / FLOW_STRIDE
    if size > NATIVE_SIDE:
        return first, np.clip(np.round(first - typical).astype(int), 0, room)
    corner = np.array([cell % pair.flow.shape[-1], cell // pair.flow.shape[-1]]) - size / FLOW_STRIDE / 2
    places = np.stack((corner + typical, corner)) + rng.normal(0, CENTER_ERROR / FLOW_STRIDE, (2, 2))
    first, second = np.clip(np.round(places).astype(int), 0, room)
    return first, second


def jitter_exposure(frame: Float[Tensor, "3 s s"], rng: np.random.Generator) -> Float[Tensor, "3 s s"]:
    """A slightly different exposure and gamma."""
    gain, gamma = np.exp(rng.normal(0, 0.06)), np.exp(rng.normal(0, 0.06))
    return (frame.clamp(min=1e-4) ** float(gamma) * float(gain)).clamp(0, 1)


def shows_origin(flow: Float[Tensor, "b h4 w4 2"], size: int) -> Bool[Tensor, "b h4 w4"]:
    """Whether the positions that flow leads to are inside a crop."""
    origin = rearrange(flow_grid((size, size)), "d h w -> h w d") + flow
    return ((origin > 0) & (origin < size)).all(-1)


@dataclass(frozen=True)
class FlowBatches:
    """Batch k is a function of k, the process and the shards."""

    shards: Sequence[PairShards]
    """Groups of shards."""
    natural: PairSource | None
    shares: Sequence[float]
    """Shares of the groups of shards, then of natural video."""
    stages: Sequence[Stage]
    rank: int = 0
    """Rank of this process among those that train together; each has its own pairs."""
    seed: int = 0

    @classmethod
    def of(
        cls, shards: PairShards, natural: PairSource | None, stages: Sequence[Stage], rank: int = 0
    ) -> "FlowBatches":
        """Shards of each kind and natural video without flow, each with its share."""
        groups = [shards.of_kinds(*kinds) for kinds in (LAYERED_KINDS, SIMULATED_KINDS, VIDEO_KINDS)]
        kept = [(group, share) for group, share in zip(groups, SHARES, strict=False) if len(group)]
        if not kept:
            expected = ", ".join((*LAYERED_KINDS, *SIMULATED_KINDS, *VIDEO_KINDS))
            raise InputError(f"The shards are of the kinds {', '.join(shards.kinds())}; expected some of {expected}.")
        shares = [share for _, share in kept] + ([] if natural is None else [SHARES[-1]])
        return cls([group for group, _ in kept], natural, shares, stages, rank)

    def stage(self, step: int) -> Stage:
        """The last stage that has begun; once all have, they take turns."""
        begun = [stage for stage in self.stages if stage.first <= step]
        return begun[step % len(begun)] if len(begun) == len(self.stages) else begun[-1]

    def __getitem__(self, step: int) -> FlowBatch:
        _, size, count = self.stage(step)
        examples = [self.example(step, place, size) for place in range(count)]
        source, target, flow, visible = (torch.stack(parts) for parts in zip(*examples, strict=True))
        flow = rearrange(flow, "b d h w -> b h w d")
        labeled = flow.isfinite().all(-1)
        return FlowBatch(source, target, flow.nan_to_num(0), visible & shows_origin(flow, size), labeled)

    def example(self, step: int, place: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One pair of a batch: frames, flow and visibility."""
        rng = numpy_rng("learned", "batch", self.seed, self.rank, step, place)
        group = int(rng.choice(len(self.shares), p=np.array(self.shares) / sum(self.shares)))
        sharded = group < len(self.shards)
        crop = self.sharded(group, size, rng) if sharded else self.unlabeled(size, rng)
        crop = crop.augment(rng)
        source, target = unit_range(crop.source), unit_range(crop.target)
        return source, jitter_exposure(target, rng) if sharded else target, crop.flow, crop.visible

    def sharded(self, group: int, size: int, rng: np.random.Generator) -> FlowCrop:
        """A crop of a random pair of a group of shards."""
        shards = self.shards[group]
        return crop_pair(shards[int(rng.integers(len(shards)))], size, rng)

    def unlabeled(self, size: int, rng: np.random.Generator) -> FlowCrop:
        """A random pair of natural video."""
        assert self.natural is not None
        pair = self.natural.pair(int(rng.integers(2**40)), size)
        unknown = torch.full((2, size // FLOW_STRIDE, size // FLOW_STRIDE), torch.nan)
        return FlowCrop(pair.source, pair.target, unknown, torch.zeros_like(unknown[0], dtype=torch.bool))


@runtime_checkable
class Indexed(Protocol[BatchT_co]):
    """Batches by their step."""

    def __getitem__(self, step: int, /) -> BatchT_co: ...


def prefetch(batches: Indexed[BatchT], steps: range, workers: int) -> Iterator[BatchT]:
    """The batches of these steps, made ahead by background processes; by this one if there are none."""
    # Without a generator the loader would draw from the global one.
    loader = DataLoader(
        batches,  # pyright: ignore[reportArgumentType]
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        generator=generator("stream"),
        persistent_workers=False,
    )
    return iter(loader)
