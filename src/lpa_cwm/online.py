"""Tracking through time: candidates from several source frames, adjudicated together, one target frame after another.

For a target frame t the candidates of a point come from its query frame (the direct path of the paper) and from the
frames t - g of the configured gaps in which the point has a visible estimate. All of them lie in frame t, so that one
adjudicator weighs them as one set and compares each with the appearance at the query. Without gaps this is the paper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.estimates import FrameEstimate, compare_appearance
from lpa_cwm.jobs import in_threads
from lpa_cwm.pair_tracking import (
    PairResult,
    PointsInFrame,
    crops_at_once,
    decode_candidates,
    endpoints_by_path,
    reevaluate,
)
from lpa_cwm.probe import ObservedPair, PreparedFrame, pair_candidates, prepare
from lpa_cwm.protocols import Adjudicator, WorldModel
from lpa_cwm.types import Candidates, Pair, Queries

Groups = dict[int, dict[tuple[int, ...], list[int]]]
"""Tracks by the frame of their last given position, and by all frames that candidates come from."""
SINGLE = "only"
"""Name of a single adjudicator."""


@dataclass
class OnlineTracker:
    """Tracks points with several adjudicators while frames arrive one at a time.

    Memory does not depend on the number of frames: only the frames that gaps reach back to, and those with given
    positions, are kept. Each frame is described once and each frame pair observed once for all points.

    Examples:
        >>> from lpa_cwm.registry import bundled_clip
        >>> clip = bundled_clip("toy")

        >>> from lpa_cwm import load
        >>> online = load("uniform", "toy", masks=2).online("toy")
        >>> _ = online.step(clip[0])
        >>> track = online.add(torch.tensor([60.0, 80.0]))
        >>> [estimate] = online.step(clip[1]).values()
        >>> estimate.visible
        tensor([True])
    """

    world: WorldModel
    """The world model."""
    adjudicators: Mapping[str, Adjudicator]
    """The adjudicators by name."""
    config: TrackerConfig
    """Settings."""
    device: str = "cpu"
    """Where to compute."""
    name: str = "stream"
    """Identity of the video; fixes the masks."""
    workers: int = 1
    """Threads that share the frame pairs and the points of a frame; more than one only without `on_candidates`."""
    time: int = 0
    """Number of the frame that comes next."""
    anchors: list[dict[int, Float[Tensor, "2"]]] = field(default_factory=list)
    """For each track its given positions by frame: the query, and corrections."""
    active: list[bool] = field(default_factory=list)
    """Whether each track is still tracked."""
    frames: dict[int, PreparedFrame] = field(default_factory=dict)
    """Frames that are still needed, by number."""
    history: dict[str, dict[int, FrameEstimate]] = field(default_factory=dict)
    """Estimates that are still needed, by adjudicator and frame."""
    last_visible: dict[str, dict[int, tuple[Float[Tensor, "2"], int]]] = field(default_factory=dict)
    """For each adjudicator and track the last visible position, and its frame."""
    on_candidates: Callable[[Int[Tensor, "k"], Pair, Candidates], None] | None = None
    """Called with tracks, their pair and their candidates before each adjudication; training records them."""

    def add(self, xy: Float[Tensor, "2"], frame: int | None = None, track: int | None = None) -> int:
        """Give a position, of a new track or of an existing one; by default in the newest frame. Returns the track.

        Args:
            xy: The position, in the frame's pixels.
            frame: Frame of the position; by default the newest one.
            track: Track that the position corrects; by default a new one.
        """
        frame = self.time - 1 if frame is None else frame
        if track is None or track == len(self.anchors):
            self.anchors.append({})
            self.active.append(True)
            track = len(self.anchors) - 1
        self.anchors[track][frame] = xy.float().cpu()
        if frame < self.time and frame not in self.frames:
            raise InputError(f"Frame {frame} is gone; positions can be given in the frames {sorted(self.frames)}.")
        return track

    def add_queries(self, queries: Queries) -> None:
        """Give all positions of some queries.

        Args:
            queries: The points; several positions of one track correct it.
        """
        for xy, frame, track in zip(queries.xy, queries.frame.tolist(), queries.tracks.tolist(), strict=True):
            self.add(xy, frame, track)

    def remove(self, track: int) -> None:
        """Stop tracking a point.

        Args:
            track: What `add` returned.
        """
        self.active[track] = False

    @torch.inference_mode()
    def step(self, frame: UInt8[Tensor, "3 h w"]) -> dict[str, FrameEstimate]:
        """Track all points into the next frame; estimates by adjudicator.

        Args:
            frame: The next frame.
        """
        self.frames[self.time] = prepare(self.world, frame, self.device)
        groups = {name: self._groups(name) for name in self.adjudicators}
        observed, direct = self._observe(groups), {}
        estimates = {name: self._estimate(name, groups[name], observed, direct) for name in self.adjudicators}
        for name, estimate in estimates.items():
            self._set_given(estimate)
            self._remember_visible(name, estimate)
            self.history.setdefault(name, {})[self.time] = estimate
        self._drop_old()
        self.time += 1
        return estimates

    def _groups(self, name: str) -> Groups:
        """The tracks of one adjudicator by the last given position's frame and by all sources of candidates."""
        groups: Groups = {}
        for track in range(len(self.anchors)):
            if found := self._sources(name, track):
                groups.setdefault(found[0], {}).setdefault(found[1], []).append(track)
        return groups

    def _estimate(
        self,
        name: str,
        groups: Groups,
        observed: Mapping[tuple[int, int], ObservedPair],
        direct: dict[tuple[int, ...], Candidates],
    ) -> FrameEstimate:
        """Estimates of one adjudicator in the newest frame."""
        estimate = FrameEstimate.empty(len(self.anchors))

        def candidates(source: int, some: Tensor) -> Candidates:
            return self._candidates(name, source, some, observed, direct)

        for reference, by_sources in groups.items():
            rows = torch.tensor(sorted(track for tracks in by_sources.values() for track in tracks))
            xy, pair = self._given(reference, rows), observed[reference, self.config.masks]
            result, others = self._first_pass(name, pair, xy, rows, by_sources, candidates)
            result = self._reevaluate(name, pair, xy, rows, result, others)
            result = compare_appearance(pair, xy, result)
            estimate.set_rows(rows, result, pair.target.hw, self.config)
            if self.config.gaps:
                self._hold_hidden(name, rows, estimate)
        return estimate

    def _first_pass(
        self,
        name: str,
        pair: ObservedPair,
        xy: Float[Tensor, "k 2"],
        rows: Int[Tensor, "k"],
        by_sources: Mapping[tuple[int, ...], list[int]],
        candidates: Callable[[int, Int[Tensor, "b"]], Candidates],
    ) -> tuple[PairResult, Float[Tensor, "k p 2"]]:
        """Endpoints of the points of one reference frame, and those by each path alone; NaN for missing paths.

        `candidates` are those of some tracks from one source frame.
        """
        result = PairResult.empty(xy)
        others = xy.new_full((len(xy), 1 + len(self.config.gaps), 2), torch.nan)
        batches = [
            (sources, some, torch.searchsorted(rows, some).to(xy.device))
            for sources, tracks in by_sources.items()
            for some in torch.tensor(tracks).split(self.config.batch)
        ]

        def judge(batch: tuple[tuple[int, ...], Tensor, Tensor]) -> tuple[PairResult, Tensor]:
            sources, some, place = batch
            parts = [candidates(source, some) for source in sources]
            return self._judge(name, pair, xy[place], some, Candidates.join(parts))

        for (_, _, place), (judged, by_path) in zip(batches, in_threads(judge, batches, self.workers), strict=True):
            result.set_rows(place, judged)
            kept = by_path[:, : others.shape[1]]
            others[place, : kept.shape[1]] = kept
        return result, others

    def _given(self, frame: int, tracks: Int[Tensor, "k"]) -> Float[Tensor, "k 2"]:
        """The positions of tracks that are given in a frame."""
        return torch.stack([self.anchors[track][frame] for track in tracks.tolist()]).to(self.device)

    def _sources(self, name: str, track: int) -> tuple[int, tuple[int, ...]] | None:
        """The last given position's frame, and all frames that candidates come from; None if there is none yet."""
        given = sorted(frame for frame in self.anchors[track] if frame < self.time)
        if not given or not self.active[track]:
            return None
        recent = (self.time - gap for gap in self.config.gaps)
        visible = [
            frame for frame in recent if frame > given[0] and frame not in given and self._visible(name, frame, track)
        ]
        return given[-1], (*given, *visible)

    def _last_visible(self, name: str, tracks: list[int]) -> tuple[Float[Tensor, "k 2"], Float[Tensor, "k"]]:
        """Where points were last visible or given, and in which frames."""
        known = []
        for track in tracks:
            given = max(frame for frame in self.anchors[track] if frame < self.time)
            seen = self.last_visible.get(name, {}).get(track)
            known.append(seen if seen and seen[1] > given else (self.anchors[track][given], given))
        return torch.stack([xy for xy, _ in known]), torch.tensor([float(frame) for _, frame in known])

    def _hold_hidden(self, name: str, rows: Int[Tensor, "k"], estimate: FrameEstimate) -> None:
        """A hidden point stays at its last visible position, because its candidates are unreliable."""
        hidden = rows[~estimate.visible[rows]]
        if len(hidden):
            estimate.xy[hidden] = self._last_visible(name, hidden.tolist())[0]

    def _visible(self, name: str, frame: int, track: int) -> bool:
        known = self.history.get(name, {}).get(frame)
        return known is not None and track < len(known.visible) and bool(known.visible[track])

    def _observe(self, groups: Mapping[str, Groups]) -> dict[tuple[int, int], ObservedPair]:
        """The pairs of the newest frame and all source frames, by source and number of masks."""
        counts: dict[int, set[int]] = {}
        asked: dict[int, list[Tensor]] = {}
        for name, source, tracks in (
            (name, source, tracks)
            for name, of_name in groups.items()
            for by_sources in of_name.values()
            for sources, tracks in by_sources.items()
            for source in sources
        ):
            given = [track for track in tracks if source in self.anchors[track]]
            if given:
                counts.setdefault(source, set()).add(self.config.masks)
                asked.setdefault(source, []).append(self._given(source, torch.tensor(given)))
            if len(given) < len(tracks):
                counts.setdefault(source, set()).add(self.config.gap_masks)
                asked.setdefault(source, []).append(self.history[name][source].xy[tracks].to(self.device))

        def observe(source: int) -> dict[tuple[int, int], ObservedPair]:
            many, *fewer = sorted(counts[source], reverse=True)
            frames = self.frames[source], self.frames[self.time]
            pair = ObservedPair(
                self.world,
                *frames,
                ("clip", self.name, source, self.time),
                replace(self.config, masks=many),
                torch.cat(asked[source]) if self.config.first_masks_only else None,
            )
            _ = pair.scene
            found = {(source, many): pair, **{(source, masks): pair.with_masks(masks) for masks in fewer}}
            if self.config.mask_sharing == "pair":
                for one in found.values():
                    _ = one.factual
            return found

        observed = {}
        for found in in_threads(observe, list(counts), self.workers):
            observed.update(found)
        return observed

    def _candidates(
        self,
        name: str,
        source: int,
        rows: Int[Tensor, "k"],
        observed: Mapping[tuple[int, int], ObservedPair],
        direct: dict[tuple[int, ...], Candidates],
    ) -> Candidates:
        """Candidates of some tracks from one source frame; those from given positions serve all adjudicators."""
        tracks = rows.tolist()
        if all(source in self.anchors[track] for track in tracks):
            key = (source, *tracks)
            if key not in direct:
                found = pair_candidates(observed[source, self.config.masks], self._given(source, rows))
                direct[key] = found.by_path(self.time - source)
            return direct[key]
        before = self.history[name][source]
        reliability = before.strength[rows] / self.config.visibility_threshold
        known = torch.cat((before.xy[rows], reliability[:, None]), dim=1).to(self.device)
        found = pair_candidates(observed[source, self.config.gap_masks], known[:, :2])
        return found.by_path(self.time - source, known[:, 2])

    def _judge(
        self,
        name: str,
        observed: ObservedPair,
        xy: Float[Tensor, "k 2"],
        tracks: Int[Tensor, "k"],
        candidates: Candidates,
    ) -> tuple[PairResult, Float[Tensor, "k p 2"]]:
        """Adjudicate and decode one candidate set per point, as a whole and by path.

        `observed` is the pair whose source shows the points.
        """
        source, target = observed.source, observed.target
        pair = Pair(source.resized, target.resized, observed.crop.to_crop(xy), source.derived)
        if self.config.gaps:
            last_xy, since = self._last_visible(name, tracks.tolist())
            known = torch.cat((last_xy, self.time - since[:, None]), dim=1).to(self.device)
            candidates = replace(candidates, last_xy=observed.crop.to_crop(known[:, :2]), age=known[:, 2])
        if self.on_candidates is not None:
            self.on_candidates(tracks, pair, candidates)
        judgement = self.adjudicators[name](pair, candidates)
        native = self.config.passes and self.config.reevaluation == "native"
        by_path = endpoints_by_path(observed, candidates, judgement) if native else xy.new_empty(len(xy), 0, 2)
        return decode_candidates(observed, candidates, judgement), by_path

    def _reevaluate(
        self,
        name: str,
        pair: ObservedPair,
        xy: Float[Tensor, "k 2"],
        rows: Int[Tensor, "k"],
        result: PairResult,
        others: Float[Tensor, "k p 2"],
    ) -> PairResult:
        """All further passes; at native resolution some points at a time."""
        for index in range(1, self.config.passes + 1):
            if self.config.reevaluation != "native":
                result = reevaluate(pair, xy, result, index)
                continue
            before = result
            batches = self._native_batches(name, rows)

            def refine(
                batch: tuple[Tensor, PointsInFrame | None], before: PairResult = before, index: int = index
            ) -> PairResult:
                some, recent = batch
                return reevaluate(pair, xy[some], before.rows(some), index, recent, others[some])

            result = PairResult.empty(xy)
            for (some, _), refined in zip(batches, in_threads(refine, batches, self.workers), strict=True):
                result.set_rows(some, refined)
        return result

    def _native_batches(self, name: str, rows: Int[Tensor, "k"]) -> list[tuple[Int[Tensor, "b"], PointsInFrame | None]]:
        """Numbers of rows, and the nearest earlier frame if these points were visible there: a second source."""
        frame = self.time - min(self.config.gaps, default=0)
        seen = torch.tensor([self._visible(name, frame, track) for track in rows.tolist()])
        batches: list[tuple[Tensor, PointsInFrame | None]] = []
        at_once = crops_at_once(torch.device(self.device), self.config)
        for some in seen.nonzero()[:, 0].split(at_once):
            if len(some):
                xy = self.history[name][frame].xy[rows[some]].to(self.device)
                batches.append((some.to(self.device), PointsInFrame(self.frames[frame], xy)))
        others = (~seen).nonzero()[:, 0].split(at_once)
        return batches + [(some.to(self.device), None) for some in others if len(some)]

    def _set_given(self, estimate: FrameEstimate) -> None:
        """Positions that are given in the newest frame are visible and exact."""
        for track, given in enumerate(self.anchors):
            if self.time in given:
                estimate.xy[track] = given[self.time]
                estimate.visible[track] = True
                for values in (estimate.strength, estimate.support, estimate.spread):
                    values[track] = torch.nan
                estimate.confidence[track] = torch.nan if self.config.calibration is None else 1.0

    def _remember_visible(self, name: str, estimate: FrameEstimate) -> None:
        """Remember where each track was last visible."""
        last = self.last_visible.setdefault(name, {})
        for track in estimate.visible.nonzero()[:, 0].tolist():
            last[track] = estimate.xy[track], self.time

    def _drop_old(self) -> None:
        """Keep the frames and estimates that a later frame can need."""
        oldest = self.time + 1 - max(self.config.gaps, default=0)
        given = {frame for track, anchors in enumerate(self.anchors) if self.active[track] for frame in anchors}
        self.frames = {
            frame: kept
            for frame, kept in self.frames.items()
            if frame >= oldest or frame in given or frame == self.time
        }
        for known in self.history.values():
            for frame in [frame for frame in known if frame < oldest]:
                del known[frame]
