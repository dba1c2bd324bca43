"""Mask count against re-evaluation depth: final end-point error and time per query on the same queries and masks."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

import torch

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import rescale
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.probe import observe_pair
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.pair_sampling import Correspondence, Correspondences

MASKS, PASSES = (5, 10, 20), (0, 1, 2)
FILE = "sweep.json"
"""The measured cells in a sweep's folder."""


@dataclass(frozen=True)
class Cell:
    """One setting."""

    masks: int
    passes: int
    error: float
    """Mean final end-point error in pixels of the 256 x 256 raster."""
    seconds: float
    """Median time of one query, alone in its batch, frames and models in memory."""
    queries: int
    by_video: list[float]
    """Mean error of the queries of each video."""


def sweep(tracker: CwmTracker, source: Correspondences, folder: Path | None = None) -> Iterator[Cell]:
    """All settings, smaller mask sets being prefixes of larger ones; those in the folder are not measured again."""
    done = {(cell.masks, cell.passes): cell for cell in measured(folder)} if folder else {}
    videos = [list(source.of(video)) for video in range(len(source.videos))]
    if not any(videos):
        raise InputError("Nothing moves between the frames that were drawn; sweep videos with motion, or wider gaps.")
    for masks in MASKS:
        for passes in PASSES:
            if (masks, passes) not in done:
                setting = replace(tracker, config=replace(tracker.config, masks=masks, passes=passes))
                done[masks, passes] = measure(setting, [pairs for pairs in videos if pairs])
                if folder:
                    keep(list(done.values()), folder)
            yield done[masks, passes]


def measured(folder: Path) -> list[Cell]:
    """The cells that a folder holds."""
    path = folder / FILE
    try:
        return [Cell(**cell) for cell in json.loads(path.read_text())] if path.exists() else []
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} does not hold the cells of a sweep; remove it and run `lpa-cwm eval sweep` again."
        ) from error


def keep(cells: list[Cell], folder: Path) -> None:
    """Write all cells, so that a stopped sweep goes on after the last one."""
    with atomic_write(folder / FILE) as aside:
        aside.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


def measure(tracker: CwmTracker, videos: list[list[Correspondence]]) -> Cell:
    """One setting on all queries."""
    found = [[one for pair in pairs for one in answered(tracker, pair)] for pairs in videos]
    errors, times = zip(*(one for video in found for one in video), strict=True)
    by_video = [fmean(error for error, _ in video) for video in found]
    return Cell(tracker.config.masks, tracker.config.passes, fmean(errors), median(times), len(errors), by_video)


@torch.inference_mode()
def answered(tracker: CwmTracker, correspondence: Correspondence) -> Iterator[tuple[float, float]]:
    """Error and seconds of each query."""
    for xy, end in zip(correspondence.xy.to(tracker.device), correspondence.end, strict=True):
        wait(tracker.device)
        start = time.perf_counter()
        frames, identity = (correspondence.source, correspondence.target), ("clip", *correspondence.identity)
        observed = observe_pair(tracker.world, *frames, identity, tracker.config, tracker.device)
        result = tracker.track_pair(observed, xy[None])
        wait(tracker.device)
        seconds = time.perf_counter() - start
        miss = rescale(result.xy[0].cpu() - end, observed.source.hw, (SIZE, SIZE))
        yield miss.norm().item(), seconds


def wait(device: str) -> None:
    """Let a GPU finish, so that the clock measures work and not its queue."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
