"""`lpa-cwm paper`: every table and figure of the paper."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lpa_cwm.cli.evaluate import command_line
from lpa_cwm.cli.options import (
    DataOptions,
    ExpertOptions,
    JsonOption,
    ScoreModelOption,
    TrainingOptions,
    WeightsOption,
    WorldOption,
)
from lpa_cwm.cli.values import Count, InPath, Name, OutFolder
from lpa_cwm.errors import InputError, require

if TYPE_CHECKING:
    from lpa_cwm.reproduction.inputs import PaperRun


@dataclass(frozen=True, kw_only=True)
class Paper(JsonOption, TrainingOptions, ScoreModelOption, WeightsOption):
    """Make every table and figure of the paper from the data and the world model that are here; run again to go on."""

    EXAMPLE: ClassVar[str] = "lpa-cwm paper --data data --world learned --out paper --dry-run"
    data: tuple[InPath, ...]
    """TAP-Vid pickles, and folders with benchmarks and, for training, MOVi-F records or folders `train` and `val`."""
    out: OutFolder = Path("paper")
    """Folder of tables, figures, runs and trainings."""
    only: tuple[Name, ...] = ()
    """Names of the parts to make, as --dry-run lists them; all when empty."""
    methods: tuple[Name, ...] = ()
    """Rows of the tables: uniform, apa, lpa (also lpa@WORLD) and baselines; all of the paper that can run if empty."""
    cases: Name | None = None
    """Benchmark whose frames figures show, by its name in the tables; all benchmarks in turn unless given."""
    sweep_queries: Count = 40
    """Queries of the sweep of masks and re-evaluations."""
    dry_run: bool = False
    """List the parts, their cost and what is missing, and stop; one frame pair is tracked to time it."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of each benchmark that is used."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model and device."""
    expert: ExpertOptions = field(default_factory=lambda: ExpertOptions(preset="paper"))
    """Settings of the tracker; the preset, the paper's unless given, holds for the training of LPA too."""

    def run(self) -> None:
        """Print each part as it is there."""
        from lpa_cwm.reproduction.parts import dry_run, make_parts

        require("matplotlib", "report")
        run = self.paper_run()
        if self.dry_run:
            self.print_plan(run, dry_run(run, self.only))
            return
        for result in make_parts(run, self.only):
            text = f"{result.paper:11} {', '.join(result.files)} ({result.seconds:g} s)"
            print(json.dumps(asdict(result)) if self.json else text, flush=True)
        if not self.json:
            print(self.out / "index.md")

    def paper_run(self, command: str = "") -> "PaperRun":
        """The inputs of all parts; names are checked before any work. The index names the command."""
        from lpa_cwm.cli.options import check_method
        from lpa_cwm.registry import WORLDS
        from lpa_cwm.reproduction.inputs import PaperRun, find_data

        for name in self.methods:
            method, _, world = name.partition("@")
            check_method(method)
            if world and world not in WORLDS:
                raise InputError(f"{name!r} names no known world model; choose one of {', '.join(WORLDS)}.")
        data = find_data(self.data)
        names = [path.name if path.is_dir() else path.stem for path in data.benchmarks]
        if self.cases is not None and self.cases not in names:
            raise InputError(f"--cases is {self.cases!r}; expected one of the benchmarks {', '.join(names)}.")
        return PaperRun(
            data,
            self.out,
            self.model.world,
            self.score_model,
            self.weights,
            self.model.on(),
            self.expert.preset,
            self.expert.given(),
            self.methods,
            self.selection.selection(),
            self.steps,
            self.autocast,
            self.sweep_queries,
            self.cases or "",
            command or command_line(),
        )

    def print_plan(self, run: "PaperRun", plan: list[dict[str, object]]) -> None:
        """What would be made."""
        from lpa_cwm.reproduction.parts import needs_of_baselines

        if self.json:
            print(json.dumps({"parts": plan, "baselines": needs_of_baselines(run)}))
            return
        print("| part | in the paper | about s | done | lacks or differs |\n|---|---|---|---|---|")
        for part in plan:
            done = "yes" if part["done"] else "no"
            print(f"| {part['name']} | {part['paper']} | {part['seconds']} | {done} | {part['lacks']} |")
        paths = ", ".join(str(path) for path in run.data.benchmarks)
        print(f"benchmarks: {paths}; training: {run.data.train or 'none'}; held out: {run.data.val or 'none'}")
        for sentence in run.data.left_out:
            print(sentence)
        if run.data.train and not run.weights:
            print(f"further: candidates of {run.data.train}, and trainings of {run.steps} updates")
        for name, lack in needs_of_baselines(run).items():
            print(f"{name}: {lack}")
