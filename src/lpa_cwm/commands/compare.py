"""`lpa-cwm compare`: several methods on one data set, tracked, scored and reported by one command."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.commands.predict import Predict
from lpa_cwm.commands.report import Report
from lpa_cwm.commands.score import Score
from lpa_cwm.config import METHODS, WORLD, Method
from lpa_cwm.data.selection import Selection
from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    from lpa_cwm.sharding import Shard
    from lpa_cwm.tracker import CwmTracker


@dataclass(frozen=True)
class Compare:
    """Track a data set with several methods, score and compare them; ours share what the world model is asked."""

    dataset: Annotated[Path, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: Path
    """Folder of the runs and the report; run again to go on where it stopped."""
    methods: tuple[str, ...] = METHODS
    """Methods to compare: uniform, apa, lpa and rivals (see `lpa-cwm methods`)."""
    world: str = WORLD
    """World model that is asked."""
    score: str = "compact"
    """Score field that apa asks."""
    weights: Path | None = None
    """LPA weights other than the shipped ones."""
    device: str = "cpu"
    """Where to compute, for example cuda."""
    shard: str = "1/1"
    """Track every n-th video, beginning with the i-th: i/n; the one that finds all videos tracked makes the report."""
    selection: Annotated[Selection, OmitArgPrefixes] = field(default_factory=Selection)
    """The part of the data set that is used."""
    numbers: Annotated[Method, OmitArgPrefixes] = field(default_factory=Method)
    """The numbers of our methods."""

    def run(self) -> None:
        """Track, score, report."""
        from lpa_cwm.data.tapvid import load_dataset
        from lpa_cwm.experiments.predict import lacking
        from lpa_cwm.sharding import Shard

        shard = Shard.parse(self.shard)
        if len(set(self.methods)) < len(self.methods) or not self.methods:
            raise InputError(f"The methods are {', '.join(self.methods) or 'none'}; name each once, and at least one.")
        requests = [self.request(method) for method in self.methods]
        predict_all([one for one in requests if one.method in METHODS], shard)
        for one in requests:
            if one.method not in METHODS:
                one.run()
        left = lacking(load_dataset(self.dataset, self.selection).names, [one.out for one in requests])
        if left:
            print(f"{len(left)} videos are left to other shards; who tracks the last one gets the report.")
            return
        report([one.out for one in requests], self.out / "report")

    def request(self, method: str) -> Predict:
        """What `lpa-cwm predict` would be asked for a method by itself."""
        ours: dict[str, Any] = {"world": self.world, "score": self.score, "numbers": self.numbers}
        if method == "lpa":
            ours["weights"] = self.weights
        settings = ours if method in METHODS else {}
        out = self.out / "runs" / method.replace("/", "_")
        common: dict[str, Any] = {"device": self.device, "selection": self.selection, "shard": self.shard}
        return Predict(self.dataset, out, method, **common, **settings)


def predict_all(requests: list[Predict], shard: "Shard | None" = None) -> None:
    """Runs of our methods on one world model: they differ in what they make of answers, not in what they ask."""
    from lpa_cwm import hub
    from lpa_cwm.data.tapvid import load_dataset
    from lpa_cwm.experiments.predict import JointJob, predict_together
    from lpa_cwm.world.remember import Remembering

    if not requests:
        return
    dataset = load_dataset(requests[0].dataset, requests[0].selection)

    def trackers() -> "list[CwmTracker]":
        world = Remembering(hub.load_world(requests[0].world))
        settings: list[dict[str, Any]] = [one.settings() | {"world": world} for one in requests]
        return [hub.load(one.method, **own) for one, own in zip(requests, settings, strict=True)]

    predict_together(JointJob(dataset, trackers), {one.out: one.described(dataset) for one in requests}, shard)


def report(runs: list[Path], out: Path) -> None:
    """Score runs, then compare them."""
    for run in runs:
        Score(run).run()
    Report(tuple(runs), out=out).run()
