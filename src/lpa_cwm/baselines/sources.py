"""Where a rival comes from: what is missing here, how it is loaded, and what its predictions depend on."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lpa_cwm.baselines.opt_cwm_protocol import load_official, missing_official
from lpa_cwm.baselines.pairwise import ForwardBackward, PairwiseTracker, Rule
from lpa_cwm.baselines.raft import LARGE, SMALL, Layout, RaftFlow, read_raft
from lpa_cwm.baselines.settings import settings, settings_file, variable
from lpa_cwm.datasets.download import sha256_of
from lpa_cwm.datasets.fetch import OPT_CWM, RAFT
from lpa_cwm.errors import InputError
from lpa_cwm.files import cache_dir, data_files
from lpa_cwm.protocols import Tracker

ITERATIONS = 12
"""Of RAFT and SMURF; on real pairs of frames more do not bring them closer to the truth."""


@runtime_checkable
class Origin(Protocol):
    """Settings are given by keyword; `device` and `checkpoint` mean the same to all that have them."""

    def missing(self) -> str | None:
        """What is still needed to run it here, as a sentence; None when it can run."""
        ...

    @property
    def load(self) -> Callable[..., Tracker]:
        """Make the tracker."""
        ...

    @property
    def identity(self) -> Callable[..., dict[str, Any]]:
        """What decides its predictions beside its name, weights by their hash."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A tracker that has nothing to set, and at most needs a package."""

    tracker: Tracker
    module: str = ""
    extra: str = ""

    def missing(self) -> str | None:
        """The package, perhaps."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return f'{self.module} is not installed: pip install "lpa-cwm[{self.extra}]".'
        return None

    def load(self, device: str = "cpu") -> Tracker:
        """The same on every device."""
        return self.tracker

    def identity(self) -> dict[str, Any]:
        """Nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class RaftFile:
    """A network of the RAFT family with a file: the given one, or the one that is set, or the fetched one."""

    name: str
    fetched: str = ""
    """What `lpa-cwm fetch raft` calls it; empty where it cannot be fetched."""
    layouts: tuple[Layout, ...] = (SMALL, LARGE)
    rule: Rule = field(default_factory=ForwardBackward)

    def missing(self) -> str | None:
        """The file, perhaps."""
        try:
            self.path()
        except InputError as error:
            return str(error)
        return None

    def load(self, device: str = "cpu", checkpoint: Path | str | None = None, iterations: int = ITERATIONS) -> Tracker:
        """Its flow under its rule."""
        path = self.path(checkpoint)
        network = read_raft(path)
        if network.layout not in self.layouts:
            raise InputError(f"{path} holds the weights of another network than {self.name}; see `lpa-cwm methods`.")
        return PairwiseTracker(RaftFlow(network, iterations), self.rule, device=device)

    def identity(self, checkpoint: Path | str | None = None, iterations: int = ITERATIONS) -> dict[str, Any]:
        """The file and the number of iterations."""
        return {"checkpoint": content_of(self.path(checkpoint)), "iterations": iterations}

    def path(self, checkpoint: Path | str | None = None) -> Path:
        """The file that is used."""
        found = settings(self.name, ("checkpoint",), {"checkpoint": checkpoint}).get("checkpoint")
        if found is None and self.fetched:
            return RAFT.path(self.fetched)
        if found is None:
            place = f"checkpoint in [{self.name}] of {settings_file()}"
            raise InputError(f"{self.name} needs its weights: set {variable(self.name, 'checkpoint')}, or {place}.")
        if not Path(found).is_file():
            raise InputError(f"The checkpoint of {self.name}, {found}, does not exist.")
        return Path(found)


@dataclass(frozen=True, slots=True)
class OptCwmFiles:
    """Opt-CWM by its own protocol, from its published files or what `lpa-cwm convert` made of them."""

    def missing(self) -> str | None:
        """The files have to be fetched once."""
        return missing_official()

    def load(self, device: str = "cpu") -> Tracker:
        """At the size of the published evaluation."""
        return load_official(device=device)

    def identity(self) -> dict[str, Any]:
        """Whatever files there are."""
        return {path.name: content_of(path) for path in data_files(cache_dir() / OPT_CWM.folder, "*cwm*")}


def content_of(checkpoint: Path | str) -> str:
    """The hash of a file, or else the name by which another package knows its checkpoint."""
    path = Path(checkpoint)
    return f"sha256:{sha256_of(path)}" if path.is_file() else str(checkpoint)
