"""`lpa-cwm ablate`: train and run every row of the ablation table."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.cli.train_lpa import TrainLpa
from lpa_cwm.config import WORLD, Selection
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.variants import VARIANTS, Variant

if TYPE_CHECKING:
    from lpa_cwm.evaluation.methods import Method


@dataclass(frozen=True)
class Ablate:
    """Train the variants of LPA, track a data set with every variant, score and compare; run again to go on."""

    dataset: Annotated[Path, Positional]
    """Annotated videos that no training saw."""
    cache: tuple[Path, ...]
    """Evidence to train on, from `lpa-cwm cache`."""
    out: Path
    """Folder of trainings, runs and the report."""
    trainings: Path | None = None
    """Folder of the trainings, to share them between data sets; by default one in `out`."""
    only: tuple[str, ...] = ()
    """Names of the variants to run; all when empty."""
    steps: int = 10_000
    """Updates of each training."""
    autocast: bool = False
    """Train in bfloat16."""
    world: str = WORLD
    """World model that is asked."""
    device: str = "cpu"
    """Where to compute."""
    selection: Annotated[Selection, OmitArgPrefixes] = field(default_factory=Selection)
    """The part of the data set that is used."""

    def run(self) -> None:
        """Train every row, track with all of them, then the report."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.compare import compare
        from lpa_cwm.report.write import write_report

        rows = {self.out / "runs" / row.name: self.row(row) for row in self.chosen()}
        compare(load_dataset(self.dataset, self.selection), rows)
        print(write_report(list(rows), self.out / "report"))

    def chosen(self) -> list[Variant]:
        """The rows asked for, in the table's order."""
        known = [variant.name for variant in VARIANTS]
        for name in self.only:
            if name not in known:
                raise InputError(f"{name!r} is no variant; choose among {', '.join(known)}.")
        return [variant for variant in VARIANTS if not self.only or variant.name in self.only]

    def trained(self, variant: Variant) -> Path:
        """The variant's weights; variants that differ only in inference share a training."""
        name = variant.name if variant.training else "full"
        folder = (self.trainings or self.out / "training") / name
        alike = {"steps": self.steps, "autocast": self.autocast, "device": self.device}
        TrainLpa(self.cache, folder, **alike, **variant.training).run()  # type: ignore[arg-type]
        return folder / "lpa.safetensors"

    def row(self, variant: Variant) -> "Method":
        """What is run for a row."""
        from lpa_cwm.evaluation.methods import Method

        weights = self.trained(variant) if variant.method == "lpa" else None
        return Method(variant.method, self.world, weights=weights, device=self.device, settings=variant.settings)
