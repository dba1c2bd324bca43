"""Following a tab's points with all chosen methods, with progress, until the end or until told to stop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lpa_cwm.errors import InputError
from lpa_cwm.io.video import write
from lpa_cwm.page import models
from lpa_cwm.page.pictures import side_by_side
from lpa_cwm.page.session import Point, queries
from lpa_cwm.tracker import track_many
from lpa_cwm.types import Clip, Tracks


class Stopped(Exception):
    """Somebody pressed the button."""


@dataclass(frozen=True, slots=True)
class Files:
    """What can be downloaded: a table and an archive for each method, one video for all."""

    csv: dict[str, Path]
    npz: dict[str, Path]
    mp4: Path


def follow(
    clip: Clip,
    points: tuple[Point, ...],
    methods: Iterable[str],
    world: str,
    report: Callable[[int, int], None] = lambda done, total: None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Tracks]:
    """The points' tracks by each method, all asking one world model once; `report` hears the pairs begun and in all."""
    methods = list(methods)
    if not methods:
        raise InputError("No method is chosen; choose at least one.")
    if not points:
        raise InputError("There are no points to follow; click on the frame first.")

    def on_pair(done: int, total: int) -> None:
        if not may_go_on():
            raise Stopped
        report(done, total)

    adjudicators = {method: models.adjudicator(method) for method in methods}
    return track_many(models.world(world), adjudicators, clip, queries(points), on_pair=on_pair)


def written(clip: Clip, tracks: dict[str, Tracks], points: tuple[Point, ...], folder: Path) -> Files:
    """All downloads, in a folder."""
    csv = {method: folder / f"{clip.name}_{method}.csv" for method in tracks}
    npz = {method: path.with_suffix(".npz") for method, path in csv.items()}
    for method, found in tracks.items():
        found.save(csv[method])
        found.save(npz[method])
    files = Files(csv, npz, folder / f"{clip.name}_{'_'.join(tracks)}.mp4")
    shown = {models.TITLES[method]: found for method, found in tracks.items()}
    write(files.mp4, side_by_side(clip, shown, points), clip.fps)
    return files
