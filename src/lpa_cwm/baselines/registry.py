"""Baselines by name, with license and source: requirements, loading, and the identity of predictions."""

import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lpa_cwm.baselines.flow_trackers import (
    DisFlow,
    Flow,
    ForwardBackward,
    GapTracker,
    LucasKanade,
    PairwiseTracker,
    RangeMapOcclusion,
    StaticPoint,
    VisibilityRule,
)
from lpa_cwm.baselines.opt_cwm_protocol import load_official, missing_official
from lpa_cwm.baselines.raft import LARGE, SMALL, SMURF, RaftFlow, RaftVariant, load_raft
from lpa_cwm.baselines.worker import ExternalRepo, WorkerClient, WorkerFlow, WorkerTracker
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.datasets.download import OPT_CWM, RAFT, RAFT_THINGS, sha256_of
from lpa_cwm.errors import InputError, name_hint
from lpa_cwm.files import cache_dir, data_files
from lpa_cwm.protocols import Tracker
from lpa_cwm.validation import read_text, reading

ITERATIONS = 12
"""Refinements of RAFT and SMURF; more do not reduce the error on real frame pairs."""
WORKER_FIELDS = ("checkout", "checkpoint", "python", "device", "limit")
LIMIT = 1800


def settings_file() -> Path:
    """TOML file with one table per baseline: `[cotracker3]`, then `checkout = "..."` and so on."""
    return cache_dir() / "methods.toml"


def environment_variable(method: str, field: str) -> str:
    """Environment variable of a setting."""
    return f"LPA_CWM_{method}_{field}".upper().replace("-", "_")


def read_settings(method: str, fields: Collection[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by precedence: given, environment, settings file."""
    unknown = sorted(given.keys() - set(fields))
    if unknown:
        raise InputError(f"{method} has no setting {unknown[0]!r}; it has {', '.join(fields)}.")
    variables = {field: os.environ.get(environment_variable(method, field)) for field in fields}
    levels = (_from_file(method, fields), variables, given)
    return {key: value for level in levels for key, value in level.items() if value is not None}


def _from_file(method: str, fields: Collection[str]) -> dict[str, Any]:
    path = settings_file()
    if not path.is_file():
        return {}
    with reading(path, "TOML", "correct or remove it"):
        table = tomllib.loads(read_text(path)).get(method, {})
    unknown = sorted(set(table) - set(fields)) if isinstance(table, dict) else ["a value"]
    if unknown:
        raise InputError(f"{path} gives {method} {unknown[0]!r}; expected a table with {', '.join(fields)}.")
    return table


@runtime_checkable
class Source(Protocol):
    """Where a tracker comes from. Settings are keywords; `device` and `checkpoint` have the same meaning everywhere."""

    def missing(self) -> str | None:
        """What is needed to run it here, as a sentence; None if it can run."""
        ...

    @property
    def load(self) -> Callable[..., Tracker]:
        """Make the tracker."""
        ...

    @property
    def identity(self) -> Callable[..., dict[str, Any]]:
        """What determines its predictions besides its name; weights by their hash."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A tracker without settings that may need an optional package."""

    tracker: Tracker
    module: str = ""
    extra: str = ""

    def missing(self) -> str | None:
        """Name the package if it is not installed."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return f'{self.module} is not installed: pip install "lpa-cwm[{self.extra}]".'
        return None

    def load(self, device: str = "cpu") -> Tracker:
        """The same tracker on every device."""
        return self.tracker

    def identity(self) -> dict[str, Any]:
        """Nothing but the name."""
        return {}


@dataclass(frozen=True, slots=True)
class RaftCheckpoint:
    """RAFT or SMURF with a weights file: given, configured, or fetched."""

    name: str
    fetched: str = ""
    """Name of the fetched file; empty if it cannot be fetched."""
    variants: tuple[RaftVariant, ...] = (SMALL, LARGE)
    rule: VisibilityRule = field(default_factory=ForwardBackward)
    gaps: bool = False
    """Track over several gaps instead of directly."""

    def missing(self) -> str | None:
        """Say which file is missing."""
        try:
            self.path()
        except InputError as error:
            return str(error)
        return None

    def load(self, device: str = "cpu", checkpoint: Path | str | None = None, iterations: int = ITERATIONS) -> Tracker:
        """The network's flow as a tracker."""
        path = self.path(checkpoint)
        network = load_raft(path)
        if network.variant not in self.variants:
            raise InputError(f"{path} holds the weights of another network than {self.name}; see its documentation.")
        flow: Flow = RaftFlow(network, iterations)
        return GapTracker(flow, device=device) if self.gaps else PairwiseTracker(flow, self.rule, device=device)

    def identity(self, checkpoint: Path | str | None = None, iterations: int = ITERATIONS) -> dict[str, Any]:
        """The weights file and the number of iterations."""
        return {"checkpoint": file_identity(self.path(checkpoint)), "iterations": iterations}

    def path(self, checkpoint: Path | str | None = None) -> Path:
        """Path of the weights file."""
        found = read_settings(self.name, ("checkpoint",), {"checkpoint": checkpoint}).get("checkpoint")
        if found is None and self.fetched:
            download = RAFT_THINGS if self.fetched in RAFT_THINGS.paths() else RAFT
            return download.path(self.fetched)
        if found is None:
            variable, table = environment_variable(self.name, "checkpoint"), f"[{self.name}] of {settings_file()}"
            raise InputError(f"{self.name} needs its weights: set {variable}, or checkpoint in {table}.")
        if not Path(found).is_file():
            raise InputError(f"The checkpoint of {self.name}, {found}, does not exist.")
        return Path(found)


@dataclass(frozen=True, slots=True)
class OptCwmCheckpoint:
    """Opt-CWM with its own protocol, from its published files or from the output of `lpa-cwm data convert`."""

    def missing(self) -> str | None:
        """Say which file has to be fetched."""
        return missing_official()

    def load(self, device: str = "cpu") -> Tracker:
        """The tracker at the size of the published evaluation."""
        return load_official(device=device)

    def identity(self) -> dict[str, Any]:
        """Hashes of all files of Opt-CWM."""
        return {path.name: file_identity(path) for path in data_files(cache_dir() / OPT_CWM.folder, "*cwm*")}


@dataclass(frozen=True, slots=True)
class External:
    """A method that runs in a worker process from the user's own checkout."""

    name: str
    marker_file: str
    """A file that the checkout must contain."""
    pairwise: bool
    """Whether it returns flow between frame pairs, to be tracked by `PairwiseTracker`, or whole tracks."""
    options: tuple[str, ...] = ()
    """Settings of this method besides those of every worker."""

    def missing(self) -> str | None:
        """Say what has to be set."""
        try:
            return self.missing_requirement(self.settings({}))
        except InputError as error:
            return str(error)

    def load(self, **given: Any) -> Tracker:
        """A tracker whose worker process starts at the first request."""
        values = self.settings(given)
        if missing := self.missing_requirement(values):
            raise InputError(missing)
        worker = WorkerClient(self.repo(values))
        return PairwiseTracker(WorkerFlow(worker)) if self.pairwise else WorkerTracker(worker)

    def identity(self, **given: Any) -> dict[str, Any]:
        """The checkpoint and the settings of this method."""
        values = self.settings(given)
        chosen = {key: str(values[key]) for key in self.options if key in values}
        return {"checkpoint": file_identity(values["checkpoint"])} | chosen if "checkpoint" in values else chosen

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All settings that have a value."""
        return read_settings(self.name, (*WORKER_FIELDS, *self.options), given)

    def missing_requirement(self, values: Mapping[str, Any]) -> str | None:
        """The first requirement of the worker that is not met."""
        for key in ("checkout", "checkpoint"):
            if key not in values:
                variable, table = environment_variable(self.name, key), f"[{self.name}] of {settings_file()}"
                return f"{self.name} needs its {key}: set {variable}, or {key} in {table}."
            if not Path(values[key]).exists():
                return f"The {key} of {self.name}, {values[key]}, does not exist."
        if not (Path(values["checkout"]) / self.marker_file).is_file():
            return f"{values['checkout']} is not a checkout of {self.name}: it holds no {self.marker_file}."
        return None

    def repo(self, values: Mapping[str, Any]) -> ExternalRepo:
        """The settings, parsed."""
        return ExternalRepo(
            method=self.name.replace("-", "_"),
            checkout=Path(values["checkout"]),
            checkpoint=Path(values["checkpoint"]),
            python=str(values.get("python", sys.executable)),
            device=str(values.get("device", "auto")),
            limit=parse_seconds(values.get("limit", LIMIT)),
            options={key: str(values[key]) for key in self.options if key in values},
        )


def parse_seconds(value: Any) -> float:
    """A positive number of seconds."""
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise InputError(f"The time limit {value!r} is not a positive number of seconds.")
    return found


def file_identity(checkpoint: Path | str) -> str:
    """Hash of a file, or the name of a checkpoint that is not a file."""
    path = Path(checkpoint)
    return f"sha256:{sha256_of(path)}" if path.is_file() else str(checkpoint)


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
        """What determines its predictions besides its name; weights by their hash."""
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
    opencv("lk-direct", f"Pyramidal Lucas-Kanade (Bouguet 2001); {DIRECT}", LucasKanade(direct=True)),
    opencv("dis", f"Dense inverse search flow (Kroeger et al. 2016); {DIRECT}", PairwiseTracker(DisFlow())),
    opencv("dis-chain", "DIS flow, frame to frame.", GapTracker(DisFlow(), gaps=(1,), direct=False)),
    opencv("dis-gaps", f"DIS flow {GAPS}", GapTracker(DisFlow())),
    raft("raft", "RAFT flow tuned on Sintel", "raft-sintel.pth"),
    raft("raft-gaps", "RAFT flow tuned on Sintel", "raft-sintel.pth", gaps=True),
    raft("raft-small", "RAFT flow with a fifth of the weights", "raft-small.pth"),
    raft("raft-small-gaps", "RAFT flow with a fifth of the weights", "raft-small.pth", gaps=True),
    raft("raft-things", "RAFT flow trained on FlyingThings3D", "raft-things.pth"),
    raft("raft-things-gaps", "RAFT flow trained on FlyingThings3D", "raft-things.pth", gaps=True),
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
        raise InputError(f"{name!r} is not a known method; {name_hint(name, (*ADJUDICATORS, *BASELINES))}.")
    if not path:
        return BASELINES[name]
    if isinstance(BASELINES[name].source, BuiltIn | OptCwmCheckpoint):
        raise InputError(f"{name} takes no checkpoint; ask for it as {name!r}, not {method!r}.")
    return replace(BASELINES[name], given={"checkpoint": path})
