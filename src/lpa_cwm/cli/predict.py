"""`lpa-cwm predict`: a data set in, one prediction file per video out."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.cli.options import TrackerOptions
from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD, Selection
from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    from lpa_cwm.evaluation.methods import Method


@dataclass(frozen=True)
class Predict:
    """Track the videos of a data set; run it again to go on where it stopped."""

    dataset: Annotated[Path, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: Path
    """Folder of the run; it holds one configuration."""
    method: str = ADJUDICATOR
    """How candidates are weighed: uniform, apa or lpa; or a rival (see `lpa-cwm methods`)."""
    world: str = WORLD
    """World model that is asked."""
    score: str = "compact"
    """Score field that apa asks."""
    weights: Path | None = None
    """LPA weights other than the shipped ones."""
    device: str = "cpu"
    """Where to compute, for example cuda."""
    shard: str = "1/1"
    """Do only the i-th of n parts, for example 2/8; the parts together make the whole run."""
    executor: Literal["local", "ray"] = "local"
    """One video after the other here, or over a Ray cluster (`RAY_ADDRESS`, else this machine)."""
    workers: int | None = None
    """Ray actors; by default one for each device."""
    json: bool = False
    """Print a summary for machines."""
    selection: Annotated[Selection, OmitArgPrefixes] = field(default_factory=Selection)
    """The part of the data set that is used."""
    tracker: Annotated[TrackerOptions, OmitArgPrefixes] = field(default_factory=TrackerOptions)
    """Settings of the tracker."""

    def run(self) -> None:
        """Check everything, then track what is not there yet."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.compare import predict_methods
        from lpa_cwm.evaluation.manifest import manifest_of
        from lpa_cwm.evaluation.ray_cluster import executor
        from lpa_cwm.sharding import Shard

        shard, method = Shard.parse(self.shard), self.chosen()
        dataset = load_dataset(self.dataset, self.selection)
        runs = executor(self.executor, self.device, self.workers)
        made, present = predict_methods(dataset, manifest_of(dataset), {self.out: method}, runs, shard)
        self.report(made, present, len(dataset))

    def chosen(self) -> "Method":
        """What is run."""
        from lpa_cwm.evaluation.methods import Method

        settings = self.tracker.given()
        if self.method not in ADJUDICATORS and settings:
            names = ", ".join("--" + name.replace("_", "-") for name in settings)
            raise InputError(f"{self.method} does not take {names}; leave out what only uniform, apa and lpa have.")
        return Method(self.method, self.world, self.score, self.weights, self.device, settings)

    def report(self, made: int, present: int, total: int) -> None:
        """Say what was done and where it is."""
        if self.json:
            print(json.dumps({"out": str(self.out), "made": made, "present": present, "videos": total}))
            return
        print(f"{made} videos tracked, {present} were there already, {total} in all")
        print(self.out)
