"""`lpa-cwm sweep`: how many masks and re-evaluations pay."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from lpa_cwm.config import ADJUDICATOR, WORLD
from lpa_cwm.registry import fingerprint, fingerprint_of


@dataclass(frozen=True)
class Sweep:
    """Measure final end-point error and time per query for M in 5, 10, 20 and R in 0, 1, 2."""

    dataset: Annotated[Path, Positional]
    """Annotated videos that no training saw."""
    videos: int = 10
    """Videos used."""
    queries: int = 4
    """Queries per video, all of one frame pair."""
    gaps: tuple[int, int] = (1, 1)
    """Fewest and most frames between source and target; the paper's are adjacent."""
    method: str = ADJUDICATOR
    """How candidates are weighed."""
    world: str = WORLD
    """World model that is asked."""
    weights: Path | None = None
    """LPA weights other than the shipped ones."""
    device: str = "cpu"
    """Where to compute."""
    out: Path | None = None
    """Keep what is measured in this folder: run again to go on, and give it to `lpa-cwm report`."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        """Print a row per setting as it is measured."""
        from lpa_cwm import registry
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.sweep import sweep
        from lpa_cwm.files import pin_settings
        from lpa_cwm.training.pair_sampling import TrackCorrespondences

        dataset = load_dataset(self.dataset)
        names = dataset.names[: self.videos]
        source = TrackCorrespondences(dataset, names, pairs=1, queries=self.queries, gaps=self.gaps)
        tracker = registry.load_cwm(self.method, self.world, weights=self.weights, device=self.device)
        if self.out:
            pin_settings(self.out / "settings.json", self.settings())
        if not self.json:
            print("| M | R | end-point error, px | s per query | queries |\n|---|---|---|---|---|")
        for cell in sweep(tracker, source, self.out):
            row = f"| {cell.masks} | {cell.passes} | {cell.error:.3f} | {cell.seconds:.3f} | {cell.queries} |"
            print(json.dumps(asdict(cell)) if self.json else row, flush=True)

    def settings(self) -> dict[str, Any]:
        """What the figures depend on."""
        names = {"dataset": self.dataset.name, "method": self.method, "world": self.world, "gaps": list(self.gaps)}
        weights = fingerprint_of([self.weights]) if self.weights else fingerprint(self.world, adjudicator=self.method)
        return names | {"videos": self.videos, "queries": self.queries, "weights": weights}
