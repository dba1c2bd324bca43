"""What the page's buttons do, without the page: tabs, their folders, their clips and their runs."""

import hashlib
import hmac
import re
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from lpa_cwm.bundled import bundled_clip
from lpa_cwm.errors import InputError
from lpa_cwm.page.run import Files, follow, written
from lpa_cwm.page.session import Session
from lpa_cwm.page.upload import Limits, admitted, guarded, inside, shortened

TAB = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Choice:
    """How the points are to be followed."""

    methods: list[str]
    world: str
    last: int
    """The last frame to follow them into."""


@dataclass(frozen=True)
class Desk:
    """Serves all tabs; each has a folder for its upload, one for its results, and a flag that stops its run."""

    folder: Path
    limits: Limits = field(default_factory=Limits)
    stops: dict[str, Event] = field(default_factory=dict)
    uploaded: Counter[str] = field(default_factory=Counter)
    """How many videos each tab has sent."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def results(self) -> Path:
        """The only folder whose files are served."""
        return self.folder / "results"

    @property
    def uploads(self) -> Path:
        return self.folder / "uploads"

    def folder_of(self, parent: Path, tab: str) -> Path:
        """Return a tab's folder; its name is a keyed hash, since the browser chooses the tab's name."""
        name = hmac.new(self.key, checked_tab(tab).encode(), hashlib.sha256).hexdigest()
        return inside(self.folder, parent / name)

    def take_bundled(self, world: str) -> Session:
        """Begin with the clip that ships."""
        return Session(guarded(bundled_clip(world)), bundled=True)

    def take_upload(self, upload: Path, tab: str) -> Session:
        """Begin with a video of the user; it takes the place of an earlier one if it can be used."""
        parent = self.folder_of(self.uploads, tab)
        self.count_upload(tab)
        with replacing(parent) as folder:
            return Session(admitted(upload, folder, self.limits), bundled=False)

    def count_upload(self, tab: str) -> None:
        """Count one more video of a tab, or refuse it."""
        if self.uploaded[tab] >= self.limits.uploads_of_tab:
            raise InputError(f"The page takes {self.limits.uploads_of_tab} videos in a row; reload it for more.")
        self.uploaded[tab] += 1

    def follow(self, session: Session, choice: Choice, tab: str, report: Callable[[int, int], None]) -> Files:
        """Follow the tab's points as chosen, and write the downloads."""
        check_world(session, choice.world)
        parent = self.folder_of(self.results, tab)
        stop = self.stops[tab] = Event()
        clip = shortened(session.clip, choice.last + 1)
        tracks = follow(clip, session.points, choice.methods, choice.world, report, lambda: not stop.is_set())
        with replacing(parent) as folder:
            return written(clip, tracks, session.points, folder)

    def stop(self, tab: str) -> None:
        """End the tab's run before its next prediction."""
        if tab in self.stops:
            self.stops[tab].set()

    def close(self, tab: str) -> None:
        """Forget a tab and all its files."""
        self.stop(tab)
        self.stops.pop(tab, None)
        self.uploaded.pop(tab, None)
        for parent in (self.uploads, self.results):
            shutil.rmtree(self.folder_of(parent, tab), ignore_errors=True)


def checked_tab(tab: str | None) -> str:
    """Return the name of a tab if a browser could have made it."""
    if tab is None or not TAB.fullmatch(tab):
        raise InputError("The request does not come from a tab of this page; reload the page in the browser.")
    return tab


@contextmanager
def replacing(parent: Path) -> Iterator[Path]:
    """A new folder that takes the place of its siblings on success, and goes on failure."""
    parent.mkdir(parents=True, exist_ok=True)
    # A new name every time, because browsers keep what they know by its address.
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for other in parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def check_world(session: Session, world: str) -> None:
    """The toy world reads motion off the colors of its own clip."""
    if world == "toy" and not (session.bundled and session.clip.name == "toy"):
        raise InputError("The toy world understands only its own clip; take the bundled one, or another world model.")
