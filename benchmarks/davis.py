"""The DAVIS table of docs/results.md: all methods that run here, ours directly and through time, in one report.

python benchmarks/davis.py tapvid_davis32_dev.pkl --out runs/davis [--gaps 1 4]

Run it again to go on after a stop. Baselines whose files are not here are left out and named.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tyro.conf import Positional

from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.evaluation.compare import compare
from lpa_cwm.evaluation.predict import Method
from lpa_cwm.report.results import against_paper, load_method_sets, overview
from lpa_cwm.report.tables import to_markdown

DIRECT = ("static", "dis", "raft", "raft-small", "raft-things")
THROUGH_TIME = ("lk", "dis-chain", "dis-gaps", "raft-gaps", "raft-small-gaps")
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
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        absent = {name: lack for name in self.baselines if (lack := BASELINES[name].missing())}
        methods = [Method(name) for name in self.baselines if name not in absent]
        for label, gaps in (("direct", ()), ("temporal", self.gaps)):
            for name in self.adjudicators:
                methods.append(Method(name, self.world, settings={"gaps": gaps}, label=f"{name} ({label})"))
        result = compare(self.dataset, self.out, methods)
        (scored,) = load_method_sets(list(result.folders.values()))
        print(to_markdown(overview(scored, "davis", scored.dataset, COLUMNS)))
        for table in against_paper(scored):
            print(to_markdown(table))
        for name, lack in absent.items():
            print(f"{name} is left out: {lack}")
        print(result.report)


if __name__ == "__main__":
    tyro.cli(Davis).run()
