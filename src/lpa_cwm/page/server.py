"""The page's work without the page: tabs, their folders, clips and runs; models, loaded once."""

import hashlib
import hmac
import re
import secrets
import shutil
import socket
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Event, Lock
from typing import Any

from lpa_cwm import registry
from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError
from lpa_cwm.io.tracks import TrackSource, save_tracks
from lpa_cwm.io.video import read, write
from lpa_cwm.page.drawing import ObservedPairs, side_by_side
from lpa_cwm.page.guard import Limits, LockedFrames, accept_upload, first_frames, lock_clip, path_inside
from lpa_cwm.page.session import COLORS, ColorBy, Point, Results, Session, queries
from lpa_cwm.protocols import Adjudicator, Tracker, WorldModel
from lpa_cwm.registry import GALLERY, bundled_clip
from lpa_cwm.tracker import CwmTracker, OnFrame, track_clip, track_many
from lpa_cwm.types import Clip, Tracks

TAB = re.compile(r"[A-Za-z0-9_-]{1,64}")
TITLES = {"uniform": "Uniform", "apa": "APA", "lpa": "LPA"}


@lru_cache
def cached_world(name: str) -> WorldModel:
    """A world model that stays in memory."""
    return registry.load_world(name)


@lru_cache
def cached_adjudicator(name: str) -> Adjudicator:
    """An adjudicator that stays in memory."""
    return registry.load_adjudicator(name)


@lru_cache(maxsize=2)
def cached_baseline(name: str) -> Tracker:
    """A baseline that stays in memory."""
    return BASELINES[name].load()


def cwm_tracker(method: str, world: str, **settings: Any) -> CwmTracker:
    """A tracker from parts that are in memory."""
    return registry.load_cwm(cached_adjudicator(method), cached_world(world), **settings)


def runnable_adjudicators() -> list[str]:
    """Adjudicators whose weights are available."""
    return [name for name in ADJUDICATORS if name != "lpa" or registry.bundled_lpa().is_file()]


def runnable_baselines() -> list[str]:
    """Baselines that can run here."""
    return [name for name, baseline in BASELINES.items() if baseline.missing() is None]


def runnable_worlds() -> list[str]:
    """World models whose weights are available."""
    return [name for name, entry in registry.WORLDS.items() if entry.missing() is None]


def missing_models() -> list[str]:
    """One sentence per model that cannot run here, with what to do."""
    sentences = [entry.missing() for name, entry in registry.WORLDS.items() if name == "opt-cwm"]
    sentences += [BASELINES["raft"].missing()]
    if "lpa" not in runnable_adjudicators():
        sentences.append("LPA has no weights here: run `lpa-cwm train lpa`.")
    return [sentence for sentence in sentences if sentence]


def title_of(method: str) -> str:
    """The name of a method for people."""
    return TITLES.get(method, method)


class Stopped(Exception):
    """The user stopped the run."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the points are to be tracked."""

    methods: list[str]
    """Adjudicators and baselines."""
    world: str
    last: int
    """The last frame."""
    backward: bool = False
    """Whether to track also from each point to the first frame."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Downloads: CSV and NPZ per method, videos of all methods."""

    csv: dict[str, Path]
    npz: dict[str, Path]
    videos: dict[ColorBy, Path]
    """Videos by the coloring of the tracks."""


@dataclass(frozen=True)
class PageServer:
    """Serves all tabs; each has a folder for its upload, one for its results, and a flag that stops its run."""

    folder: Path
    limits: Limits = field(default_factory=Limits)
    stops: dict[str, Event] = field(default_factory=dict)
    uploaded: Counter[str] = field(default_factory=Counter)
    """Uploads per tab."""
    clips: OrderedDict[str, LockedFrames] = field(default_factory=OrderedDict)
    """The open clip of each tab, the oldest first."""
    pairs: ObservedPairs = field(default_factory=ObservedPairs)
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def results(self) -> Path:
        """The only folder whose files are served."""
        return self.folder / "results"

    @property
    def uploads(self) -> Path:
        """Folder of the uploaded videos."""
        return self.folder / "uploads"

    def folder_of(self, parent: Path, tab: str) -> Path:
        """A tab's folder; its name is a keyed hash, because the browser chooses the tab's name."""
        name = hmac.new(self.key, valid_tab(tab).encode(), hashlib.sha256).hexdigest()
        return path_inside(self.folder, parent / name)

    def open_bundled(self, world: str, tab: str) -> Session:
        """Open the bundled clip."""
        check_choice(world, runnable_worlds(), "world model")
        return self._opened(Session(lock_clip(bundled_clip(world)), bundled=True), tab)

    def open_gallery(self, name: str, tab: str) -> Session:
        """Open a clip of the gallery."""
        check_choice(name, list(GALLERY), "clip")
        return self._opened(Session(lock_clip(read(GALLERY[name])), bundled=True), tab)

    def open_upload(self, upload: Path, tab: str) -> Session:
        """Open an uploaded video; it replaces an earlier one if it can be used."""
        parent = self.folder_of(self.uploads, tab)
        self.count_upload(tab)
        with replacing(parent) as folder:
            return self._opened(Session(accept_upload(upload, folder, self.limits), bundled=False), tab)

    def count_upload(self, tab: str) -> None:
        """Count an upload, or refuse it."""
        if self.uploaded[tab] >= self.limits.uploads_of_tab:
            raise InputError(f"The page takes {self.limits.uploads_of_tab} videos in a row; reload it for more.")
        self.uploaded[tab] += 1

    def _opened(self, session: Session, tab: str) -> Session:
        """Stop the run on the earlier clip, close that clip, and close the oldest tab beyond the limit."""
        self.stop(valid_tab(tab))
        with self.lock:
            earlier = self.clips.pop(tab, None)
            assert isinstance(session.clip.frames, LockedFrames)
            self.clips[tab] = session.clip.frames
            oldest = next(iter(self.clips)) if len(self.clips) > self.limits.tabs else None
        if earlier is not None:
            earlier.close()
        if oldest is not None:
            self.close(oldest)
        return session

    def start(self, tab: str) -> Event:
        """The flag that stops the tab's run; set up before the run is shown, so that no early click is lost."""
        self.stops[tab] = Event()
        return self.stops[tab]

    def run(
        self, session: Session, options: RunOptions, tab: str, on_frame: OnFrame, stop: Event | None = None
    ) -> tuple[Results, ResultFiles]:
        """Track the tab's points and write the downloads; `stop` is what `start` returned."""
        check_world(session, options.world)
        parent = self.folder_of(self.results, tab)
        stop = stop or self.start(tab)

        def on_step(done: int, total: int) -> None:
            if stop.is_set():
                raise Stopped
            on_frame(done, total)

        clip = first_frames(session.clip, options.last + 1)
        points = tuple(point for point in session.points if point.frame <= options.last)
        tracks = run_methods(clip, points, options.methods, options.world, on_step, options.backward)
        with replacing(parent) as folder:
            files = write_results(clip, tracks, points, folder)
            on_step(1, 1)
        return Results(clip, points, tracks, files.videos), files

    def stop(self, tab: str) -> None:
        """End the tab's run before its next step."""
        if tab in self.stops:
            self.stops[tab].set()

    def close(self, tab: str) -> None:
        """Forget a tab and remove its files."""
        folders = [self.folder_of(parent, tab) for parent in (self.uploads, self.results)]
        self.stop(tab)
        self.stops.pop(tab, None)
        self.uploaded.pop(tab, None)
        with self.lock:
            frames = self.clips.pop(tab, None)
        if frames is not None:
            frames.close()
            self.pairs.forget(frames)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def run_methods(
    clip: Clip,
    points: tuple[Point, ...],
    methods: list[str],
    world: str,
    on_frame: OnFrame = lambda done, total: None,
    backward: bool = False,
) -> dict[str, Tracks]:
    """Tracks by each method: the adjudicators share one world model; then one baseline after the other."""
    if not methods:
        raise InputError("No method is chosen; choose at least one.")
    if not points:
        raise InputError("There are no points to track; click on the frame first.")
    asked = queries(points)
    adjudicators = {name: cached_adjudicator(name) for name in methods if name in ADJUDICATORS}
    baselines = [name for name in methods if name not in ADJUDICATORS]
    # From the first frame there is no way back, and the remaining time would be estimated too long.
    backward = backward and any(point.frame > 0 for point in points)
    each = len(clip) * (2 if backward else 1)
    total = (len(baselines) + bool(adjudicators)) * each
    tracks: dict[str, Tracks] = {}
    if adjudicators:
        model = cached_world(world)
        tracks |= track_many(
            model, adjudicators, clip, asked, backward=backward, on_frame=lambda done, _: on_frame(done, total)
        )
    for number, name in enumerate(baselines):
        check_choice(name, runnable_baselines(), "method")
        first = (number + bool(adjudicators)) * each
        tracker, later = cached_baseline(name), lambda done, _, first=first: on_frame(first + done, total)
        tracks[name] = track_clip(tracker, clip, asked, backward=backward, on_frame=later).tracks
    return tracks


def write_results(clip: Clip, tracks: dict[str, Tracks], points: tuple[Point, ...], folder: Path) -> ResultFiles:
    """Write all downloads into a folder."""
    csv = {method: folder / f"{clip.name}_{method}.csv" for method in tracks}
    npz = {method: path.with_suffix(".npz") for method, path in csv.items()}
    for method, found in tracks.items():
        for path in (csv[method], npz[method]):
            save_tracks(found, path, TrackSource(range(len(clip)), clip.fps, clip.hw, clip.name))
    shown = {title_of(method): found for method, found in tracks.items()}
    videos: dict[ColorBy, Path] = {}
    for color_by in COLORS:
        videos[color_by] = folder / f"{clip.name}_{'_'.join(tracks)}_{color_by}.mp4"
        write(videos[color_by], side_by_side(clip, shown, points, color_by), clip.fps)
    return ResultFiles(csv, npz, videos)


def valid_tab(tab: str | None) -> str:
    """The name of a tab, if a browser could have made it."""
    if tab is None or not TAB.fullmatch(tab):
        raise InputError("The request does not come from a tab of this page; reload the page in the browser.")
    return tab


@contextmanager
def replacing(parent: Path) -> Iterator[Path]:
    """A new folder that replaces its siblings on success and is removed on failure."""
    parent.mkdir(parents=True, exist_ok=True)
    # A new name every time, because browsers cache files by their address.
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for other in parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def check_choice(name: Any, known: list[str], kind: str) -> None:
    """Refuse a name that the page does not offer."""
    if name not in known:
        raise InputError(f"{str(name)[:40]!r} is not a {kind} that runs here; choose one of {', '.join(known)}.")


def check_world(session: Session, world: str) -> None:
    """Refuse other clips for the toy world, which reads motion from the colors of its own clip."""
    check_choice(world, runnable_worlds(), "world model")
    if world == "toy" and not (session.bundled and session.clip.name == "toy"):
        raise InputError("The toy world understands only its own clip; take the bundled one, or another world model.")


def check_address(host: str, port: int | None) -> None:
    """Refuse an address that cannot be served."""
    if port is not None and not 1 <= port <= 65535:
        raise InputError(f"The port {port} does not exist; give one from 1 to 65535, for example 7860.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError, OverflowError) as error:
        where = host if port is None else f"{host}:{port}"
        raise InputError(
            f"{where} cannot be served ({error}); give an address of this machine and a free port."
        ) from error
