"""Following a tab's points with all chosen methods, with progress, until the end or until told to stop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.data.video import write
from lpa_cwm.demo import models
from lpa_cwm.demo.pictures import side_by_side
from lpa_cwm.demo.session import Point, queries
from lpa_cwm.errors import InputError
from lpa_cwm.tracker import checked, count_pairs, track_together
from lpa_cwm.types import Clip, Tracks
from lpa_cwm.world.remember import Remembering
from lpa_cwm.world.wrapped import Wrapped


class Stopped(Exception):
    """Somebody pressed the button."""


@dataclass(frozen=True)
class Watched(Wrapped):
    """A world model that says when it is asked about the next frame pair, and stops when it may not go on."""

    next_pair: Callable[[], None]
    may_go_on: Callable[[], bool]

    def observe(self, source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"]) -> Any:
        """As the world does, after saying so."""
        self._check()
        self.next_pair()
        return self.world.observe(source, target)

    def imagine(self, scene: Any, hidden: Bool[Tensor, "m p"]) -> Any:
        """As the world does, if work may go on."""
        self._check()
        return self.world.imagine(scene, hidden)

    def _check(self) -> None:
        if not self.may_go_on():
            raise Stopped


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
    wanted = checked(clip, queries(points))
    pairs, begun = count_pairs(clip, wanted), count()
    watched = Watched(models.world(world), lambda: report(next(begun), pairs), may_go_on)
    asked = Remembering(watched)
    tracks = track_together([models.tracker(method, asked) for method in methods], clip, wanted)
    return dict(zip(methods, tracks, strict=True))


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
