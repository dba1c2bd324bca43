"""`lpa-cwm compare`: several methods on one data set, tracked, scored and reported by one command."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.cli.options import TrackerOptions
from lpa_cwm.config import ADJUDICATORS, WORLD, Selection
from lpa_cwm.errors import InputError


@dataclass(frozen=True)
class Compare:
    """Track a data set with several methods, score and compare them; ours share what the world model is asked."""

    dataset: Annotated[Path, Positional]
    """A TAP-Vid pickle, a folder of them, or the csv of Kinetics with its clips beside it."""
    out: Path
    """Folder of the runs and the report; run again to go on where it stopped."""
    methods: tuple[str, ...] = ADJUDICATORS
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
    tracker: Annotated[TrackerOptions, OmitArgPrefixes] = field(default_factory=TrackerOptions)
    """Settings of our methods."""

    def run(self) -> None:
        """Track, score, report."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.compare import compare
        from lpa_cwm.evaluation.methods import Method
        from lpa_cwm.report.write import write_report
        from lpa_cwm.sharding import Shard

        shard = Shard.parse(self.shard)
        if len(set(self.methods)) < len(self.methods) or not self.methods:
            raise InputError(f"The methods are {', '.join(self.methods) or 'none'}; name each once, and at least one.")
        folders = {name: self.out / "runs" / name.replace("/", "_") for name in self.methods}
        methods = {
            folder: Method(name, self.world, self.score, self.weights if name == "lpa" else None, self.device, settings)
            for name, folder in folders.items()
            for settings in [self.tracker.given() if name in ADJUDICATORS else {}]
        }
        left = compare(load_dataset(self.dataset, self.selection), methods, shard=shard)
        if left:
            print(f"{left} videos are left to other shards; the shard that tracks the last one writes the report.")
            return
        print(write_report(list(methods), self.out / "report"))
