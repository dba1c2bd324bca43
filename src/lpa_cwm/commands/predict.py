"""`lpa-cwm predict`: a data set in, one prediction file per video out."""

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.commands.identity import digest_of, shipped
from lpa_cwm.config import METHOD, METHODS, WORLD, Method
from lpa_cwm.data.selection import Selection
from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    from lpa_cwm.data.tapvid import TapVid
    from lpa_cwm.experiments.run import Run


@dataclass(frozen=True)
class Predict:
    """Track the videos of a data set; run it again to go on where it stopped."""

    dataset: Annotated[Path, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: Path
    """Folder of the run; it holds one configuration."""
    method: str = METHOD
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
    numbers: Annotated[Method, OmitArgPrefixes] = field(default_factory=Method)
    """The numbers of the method."""

    def run(self) -> None:
        """Check everything, then track what is not there yet."""
        from lpa_cwm import hub
        from lpa_cwm.data.tapvid import load_dataset
        from lpa_cwm.experiments.predict import Job, predict
        from lpa_cwm.experiments.ray_cluster import executor
        from lpa_cwm.sharding import Shard

        shard = Shard.parse(self.shard)
        dataset = load_dataset(self.dataset, self.selection)
        run = self.described(dataset)
        job = Job(dataset, partial(hub.tracker, self.method, **self.settings()))
        made, present = predict(job, run, self.out, executor(self.executor, self.device, self.workers), shard)
        self.report(made, present, len(dataset))

    def described(self, dataset: "TapVid") -> "Run":
        """What `run.json` says about it."""
        from lpa_cwm.experiments.manifest import manifest_of
        from lpa_cwm.experiments.run import Run, software

        path = str(self.dataset.resolve())
        return Run(self.method, self.identity(), path, self.selection, manifest_of(dataset), software())

    def settings(self) -> dict[str, Any]:
        """What the tracker is made with; of a rival, only the device is set here."""
        if self.method not in METHODS:
            if self.numbers != Method():
                raise InputError(f"{self.method} has no numbers to set; leave out --masks, --passes and the like.")
            return {"device": self.device}
        return {
            "numbers": self.numbers,
            "world": self.world,
            "score": self.score,
            "weights": self.weights,
            "device": self.device,
        }

    def identity(self) -> dict[str, Any]:
        """The settings that decide the predictions, with weights by content."""
        from lpa_cwm.baselines.table import rival

        if self.method not in METHODS:
            return rival(self.method).identity()
        score = self.score if self.method == "apa" else ""
        own = "" if self.weights else self.method
        return {
            "world": self.world,
            **({"score": score} if score else {}),
            "numbers": asdict(self.numbers) | {"passes": self.numbers.passes_with(self.world)},
            "weights": digest_of([self.weights]) if self.weights else None,
            "shipped_weights": shipped(self.world, score, own),
        }

    def report(self, made: int, present: int, total: int) -> None:
        """Say what was done and where it is."""
        if self.json:
            print(json.dumps({"out": str(self.out), "made": made, "present": present, "videos": total}))
            return
        print(f"{made} videos tracked, {present} were there already, {total} in all")
        print(self.out)
