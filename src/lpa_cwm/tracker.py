"""The method: candidates from masks, adjudicated, decoded to an endpoint, re-evaluated around it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import Distribution, distribution, windowed_sequence
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import Crop, inside
from lpa_cwm.masks import MaskPlan, hide, joint_plan, neighborhood, per_query_plan, random_masks
from lpa_cwm.probe import ObservedPair, PreparedFrame, Probe, first_pass, observe_pair, prepare
from lpa_cwm.progress import progress
from lpa_cwm.protocols import Adjudicator, WorldModel
from lpa_cwm.sampling import crop_resize
from lpa_cwm.types import Candidates, Clip, Grid, Judgement, Queries, Tracks


@dataclass(frozen=True, slots=True)
class PairResult:
    """Where the queries of one frame pair went, in pixels of the frame, and how sure that is."""

    xy: Float[Tensor, "n 2"]
    strength: Float[Tensor, "n"]
    support: Float[Tensor, "n"]
    spread: Float[Tensor, "n"]

    @classmethod
    def empty(cls, xy: Float[Tensor, "n 2"]) -> "PairResult":
        return cls(xy.clone(), *(torch.full_like(xy[:, 0], torch.nan) for _ in range(3)))

    def put(self, rows: Int[Tensor, "b"], other: "PairResult") -> None:
        """Overwrite some rows."""
        for name in ("xy", "strength", "support", "spread"):
            getattr(self, name)[rows] = getattr(other, name)


@dataclass
class CwmTracker:
    """Tracks points with one adjudicator; every target frame is reached directly from the query's frame."""

    world: WorldModel
    adjudicator: Adjudicator
    config: TrackerConfig
    device: str = "cpu"
    quiet: bool = True

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Tracks in the clip's own pixels; nothing is tracked before a query's frame."""
        adjudicators = {"only": self.adjudicator}
        tracked = track_many(
            self.world, adjudicators, clip, queries, config=self.config, device=self.device, quiet=self.quiet
        )
        return tracked["only"]

    def observe(self, clip: Clip, source: int, target: int) -> ObservedPair:
        """One frame pair of a clip, ready for `track_pair`."""
        identity = pair_identity(clip, source, target)
        return observe_pair(self.world, clip[source], clip[target], identity, self.config, self.device)

    def track_pair(self, observed: ObservedPair, xy: Float[Tensor, "n 2"]) -> PairResult:
        """The endpoints of points of the source in the target."""
        return track_pair(observed, {"only": self.adjudicator}, xy)["only"]


@torch.inference_mode()
def track_many(
    world: WorldModel,
    adjudicators: Mapping[str, Adjudicator],
    clip: Clip,
    queries: Queries | Grid,
    *,
    config: TrackerConfig | None = None,
    device: str = "cpu",
    quiet: bool = True,
    on_pair: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Tracks]:
    """Tracks by several adjudicators; candidates are computed once for all of them.

    `on_pair` is called before each frame pair with the number done and the number in all; it may raise to stop.
    """
    queries = validate_queries(clip, queries)
    config = config or world.defaults
    buffers = {name: TrackBuffer.begin(queries, len(clip)) for name in adjudicators}
    total = count_pairs(clip, queries)
    pairs = observed_pairs(world, clip, queries, config, device)
    for done, (observed, rows, target) in enumerate(progress(pairs, total, clip.name, quiet)):
        on_pair(done, total)
        results = track_pair(observed, adjudicators, queries.xy[rows].to(device))
        for name, result in results.items():
            buffers[name].put(rows, target, result)
    return {name: buffer.tracks(queries, config) for name, buffer in buffers.items()}


def observed_pairs(
    world: WorldModel, clip: Clip, queries: Queries, config: TrackerConfig, device: str
) -> Iterator[tuple[ObservedPair, Int[Tensor, "k"], int]]:
    """Each frame with queries against each later frame; a source is prepared once."""
    for start in queries.frame.unique().tolist():
        source = prepare(world, clip[start], device)
        rows = (queries.frame == start).nonzero()[:, 0]
        for target in range(start + 1, len(clip)):
            identity = pair_identity(clip, start, target)
            yield ObservedPair(world, source, prepare(world, clip[target], device), identity, config), rows, target


def pair_identity(clip: Clip, source: int, target: int) -> tuple[str, str, int, int]:
    """What fixes the masks of a frame pair."""
    return "clip", clip.name, source, target


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
    strength = judgement.visibility * (judgement.weights * candidates.strength).sum(1)
    start = distribution(candidates.response.aggregate(judgement.weights), observed.config)
    *_, last = windowed_sequence(start, observed.config.windows)
    endpoint = last.decode(observed.config.subpixel)
    return to_frame(observed.crop, endpoint, start, strength, judgement.support)


def reevaluate(observed: ObservedPair, xy: Float[Tensor, "n 2"], result: PairResult, index: int) -> PairResult:
    """Pass `index`: fresh masks around the endpoints, in the whole frame or, later, in ever smaller crops."""
    config, hw = observed.config, observed.source.hw
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
    return PairResult(crop.to_frame(endpoint), strength, support, start.moments()[1] * scale)


@dataclass(frozen=True, slots=True)
class TrackBuffer:
    """Tracks that are being filled frame by frame."""

    xy: Float[Tensor, "n t 2"]
    extras: dict[str, Float[Tensor, "n t"]]

    @classmethod
    def begin(cls, queries: Queries, frames: int) -> "TrackBuffer":
        """NaN everywhere but at the queries."""
        n = len(queries)
        xy = torch.full((n, frames, 2), torch.nan)
        xy[torch.arange(n), queries.frame] = queries.xy
        return cls(xy, {name: torch.full((n, frames), torch.nan) for name in ("strength", "support", "spread")})

    def put(self, rows: Int[Tensor, "k"], target: int, result: PairResult) -> None:
        """Where some queries are in a frame."""
        self.xy[rows, target] = result.xy.cpu()
        for name, values in self.extras.items():
            values[rows, target] = getattr(result, name).cpu()

    def tracks(self, queries: Queries, config: TrackerConfig) -> Tracks:
        """The finished tracks; a query is visible in its own frame."""
        visible = self.extras["strength"] >= config.visibility_threshold
        visible[torch.arange(len(queries)), queries.frame] = True
        return Tracks(self.xy, visible, **self.extras)


def validate_queries(clip: Clip, queries: Queries | Grid) -> Queries:
    """Queries that can be tracked; anything else is refused with a sentence."""
    if len(clip) < 2:
        raise InputError(f"The clip {clip.name} has {len(clip)} frame(s); tracking needs at least two.")
    if isinstance(queries, Grid):
        queries = queries.on(clip.hw)
    if len(queries) == 0:
        raise InputError("There are no points to track; give at least one, for example 120,80@0.")
    height, width = clip.hw
    for (x, y), frame in zip(queries.xy.tolist(), queries.frame.tolist(), strict=True):
        if not 0 <= frame < len(clip):
            raise InputError(
                f"The point {x:g},{y:g}@{frame} is in frame {frame}, but {clip.name} has frames 0 to {len(clip) - 1}."
            )
        if not inside(torch.tensor([x, y]), (height, width)):
            raise InputError(
                f"The point {x:g},{y:g}@{frame} is not inside the frame of {clip.name}: "
                f"x must be in [0, {width}) and y in [0, {height})."
            )
    return queries


def count_pairs(clip: Clip, queries: Queries) -> int:
    """Frame pairs that tracking these queries needs."""
    return sum(len(clip) - 1 - start for start in queries.frame.unique().tolist())
