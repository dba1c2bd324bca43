"""The cost of a tracking job, estimated before it starts: predictions are counted, one frame pair is timed."""

import math
import sys
import time
from dataclasses import dataclass

from lpa_cwm.config import TrackerConfig
from lpa_cwm.masks import joint_group_size
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
    """On this machine, from the time of one pair."""
    peak_bytes: int
    """Memory of the process at its peak, while one pair was tracked."""

    def text(self) -> str:
        """A few lines for people."""
        lines = [f"{self.points} points, {self.frames} frames: {self.targets} results from {self.pairs} frame pairs"]
        if self.factual is not None:
            counts = f"{self.factual} factual and {self.counterfactual} counterfactual"
            lines.append(f"predictor passes: about {counts}")
        lines.append(f"about {self.seconds:.0f} s on this machine and {self.peak_bytes / 2**30:.1f} GB of memory")
        return "\n".join(lines)


def estimate_cost(tracker: Tracker, clip: Clip, queries: Queries) -> Cost:
    """Count the predictions of a job, and time its first frame pair."""
    pairs = count_pairs(clip, queries)
    direct = max(1, pairs)
    frames = queries.frame.tolist()
    groups = [(frames.count(start), len(clip) - 1 - start) for start in sorted(set(frames))]
    targets = sum(count * later for count, later in groups)
    factual = counterfactual = None
    if isinstance(tracker, CwmTracker):
        config, patches = tracker.config, (tracker.world.size // tracker.world.patch) ** 2
        factual = sum(later * factual_masks(count, config, patches) for count, later in groups)
        counterfactual = targets * (config.masks + config.passes * masks_per_pass(config))
        pairs = count_pairs(clip, queries, config.gaps)
        factual += (pairs - direct) * config.gap_masks
        counterfactual += targets * config.gap_masks * (pairs - direct) // direct
    seconds = time_pair(tracker, clip, queries) * targets * pairs / direct if targets else 0.0
    return Cost(len(queries), len(clip), pairs, targets, factual, counterfactual, seconds, peak_memory())


def time_pair(tracker: Tracker, clip: Clip, queries: Queries) -> float:
    """Seconds per query of one frame pair, with the queries of the earliest frame that has any."""
    start = int(queries.frame.min())
    other = min(start + 1, len(clip) - 1)
    rows = queries.frame == start
    pair = Clip([clip[start], clip[other]], clip.name, clip.fps)
    here = Queries(queries.xy[rows], queries.frame[rows] * 0)
    seconds = math.inf
    # The first run loads kernels and pages.
    for _ in range(2):
        begin = time.perf_counter()
        tracker.track(pair, here)
        seconds = time.perf_counter() - begin
        if seconds > SLOW:
            break
    return seconds / len(here)


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
    return config.gap_masks * (2 if config.gaps else 1)


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
