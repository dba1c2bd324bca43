"""One frame pair: candidates, adjudicated and decoded to endpoints, re-evaluated around them (the paper's method)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.decode import Distribution, distribution, windowed_sequence
from lpa_cwm.geometry import Crop, crop_resize
from lpa_cwm.masks import MaskPlan, hide, joint_plan, neighborhood, per_query_plan, random_masks
from lpa_cwm.probe import ObservedPair, PreparedFrame, Probe, first_pass
from lpa_cwm.protocols import Adjudicator
from lpa_cwm.refine import NativeRefiner, PointSource
from lpa_cwm.types import Candidates, Judgement

NATIVE_SHARE = 0.5
"""Share of the visibility threshold that responses in native crops must reach to be believed."""
APART = 12.0
"""Endpoints further apart than this, in pixels of the frame, do not share a native crop."""
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class PairResult:
    """Where the queries of one frame pair went, in pixels of the frame, and how sure that is."""

    xy: Float[Tensor, "n 2"]
    strength: Float[Tensor, "n"]
    support: Float[Tensor, "n"]
    spread: Float[Tensor, "n"]
    native_strength: Float[Tensor, "n"]
    """In crops at native resolution; NaN without them."""
    native_spread: Float[Tensor, "n"]

    @classmethod
    def empty(cls, xy: Float[Tensor, "n 2"]) -> "PairResult":
        """Every point where it was, and nothing else known."""
        return cls(xy.clone(), *(torch.full_like(xy[:, 0], torch.nan) for _ in range(len(fields(cls)) - 1)))

    def rows(self, rows: Int[Tensor, "b"]) -> "PairResult":
        """Some rows."""
        rows = rows.to(self.xy.device)
        return PairResult(*(getattr(self, entry.name)[rows] for entry in fields(self)))

    def put(self, rows: Int[Tensor, "b"], other: "PairResult") -> None:
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
            results[name].put(rows, decode_candidates(observed, candidates, adjudicate(pair, candidates)))
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


def endpoints_by_path(
    observed: ObservedPair, candidates: Candidates, judgement: Judgement
) -> list[Float[Tensor, "n 2"]]:
    """Endpoints of the first pass by the candidates of each source alone, if there are several sources."""
    if candidates.path is None:
        return []
    gaps = candidates.path[0, :, 0]
    found = []
    for gap in gaps.unique(sorted=True):
        weights = judgement.weights * (gaps == gap)
        alone = replace(judgement, weights=weights / weights.sum(1, keepdim=True).clamp(min=EPSILON))
        found.append(decode_candidates(observed, candidates, alone).xy)
    return found if len(found) > 1 else []


def reevaluate(
    observed: ObservedPair,
    xy: Float[Tensor, "n 2"],
    result: PairResult,
    index: int,
    recent: PointSource | None = None,
    others: Float[Tensor, "n k 2"] | None = None,
) -> PairResult:
    """Pass `index`: fresh masks around the endpoints, in the whole frame or, later, in ever smaller crops.

    At native resolution the points of another source frame, if given, are asked as well, and other endpoints tried.
    """
    config, hw = observed.config, observed.source.hw
    if config.reevaluation == "native":
        crops = observed.source.derived.setdefault("native crops", {})
        sources = [PointSource(observed.source.native, xy, crops), *([recent] if recent else [])]
        return reevaluate_native(observed, sources, result, index, others)
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
        refined.put(row, reevaluate_in(zoomed, (source, target), xy[row], one, index))
    return refined


def reevaluate_native(
    observed: ObservedPair,
    sources: list[PointSource],
    result: PairResult,
    index: int,
    others: Float[Tensor, "n k 2"] | None = None,
) -> PairResult:
    """Endpoints from crops at native resolution; where these show nothing, the endpoint stays as it was.

    Other endpoints that lie too far away for the first crops have crops of their own; the strongest response counts.
    """
    config, target = observed.config, observed.target.native
    refiner = NativeRefiner(observed.world, target, config, (*observed.identity, "pass", index))
    found = refiner.refine(sources, result.xy)
    for other in [] if others is None else others.unbind(1):
        (rows,) = ((other - found.xy).abs().amax(1) > APART).nonzero(as_tuple=True)
        if len(rows):
            found.put_stronger(rows, refiner.refine([source.rows(rows) for source in sources], other[rows]))
    seen = found.strength >= NATIVE_SHARE * config.visibility_threshold
    xy = torch.where(seen[:, None], found.xy, result.xy)
    spread = torch.where(seen, found.spread, result.spread)
    return replace(result, xy=xy, spread=spread, native_strength=found.strength, native_spread=found.spread)


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
        refined.put(rows, to_frame(target, endpoint, start, strength, before.support[rows]))
    return refined


def next_plan(observed: ObservedPair, xy: Float[Tensor, "n 2"], ends: Float[Tensor, "n 2"], index: int) -> MaskPlan:
    """Masks that hide the neighborhood of each query's endpoint."""
    config, world = observed.config, observed.world
    around = neighborhood(ends, world.size, world.patch).cpu()
    if config.reevaluation == "joint":
        return joint_plan(around, config.masks, config.reveal, *observed.identity, "pass", index)
    keys = [(*observed.identity, *point, "pass", index) for point in xy.tolist()]
    return per_query_plan(
        [
            hide(random_masks(config.masks, observed.patches, *key), near, config.reveal, *key)
            for key, near in zip(keys, around, strict=True)
        ]
    )


def to_frame(
    crop: Crop, endpoint: Float[Tensor, "n 2"], start: Distribution, strength: Tensor, support: Tensor
) -> PairResult:
    """Endpoints and spread in the frame's pixels."""
    scale = (crop.width * crop.height) ** 0.5 / crop.size
    result = PairResult.empty(crop.to_frame(endpoint))
    return replace(result, strength=strength, support=support, spread=start.moments()[1] * scale)
