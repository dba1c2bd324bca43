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
from lpa_cwm.baselines.sources import content_of
from lpa_cwm.baselines.worker import Checkout, Worker, WorkerFlow, WorkerTracker
from lpa_cwm.errors import InputError
from lpa_cwm.protocols import Tracker

FIELDS = ("checkout", "checkpoint", "python", "device", "limit")
LIMIT = 1800


@dataclass(frozen=True, slots=True)
class External:
    """One method that a worker runs; settings are as given, or else from the environment or the settings file."""

    name: str
    evidence: str
    """A file that the checkout must hold."""
    pairwise: bool
    """Whether it gives flow between pairs, to which the pairwise rule is applied, or whole tracks."""
    options: tuple[str, ...] = ()
    """Settings of its own, beside those of every worker."""
    ptlflow: str = ""
    """Name by which ptlflow has it: where that is installed, a checkpoint is enough."""

    def missing(self) -> str | None:
        """What has to be set or brought."""
        try:
            values = self.settings({})
        except InputError as error:
            return str(error)
        return None if self.through_ptlflow(values) else self.lacking(values)

    def load(self, **given: Any) -> Tracker:
        """A worker, which starts when it is first asked; or a network of ptlflow's in this process."""
        values = self.settings(given)
        if self.through_ptlflow(values):
            flow = load_ptlflow(self.ptlflow, str(values["checkpoint"]))
            return PairwiseTracker(flow, device=values.get("device", "cpu"))
        if lacking := self.lacking(values):
            raise InputError(lacking)
        worker = Worker(self.checkout(values))
        return PairwiseTracker(WorkerFlow(worker)) if self.pairwise else WorkerTracker(worker)

    def identity(self, **given: Any) -> dict[str, Any]:
        """The checkpoint and the method's own settings."""
        values = self.settings(given)
        chosen = {key: str(values[key]) for key in self.options if key in values}
        return {"checkpoint": content_of(values["checkpoint"])} | chosen if "checkpoint" in values else chosen

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that is set, from wherever."""
        return settings(self.name, (*FIELDS, *self.options), given)

    def through_ptlflow(self, values: Mapping[str, Any]) -> bool:
        """Whether ptlflow can do it, and no checkout is set that would come first."""
        known = bool(self.ptlflow) and "checkpoint" in values and "checkout" not in values
        return known and importlib.util.find_spec("ptlflow") is not None

    def lacking(self, values: Mapping[str, Any]) -> str | None:
        """The first thing that a worker could not do without."""
        for field in ("checkout", "checkpoint"):
            if field not in values:
                table = f"[{self.name}] of {settings_file()}"
                return f"{self.name} needs its {field}: set {variable(self.name, field)}, or {field} in {table}."
            if not Path(values[field]).exists():
                return f"The {field} of {self.name}, {values[field]}, does not exist."
        if not (Path(values["checkout"]) / self.evidence).is_file():
            return f"{values['checkout']} is not a checkout of {self.name}: it holds no {self.evidence}."
        return None

    def checkout(self, values: Mapping[str, Any]) -> Checkout:
        """The settings in their own types."""
        return Checkout(
            method=self.name.replace("-", "_"),
            checkout=Path(values["checkout"]),
            checkpoint=Path(values["checkpoint"]),
            python=str(values.get("python", sys.executable)),
            device=str(values.get("device", "auto")),
            limit=seconds(values.get("limit", LIMIT)),
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
