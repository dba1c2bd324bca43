"""Every rival by name: what it is, whose license, how to get it, and where it comes from."""

from dataclasses import dataclass, field, replace
from typing import Any

from lpa_cwm.baselines.dis import Dis
from lpa_cwm.baselines.external import External
from lpa_cwm.baselines.pairwise import PairwiseTracker
from lpa_cwm.baselines.raft import SMURF
from lpa_cwm.baselines.smurf import RangeMap
from lpa_cwm.baselines.sources import BuiltIn, OptCwmFiles, Origin, RaftFile
from lpa_cwm.baselines.static import StaticPoint
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError
from lpa_cwm.protocols import Tracker


@dataclass(frozen=True, slots=True)
class Baseline:
    """One tracker to compare with."""

    name: str
    what: str
    license: str
    source: str
    """How to get it."""
    origin: Origin
    given: dict[str, Any] = field(default_factory=dict)
    """Settings that came with the name."""

    def missing(self) -> str | None:
        """What is still needed to run it here, as a sentence; None when it can run."""
        return self.origin.missing()

    def load(self, **given: Any) -> Tracker:
        """Make the tracker; settings by keyword."""
        return self.origin.load(**self.given | given)

    def identity(self, **given: Any) -> dict[str, Any]:
        """What decides its predictions beside its name: settings, and weights by their hash."""
        return self.origin.identity(**self.given | given)


PAIRWISE = "query to target, forward-backward visibility at 6 px."


def raft(name: str, trained: str, fetched: str) -> Baseline:
    """RAFT with one of its published files."""
    what = f"{trained}; {PAIRWISE}"
    return Baseline(name, what, "BSD-3-Clause", "lpa-cwm fetch raft", RaftFile(name, fetched))


_ALL = (
    Baseline(
        name="static",
        what="A point that never moves, always visible.",
        license="Apache-2.0",
        source="built in",
        origin=BuiltIn(StaticPoint()),
    ),
    Baseline(
        name="dis",
        what=f"OpenCV's dense inverse search flow; {PAIRWISE}",
        license="Apache-2.0",
        source='pip install "lpa-cwm[flow]"',
        origin=BuiltIn(PairwiseTracker(Dis()), module="cv2", extra="flow"),
    ),
    raft("raft", "RAFT flow tuned on Sintel", "raft-sintel.pth"),
    raft("raft-small", "RAFT flow with a fifth of the weights", "raft-small.pth"),
    raft("raft-kitti", "RAFT flow tuned on KITTI", "raft-kitti.pth"),
    Baseline(
        name="smurf",
        what="SMURF flow, learnt without labels; query to target, its own occlusion at 0.5.",
        license="Apache-2.0 (code), none given (weights)",
        source="github.com/google-research/google-research, folder smurf",
        origin=RaftFile("smurf", layouts=(SMURF,), rule=RangeMap()),
    ),
    Baseline(
        name="sea-raft",
        what=f"SEA-RAFT flow; {PAIRWISE}",
        license="BSD-3-Clause",
        source='github.com/princeton-vl/SEA-RAFT, or pip install "lpa-cwm[ptlflow]"',
        origin=External("sea-raft", "core/raft.py", pairwise=True, options=("config",), ptlflow="sea_raft_m"),
    ),
    Baseline(
        name="gmrw",
        what="GMRW, global matching random walks; its tracking utility over adjacent frames, 3 px.",
        license="MIT",
        source="github.com/ayshrv/gmrw",
        origin=External("gmrw", "models/gmrw.py", pairwise=False, options=("upsample",)),
    ),
    Baseline(
        name="doduo",
        what=f"DODUO dense correspondence; {PAIRWISE}",
        license="MIT",
        source="github.com/UT-Austin-RPL/Doduo",
        origin=External("doduo", "src/models/components/models_corr_seg_flow.py", pairwise=True),
    ),
    Baseline(
        name="cotracker3",
        what="CoTracker3, the offline predictor on the whole video, with its own visibility.",
        license="CC-BY-NC-4.0 (not for commercial use)",
        source="github.com/facebookresearch/co-tracker",
        origin=External("cotracker3", "hubconf.py", pairwise=False),
    ),
    Baseline(
        name="opt-cwm",
        what="Opt-CWM by its own protocol: 512 px, masks for each query, four zooms, whole pixels.",
        license="none given: all rights reserved",
        source="lpa-cwm fetch opt-cwm",
        origin=OptCwmFiles(),
    ),
)

BASELINES: dict[str, Baseline] = {baseline.name: baseline for baseline in _ALL}


def get_baseline(method: str) -> Baseline:
    """The rival called `NAME`, or `NAME:PATH` with its checkpoint at a path."""
    name, _, path = method.partition(":")
    if name not in BASELINES:
        raise InputError(f"{name!r} is not a known method; choose one of {', '.join((*ADJUDICATORS, *BASELINES))}.")
    if not path:
        return BASELINES[name]
    if isinstance(BASELINES[name].origin, BuiltIn | OptCwmFiles):
        raise InputError(f"{name} takes no checkpoint; ask for it as {name!r}, not {method!r}.")
    return replace(BASELINES[name], given={"checkpoint": path})
