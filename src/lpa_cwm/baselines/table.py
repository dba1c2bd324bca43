"""Every rival by name: what it is, whose licence, what it still needs, how to load it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from lpa_cwm.baselines.dis import Dis
from lpa_cwm.baselines.pairwise import PairwiseTracker
from lpa_cwm.baselines.static import StaticPoint
from lpa_cwm.errors import InputError
from lpa_cwm.interfaces import Tracker


@dataclass(frozen=True, slots=True)
class Rival:
    """One tracker to compare with."""

    name: str
    what: str
    licence: str
    source: str
    """How to get it."""
    missing: Callable[[], str | None]
    """What is still needed to run it here, as a sentence; None when it can run."""
    load: Callable[..., Tracker]
    """Make the tracker; settings by keyword."""


def _nothing() -> None:
    return None


def _missing_opencv() -> str | None:
    if importlib.util.find_spec("cv2") is None:
        return 'OpenCV is not installed: pip install "lpa-cwm[flow]".'
    return None


_ALL = (
    Rival("static", "A point that never moves, always visible.", "Apache-2.0", "built in", _nothing, StaticPoint),
    Rival(
        name="dis",
        what="OpenCV's dense inverse search flow, query to target, forward-backward visibility at 6 px.",
        licence="Apache-2.0",
        source='pip install "lpa-cwm[flow]"',
        missing=_missing_opencv,
        load=lambda **settings: PairwiseTracker(Dis(), **settings),
    ),
)

RIVALS: dict[str, Rival] = {rival.name: rival for rival in _ALL}


def rival(name: str) -> Rival:
    """Look a rival up by name."""
    if name not in RIVALS:
        raise InputError(f"{name!r} is no known method; choose one of {', '.join(RIVALS)}.")
    return RIVALS[name]
