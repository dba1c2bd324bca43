"""Every rival by name: what it is, whose licence, what it still needs, how to load it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lpa_cwm.baselines.dis import Dis
from lpa_cwm.baselines.external import COTRACKER3, DODUO, GMRW, load_sea_raft, missing_sea_raft
from lpa_cwm.baselines.official import load_official, missing_official
from lpa_cwm.baselines.pairwise import PairwiseTracker
from lpa_cwm.baselines.raft import SMURF, RaftFlow, read_raft
from lpa_cwm.baselines.settings import settings, settings_file, variable
from lpa_cwm.baselines.smurf import RangeMap
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


def missing_smurf() -> str | None:
    """SMURF's weights have to be exported from its authors' framework once."""
    path = settings("smurf", ("checkpoint", "iterations"), {}).get("checkpoint")
    if path is None:
        place = f"checkpoint in [smurf] of {settings_file()}"
        return f"smurf needs its weights as an .npz file: set {variable('smurf', 'checkpoint')}, or {place}."
    return None if Path(path).is_file() else f"The checkpoint of smurf, {path}, does not exist."


def load_dis(**given: Any) -> Tracker:
    """Settings are those of `PairwiseTracker`."""
    return PairwiseTracker(Dis(), **given)


def load_raft(file: str, checkpoint: Path | str | None = None, iterations: int = 12, **given: Any) -> Tracker:
    """One of the fetched files, or any of RAFT's published ones given as `checkpoint`."""
    path = Path(checkpoint) if checkpoint else RAFT.path(file)
    return PairwiseTracker(RaftFlow(read_raft(path), iterations), **given)


def load_smurf(**given: Any) -> Tracker:
    """The exported variables, or the weights of its port to PyTorch."""
    values = settings("smurf", ("checkpoint", "iterations"), given)
    if "checkpoint" not in values:
        raise InputError(str(missing_smurf()))
    network = read_raft(Path(values["checkpoint"]))
    if network.layout != SMURF:
        raise InputError(f"{values['checkpoint']} holds RAFT's weights; expected SMURF's: use `--method raft` for it.")
    return PairwiseTracker(RaftFlow(network, int(values.get("iterations", 12))), RangeMap())


def raft_rival(name: str, file: str, trained_on: str) -> Rival:
    """RAFT with one of its published files."""
    what = f"RAFT flow trained on {trained_on}; {PAIRWISE}"
    missing, load = partial(missing_raft, file), partial(load_raft, file)
    return Rival(name, what, "BSD-3-Clause", "lpa-cwm fetch raft", missing, load)


PAIRWISE = "query to target, forward-backward visibility at 6 px."

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
        what=f"OpenCV's dense inverse search flow; {PAIRWISE}",
        licence="Apache-2.0",
        source='pip install "lpa-cwm[flow]"',
        missing=missing_opencv,
        load=load_dis,
    ),
    raft_rival("raft", "raft-sintel.pth", "Sintel and others"),
    raft_rival("raft-small", "raft-small.pth", "Things, with a fifth of the weights"),
    raft_rival("raft-kitti", "raft-kitti.pth", "KITTI"),
    Rival(
        name="smurf",
        what="SMURF flow, learnt without labels; query to target, its own occlusion at 0.5.",
        licence="Apache-2.0 (code), none given (weights)",
        source="github.com/google-research/google-research/tree/master/smurf",
        missing=missing_smurf,
        load=load_smurf,
    ),
    Rival(
        name="sea-raft",
        what=f"SEA-RAFT flow; {PAIRWISE}",
        licence="BSD-3-Clause",
        source="github.com/princeton-vl/SEA-RAFT, or pip install ptlflow",
        missing=missing_sea_raft,
        load=load_sea_raft,
    ),
    Rival(
        name="gmrw",
        what="GMRW, global matching random walks; its tracking utility over adjacent frames, 3 px.",
        licence="MIT",
        source="github.com/ayshrv/gmrw",
        missing=GMRW.missing,
        load=GMRW.load,
    ),
    Rival(
        name="doduo",
        what=f"DODUO dense correspondence; {PAIRWISE}",
        licence="MIT",
        source="github.com/UT-Austin-RPL/Doduo",
        missing=DODUO.missing,
        load=DODUO.load,
    ),
    Rival(
        name="cotracker3",
        what="CoTracker3, the offline predictor on the whole video, with its own visibility.",
        licence="CC-BY-NC-4.0 (not for commercial use)",
        source="github.com/facebookresearch/co-tracker",
        missing=COTRACKER3.missing,
        load=COTRACKER3.load,
    ),
    Rival(
        name="opt-cwm",
        what="Opt-CWM by its own protocol: 512 px, masks for each query, four zooms, whole pixels.",
        licence="none given: all rights reserved",
        source="lpa-cwm fetch opt-cwm",
        missing=missing_official,
        load=load_official,
    ),
)

RIVALS: dict[str, Rival] = {rival.name: rival for rival in _ALL}


def rival(method: str) -> Rival:
    """The rival called `NAME`, or `NAME:PATH` with its checkpoint at a path."""
    name, _, path = method.partition(":")
    if name not in RIVALS:
        raise InputError(f"{name!r} is no known method; choose one of {', '.join(RIVALS)}.")
    found = RIVALS[name]
    return replace(found, load=partial(found.load, checkpoint=Path(path))) if path else found
