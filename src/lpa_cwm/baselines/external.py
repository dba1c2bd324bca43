"""Methods that run from the user's own checkout: what they need, what is missing, and how they are loaded."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpa_cwm.baselines.pairwise import PairwiseTracker
from lpa_cwm.baselines.ptlflow import load_ptlflow
from lpa_cwm.baselines.settings import settings, settings_file, variable
from lpa_cwm.baselines.worker import Checkout, Worker, WorkerFlow, WorkerTracker
from lpa_cwm.errors import InputError
from lpa_cwm.interfaces import Tracker

FIELDS = ("checkout", "checkpoint", "python", "device", "limit")


@dataclass(frozen=True, slots=True)
class External:
    """One method that a worker runs."""

    name: str
    evidence: str
    """A file that the checkout must hold."""
    pairwise: bool
    """Whether it gives flow between pairs, to which the pairwise rule is applied, or whole tracks."""
    options: tuple[str, ...] = ()
    """Settings of its own, beside those of every worker."""

    def missing(self) -> str | None:
        """What has to be set or brought, as a sentence."""
        try:
            return self._lacking(self.settings({}))
        except InputError as error:
            return str(error)

    def load(self, **given: Any) -> Tracker:
        """Settings as given, or else from the environment or the settings file."""
        values = self.settings(given)
        if lacking := self._lacking(values):
            raise InputError(lacking)
        worker = Worker(self._checkout(values))
        return PairwiseTracker(WorkerFlow(worker)) if self.pairwise else WorkerTracker(worker)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that is set, from wherever."""
        return settings(self.name, (*FIELDS, *self.options), given)

    def _lacking(self, values: Mapping[str, Any]) -> str | None:
        for field in ("checkout", "checkpoint"):
            if field not in values:
                table = f"[{self.name}] of {settings_file()}"
                return f"{self.name} needs its {field}: set {variable(self.name, field)}, or {field} in {table}."
            if not Path(values[field]).exists():
                return f"The {field} of {self.name}, {values[field]}, does not exist."
        if not (Path(values["checkout"]) / self.evidence).is_file():
            return f"{values['checkout']} is not a checkout of {self.name}: it holds no {self.evidence}."
        return None

    def _checkout(self, values: Mapping[str, Any]) -> Checkout:
        return Checkout(
            method=self.name.replace("-", "_"),
            checkout=Path(values["checkout"]),
            checkpoint=Path(values["checkpoint"]),
            python=str(values.get("python", sys.executable)),
            device=str(values.get("device", "auto")),
            limit=seconds(values.get("limit", 1800)),
            options={key: str(values[key]) for key in self.options if key in values},
        )


def seconds(value: Any) -> float:
    """A positive number of seconds."""
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise InputError(f"The time limit {value!r} is not a positive number of seconds.")
    return found


SEA_RAFT = External("sea-raft", evidence="core/raft.py", pairwise=True, options=("config",))
GMRW = External("gmrw", evidence="models/gmrw.py", pairwise=False, options=("upsample",))
DODUO = External("doduo", evidence="src/models/components/models_corr_seg_flow.py", pairwise=True)
COTRACKER3 = External("cotracker3", evidence="hubconf.py", pairwise=False)


def through_ptlflow(values: Mapping[str, Any]) -> bool:
    """SEA-RAFT runs in this process where ptlflow is installed, a checkpoint is set and no checkout is."""
    return "checkout" not in values and "checkpoint" in values and importlib.util.find_spec("ptlflow") is not None


def missing_sea_raft() -> str | None:
    """With ptlflow, a checkpoint is enough."""
    lacking = SEA_RAFT.missing()
    return None if lacking and through_ptlflow(SEA_RAFT.settings({})) else lacking


def load_sea_raft(**given: Any) -> Tracker:
    """From the checkout, or else through ptlflow; its checkpoint may then be a name of ptlflow's, such as `tartan`."""
    values = SEA_RAFT.settings(given)
    if through_ptlflow(values):
        return PairwiseTracker(load_ptlflow("sea_raft_m", str(values["checkpoint"])))
    return SEA_RAFT.load(**given)
