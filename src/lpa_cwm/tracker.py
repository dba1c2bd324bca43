"""The method in one page: probe, adjudicate, localise, probe again around the endpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from lpa_cwm.config import PASSES, Method
from lpa_cwm.decode import aggregate, distribution, localise
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW, View, inside
from lpa_cwm.interfaces import Adjudicator, WorldModel
from lpa_cwm.keys import Part
from lpa_cwm.probe import Probe, effective, magnitude, shares
from lpa_cwm.progress import progress
from lpa_cwm.sampling import look
from lpa_cwm.settling import Settling
from lpa_cwm.types import Candidates, Clip, Grid, Pair, Queries, Tracks
from lpa_cwm.world.masks import Plan, hide, jointly, neighbourhood, pooled, random_masks, separate, shared


@dataclass(frozen=True, slots=True)
class Answer:
    """Where the queries of one frame pair went, in pixels of the frame, and how sure that is."""

    xy: Float[Tensor, "n 2"]
    strength: Float[Tensor, "n"]
    support: Float[Tensor, "n"]
    spread: Float[Tensor, "n"]

    @classmethod
    def empty(cls, xy: Float[Tensor, "n 2"]) -> "Answer":
        return cls(xy.clone(), *(torch.full_like(xy[:, 0], torch.nan) for _ in range(3)))

    def put(self, rows: Int[Tensor, "b"], other: "Answer") -> None:
        """Overwrite some rows."""
        for name in ("xy", "strength", "support", "spread"):
            getattr(self, name)[rows] = getattr(other, name)


@dataclass(frozen=True, slots=True)
class Shot:
    """A frame at its own size, and the whole of it at working size."""

    frame: UInt8[Tensor, "3 h w"]
    whole: Float[Tensor, "3 s s"]


@dataclass(frozen=True, slots=True)
class ShotPair:
    """Two frames, and the identity that fixes the randomness of everything asked of them."""

    source: Shot
    target: Shot
    identity: tuple[Part, ...]

    @property
    def hw(self) -> HW:
        return self.source.frame.shape[-2], self.source.frame.shape[-1]


@dataclass
class CwmTracker:
    """Follows points by asking a world model; every target is asked directly from the query's own frame."""

    world: WorldModel
    adjudicator: Adjudicator
    method: Method = field(default_factory=Method)
    device: str = "cpu"
    quiet: bool = True

    @property
    def passes(self) -> int:
        """Re-evaluations: as the numbers say, else as the world model would have it, else as in the paper."""
        return self.method.passes_or(getattr(self.world, "passes", PASSES))

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Tracks in the clip's own pixels; nothing is tracked before a query's frame."""
        (tracks,) = track_together([self], clip, queries)
        return tracks

    def pairs(self, clip: Clip, queries: Queries) -> Iterator[tuple[ShotPair, Int[Tensor, "k"], int]]:
        """Each frame with queries against each later frame; a source is read and resized once."""
        for start in queries.frame.unique().tolist():
            source = self.shoot(clip[start])
            rows = (queries.frame == start).nonzero()[:, 0]
            for target in range(start + 1, len(clip)):
                yield ShotPair(source, self.shoot(clip[target]), ("clip", clip.name, start, target)), rows, target

    def shoot(self, frame: UInt8[Tensor, "3 h w"]) -> Shot:
        hw = frame.shape[-2], frame.shape[-1]
        return Shot(frame, look(frame, View.full(hw, self.world.size)).to(self.device))

    def follow(self, pair: ShotPair, xy: Float[Tensor, "n 2"]) -> Answer:
        """All queries of one frame pair."""
        full = View.full(pair.hw, self.world.size)
        scene = self.world.observe(pair.source.whole, pair.target.whole)
        answer = self.first(pair, scene, xy)
        for index in range(1, self.passes + 1):
            side = int(min(pair.hw) * self.method.zoom ** (index - 1))
            if index == 1 and (self.method.reevaluation != "query" or pair.hw == (side, side)):
                answer = self.again(pair, scene, (full, full), xy, answer, index)
            else:
                self.closer(pair, xy, answer, side, index)
        return answer

    def first(self, pair: ShotPair, scene: object, xy: Float[Tensor, "n 2"]) -> Answer:
        """Candidates through random masks, adjudicated and localised."""
        full = View.full(pair.hw, self.world.size)
        points = full.enter(xy)
        answer = Answer.empty(xy)
        for rows, candidates, belief in self.judged(pair, scene, xy, points):
            weights = shares(belief)
            response = aggregate(candidates.response, weights)
            strength = (belief * magnitude(candidates.response).amax((-2, -1))).sum(1)
            peak = localise(response, self.method)
            answer.put(rows, self.read(response, strength, effective(weights), full, peak))
        return answer

    def judged(
        self, pair: ShotPair, scene: object, xy: Float[Tensor, "n 2"], points: Float[Tensor, "n 2"]
    ) -> Iterator[tuple[Int[Tensor, "b"], Candidates, Float[Tensor, "b m"]]]:
        """Candidates of the queries and the belief in them: from all masks, or as many as it takes to settle."""

        def believe(rows: Int[Tensor, "b"], candidates: Candidates) -> Float[Tensor, "b m"]:
            return self.adjudicator(Pair(pair.source.whole, pair.target.whole, points[rows]), candidates)

        plan = self.first_plan(pair, xy)
        if self.method.adaptive:
            asked = self.world, scene, plan.hidden, points, self.method.batch, self.method.adaptive
            yield from Settling(*asked).candidates(believe)
            return
        for rows, candidates in Probe(self.world, scene, plan, points, self.method.batch).candidates():
            yield rows, candidates, believe(rows, candidates)

    def again(
        self, pair: ShotPair, scene: object, views: tuple[View, View], xy: Tensor, answer: Answer, index: int
    ) -> Answer:
        """Fresh masks around the endpoints, uniform weights, no window."""
        source, target = views
        plan = self.next_plan(pair, xy, target.enter(answer.xy), index)
        refined = Answer.empty(xy)
        probe = Probe(self.world, scene, plan, source.enter(xy), self.method.batch)
        for rows, response, strength in probe.averages():
            peak = distribution(response, self.method).endpoint(self.method)
            refined.put(rows, self.read(response, strength, answer.support[rows], target, peak))
        return refined

    def closer(self, pair: ShotPair, xy: Float[Tensor, "n 2"], answer: Answer, side: int, index: int) -> None:
        """One query at a time through crops around the query and around its endpoint; updates the answer."""
        for row in torch.arange(len(xy)).split(1):
            source = View.around(xy[row][0], side, pair.hw, self.world.size)
            target = View.around(answer.xy[row][0], side, pair.hw, self.world.size)
            scene = self.world.observe(self.show(pair.source, source), self.show(pair.target, target))
            one = Answer.empty(answer.xy[row])
            one.support[:] = answer.support[row]
            answer.put(row, self.again(pair, scene, (source, target), xy[row], one, index))

    def first_plan(self, pair: ShotPair, xy: Float[Tensor, "n 2"]) -> Plan:
        """Random masks, shared by the pair's queries or drawn for each."""
        draw = self.method.masks, self.patches
        if self.method.mask_sharing == "pair":
            return shared(random_masks(*draw, *pair.identity, "pass", 0), len(xy))
        return separate([random_masks(*draw, *pair.identity, *point, "pass", 0) for point in xy.tolist()])

    def next_plan(self, pair: ShotPair, xy: Float[Tensor, "n 2"], ends: Float[Tensor, "n 2"], index: int) -> Plan:
        """Masks that hide the neighbourhood of each query's endpoint."""
        around = neighbourhood(ends, self.world.size, self.world.patch).cpu()
        draw = self.method.masks, self.patches
        identity = (*pair.identity, "pass", index)
        if self.method.reevaluation == "pool":
            return pooled(around, self.method.masks, *identity)
        if self.method.reevaluation == "joint":
            return jointly(around, self.method.masks, self.method.reveal, *identity)
        own = [(*pair.identity, *point, "pass", index) for point in xy.tolist()]
        return separate(
            [
                hide(random_masks(*draw, *key), near, self.method.reveal, *key)
                for key, near in zip(own, around, strict=True)
            ]
        )

    def read(self, response: Tensor, strength: Tensor, support: Tensor, view: View, peak: Tensor) -> Answer:
        """A decoded response in the frame's pixels."""
        scale = (view.width * view.height) ** 0.5 / view.size
        spread = distribution(response, self.method).moments()[1]
        return Answer(view.leave(peak), strength, support, spread * scale)

    def show(self, shot: Shot, view: View) -> Float[Tensor, "3 s s"]:
        return look(shot.frame, view).to(self.device)

    @property
    def patches(self) -> int:
        return (self.world.size // self.world.patch) ** 2


@torch.inference_mode()
def track_together(trackers: Sequence[CwmTracker], clip: Clip, queries: Queries | Grid) -> list[Tracks]:
    """Tracks of several trackers, frame pair by frame pair, so that a world model that remembers is asked but once.

    All of them work at the size and on the device of the first one.
    """
    first, queries = trackers[0], checked(clip, queries)
    notes = [Notes.begin(queries, len(clip)) for _ in trackers]
    pairs = first.pairs(clip, queries)
    for pair, rows, target in progress(pairs, count_pairs(clip, queries), clip.name, first.quiet):
        for tracker, own in zip(trackers, notes, strict=True):
            own.put(rows, target, tracker.follow(pair, queries.xy[rows].to(tracker.device)))
    return [own.tracks(queries, tracker.method) for tracker, own in zip(trackers, notes, strict=True)]


@dataclass(frozen=True, slots=True)
class Notes:
    """Tracks in the making."""

    xy: Float[Tensor, "n t 2"]
    extras: dict[str, Float[Tensor, "n t"]]

    @classmethod
    def begin(cls, queries: Queries, frames: int) -> "Notes":
        """Nothing but the queries themselves."""
        n = len(queries)
        xy = torch.full((n, frames, 2), torch.nan)
        xy[torch.arange(n), queries.frame] = queries.xy
        return cls(xy, {name: torch.full((n, frames), torch.nan) for name in ("strength", "support", "spread")})

    def put(self, rows: Int[Tensor, "k"], target: int, answer: Answer) -> None:
        """Where some queries are in a frame."""
        self.xy[rows, target] = answer.xy.cpu()
        for name, values in self.extras.items():
            values[rows, target] = getattr(answer, name).cpu()

    def tracks(self, queries: Queries, method: Method) -> Tracks:
        """All of it; a query is visible in its own frame."""
        visible = self.extras["strength"] >= method.visible_from
        visible[torch.arange(len(queries)), queries.frame] = True
        return Tracks(self.xy, visible, **self.extras)


def checked(clip: Clip, queries: Queries | Grid) -> Queries:
    """Queries that can be tracked; anything else is refused with a sentence."""
    if len(clip) < 2:
        raise InputError(f"The clip {clip.name} has {len(clip)} frame(s); tracking needs at least two.")
    if isinstance(queries, Grid):
        queries = queries.on(clip.hw)
    if len(queries) == 0:
        raise InputError("There are no points to follow; give at least one, for example 120,80@0.")
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
    """Frame pairs that tracking these queries asks about."""
    return sum(len(clip) - 1 - start for start in queries.frame.unique().tolist())
