"""One frame pair: adjudicate and decode the candidates, then re-evaluate around the endpoints (the paper's method).

The first pass sees whole frames at the size of the world model. A re-evaluation draws fresh masks around the endpoints;
all responses have equal weight. It sees the whole frame, ever smaller crops of it, or pairs of small crops (`native`):
around the point in a source frame, and around its endpoint in the target. Small crops are cut from frames of about 480p
first, so that they show as much of any clip, and then from finer frames, which keep all pixels of large clips.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import Distribution, distribution, windowed_sequence
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW, Crop, constant, crop_resize, rescale, unit_range
from lpa_cwm.masks import MaskPlan, balanced_masks, hide, joint_plan, neighborhood, per_query_plan, random_masks
from lpa_cwm.probe import ObservedPair, PreparedFrame, Probe, first_pass
from lpa_cwm.protocols import Adjudicator, CropWorldModel, WorldModel
from lpa_cwm.responses import Responses, join_masks
from lpa_cwm.rng import KeyPart
from lpa_cwm.types import Candidates, Judgement

EPSILON = 1e-9
NATIVE_SIDE = 64
"""Side of a native crop in pixels."""
COARSE_SIDE, FINE_SIDE = 640.0, 1280.0
"""Square roots of the areas of the frames from which crops are cut first, and then: about 480p, and twice that."""
OWN_RATIO = 1.25
"""Clips whose side differs by less than this factor are not resized."""
NATIVE_HIDDEN_SHARE = 2 / 3
"""Share of hidden patches in a native crop; with nine tenths hidden, too few visible ones would be left."""
NATIVE_MASKS = 3
"""Masks per source; together they hide every patch."""
NATIVE_STRENGTH_SHARE = 0.5
"""Share of the visibility threshold below which responses in native crops are ignored."""
ANCHOR_SHARE = 0.9
"""Share of the visibility threshold from which the response from the query's own frame decides alone."""
MAX_SHARED_DISTANCE = 12.0
"""Endpoints further apart than this, in pixels of the crops, do not share a native crop."""
CROPS_AT_ONCE = 32
"""Points whose crops are in memory at once on a CPU."""
MAX_DESCRIBED_CROPS = 1024
"""Described crops that a frame keeps; each takes 150 kB."""


@dataclass(frozen=True, slots=True)
class PairResult:
    """Endpoints of the queries of one frame pair, in pixels of the frame, with evidence of their reliability."""

    xy: Float[Tensor, "n 2"]
    strength: Float[Tensor, "n"]
    support: Float[Tensor, "n"]
    spread: Float[Tensor, "n"]
    native_strength: Float[Tensor, "n"]
    """In crops at native resolution; NaN without them."""
    color_change: Float[Tensor, "n"]
    """Mean difference of color between the surroundings of the query and of the endpoint; NaN if not compared."""

    @classmethod
    def empty(cls, xy: Float[Tensor, "n 2"]) -> "PairResult":
        """Every point at its given position, everything else unknown."""
        return cls(xy.clone(), *(torch.full_like(xy[:, 0], torch.nan) for _ in range(len(fields(cls)) - 1)))

    def rows(self, rows: Int[Tensor, "b"]) -> "PairResult":
        """Some rows."""
        rows = rows.to(self.xy.device)
        return PairResult(*(getattr(self, entry.name)[rows] for entry in fields(self)))

    def set_rows(self, rows: Int[Tensor, "b"], other: "PairResult") -> None:
        """Overwrite some rows."""
        rows = rows.to(self.xy.device)
        for entry in fields(self):
            getattr(self, entry.name)[rows] = getattr(other, entry.name)


def track_pair(
    observed: ObservedPair, adjudicators: Mapping[str, Adjudicator], xy: Float[Tensor, "n 2"]
) -> dict[str, PairResult]:
    """All queries of one frame pair, given in pixels of the frame."""
    results = {name: PairResult.empty(xy) for name in adjudicators}
    for rows, pair, candidates in first_pass(observed, xy):
        for name, adjudicate in adjudicators.items():
            results[name].set_rows(rows, decode_candidates(observed, candidates, adjudicate(pair, candidates)))
    for index in range(1, observed.config.passes + 1):
        results = {name: reevaluate(observed, xy, result, index) for name, result in results.items()}
    return results


def decode_candidates(observed: ObservedPair, candidates: Candidates, judgement: Judgement) -> PairResult:
    """Endpoints of the first pass: weighted responses, localized."""
    judged = judgement.visibility * (judgement.weights * candidates.strength).sum(1)
    strength = judged if observed.config.strength == "judged" else candidates.strength.mean(1)
    start = distribution(candidates.response.aggregate(judgement.weights), observed.config)
    *_, last = windowed_sequence(start, observed.config.windows)
    endpoint = last.decode(observed.config.subpixel)
    return to_frame(observed.crop, endpoint, start, strength, judgement.support)


def endpoints_by_path(observed: ObservedPair, candidates: Candidates, judgement: Judgement) -> Float[Tensor, "n k 2"]:
    """Endpoints of the first pass by the candidates of each source alone, if there are several sources."""
    path, response = candidates.path, candidates.response
    n = response.shape[0]
    gaps, source = (None, None) if path is None else path[0, :, 0].unique(return_inverse=True)
    if gaps is None or source is None or len(gaps) == 1:
        return judgement.weights.new_empty(n, 0, 2)
    alone = judgement.weights[:, None] * (source == torch.arange(len(gaps), device=source.device)[:, None])
    alone = alone / alone.sum(2, keepdim=True).clamp(min=EPSILON)
    # Every source of every query counts as a query, which has the source's candidates only.
    query = response.query * len(gaps) + source[response.mask]
    of_sources = replace(response, query=query, shape=(n * len(gaps), response.shape[1]))
    start = distribution(of_sources.aggregate(alone.flatten(0, 1)), observed.config)
    *_, last = windowed_sequence(start, observed.config.windows)
    return observed.crop.to_frame(last.decode(observed.config.subpixel)).view(n, len(gaps), 2)


def to_frame(
    crop: Crop, endpoint: Float[Tensor, "n 2"], start: Distribution, strength: Tensor, support: Tensor
) -> PairResult:
    """Endpoints and spread in the frame's pixels."""
    scale = (crop.width * crop.height) ** 0.5 / crop.size
    result = PairResult.empty(crop.to_frame(endpoint))
    return replace(result, strength=strength, support=support, spread=start.moments()[1] * scale)


@dataclass(frozen=True, slots=True)
class PointsInFrame:
    """Positions of points in an earlier frame, in its pixels."""

    frame: PreparedFrame
    xy: Float[Tensor, "n 2"]

    def at_size(self, hw: HW, cached: bool = False) -> "PointSource":
        """The same points in the frame at another size; described crops may be kept for other targets."""
        described = self.frame.derived.setdefault(("native crops", hw), {}) if cached else {}
        return PointSource(self.frame.at_size(hw), rescale(self.xy, self.frame.hw, hw), described)


@dataclass(frozen=True, slots=True)
class PointSource:
    """Positions of points in an earlier frame, of which crops are described."""

    frame: UInt8[Tensor, "3 h w"]
    xy: Float[Tensor, "n 2"]
    described: dict[tuple[int, int], Any] = field(default_factory=dict)
    """Crops of the frame as the world model describes them, by their corners; those of a query serve all targets."""

    def rows(self, rows: Int[Tensor, "k"] | slice) -> "PointSource":
        """Some of the points."""
        return PointSource(self.frame, self.xy[rows], self.described)

    def corners(self, patch: int) -> Int[Tensor, "n 2"]:
        """Corners of the points' crops."""
        return native_corners(self.xy, (self.frame.shape[-2], self.frame.shape[-1]), patch)

    def describe(self, world: CropWorldModel) -> list[Any]:
        """The crops of all points, each described once."""
        places = [(x, y) for x, y in self.corners(world.patch).tolist()]
        new = [place for place in dict.fromkeys(places) if place not in self.described]
        if new:
            crops = torch.stack([native_crop(self.frame, place) for place in new]).to(self.xy.device)
            found = dict(zip(new, world.describe_crops(crops), strict=True))
            if len(self.described) + len(new) > MAX_DESCRIBED_CROPS:
                return [found[place] if place in found else self.described[place] for place in places]
            self.described.update(found)
        return [self.described[place] for place in places]


def reevaluate(
    observed: ObservedPair,
    xy: Float[Tensor, "n 2"],
    result: PairResult,
    index: int,
    recent: PointsInFrame | None = None,
    others: Float[Tensor, "n k 2"] | None = None,
) -> PairResult:
    """Pass `index`: fresh masks around the endpoints, in the whole frame or, later, in ever smaller crops.

    At native resolution the points of another source frame, if given, are used too, and other endpoints are tried.
    """
    config, hw = observed.config, observed.source.hw
    if config.reevaluation == "native":
        return reevaluate_native(observed, PointsInFrame(observed.source, xy), recent, result, index, others)
    side = int(min(hw) * config.zoom ** (index - 1))
    if index == 1 and (config.reevaluation != "query" or hw == (side, side)):
        return reevaluate_in(observed, (observed.crop, observed.crop), xy, result, index)
    refined = PairResult.empty(xy)
    for row in torch.arange(len(xy)).split(1):
        crops = (Crop.around(point[row][0], side, hw, observed.world.size) for point in (xy, result.xy))
        source, target = crops
        one = PairResult.empty(result.xy[row])
        one.support[:] = result.support[row]
        zoomed = zoom_in(observed, source, target)
        refined.set_rows(row, reevaluate_in(zoomed, (source, target), xy[row], one, index))
    return refined


def zoom_in(observed: ObservedPair, source: Crop, target: Crop) -> ObservedPair:
    """The same pair seen through two crops."""
    world, device = observed.world, observed.source.resized.device

    def cropped(frame: PreparedFrame, crop: Crop) -> PreparedFrame:
        resized = crop_resize(frame.native, crop).to(device)
        return PreparedFrame(frame.native, resized, world.describe(resized))

    frames = cropped(observed.source, source), cropped(observed.target, target)
    return replace(observed, source=frames[0], target=frames[1])


def reevaluate_in(
    observed: ObservedPair, crops: tuple[Crop, Crop], xy: Float[Tensor, "n 2"], before: PairResult, index: int
) -> PairResult:
    """Fresh masks around the endpoints, uniform weights, no window."""
    source, target = crops
    plan = next_plan(observed, xy, target.to_crop(before.xy), index)
    refined = PairResult.empty(xy)
    probe = Probe(observed.world, observed.scene, plan, source.to_crop(xy), observed.config.batch)
    for rows, response, strength in probe.averages():
        start = distribution(response, observed.config)
        endpoint = start.decode(observed.config.subpixel)
        refined.set_rows(rows, to_frame(target, endpoint, start, strength, before.support[rows]))
    return refined


def next_plan(observed: ObservedPair, xy: Float[Tensor, "n 2"], ends: Float[Tensor, "n 2"], index: int) -> MaskPlan:
    """Masks that hide the neighborhood of each query's endpoint."""
    config, world = observed.config, observed.world
    around = neighborhood(ends, world.size, world.patch).cpu()
    if config.reevaluation == "joint":
        key = (*observed.identity, "pass", index)
        return joint_plan(around, config.masks, config.reveal, *key, hidden_share=config.hidden_share)
    keys = [(*observed.identity, *point, "pass", index) for point in xy.tolist()]
    draw = partial(random_masks, config.masks, observed.patches)
    return per_query_plan(
        [
            hide(draw(*key, hidden_share=config.hidden_share), near, config.reveal, *key)
            for key, near in zip(keys, around, strict=True)
        ]
    )


def reevaluate_native(
    observed: ObservedPair,
    queries: PointsInFrame,
    recent: PointsInFrame | None,
    result: PairResult,
    index: int,
    others: Float[Tensor, "n k 2"] | None = None,
) -> PairResult:
    """Endpoints from small crops, first of coarse frames, then of fine ones.

    Where the crops show nothing, the endpoint stays as it was. Other endpoints too far away for the first crops
    have crops of their own, and the strongest response counts.
    """
    coarse, fine = crop_sizes(queries.frame.hw)
    min_strength = NATIVE_STRENGTH_SHARE * observed.config.visibility_threshold
    refiner, sources = native_refiner(observed, queries, recent, coarse, index)
    found = refiner.refine(sources, rescale(result.xy, queries.frame.hw, coarse))
    if others is not None:
        refiner.try_others(found, sources, rescale(others, queries.frame.hw, coarse))
    refined = found.write_to(result, min_strength, coarse, queries.frame.hw)
    refiner, sources = native_refiner(observed, queries, recent, fine, index)
    finer = refiner.refine(sources, rescale(refined.xy, queries.frame.hw, fine))
    refined = finer.write_to(refined, min_strength, fine, queries.frame.hw)
    return replace(refined, native_strength=found.strength)


def crop_sizes(hw: HW) -> tuple[HW, HW]:
    """Sizes of a clip's frames from which crops are cut first and then; the second keeps all pixels of large clips."""
    own = (hw[0] * hw[1]) ** 0.5
    return resized_to(hw, COARSE_SIDE), resized_to(hw, max(own, FINE_SIDE))


def resized_to(hw: HW, side: float) -> HW:
    """The size with this square root of its area, or the same size if it differs little."""
    ratio = side / (hw[0] * hw[1]) ** 0.5
    return hw if 1 / OWN_RATIO < ratio < OWN_RATIO else (round(hw[0] * ratio), round(hw[1] * ratio))


def native_refiner(
    observed: ObservedPair, queries: PointsInFrame, recent: PointsInFrame | None, hw: HW, index: int
) -> "tuple[NativeRefiner, list[PointSource]]":
    """What finds endpoints in the target frame at one size, and the points of the source frames at this size."""
    target, identity = observed.target.at_size(hw), (*observed.identity, "pass", index)
    sources = [queries.at_size(hw, cached=True), *([recent.at_size(hw)] if recent else [])]
    return NativeRefiner(observed.world, target, observed.config, identity), sources


@dataclass(frozen=True, slots=True)
class NativeEndpoint:
    """Endpoints found in crops, in pixels of the frames that these are cut from."""

    xy: Float[Tensor, "n 2"]
    strength: Float[Tensor, "n"]
    """Mean over the candidates of their largest magnitude."""
    spread: Float[Tensor, "n"]

    def rows(self, rows: Int[Tensor, "k"]) -> "NativeEndpoint":
        """Some rows."""
        return NativeEndpoint(*(getattr(self, entry.name)[rows] for entry in fields(self)))

    def set_rows(self, rows: Int[Tensor, "k"], other: "NativeEndpoint") -> None:
        """Overwrite some rows."""
        for entry in fields(self):
            getattr(self, entry.name)[rows] = getattr(other, entry.name)

    def set_stronger_rows(self, rows: Int[Tensor, "k"], other: "NativeEndpoint") -> None:
        """Overwrite the given rows where the other endpoint has the stronger response."""
        better = other.strength > self.strength[rows]
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            mine[rows] = torch.where(better[:, None] if theirs.ndim > 1 else better, theirs, mine[rows])

    def write_to(self, result: PairResult, min_strength: float, crops: HW, frame: HW) -> PairResult:
        """The result with the endpoints and spreads of responses that are strong enough, in the frame's pixels."""
        seen = self.strength >= min_strength
        spread = self.spread * (frame[0] * frame[1] / (crops[0] * crops[1])) ** 0.5
        return replace(
            result,
            xy=torch.where(seen[:, None], rescale(self.xy, crops, frame), result.xy),
            spread=torch.where(seen, spread, result.spread),
        )


@dataclass(frozen=True, slots=True)
class NativeRefiner:
    """Re-evaluates endpoints in one target frame."""

    world: WorldModel
    target: UInt8[Tensor, "3 h w"]
    config: TrackerConfig
    identity: tuple[KeyPart, ...]
    """Fixes the masks."""

    def refine(self, sources: Sequence[PointSource], center: Float[Tensor, "n 2"]) -> NativeEndpoint:
        """Endpoints near `center` by fresh masks in crops around it and around the points of the sources."""
        hidden, at_once = self._masks(len(sources)).to(center.device), crops_at_once(center.device, self.config)
        parts = [
            self._refine_some([source.rows(some) for source in sources], center[some], hidden)
            for some in (slice(first, first + at_once) for first in range(0, len(center), at_once))
        ]
        return NativeEndpoint(*(torch.cat([getattr(p, entry.name) for p in parts]) for entry in fields(NativeEndpoint)))

    def try_others(self, found: NativeEndpoint, sources: Sequence[PointSource], others: Float[Tensor, "n k 2"]) -> None:
        """Replace each endpoint by another one that lies far from it, if the response there is stronger.

        NaN stands for an endpoint that does not exist.
        """
        rows, number = ((others - found.xy[:, None]).abs().amax(-1) > MAX_SHARED_DISTANCE).nonzero(as_tuple=True)
        if len(rows) == 0:
            return
        tried = self.refine([source.rows(rows) for source in sources], others[rows, number])
        for one in range(others.shape[1]):
            (mine,) = (number == one).nonzero(as_tuple=True)
            found.set_stronger_rows(rows[mine], tried.rows(mine))

    def _refine_some(
        self, sources: Sequence[PointSource], center: Float[Tensor, "n 2"], hidden: Bool[Tensor, "k m p"]
    ) -> NativeEndpoint:
        """The query's frame is asked first. Where its response is weak, a recent frame, if given, is asked as well.

        So a point that still looks as in its query does not drift.
        """
        world = self.world
        if not isinstance(world, CropWorldModel):
            raise InputError(
                "Re-evaluation `native` was asked for, but this world model cannot answer in crops; "
                "use the world model `learned`, or re-evaluation `joint` or `query`."
            )
        corner = native_corners(center, (self.target.shape[-2], self.target.shape[-1]), world.patch)
        crops = torch.stack([native_crop(self.target, place) for place in corner.tolist()]).to(center.device)
        target, near = world.describe_crops(crops, context=False), center - corner
        response = respond(world, sources[0], target, near, hidden[0])
        found = self._decode(response, hidden[:1], corner)
        for number, recent in enumerate(sources[1:], 1):
            weak = found.strength < ANCHOR_SHARE * self.config.visibility_threshold
            (rows,) = weak.nonzero(as_tuple=True)
            if len(rows):
                rest = [target[row] for row in rows.tolist()]
                more = respond(world, recent.rows(rows), rest, near[rows], hidden[number])
                both, _ = join_masks([response.of_queries(rows), more])
                found.set_rows(rows, self._decode(both, hidden[[0, number]], corner[rows]))
        return found

    def _decode(self, response: Responses, hidden: Bool[Tensor, "k m p"], corner: Int[Tensor, "n 2"]) -> NativeEndpoint:
        """Endpoints by equal weights of the candidates of all sources."""
        start = distribution(response.mean_where_hidden(hidden.flatten(0, 1)), self.config)
        strength = response.peaks(response.magnitude())[1].mean(1)
        return NativeEndpoint(start.decode(self.config.subpixel) + corner, strength, start.moments()[1])

    def _masks(self, sources: int) -> Bool[Tensor, "k m p"]:
        """Masks of every source, the same for all points."""
        patches = (NATIVE_SIDE // self.world.patch) ** 2
        keys = [(*self.identity, "native", number) for number in range(sources)]
        return torch.stack(
            [balanced_masks(NATIVE_MASKS, patches, *key, hidden_share=NATIVE_HIDDEN_SHARE) for key in keys]
        )


def respond(
    world: CropWorldModel,
    source: PointSource,
    target: Sequence[Any],
    near: Float[Tensor, "n 2"],
    hidden: Bool[Tensor, "m p"],
) -> Responses:
    """Responses of points in their described target crops, from the crops of one source frame."""
    return world.respond(source.describe(world), target, source.xy - source.corners(world.patch), near, hidden)


def crops_at_once(device: torch.device, config: TrackerConfig) -> int:
    """Points whose crops are in memory at once; a GPU takes as many as queries of a first pass."""
    return CROPS_AT_ONCE if device.type == "cpu" else config.batch


def native_corners(xy: Float[Tensor, "n 2"], hw: tuple[int, int], patch: int) -> Int[Tensor, "n 2"]:
    """Corners of crops around points, in whole pixels, shifted to stay inside frames that are large enough.

    Elsewhere a point is in the middle of a patch next to the crop's middle: most of its response lies in that patch.
    """
    room = constant((max(hw[1] - NATIVE_SIDE, 0), max(hw[0] - NATIVE_SIDE, 0)), torch.long, xy.device)
    return torch.minimum((xy - (NATIVE_SIDE - patch) / 2).round().long().clamp(min=0), room)


def native_crop(frame: UInt8[Tensor, "3 h w"], corner: Sequence[int]) -> Float[Tensor, "3 s s"]:
    """A crop in [0, 1]; beyond a frame that is smaller its border is repeated."""
    x, y = corner
    part = unit_range(frame[:, y : y + NATIVE_SIDE, x : x + NATIVE_SIDE])
    down, right = NATIVE_SIDE - part.shape[-2], NATIVE_SIDE - part.shape[-1]
    if not (down or right):
        return part
    return torch.nn.functional.pad(part[None], (0, right, 0, down), mode="replicate")[0]
