"""Models by name, loaded once and kept; and which of them can run here."""

from functools import lru_cache
from typing import Any

from lpa_cwm import registry
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.protocols import Adjudicator, WorldModel
from lpa_cwm.tracker import CwmTracker

TITLES = {"uniform": "Uniform", "apa": "APA", "lpa": "LPA"}


@lru_cache
def world(name: str) -> WorldModel:
    """A world model that stays in memory."""
    return registry.load_world(name)


@lru_cache
def adjudicator(name: str) -> Adjudicator:
    """An adjudicator that stays in memory."""
    return registry.load_adjudicator(name)


def tracker(method: str, world_name: str, **settings: Any) -> CwmTracker:
    """A tracker from parts that are in memory."""
    return registry.load_cwm(adjudicator(method), world(world_name), **settings)


def runnable_methods() -> list[str]:
    """Methods whose weights are here."""
    return [name for name in ADJUDICATORS if name != "lpa" or registry.bundled_lpa().is_file()]


def runnable_worlds() -> list[str]:
    """World models whose weights are here."""
    return [name for name, entry in registry.WORLDS.items() if entry.missing() is None]


def absences() -> list[str]:
    """A sentence in HTML for each thing that cannot run, with what to do."""
    said = []
    if "lpa" not in runnable_methods():
        said.append("LPA appears here once its weights are in the package (<code>lpa-cwm train lpa</code> makes some).")
    if "opt-cwm" not in runnable_worlds():
        said.append("Opt-CWM appears here once its published weights are in the cache (see docs/opt_cwm.md).")
    return said
