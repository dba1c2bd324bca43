"""Mask count against re-evaluation depth: final end-point error and time per query on the same queries and masks.

As in the paper, 40 queries of 10 held-out videos, each with nested mask sets: the masks of M = 5 are the first five of
M = 10 and M = 20.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from lpa_cwm import registry
from lpa_cwm.config import ADJUDICATOR, WORLD
from lpa_cwm.datasets.movif import MoviClips, entries_of
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files, pin_settings
from lpa_cwm.geometry import Crop, crop_resize, rescale
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.probe import ObservedPair, PreparedFrame
from lpa_cwm.report.results import SweepCell, read_cells, write_cells
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.pair_sampling import Correspondence, FlowPairSampler, PairSampler, TrackPairSampler

MASKS, PASSES = (5, 10, 20), (0, 1, 2)
PAIRS = 8
"""Frame pairs of a video in which enough moving queries are sought."""


def sweep(
    dataset: Path | str,
    out: Path | None = None,
    *,
    videos: int = 10,
    queries: int = 40,
    gaps: tuple[int, int] = (1, 1),
    adjudicator: str = ADJUDICATOR,
    world: str = WORLD,
    score_model: str = "compact",
    weights: Path | None = None,
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
) -> Iterator[SweepCell]:
    """Yield error and time for M in 5, 10, 20 and R in 0, 1, 2; cells that `out` holds are not measured again.

    The data set is TAP-Vid data or a folder of MOVi-F records, of which held-out videos are used.
    """
    per_video = -(-queries // videos)
    source = open_pairs(Path(dataset), per_video, gaps)
    tracker = registry.load_cwm(
        adjudicator, world, score_model=score_model, weights=weights, device=device, **(settings or {})
    )
    if out:
        score = score_model if adjudicator == "apa" else ""
        bundled = registry.fingerprint(world, score, "" if weights else adjudicator)
        names = {"dataset": Path(dataset).name, "adjudicator": adjudicator, "world": world, "score_model": score}
        counts = {"videos": videos, "queries": queries, "gaps": list(gaps), "settings": settings or {}}
        files = {"bundled_weights": bundled, "weights": registry.fingerprint_of([weights]) if weights else None}
        pin_settings(out / "settings.json", names | counts | files)
    chosen = choose_queries(source, videos, queries)
    found = sum(len(pair.xy) for pairs in chosen for pair in pairs)
    if (found, len(chosen)) != (queries, videos):
        asked = f"{queries} queries of {videos} videos were asked for"
        warnings.warn(f"{asked}; {found} of {len(chosen)} that move were found.", stacklevel=2)
    return sweep_pairs(tracker, chosen, out)


def open_pairs(path: Path, queries: int, gaps: tuple[int, int], pairs: int = PAIRS) -> PairSampler:
    """Frame pairs with known endpoints: tracks of annotated videos, or flow of held-out MOVi-F records."""
    if path.is_dir() and data_files(path, "*.tfrecord-*"):
        return FlowPairSampler(held_out_records(path), pairs, queries)
    dataset = load_dataset(path)
    return TrackPairSampler(dataset, dataset.names, pairs, queries, gaps)


def held_out_records(folder: Path) -> MoviClips:
    """All records of the official validation files; without such files the held-out part of the training files."""
    entries = [entry for path in data_files(folder, "*validation.tfrecord-*") for entry in entries_of(path)]
    return MoviClips(tuple(entries), "val") if entries else MoviClips.of(folder, "val")


def choose_queries(source: PairSampler, videos: int, queries: int) -> list[list[Correspondence]]:
    """An equal number of queries from each of the first videos in which enough points move.

    If fewer videos have enough, videos with fewer queries are taken too.
    """
    per_video = -(-queries // videos)
    chosen, few = [], []
    for number in range(len(source.videos)):
        pairs = list(_first_queries(source.pairs_of(number), per_video))
        found = sum(len(pair.xy) for pair in pairs)
        if pairs:
            (chosen if found == per_video else few).append(pairs)
        if len(chosen) == videos:
            break
    if not chosen and not few:
        raise InputError("Nothing moves between the frames that were drawn; sweep videos with motion, or wider gaps.")
    return list(_limit((chosen + few)[:videos], queries))


def _first_queries(pairs: Iterator[Correspondence], most: int) -> Iterator[Correspondence]:
    """Pairs cut to this number of queries in all."""
    for pair in pairs:
        if most <= 0:
            return
        yield replace(pair, xy=pair.xy[:most], end=pair.end[:most])
        most -= len(pair.xy)


def _limit(videos: Sequence[list[Correspondence]], most: int) -> Iterator[list[Correspondence]]:
    """Videos cut to this number of queries in all."""
    for pairs in videos:
        kept = list(_first_queries(iter(pairs), most))
        most -= sum(len(pair.xy) for pair in kept)
        if kept:
            yield kept


def sweep_pairs(
    tracker: CwmTracker, videos: Sequence[Sequence[Correspondence]], folder: Path | None = None
) -> Iterator[SweepCell]:
    """All settings of a tracker on the given queries."""
    done = {(cell.masks, cell.passes): cell for cell in read_cells(folder)} if folder else {}
    for masks in MASKS:
        for passes in PASSES:
            if (masks, passes) not in done:
                setting = replace(tracker, config=replace(tracker.config, masks=masks, passes=passes))
                done[masks, passes] = measure_cell(setting, videos)
                if folder:
                    write_cells(list(done.values()), folder)
            yield done[masks, passes]


def measure_cell(tracker: CwmTracker, videos: Sequence[Sequence[Correspondence]]) -> SweepCell:
    """One setting on all queries."""
    found = [[one for pair in pairs for one in errors_and_times(tracker, pair)] for pairs in videos]
    errors, times = zip(*(one for video in found for one in video), strict=True)
    by_video = [fmean(error for error, _ in video) for video in found]
    return SweepCell(tracker.config.masks, tracker.config.passes, fmean(errors), median(times), len(errors), by_video)


@torch.inference_mode()
def errors_and_times(tracker: CwmTracker, pair: Correspondence) -> Iterator[tuple[float, float]]:
    """End-point error and seconds of each query.

    The time includes describing (encoding) both frames, but not resizing them and moving them to the device.
    """
    world, identity = tracker.world, ("clip", *pair.identity)
    frames = pair.source, pair.target
    resized = [crop_resize(one, Crop.full((one.shape[-2], one.shape[-1]), world.size)) for one in frames]
    moved = [one.to(tracker.device) for one in resized]
    for xy, end in zip(pair.xy.to(tracker.device), pair.end, strict=True):
        synchronize(tracker.device)
        start = time.perf_counter()
        source, target = [
            PreparedFrame(frame, one, world.describe(one)) for frame, one in zip(frames, moved, strict=True)
        ]
        observed = ObservedPair(world, source, target, identity, tracker.config)
        result = tracker.track_pair(observed, xy[None])
        synchronize(tracker.device)
        seconds = time.perf_counter() - start
        miss = rescale(result.xy[0].cpu() - end, observed.source.hw, (SIZE, SIZE))
        yield miss.norm().item(), seconds


def synchronize(device: str) -> None:
    """Wait until a GPU has finished, so that the clock measures work and not its queue."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
