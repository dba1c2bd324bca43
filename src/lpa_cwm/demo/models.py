"""Models by name, loaded once and kept; and which of them can run here."""

from functools import lru_cache

from lpa_cwm import hub
from lpa_cwm.config import METHODS, WORLDS, Method
from lpa_cwm.files import cache_dir
from lpa_cwm.interfaces import Adjudicator, WorldModel
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.world.remember import Remembering

TITLES = {"uniform": "Uniform", "apa": "APA", "lpa": "LPA"}


@lru_cache
def world(name: str) -> WorldModel:
    """A world model that stays in memory."""
    return hub.load_world(name)


@lru_cache
def remembering(name: str) -> WorldModel:
    """The same world model with a memory for the frames it saw last."""
    return Remembering(world(name))


@lru_cache
def adjudicator(name: str) -> Adjudicator:
    """An adjudicator that stays in memory."""
    return hub.load_adjudicator(name)


def tracker(method: str, asked: WorldModel, numbers: Method | None = None) -> CwmTracker:
    """A tracker from parts that are in memory."""
    return hub.load(adjudicator(method), asked, numbers)


def runnable_methods() -> list[str]:
    """Methods whose weights are here."""
    return [name for name in METHODS if name != "lpa" or hub.packaged_lpa().is_file()]


def runnable_worlds() -> list[str]:
    """World models whose weights are here."""
    published = (cache_dir() / "opt-cwm").is_dir()
    return [name for name in WORLDS if published or not name.startswith("opt-cwm")]


def absences() -> list[str]:
    """A sentence in HTML for each thing that cannot run, with what to do."""
    said = []
    if "lpa" not in runnable_methods():
        said.append("LPA appears here once its weights are in the package (<code>lpa-cwm train lpa</code> makes some).")
    if "opt-cwm" not in runnable_worlds():
        said.append("Opt-CWM appears here once its published weights are in the cache (see docs/opt_cwm.md).")
    return said
