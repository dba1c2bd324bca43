"""Batches for the learned world model: crops of sharded pairs with exact flow, and of natural video without flow."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import unit_range
from lpa_cwm.pair_tracking import NATIVE_SIDE
from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.pair_shards import FLOW_STRIDE, LAYERED_KINDS, SIMULATED_KINDS, FlowPair, PairShards, flow_grid
from lpa_cwm.synth.pairs import PairSource

SHARES = (0.5, 0.35, 0.15)
"""Of layered pairs, simulated pairs and natural video, if all are there."""
ALIGNED = 0.4
"""Probability that the crops of a pair are shifted against each other by its motion at a random point."""
CENTERED = 0.9
"""The same of crops as small as those of the re-evaluation at native resolution: both are around a random point."""
CENTER_ERROR = 6.0
"""Standard deviation of the point's distance from the middle of such a crop along each axis, in pixels."""


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
    known: Bool[Tensor, "b"]
    """Whether the pair has flow at all; natural video has none."""

    def to(self, device: str) -> "FlowBatch":
        """The same batch on a device."""
        return FlowBatch(*(getattr(self, entry.name).to(device) for entry in fields(self)))


@dataclass(frozen=True, slots=True)
class FlowCrop:
    """Crops of one pair; `flow` and `visible` are zero for natural video."""

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
    """Of each group of shards, then of natural video."""
    stages: Sequence[Stage]
    rank: int = 0
    """Number of this process among those that train together; each has its own pairs."""
    seed: int = 0

    @classmethod
    def of(
        cls, shards: PairShards, natural: PairSource | None, stages: Sequence[Stage], rank: int = 0
    ) -> "FlowBatches":
        """Layered and simulated shards and natural video, each with its share."""
        groups = [shards.of_kinds(*kinds) for kinds in (LAYERED_KINDS, SIMULATED_KINDS)]
        kept = [(group, share) for group, share in zip(groups, SHARES, strict=False) if len(group)]
        if not kept:
            expected = ", ".join((*LAYERED_KINDS, *SIMULATED_KINDS))
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
        source, target, flow, visible = (torch.stack(parts) for parts in zip(*(e[:4] for e in examples), strict=True))
        flow = rearrange(flow, "b d h w -> b h w d")
        known = torch.tensor([example[4] for example in examples])
        return FlowBatch(source, target, flow, visible & shows_origin(flow, size), known)

    def example(self, step: int, place: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        """One pair of a batch: frames, flow, visibility, and whether they are known."""
        rng = numpy_rng("learned", "batch", self.seed, self.rank, step, place)
        group = int(rng.choice(len(self.shares), p=np.array(self.shares) / sum(self.shares)))
        known = group < len(self.shards)
        crop = self.sharded(group, size, rng) if known else self.unlabeled(size, rng)
        crop = crop.augment(rng)
        source, target = unit_range(crop.source), unit_range(crop.target)
        return source, jitter_exposure(target, rng) if known else target, crop.flow, crop.visible, known

    def sharded(self, group: int, size: int, rng: np.random.Generator) -> FlowCrop:
        """A crop of a random pair of a group of shards."""
        shards = self.shards[group]
        return crop_pair(shards[int(rng.integers(len(shards)))], size, rng)

    def unlabeled(self, size: int, rng: np.random.Generator) -> FlowCrop:
        """A random pair of natural video."""
        assert self.natural is not None
        pair = self.natural.pair(int(rng.integers(2**40)), size)
        none = torch.zeros(size // FLOW_STRIDE, size // FLOW_STRIDE)
        return FlowCrop(pair.source, pair.target, none.expand(2, -1, -1), none.bool())
