"""Every rival by name: what it is, whose licence, what it still needs, how to load it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lpa_cwm.baselines.dis import Dis
from lpa_cwm.baselines.pairwise import PairwiseTracker
from lpa_cwm.baselines.raft import RaftFlow, load_raft
from lpa_cwm.baselines.static import StaticPoint
from lpa_cwm.data.fetch import RAFT
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


def missing_nothing() -> None:
    """For what is built in."""


def missing_opencv() -> str | None:
    """OpenCV comes with an extra."""
    if importlib.util.find_spec("cv2") is None:
        return 'OpenCV is not installed: pip install "lpa-cwm[flow]".'
    return None


def missing_raft(file: str) -> str | None:
    """RAFT's weights have to be fetched once."""
    try:
        RAFT.path(file)
    except InputError as error:
        return str(error)
    return None


def dis(**settings: Any) -> Tracker:
    """Settings are those of `PairwiseTracker`."""
    return PairwiseTracker(Dis(), **settings)


def raft(file: str, checkpoint: Path | str | None = None, iterations: int = 12, **settings: Any) -> Tracker:
    """One of the fetched files, or any of RAFT's published ones given as `checkpoint`."""
    path = Path(checkpoint) if checkpoint else RAFT.path(file)
    return PairwiseTracker(RaftFlow(load_raft(path), iterations), **settings)


def raft_rival(name: str, file: str, trained_on: str) -> Rival:
    """RAFT with one of its published files."""
    what = f"RAFT optical flow trained on {trained_on}; query to target, forward-backward visibility at 6 px."
    return Rival(name, what, "BSD-3-Clause", "lpa-cwm fetch raft", partial(missing_raft, file), partial(raft, file))


_ALL = (
    Rival(
        name="static",
        what="A point that never moves, always visible.",
        licence="Apache-2.0",
        source="built in",
        missing=missing_nothing,
        load=StaticPoint,
    ),
    Rival(
        name="dis",
        what="OpenCV's dense inverse search flow; query to target, forward-backward visibility at 6 px.",
        licence="Apache-2.0",
        source='pip install "lpa-cwm[flow]"',
        missing=missing_opencv,
        load=dis,
    ),
    raft_rival("raft", "raft-sintel.pth", "Sintel and others"),
    raft_rival("raft-small", "raft-small.pth", "Things, with a fifth of the weights"),
    raft_rival("raft-kitti", "raft-kitti.pth", "KITTI"),
)

RIVALS: dict[str, Rival] = {rival.name: rival for rival in _ALL}


def rival(name: str) -> Rival:
    """Look a rival up by name."""
    if name not in RIVALS:
        raise InputError(f"{name!r} is no known method; choose one of {', '.join(RIVALS)}.")
    return RIVALS[name]


def load(method: str, **settings: Any) -> Tracker:
    """The tracker called `NAME`, or `NAME:PATH` with the checkpoint at a path."""
    name, _, path = method.partition(":")
    if path:
        settings["checkpoint"] = Path(path)
    return rival(name).load(**settings)
