"""Candidates from the world model: perturb, predict again, subtract (Eq. 1-2).

Candidates are made in one place, `first_pass`: tracking, `explain`, the feature cache and the evaluation use it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.geometry import HW, Crop, crop_resize, resample_frame
from lpa_cwm.jobs import computed_once
from lpa_cwm.masks import MaskPlan, per_query_plan, random_masks, shared_plan
from lpa_cwm.protocols import PartialWorldModel, WorldModel
from lpa_cwm.responses import Responses, concatenate
from lpa_cwm.rng import KeyPart
from lpa_cwm.types import Candidates, Pair


@dataclass(frozen=True, slots=True)
class PreparedFrame:
    """A frame at its own size, at the world model's size, and as the world model describes it."""

    native: UInt8[Tensor, "3 h w"]
    resized: Float[Tensor, "3 s s"]
    description: Any
    derived: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Values that are computed once per frame, by keys of those who need them."""

    @property
    def hw(self) -> HW:
        return self.native.shape[-2], self.native.shape[-1]

    def at_size(self, hw: HW) -> UInt8[Tensor, "3 h2 w2"]:
        """The frame at another size, made once."""
        if hw == self.hw:
            return self.native
        if ("size", hw) not in self.derived:
            self.derived["size", hw] = resample_frame(self.native, hw)
        return self.derived["size", hw]


def prepare(world: WorldModel, frame: UInt8[Tensor, "3 h w"], device: torch.device | str) -> PreparedFrame:
    """Resize and describe one frame."""
    hw = frame.shape[-2], frame.shape[-1]
    resized = crop_resize(frame, Crop.full(hw, world.size)).to(device)
    return PreparedFrame(frame, resized, world.describe(resized))


@dataclass
class ObservedPair:
    """One frame pair as a world model sees it; `identity` fixes all random masks."""

    world: WorldModel
    source: PreparedFrame
    target: PreparedFrame
    identity: tuple[KeyPart, ...]
    config: TrackerConfig
    asked: Float[Tensor, "n 2"] | None = None
    """All points that are asked about, in pixels of the source, if they are known and have no other masks than the
    first ones: nothing else is computed then."""

    @computed_once
    def scene(self) -> Any:
        source, target = self.source.description, self.target.description
        if self.asked is not None and isinstance(self.world, PartialWorldModel):
            return self.world.observe_shown(source, target, self.masks)
        return self.world.observe(source, target)

    @computed_once
    def masks(self) -> Bool[Tensor, "m p"]:
        """First masks, if all queries share them."""
        share = self.config.hidden_share
        return random_masks(self.config.masks, self.patches, *self.identity, "pass", 0, hidden_share=share)

    @computed_once
    def factual(self) -> Any:
        """Factual predictions under the shared first masks."""
        masks = self.masks.to(self.source.resized.device)
        if self.asked is not None and isinstance(self.world, PartialWorldModel):
            return self.world.imagine_near(self.scene, masks, self.crop.to_crop(self.asked))
        return self.world.imagine(self.scene, masks)

    def with_masks(self, masks: int) -> "ObservedPair":
        """The same scene under another number of masks; fewer masks are a prefix of more."""
        other = replace(self, config=replace(self.config, masks=masks))
        other.scene = self.scene
        return other

    @property
    def patches(self) -> int:
        return (self.world.size // self.world.patch) ** 2

    @property
    def crop(self) -> Crop:
        """The whole frame at the world model's size."""
        return Crop.full(self.source.hw, self.world.size)


def observe_pair(
    world: WorldModel,
    source: UInt8[Tensor, "3 h w"],
    target: UInt8[Tensor, "3 h w"],
    identity: tuple[KeyPart, ...],
    config: TrackerConfig,
    device: torch.device | str,
) -> ObservedPair:
    """Prepare both frames of a pair."""
    return ObservedPair(world, prepare(world, source, device), prepare(world, target, device), identity, config)


def first_pass(observed: ObservedPair, xy: Float[Tensor, "n 2"]) -> Iterator[tuple[Int[Tensor, "b"], Pair, Candidates]]:
    """Candidates of queries given in pixels of the frame, `batch` queries at a time."""
    points = observed.crop.to_crop(xy)
    plan = first_plan(observed, xy)
    probe = Probe(observed.world, observed.scene, plan, points, observed.config.batch)
    if observed.config.mask_sharing == "pair":
        probe.factual[0] = observed.factual
    for rows, candidates in probe.candidates():
        source, target = observed.source, observed.target
        yield rows, Pair(source.resized, target.resized, rows_of(points, rows), source.derived), candidates


def pair_candidates(observed: ObservedPair, xy: Float[Tensor, "n 2"]) -> Candidates:
    """Candidates of all queries at once; give no more queries than fit into memory."""
    parts = [(rows, candidates) for rows, _, candidates in first_pass(observed, xy)]
    if len(parts) == 1:
        return parts[0][1]
    return Candidates.of(concatenate([part.response.with_queries(rows, len(xy)) for rows, part in parts]))


def rows_of(xy: Float[Tensor, "n 2"], rows: Int[Tensor, "k"]) -> Float[Tensor, "k 2"]:
    """Points by increasing numbers that lie on the host: consecutive ones need not be copied to a GPU."""
    first, last = int(rows[0]), int(rows[-1])
    return xy[first : last + 1] if last - first + 1 == len(rows) else xy[rows.to(xy.device)]


def first_plan(observed: ObservedPair, xy: Float[Tensor, "n 2"]) -> MaskPlan:
    """Random masks, shared by the pair's queries or drawn for each."""
    if observed.config.mask_sharing == "pair":
        return shared_plan(observed.masks, len(xy))
    count, share = observed.config.masks, observed.config.hidden_share
    keys = [(*observed.identity, *point, "pass", 0) for point in xy.tolist()]
    return per_query_plan([random_masks(count, observed.patches, *key, hidden_share=share) for key in keys])


@dataclass(slots=True)
class Probe:
    """Responses of one pair's queries under a mask plan; `batch` sets the memory, every mask is imagined once."""

    world: WorldModel
    scene: Any
    plan: MaskPlan
    xy: Float[Tensor, "n 2"]
    batch: int
    factual: dict[int, Any] = field(default_factory=dict)
    """Factual predictions by group of the plan, kept while a query still needs them."""

    def candidates(self) -> Iterator[tuple[Int[Tensor, "b"], Candidates]]:
        """Complete candidate sets; each query's masks must all have the same users (shared or per-query plans)."""
        for rows in self.chunks():
            for now, response in self.responses(rows):
                yield now, Candidates.of(response)

    def averages(self) -> Iterator[tuple[Int[Tensor, "b"], Responses, Float[Tensor, "b"]]]:
        """Mean response of each query over its masks, and the mean over masks of its largest magnitude."""
        for rows in self.chunks():
            strength = self.xy.new_zeros(len(rows))
            parts = []
            for now, response in self.responses(rows):
                place = (now - rows[0]).to(self.xy.device)
                uniform = self.xy.new_full(response.shape, 1 / response.shape[1])
                parts.append(response.aggregate(uniform).with_queries(place, len(rows)))
                strength[place] = response.peaks(response.magnitude())[1].mean(1)
            yield rows, concatenate(parts), strength

    def chunks(self) -> tuple[Int[Tensor, "b"], ...]:
        """Consecutive queries, `batch` at a time."""
        return torch.arange(len(self.xy)).split(self.batch)

    def responses(self, rows: Int[Tensor, "b"]) -> Iterator[tuple[Int[Tensor, "c"], Responses]]:
        """Responses of those of `rows` that share a group of masks, group by group."""
        for group, (masks, users) in enumerate(self.plan.groups()):
            now = users[torch.isin(users, rows)]
            if len(now) == 0:
                continue
            if group not in self.factual:
                self.factual[group] = self.world.imagine(self.scene, self.plan.hidden[masks].to(self.xy.device))
            response = self.world.intervene(self.scene, self.factual[group], rows_of(self.xy, now))
            yield now, response if isinstance(response, Responses) else Responses.from_dense(response, self.world.patch)
            if users[-1] <= rows[-1]:
                del self.factual[group]
