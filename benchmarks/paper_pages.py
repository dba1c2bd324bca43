"""Make docs/paper: every table and figure of the paper, by `lpa-cwm paper` on real and simulated videos.

python benchmarks/paper_pages.py tapvid_davis32_dev.pkl real_dev.pkl [--work runs/paper] [--out docs/paper]

Simulates videos for the training, for the audit and for the figures with frames, so that the pages show no frame of the
real videos. Run it again to resume; new weights need a new --work. RAFT is a row if `lpa-cwm data fetch raft` was run.
"""

import multiprocessing
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from PIL import Image
from tyro.conf import Positional

from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.cli.evaluate import Paper
from lpa_cwm.cli.main import main, parse
from lpa_cwm.evaluation.compare import compare
from lpa_cwm.reproduction.inputs import PaperRun
from lpa_cwm.reproduction.parts import PARTS, finished, make_parts

SIMULATED = {
    "simulated": "--split val --clips 9 --per-file 3",
    "val": "--split val --clips {held_out} --per-file 5 --seed 1",
    "train": "--split train --clips {clips} --per-file 5",
}
"""Folders of simulated clips, with procedural bodies and pictures: the benchmark of the figures, and motion data."""
LARGEST = 1 << 18
"""Bytes of a PDF file that is copied; those with frames are larger, and their PNG files do."""
WIDEST = 1600
"""Pixels of the width of a large picture."""
METHODS = ("lk", "uniform", "apa", "lpa", "uniform@learned-total", "lpa@learned-total")
SLOWEST = "table-2"
"""The part that a second process makes."""


@dataclass(frozen=True)
class PaperPages:
    """Simulate, run the command, and copy what it wrote."""

    benchmarks: Annotated[tuple[Path, ...], Positional]
    """Pickles of annotated real videos."""
    work: Path = Path("runs/paper")
    """Folder of data, runs and trainings; not part of the pages."""
    out: Path = Path("docs/paper")
    methods: tuple[str, ...] = METHODS
    part: str = "--videos 6 --max-tracks 5 --frames 8 --steps 300"
    """Options of the command: the part of the benchmarks, the updates of each training, settings of the tracker."""
    clips: int = 25
    """Simulated clips of the training."""
    held_out: int = 10
    """Simulated clips of the audit and of the sweep."""
    threads: int = 1
    """Threads of torch; more are faster on an idle machine only."""
    workers: Literal[1, 2] = 1
    """Processes: the second one makes the ablation, then tracks other videos."""

    def run(self):
        torch.set_num_threads(self.threads)
        data = self.work / "data"
        for name, options in SIMULATED.items():
            fixed = "--form tapvid --recipe mixed --tracks 64"
            given = options.format(clips=self.clips, held_out=self.held_out).split()
            main(["data", "simulate", "--out", str(data / name), *fixed.split(), *given])
        raft = [] if BASELINES["raft"].missing() else ["raft"]
        rows = [*self.part.split(), "--cases", "simulated", "--methods", *raft, *self.methods]
        words = ["paper", "--data", *map(str, self.benchmarks), str(data), *rows, "--out", str(self.work / "paper")]
        shown = ["paper", "--data", *(path.name for path in self.benchmarks), "data", *rows]
        # The pages name no folder of this machine.
        script = ["python", "benchmarks/paper_pages.py", *shown[2 : 2 + len(self.benchmarks)], *self.changed()]
        title = f"{shlex.join(script)}\n# runs: {shlex.join(['lpa-cwm', *shown])}"
        run = open_run(words, title)
        helper = None
        if self.workers == 2:
            # The training that both processes need.
            print(run.lpa, flush=True)
            helper = multiprocessing.get_context("spawn").Process(target=assist, args=(words, title, self.threads))
            helper.start()
            self.make(run, [part.name for part in PARTS if part.name != SLOWEST])
            helper.join()
        self.make(run, [])
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        index = (run.out / "index.md").read_text()
        for name in self.files(run.out):
            if name.endswith(".pdf") and (run.out / name).stat().st_size > LARGEST:
                index = index.replace(f"[{name}]({name}), ", "")
            else:
                copy_small(run.out / name, self.out / name)
        (self.out / "index.md").write_text(index)

    def make(self, run: PaperRun, only: Sequence[str]) -> None:
        """Make parts, all if none is named."""
        for result in make_parts(run, only):
            print(result.paper, result.seconds, flush=True)

    def changed(self) -> Iterator[str]:
        """Options that differ from the defaults, as one would type them."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name not in ("benchmarks", "work", "out", "threads", "workers") and value != entry.default:
                option = "--" + entry.name.replace("_", "-")
                yield from (option, *value) if isinstance(value, tuple) else (f"{option}={value}",)

    def files(self, out: Path) -> Iterator[str]:
        for part in PARTS:
            if result := finished(out, part):
                yield from result.files


def copy_small(path: Path, to: Path) -> None:
    """Copy a file; large pictures, which show frames, in fewer pixels and 256 colors."""
    if path.suffix == ".png" and path.stat().st_size > LARGEST:
        with Image.open(path) as picture:
            shown = picture.convert("RGB")
        shown.thumbnail((WIDEST, 4 * WIDEST))
        shown.quantize(256, kmeans=2).save(to, optimize=True)
    else:
        shutil.copy(path, to)


def open_run(words: list[str], title: str) -> PaperRun:
    """The inputs of the command."""
    command = parse(words)
    assert isinstance(command, Paper)
    return command.paper_run(title)


def assist(words: list[str], title: str, threads: int) -> None:
    """Make the ablation, then track videos that the other process has not begun."""
    torch.set_num_threads(threads)
    run = open_run(words, title)
    for result in make_parts(run, [SLOWEST]):
        print(result.paper, result.seconds, flush=True)
    for dataset in run.datasets:
        compare(dataset, run.out / "runs" / dataset.name, [run.method(name) for name in run.rows])


if __name__ == "__main__":
    tyro.cli(PaperPages).run()
