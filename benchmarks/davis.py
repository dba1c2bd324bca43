"""The DAVIS tables of docs/results.md: all methods that run here, ours directly and through time, in one report.

python benchmarks/davis.py tapvid_davis32_dev.pkl --out runs/davis [--gaps 1 4] [--page docs/results.md]

Run it again to resume; baselines do not depend on our weights, so their runs may be copied to a new folder. Baselines
whose files are not here are left out and named; `lpa-cwm data fetch raft raft-things` gets those of RAFT. With --page
the tables of the page are replaced.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from notes import replace_table, table
from tyro.conf import Positional

from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.config import ADJUDICATORS, Selection
from lpa_cwm.evaluation.compare import compare
from lpa_cwm.evaluation.predict import Method
from lpa_cwm.metrics import METRICS, Estimate, Metric, Scores, difference, summarize
from lpa_cwm.report.results import MethodSet, load_method_sets, overview
from lpa_cwm.report.tables import to_markdown
from lpa_cwm.reproduction.tables import DATASET_HEADS, dataset_lines, difference_table

DIRECT = ("static", "lk-direct", "dis", "raft", "raft-small", "raft-things")
THROUGH_TIME = ("lk", "dis-chain", "dis-gaps", "raft-gaps", "raft-small-gaps", "raft-things-gaps")
BESIDE_PAPER = ("coverage", "dca_avg", "vis_ba", "aj", "delta_avg", "oa")
SHOWN = ("coverage", "dca_avg", "cts_4", "vis_ba", "of1", "lcc", "aj", "delta_avg", "oa")
"""Columns of the page, and those of which it shows intervals."""
INTERVALS = ("dca_avg", "cts_4", "vis_ba", "aj", "delta_avg")
COMPARED = ("dca_avg", "coverage", "cts_4", "vis_ba", "aj", "delta_avg")
RIVALS = ("uniform (temporal)", "lpa (direct)", "dis-gaps", "raft-small-gaps", "lk")
DIRECT_RIVALS = {"uniform (direct)": "uniform weights", "raft": "RAFT", "dis": "DIS"}
"""Rows that LPA through time is compared with, and those for LPA without further sources."""
HALVED = ("dca_avg", "aj", "delta_avg", "oa", "vis_ba")
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
    page: Path | None = None
    """Page whose tables are replaced."""

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
        if self.page:
            for name, lines in page_tables(scored).items():
                if lines:
                    replace_table(self.page, name, ["", *lines])
        print(result.report)


def page_tables(scored: MethodSet) -> dict[str, list[str]]:
    """The tables of the page by name, and the sentence on LPA and uniform weights without further sources."""
    found = {scores.method: scores for scores in scored.methods}
    rows = [("method", *(f"{METRICS[name].label} {METRICS[name].arrow}".strip() for name in SHOWN))]
    for name in found:
        cells = (estimate_text(scored.estimates[name][one], METRICS[one], one in INTERVALS) for one in SHOWN)
        rows.append((shown_name(name), *cells))
    asked = {*DIRECT, *THROUGH_TIME}
    absent = ", ".join(f"`{name}`" for name in (*DIRECT, *THROUGH_TIME) if name in asked - found.keys())
    lines = [*table(*rows), *(["", f"Not run here: {absent}."] if absent else [])]
    tables = {"davis": lines, "davis-minus": [], "davis-direct": [], "davis-halves": []}
    ours = found.get("lpa (temporal)")
    rivals = [name for name in RIVALS if name in found]
    if ours and rivals:
        minus = [("minus", *(METRICS[name].label for name in COMPARED))]
        minus += [(shown_name(name), *difference_texts(ours, found[name], COMPARED)) for name in rivals]
        halves = [("", *(METRICS[name].label for name in HALVED))]
        halves += [(shown_name(one.method), *half_texts(one)) for one in (ours, *(found[name] for name in rivals))]
        tables |= {"davis-minus": table(*minus), "davis-halves": table(*halves)}
    if direct := found.get("lpa (direct)"):
        present = [name for name in DIRECT_RIVALS if name in found]
        sentences = (direct_sentence(direct, found[name], DIRECT_RIVALS[name]) for name in present)
        tables["davis-direct"] = "\n\n".join(sentences).split("\n")
    return tables


def direct_sentence(direct: Scores, rival: Scores, shown: str) -> str:
    """Differences of LPA without further sources from another direct method."""
    names = ("dca_avg", "coverage", "cts_4", "vis_ba", "of1", "lcc", "aj", "delta_avg")
    texts = difference_texts(direct, rival, names)
    told = ", ".join(f"{METRICS[name].label} {text}" for name, text in zip(names, texts, strict=True))
    return f"Direct, LPA minus {shown}: {told}."


def shown_name(method: str) -> str:
    """A row as the page calls it: through time is the default."""
    name, _, kind = method.partition(" (")
    return f"`{name}`, direct" if kind == "direct)" else f"`{name}`"


def estimate_text(estimate: Estimate, metric: Metric, interval: bool) -> str:
    """A mean with its interval."""
    value, low, high = (metric.scale * one for one in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} ({low:.1f} … {high:.1f})" if interval else f"{value:.1f}"


def difference_texts(first: Scores, second: Scores, names: Sequence[str]) -> list[str]:
    """Mean differences over videos with their intervals."""
    gaps = difference(first, second, list(names))
    found = [(gaps[name].estimate, METRICS[name].scale) for name in names]
    return [f"{s * one.value:+.1f} ({s * one.low:.1f} … {s * one.high:.1f})" for one, s in found]


def half_texts(scores: Scores) -> list[str]:
    """Means over every second video by name, beginning with the first, and over the others."""
    names = sorted(scores.videos)
    parts = [replace(scores, videos={name: scores.videos[name] for name in names[start::2]}) for start in (0, 1)]
    halves = [summarize(part, list(HALVED)) for part in parts]
    return [" / ".join(f"{METRICS[name].scale * half[name].value:.1f}" for half in halves) for name in HALVED]


if __name__ == "__main__":
    tyro.cli(Davis).run()
