"""Where a baseline comes from: requirements, loading, and the identity of its predictions."""

import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lpa_cwm.baselines.gaps import GapTracker
from lpa_cwm.baselines.opt_cwm_protocol import load_official, missing_official
from lpa_cwm.baselines.pairwise import Flow, ForwardBackward, PairwiseTracker, VisibilityRule
from lpa_cwm.baselines.raft import LARGE, SMALL, RaftFlow, RaftVariant
from lpa_cwm.baselines.raft_weights import load_raft
from lpa_cwm.baselines.worker import ExternalRepo, WorkerClient, WorkerFlow, WorkerTracker
from lpa_cwm.datasets.download import OPT_CWM, RAFT, RAFT_THINGS, sha256_of
from lpa_cwm.errors import InputError
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
        """What decides its predictions beside its name; weights by their hash."""
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
        """The name is enough."""
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
    """Settings of this method beside those of every worker."""

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
