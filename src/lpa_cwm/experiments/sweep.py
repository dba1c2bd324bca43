"""Mask count against re-evaluation depth: final end-point error and time per query on the same queries and masks."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from lpa_cwm.tracker import CwmTracker, ShotPair
from lpa_cwm.training.groups import Correspondence, Correspondences

MASKS, PASSES = (5, 10, 20), (0, 1, 2)


@dataclass(frozen=True)
class Cell:
    """One setting."""

    masks: int
    passes: int
    error: float
    """Mean final end-point error in pixels."""
    seconds: float
    """Median time of one query, alone in its batch, frames and models in memory."""
    queries: int


def sweep(tracker: CwmTracker, source: Correspondences) -> Iterator[Cell]:
    """All settings; smaller mask sets are prefixes of larger ones."""
    pairs = [correspondence for video in range(len(source.videos)) for correspondence in source.of(video)]
    for masks in MASKS:
        for passes in PASSES:
            setting = replace(tracker, method=replace(tracker.method, masks=masks, passes=passes))
            errors, times = zip(*(measured for pair in pairs for measured in measure(setting, pair)), strict=True)
            middle = sorted(times)[len(times) // 2]
            yield Cell(masks, passes, sum(errors) / len(errors), middle, len(errors))


@torch.inference_mode()
def measure(tracker: CwmTracker, correspondence: Correspondence) -> Iterator[tuple[float, float]]:
    """Error and seconds of each query."""
    shots = tracker.shoot(correspondence.source), tracker.shoot(correspondence.target)
    pair = ShotPair(*shots, ("clip", *correspondence.identity))
    for xy, end in zip(correspondence.xy.to(tracker.device), correspondence.end, strict=True):
        wait(tracker.device)
        start = time.perf_counter()
        answer = tracker.follow(pair, xy[None])
        wait(tracker.device)
        seconds = time.perf_counter() - start
        yield (answer.xy[0].cpu() - end).norm().item(), seconds


def wait(device: str) -> None:
    """Let a GPU finish, so that the clock measures work and not its queue."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
