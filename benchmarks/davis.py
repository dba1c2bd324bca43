"""The DAVIS table of docs/results.md: all methods that run here, ours directly and through time, in one report.

python benchmarks/davis.py tapvid_davis32_dev.pkl --out runs/davis [--gaps 1 4] [--videos 2 --max-tracks 1 --frames 3]

Run it again to resume. Baselines whose files are not here are left out and named; `lpa-cwm data fetch raft
raft-things` gets those of RAFT.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tyro.conf import Positional

from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.config import ADJUDICATORS, Selection
from lpa_cwm.evaluation.compare import compare
from lpa_cwm.evaluation.predict import Method
from lpa_cwm.report.results import load_method_sets, overview
from lpa_cwm.report.tables import to_markdown
from lpa_cwm.reproduction.tables import DATASET_HEADS, dataset_lines, difference_table

DIRECT = ("static", "lk-direct", "dis", "raft", "raft-small", "raft-things")
THROUGH_TIME = ("lk", "dis-chain", "dis-gaps", "raft-gaps", "raft-small-gaps", "raft-things-gaps")
BESIDE_PAPER = ("coverage", "dca_avg", "vis_ba", "aj", "delta_avg", "oa")
COLUMNS = ("coverage", "dca_avg", "cts_4", "vis_ba", "lcc", "aj", "delta_avg", "oa", "ad", "md")


@dataclass(frozen=True)
class Davis:
    """Track, score, and print the table and the differences from the paper."""

    dataset: Annotated[Path, Positional]
    out: Path = Path("runs/davis")
    baselines: tuple[str, ...] = field(default=DIRECT + THROUGH_TIME)
    adjudicators: tuple[str, ...] = ADJUDICATORS
    gaps: tuple[int, ...] = (1, 4)
    """Frames between a target and further sources, of the rows through time."""
    world: str = "learned"
    videos: tuple[str, ...] = ()
    """Names of videos, or one number: that many, evenly spaced; all if empty."""
    max_tracks: int | None = None
    frames: int | None = None
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        absent = {name: lack for name in self.baselines if (lack := BASELINES[name].missing())}
        methods = [Method(name) for name in self.baselines if name not in absent]
        for label, gaps in (("direct", ()), ("temporal", self.gaps)):
            for name in self.adjudicators:
                methods.append(Method(name, self.world, settings={"gaps": gaps}, label=f"{name} ({label})"))
        selection = Selection(self.videos, self.max_tracks, self.frames)
        result = compare(self.dataset, self.out, methods, selection=selection)
        (scored,) = load_method_sets(list(result.folders.values()))
        lines = list(dataset_lines("main", [scored]))
        print(to_markdown(overview(scored, "davis", scored.dataset, COLUMNS)))
        print(to_markdown(difference_table("davis", scored.dataset, DATASET_HEADS, BESIDE_PAPER, lines)))
        for name, lack in absent.items():
            print(f"{name} is left out: {lack}")
        print(result.report)


if __name__ == "__main__":
    tyro.cli(Davis).run()
