"""The cost of a tracking job, estimated before it starts: predictions are counted, the first frames are timed."""

import math
import sys
import time
from dataclasses import dataclass

from lpa_cwm.config import TrackerConfig
from lpa_cwm.masks import joint_group_size
from lpa_cwm.pair_tracking import NATIVE_MASKS
from lpa_cwm.protocols import Tracker
from lpa_cwm.tracker import CwmTracker, count_pairs
from lpa_cwm.types import Clip, Queries


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job takes."""

    points: int
    frames: int
    pairs: int
    """Frame pairs."""
    targets: int
    """(query, target) results."""
    factual: int | None
    """Predictions shared by queries; None for baselines."""
    counterfactual: int | None
    """Predictions with a perturbed source; None for baselines."""
    seconds: float
    """On this machine, from the time of the first frames."""
    peak_bytes: int
    """Memory of the process at its peak, while the first frames were tracked."""

    def text(self) -> str:
        """A few lines for people."""
        points = "1 point" if self.points == 1 else f"{self.points} points"
        lines = [f"{points}, {self.frames} frames: {self.targets} results from {self.pairs} frame pairs"]
        if self.factual is not None:
            counts = f"{self.factual} factual and {self.counterfactual} counterfactual"
            lines.append(f"predictor passes: about {counts}")
        time = f"about {self.seconds:.0f} s" if self.seconds >= 1 else "less than a second"
        lines.append(f"{time} on this machine and {self.peak_bytes / 2**30:.1f} GB of memory")
        return "\n".join(lines)


def estimate_cost(tracker: Tracker, clip: Clip, queries: Queries) -> Cost:
    """Count the predictions of a job, and time its first frames."""
    pairs = count_pairs(clip, queries)
    direct = max(1, pairs)
    frames = queries.frame.tolist()
    groups = [(frames.count(start), len(clip) - 1 - start) for start in sorted(set(frames))]
    targets = sum(count * later for count, later in groups)
    factual = counterfactual = None
    gaps: tuple[int, ...] = ()
    if isinstance(tracker, CwmTracker):
        config, patches = tracker.config, (tracker.world.size // tracker.world.patch) ** 2
        factual = sum(later * factual_masks(count, config, patches) for count, later in groups)
        counterfactual = targets * (config.masks + config.passes * masks_per_pass(config))
        gaps = config.gaps
        pairs = count_pairs(clip, queries, gaps)
        factual += (pairs - direct) * config.gap_masks
        counterfactual += targets * config.gap_masks * (pairs - direct) // direct
    first, further = time_sources(tracker, clip, queries, bool(gaps)) if targets else (0.0, 0.0)
    seconds = targets * (first + further * (pairs - direct) / direct)
    return Cost(len(queries), len(clip), pairs, targets, factual, counterfactual, seconds, peak_memory())


def time_sources(tracker: Tracker, clip: Clip, queries: Queries, gaps: bool) -> tuple[float, float]:
    """Seconds per query and target: with one source frame, and for each further source frame.

    The queries of the earliest frame are tracked through two frames, which have one source. With gaps they are also
    tracked through three: the third frame has two sources, the query's frame and the one before.
    """
    start = int(queries.frame.min())
    rows = queries.frame == start
    here = Queries(queries.xy[rows], queries.frame[rows] * 0)
    frames = [clip[min(start + later, len(clip) - 1)] for later in range(3)]
    # The first run loads kernels and pages.
    first = time_tracking(tracker, Clip(frames[:2], clip.name, clip.fps), here)
    if first <= SLOW:
        first = time_tracking(tracker, Clip(frames[:2], clip.name, clip.fps), here)
    further = 0.0
    if gaps:
        both = time_tracking(tracker, Clip(frames, clip.name, clip.fps), here)
        further = max(0.0, both - 2 * first)
    return first / len(here), further / len(here)


def time_tracking(tracker: Tracker, clip: Clip, queries: Queries) -> float:
    """Seconds that a clip takes."""
    begin = time.perf_counter()
    tracker.track(clip, queries)
    return time.perf_counter() - begin


SLOW = 5.0
"""Seconds after which a second measurement is not worth its time."""


def peak_memory() -> int:
    """Bytes of memory that this process has taken at most; on a GPU, the GPU's."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return 0
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def masks_per_pass(config: TrackerConfig) -> int:
    """Masks of one query in one re-evaluation; native crops come from the query frame and from a recent one."""
    if config.reevaluation != "native":
        return config.masks
    return NATIVE_MASKS * (2 if config.gaps else 1)


def factual_masks(queries: int, config: TrackerConfig, patches: int) -> int:
    """Masks imagined for one frame pair in the first pass and all re-evaluations."""
    first = config.masks * (queries if config.mask_sharing == "query" else 1)
    if config.passes == 0:
        return first
    if config.reevaluation == "native":
        return first + config.passes * queries * masks_per_pass(config)
    joint = math.ceil(queries / joint_group_size(patches)) * config.masks
    again = joint if config.reevaluation == "joint" else queries * config.masks
    return first + again + (config.passes - 1) * queries * config.masks
