"""Baselines by name, with license and origin."""

from dataclasses import dataclass, field, replace
from typing import Any

from lpa_cwm.baselines.classical import DisFlow, LucasKanade, StaticPoint
from lpa_cwm.baselines.gaps import GapTracker
from lpa_cwm.baselines.pairwise import PairwiseTracker, RangeMapOcclusion
from lpa_cwm.baselines.raft import SMURF
from lpa_cwm.baselines.sources import BuiltIn, External, OptCwmCheckpoint, RaftCheckpoint, Source
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError
from lpa_cwm.protocols import Tracker


@dataclass(frozen=True, slots=True)
class Baseline:
    """A tracker to compare with."""

    name: str
    what: str
    license: str
    obtain: str
    """How to get it."""
    source: Source
    given: dict[str, Any] = field(default_factory=dict)
    """Settings that are part of the name."""

    def missing(self) -> str | None:
        """What is needed to run it here, as a sentence; None if it can run."""
        return self.source.missing()

    def load(self, **given: Any) -> Tracker:
        """Make the tracker; settings by keyword."""
        return self.source.load(**self.given | given)

    def identity(self, **given: Any) -> dict[str, Any]:
        """What decides its predictions beside its name; weights by their hash."""
        return self.source.identity(**self.given | given)


DIRECT = "query to target, forward-backward visibility at 6 px."
GAPS = "over gaps of 1 to 16 frames and from the query (Neoral et al. 2024), best path by patch similarity."
FLOW = 'pip install "lpa-cwm[flow]"'


def opencv(name: str, what: str, tracker: Tracker) -> Baseline:
    """A baseline that needs OpenCV alone."""
    return Baseline(name, what, "Apache-2.0", FLOW, BuiltIn(tracker, module="cv2", extra="flow"))


def raft(name: str, trained: str, file: str, gaps: bool = False) -> Baseline:
    """RAFT (Teed & Deng 2020) with one of its published files."""
    command = "lpa-cwm data fetch raft-things" if file == "raft-things.pth" else "lpa-cwm data fetch raft"
    what = f"{trained}; {GAPS if gaps else DIRECT}"
    return Baseline(name, what, "BSD-3-Clause", command, RaftCheckpoint(name, file, gaps=gaps))


def external(name: str, what: str, license: str, repository: str, source: External) -> Baseline:
    """A baseline that runs from the user's checkout of its repository."""
    return Baseline(name, what, license, f"github.com/{repository}", source)


_ALL = (
    Baseline("static", "A point that never moves, always visible.", "Apache-2.0", "built in", BuiltIn(StaticPoint())),
    opencv("lk", "Pyramidal Lucas-Kanade (Bouguet 2001), frame to frame; forward-backward visibility.", LucasKanade()),
    opencv("dis", f"Dense inverse search flow (Kroeger et al. 2016); {DIRECT}", PairwiseTracker(DisFlow())),
    opencv("dis-chain", "DIS flow, frame to frame.", GapTracker(DisFlow(), gaps=(1,), direct=False)),
    opencv("dis-gaps", f"DIS flow {GAPS}", GapTracker(DisFlow())),
    raft("raft", "RAFT flow tuned on Sintel", "raft-sintel.pth"),
    raft("raft-gaps", "RAFT flow tuned on Sintel", "raft-sintel.pth", gaps=True),
    raft("raft-small", "RAFT flow with a fifth of the weights", "raft-small.pth"),
    raft("raft-small-gaps", "RAFT flow with a fifth of the weights", "raft-small.pth", gaps=True),
    raft("raft-things", "RAFT flow trained on FlyingThings3D", "raft-things.pth"),
    raft("raft-kitti", "RAFT flow tuned on KITTI", "raft-kitti.pth"),
    Baseline(
        name="smurf",
        what="SMURF flow (Stone et al. 2021), trained without labels; query to target, its own occlusion at 0.5.",
        license="Apache-2.0 (code), none given (weights)",
        obtain="github.com/google-research/google-research, folder smurf",
        source=RaftCheckpoint("smurf", variants=(SMURF,), rule=RangeMapOcclusion()),
    ),
    external(
        "sea-raft",
        f"SEA-RAFT flow (Wang et al. 2024); {DIRECT}",
        "BSD-3-Clause",
        "princeton-vl/SEA-RAFT",
        External("sea-raft", "core/raft.py", pairwise=True, options=("config",)),
    ),
    external(
        "gmrw",
        "GMRW, global matching random walks (Shrivastava & Owens 2024); its own utility over adjacent frames, 3 px.",
        "MIT",
        "ayshrv/gmrw",
        External("gmrw", "models/gmrw.py", pairwise=False, options=("upsample",)),
    ),
    external(
        "doduo",
        f"DODUO dense correspondence (Jiang et al. 2023); {DIRECT}",
        "MIT",
        "UT-Austin-RPL/Doduo",
        External("doduo", "src/models/components/models_corr_seg_flow.py", pairwise=True),
    ),
    external(
        "cotracker3",
        "CoTracker3 (Karaev et al. 2024), the offline predictor on the whole video, with its own visibility.",
        "CC-BY-NC-4.0 (not for commercial use)",
        "facebookresearch/co-tracker",
        External("cotracker3", "hubconf.py", pairwise=False),
    ),
    Baseline(
        name="opt-cwm",
        what="Opt-CWM (Stojanov et al. 2025) by its own protocol: 512 px, masks per query, four zooms, whole pixels.",
        license="none given: all rights reserved",
        obtain="lpa-cwm data fetch opt-cwm",
        source=OptCwmCheckpoint(),
    ),
)

BASELINES: dict[str, Baseline] = {baseline.name: baseline for baseline in _ALL}


def get_baseline(method: str) -> Baseline:
    """The baseline called `NAME`, or `NAME:PATH` with its checkpoint at a path."""
    name, _, path = method.partition(":")
    if name not in BASELINES:
        raise InputError(f"{name!r} is not a known method; choose one of {', '.join((*ADJUDICATORS, *BASELINES))}.")
    if not path:
        return BASELINES[name]
    if isinstance(BASELINES[name].source, BuiltIn | OptCwmCheckpoint):
        raise InputError(f"{name} takes no checkpoint; ask for it as {name!r}, not {method!r}.")
    return replace(BASELINES[name], given={"checkpoint": path})
