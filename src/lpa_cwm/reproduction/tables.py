"""The tables of the paper, laid out as there: our figures, and in small print the paper's with the difference."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lpa_cwm.adjudicators.features import COMPRESSED, STATISTIC_NAMES
from lpa_cwm.adjudicators.lpa import load_lpa
from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.evaluation.audit import AdjudicatorStats, gap_closed
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics import METRICS, Estimate, Scores
from lpa_cwm.report.page import WRITERS
from lpa_cwm.report.results import MethodSet, gap_cell
from lpa_cwm.report.tables import (
    ADJUDICATORS,
    Cell,
    Column,
    Row,
    Table,
    count_cell,
    estimate_cell,
    metric_column,
    paper_figures,
    paper_row,
    same_name,
    text_cell,
    with_best,
)
from lpa_cwm.reproduction.latex import Layout, stronger_cells, to_paper_latex

MAIN = ("coverage", "complete", "dca_avg", "cts_4", "vis_ba", "of1", "lcc", "aj", "delta_avg", "ad", "md", "oa")
"""Columns of Tables 1 and 2."""
THRESHOLDS = ("coverage", "complete", *(f"dca_{k}" for k in (1, 2, 4, 8, 16)), "dca_avg", "cts_4", "cts_8")
"""Columns of Table C.1."""
VISIBILITY = ("vis_ba", "of1", "lcc", "fragmentation")
"""Columns of Table C.2."""
NOTE = (
    "Ours; in small print the paper's figure, and ours minus it, or the 95 % interval where the paper has none. The "
    "paper's subsets of videos, tracks and frames are not published. A dash: no run here."
)
FAMILY = "Bold: the best of the rows with a world model. Shaded in LaTeX: other methods that are better."
GROUPS = (("CMC (Ours)", 7), ("TAP-Vid First", 5))
"""Titles over the columns of Tables 1 and 2."""
BLOCKS = {
    "Architecture ablation": {
        "Uniform CWM (reference)": "uniform-windowed",
        "w/o candidate-set interaction": "no-interaction",
        "Response + scalar cues only": "response-and-scalars",
        "Full LPA-CWM": "lpa-windowed",
    },
    "Objective ablation": {
        "KL only": "kl-only",
        "KL + coordinate supervision": "kl-and-coordinate",
        "KL + best-candidate supervision": "kl-and-best",
        "Full objective": "paper-objective",
    },
    "Aggregation and localization": {
        "Uniform + Std.": "uniform-standard",
        "APA + Std.": "apa-standard",
        "LPA + Std.": "lpa-standard",
        "Uniform + Win.": "uniform-windowed",
        "APA + Win.": "apa-windowed",
        "LPA + Win.": "lpa-windowed",
    },
}
"""Rows of Table 2, and the variant of each."""
STATISTICS = (
    ("Normalized vertical displacement", "Candidate y displacement normalized by image height", "Global"),
    ("Normalized horizontal displacement", "Candidate x displacement normalized by image width", "Global"),
    ("Endpoint response", "Response magnitude at the candidate endpoint", "Single pixel"),
    ("Global response mean", "Mean response magnitude", "Full response"),
    ("Global response standard deviation", "Population standard deviation of response magnitude", "Full response"),
    ("Global response median", "Median response magnitude", "Full response"),
    ("Local peak ratio (7x7)", "Endpoint response divided by local mean response", "7x7"),
    ("Local peak ratio (15x15)", "Endpoint response divided by local mean response", "15x15"),
    ("Peak-to-median ratio", "Endpoint response divided by global response median", "Full response"),
    ("Peak-to-second-peak ratio", "Endpoint response divided by the strongest one outside 11x11", "Global"),
    ("Local response mass ratio", "Local response mass divided by total response mass", "7x7"),
    ("Local response mass ratio", "Local response mass divided by total response mass", "15x15"),
    ("Local response mass ratio", "Local response mass divided by total response mass", "31x31"),
    ("Normalized spatial entropy", "Entropy of the normalized spatial response distribution", "Full response"),
    ("Local photometric change", "Mean frame difference around the candidate endpoint", "7x7"),
    ("Local source-edge strength", "Mean source-frame edge magnitude around the candidate endpoint", "7x7"),
)
"""Table A.1, in the order of `STATISTIC_NAMES`."""
CONSISTENCY = (
    "Direct query-to-target forward-backward consistency",
    "6 px",
    "Forward at integer query; backward bilinear",
)
ADAPTERS = {
    "raft": ("RAFT", *CONSISTENCY),
    "sea-raft": ("SEA-RAFT", *CONSISTENCY),
    "doduo": ("DODUO", *CONSISTENCY),
    "cotracker3": ("CoTracker3", "Native visibility of the official offline predictor", "0.9", "No further test"),
    "smurf": ("SMURF", "Native occlusion map", "0.5", "Query-location lookup"),
    "gmrw": ("GMRW", "Official utility, adjacent-frame consistency", "3 px", "Bilinear at propagated positions"),
}
"""Table D.1, by the names of our adapters."""
OTHER_LABELS = {"lk": "Lucas-Kanade", "dis": "DIS", "static": "Static point"}
TEXT_LAYOUTS = {"table_a1": Layout(columns="clXllrr"), "table_d1": Layout(columns="lXcXl")}
"""Tables that are mostly words."""


LPA_EPE = "LPA, EPE of the weighted endpoint, px"
DEPLOYED_EPE = "LPA, M = 10, R = 1, final EPE, px"
STATED = {
    "figure_6": {LPA_EPE: 2.41},
    "figure_c1": {
        "LPA, DCA at 2 px of motion, %": 59.42,
        "LPA, DCA at 8 px of motion, %": 58.30,
        "LPA, CTS4 at c = 0.6, %": 58.79,
        "LPA, CTS4 at c = 0.9, %": 56.29,
    },
    "figure_e1": {DEPLOYED_EPE: 2.1363},
}
"""What the paper's text states of its drawings (Appendices C and E)."""


def write_table(table: Table, out: Path, to_latex: Callable[[Table], str] | None = None) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX."""
    paths = []
    writers = WRITERS if to_latex is None else WRITERS | {"tex": to_latex}
    for suffix, to_text in writers.items():
        paths.append(out / f"{table.slug}.{suffix}")
        with atomic_write(paths[-1]) as temporary:
            temporary.write_text(to_text(table))
    return paths


def write_words(table: Table, out: Path) -> list[Path]:
    """Write a table that is mostly words."""
    return write_table(table, out, lambda one: to_paper_latex(one, TEXT_LAYOUTS[one.slug]))


def label_of(method: str) -> str:
    """The paper's name of a method, and another world model in brackets; its own name if the paper lacks it."""
    name, _, world = method.partition(" (")
    known = {key: main for key, (main, _) in ADJUDICATORS.items()} | {key: row[0] for key, row in ADAPTERS.items()}
    label = (known | OTHER_LABELS).get(name, name)
    return f"{label} ({world}" if world else label


def published(table: str, dataset: str) -> dict[str, dict[str, float]]:
    """Figures of one of the paper's tables for a data set, by method and metric; none if the paper lacks the set."""
    found: dict[str, dict[str, float]] = {}
    for figure in paper_figures():
        if figure.table == table and same_name(figure.dataset, dataset):
            found.setdefault(figure.method, {})[figure.metric] = figure.value
    return found


def _column(name: str, short: bool = True) -> Column:
    """The column of a measure; complete tracks are those of at least 80 % coverage, and CTS alone is that of 4 px."""
    labels = {"complete": "C@.8"} | ({"cts_4": "CTS"} if short else {})
    return metric_column(name, labels.get(name))


def paper_cell(cell: Cell, paper: float | None) -> Cell:
    """A cell with the paper's figure and the difference as small print."""
    if paper is None:
        return cell
    known = isinstance(cell.value, float) and cell.value == cell.value
    gap = (f"{float(cell.value) - paper:+.2f}",) if known else ()
    return Cell(cell.text, cell.value, (f"{paper:.2f}", *gap), cell.undefined, cell.spread)


@dataclass(frozen=True)
class Line:
    """A row of one of the paper's tables: its labels, the paper's figures and ours, both by measure."""

    heads: tuple[str, ...]
    paper: Mapping[str, float]
    ours: Mapping[str, Estimate]
    external: bool = False
    """Whether this is none of the methods with a world model, of which the best is marked."""
    method: str = ""
    """Our name of the method; empty if it has no run."""


DATASET_HEADS = (Column("dataset", "Dataset"), Column("method", "Method"))
ABLATION_HEADS = (Column("block", "Block"), Column("configuration", "Configuration"))


def dataset_lines(table: str, method_sets: Sequence[MethodSet]) -> Iterator[list[Line]]:
    """For each data set the methods of the paper in its order, then our further ones."""
    for scored in method_sets:
        mine: dict[str | None, list[Scores]] = {}
        for scores in scored.methods:
            mine.setdefault(paper_row(scores), []).append(scores)
        lines = []
        for name, figures in published(table, scored.dataset).items():
            for scores in mine.pop(name, [None]):
                label = name if scores is None else label_of(scores.method)
                line = _line(scored, scores, (scored.dataset, label), figures)
                lines.append(replace(line, external=name not in FAMILY_ROWS))
        rest = [scores for group in mine.values() for scores in group]
        further = [_line(scored, scores, (scored.dataset, label_of(scores.method)), {}) for scores in rest]
        further = [replace(line, external=line.method.partition(" (")[0] not in ADJUDICATORS) for line in further]
        # As in the paper, other methods come first.
        yield [line for line in lines + further if line.external] + [one for one in lines + further if not one.external]


FAMILY_ROWS = tuple(main for main, _ in ADJUDICATORS.values())


def ablation_lines(scored: MethodSet) -> Iterator[list[Line]]:
    """The blocks of Table 2."""
    paper, mine = published("ablation", scored.dataset), {one.method: one for one in scored.methods}
    for block, variants in BLOCKS.items():
        yield [_line(scored, mine.get(variant), (block, row), paper.get(row, {})) for row, variant in variants.items()]


def _line(scored: MethodSet, scores: Scores | None, heads: tuple[str, ...], paper: Mapping[str, float]) -> Line:
    return Line(heads, paper, scored.estimates[scores.method] if scores else {}, method=scores.method if scores else "")


@dataclass(frozen=True)
class MeasuredTable:
    """Measures of methods beside the paper's, and how the paper sets the table."""

    slug: str
    title: str
    heads: Sequence[Column]
    metrics: Sequence[str]
    blocks: Sequence[Sequence[Line]]
    groups: tuple[tuple[str, int], ...] = ()
    """Titles over columns of measures."""
    first: Literal["side", "title"] = "side"
    """Where the name of a block stands."""

    @property
    def lines(self) -> list[Line]:
        """All rows."""
        return [line for block in self.blocks for line in block]

    @property
    def table(self) -> Table:
        """The table; the best row with a world model of each block is marked."""
        columns = (*self.heads, *(_column(name, self.slug != "table_c1") for name in self.metrics))
        rows: list[Row] = []
        for block in self.blocks:
            rivals = [replace(_measured_row(line, self.metrics), reference=line.external) for line in block]
            rows += [replace(row, reference=False) for row in with_best(columns, rivals)]
        note = f"{NOTE} {FAMILY}" if any(line.external for line in self.lines) else NOTE
        return Table(self.slug, self.title, columns, tuple(rows), note)

    def latex(self, table: Table) -> str:
        """As in the paper: rows of the family are shaded, and other methods where they are better."""
        shaded = frozenset(number for number, line in enumerate(self.lines) if self._shaded(line))
        numbers = [number for number, block in enumerate(self.blocks) for _ in block]
        stronger = stronger_cells(table, [line.external for line in self.lines], numbers)
        return to_paper_latex(table, Layout(self.first, self.groups, shaded=shaded, stronger=stronger))

    def _shaded(self, line: Line) -> bool:
        return self.first == "side" and not line.external

    def write(self, out: Path) -> list[Path]:
        """The table, and paper, ours and difference in columns."""
        differences = difference_table(self.slug, self.title, self.heads, self.metrics, self.blocks)
        return write_table(self.table, out, self.latex) + write_table(differences, out)


@dataclass(frozen=True)
class WideTable(MeasuredTable):
    """A table whose data sets stand side by side in LaTeX (Table C.2)."""

    def latex(self, table: Table) -> str:
        """One row for each method; a method without a run on a data set has dashes there."""
        names = [block[0].heads[0] for block in self.blocks]
        labels = dict.fromkeys(line.heads[1] for line in self.lines)
        external = {line.heads[1]: line.external for line in self.lines}
        labels = sorted(labels, key=lambda label: not external[label])
        count = len(self.metrics)
        values = table.columns[len(self.heads) :]
        columns = [Column(f"{name} {one.key}", one.label, one.metric) for name in names for one in values]
        cells = {tuple(cell.text for cell in row.cells[:2]): row.cells[2:] for row in table.rows}
        dashes = (Cell("–", float("nan")),) * count
        rows = [
            Row((text_cell(label), *(cell for name in names for cell in cells.get((name, label), dashes))))
            for label in labels
        ]
        wide = replace(table, columns=(self.heads[1], *columns), rows=tuple(rows))
        flags = [external[label] for label in labels]
        layout = Layout(
            groups=tuple((name, count) for name in names),
            shaded=frozenset(number for number, flag in enumerate(flags) if not flag),
            stronger=stronger_cells(wide, flags, [0] * len(rows)),
        )
        return to_paper_latex(wide, layout)


def _measured_row(line: Line, metrics: Sequence[str]) -> Row:
    cells = []
    for name in metrics:
        cell = estimate_cell(line.ours[name], METRICS[name]) if name in line.ours else Cell("–", float("nan"))
        cells.append(paper_cell(cell, line.paper.get(name)))
    return Row((*map(text_cell, line.heads), *cells))


def difference_table(
    slug: str, title: str, heads: Sequence[Column], metrics: Sequence[str], blocks: Iterable[Sequence[Line]]
) -> Table:
    """Paper, ours and difference in columns, for each figure that both have."""
    rows = []
    for line in (line for block in blocks for line in block):
        for name in metrics:
            if name in line.paper and name in line.ours:
                label = _column(name).head
                ours = estimate_cell(line.ours[name], METRICS[name])
                rows.append(_difference_row((*line.heads, label), line.paper[name], ours))
    columns = (*heads, Column("measure", "Measure"), *DIFFERENCE)
    return Table(f"{slug}_difference", f"{title}: paper, ours, difference", columns, tuple(rows), NOTE)


DIFFERENCE = (Column("paper", "Paper"), Column("ours", "Ours"), Column("difference", "Difference"))


def _difference_row(heads: Sequence[str], paper: float, ours: Cell) -> Row:
    return Row(
        (
            *map(text_cell, heads),
            Cell(f"{paper:.2f}" if round(paper, 2) == paper else f"{paper:g}", paper),
            ours,
            gap_cell(ours, paper),
        )
    )


def stated_table(slug: str, title: str, stated: Mapping[str, float], ours: Mapping[str, Cell]) -> Table:
    """Paper, ours and difference for the figures of a drawing that the paper's text states."""
    rows = [_difference_row((what,), paper, ours[what]) for what, paper in stated.items() if what in ours]
    return Table(f"{slug}_difference", title, (Column("figure", "Figure"), *DIFFERENCE), tuple(rows), NOTE)


def statistics_table(weights: Path) -> Table:
    """The descriptor of a candidate, with the standardization that LPA's weights carry (Table A.1)."""
    names = ("Dim.", "Statistic", "Definition", "Support", "Name here", "Mean", "Std")
    columns = tuple(Column(name.lower().replace(" ", "_").strip("."), name) for name in names)
    network = load_lpa(weights)
    rows = []
    for place, (words, key) in enumerate(zip(STATISTICS, STATISTIC_NAMES, strict=True)):
        numbers = (Cell(f"{value[place]:.4g}", float(value[place])) for value in (network.mean, network.std))
        rows.append(Row((count_cell(place + 1), *map(text_cell, words), text_cell(key), *numbers)))
    first, last = COMPRESSED.start + 1, COMPRESSED.stop
    note = f"Mean and std over the training candidates, dimensions {first} to {last} after sign(x) log(1 + |x|)."
    return Table("table_a1", "Candidate scalar descriptor used by LPA", columns, tuple(rows), note)


def adapters_table() -> Table:
    """How visibility of external estimators is decided, and what each lacks here (Table D.1)."""
    names = ("Method", "Visibility source", "Threshold", "Sampling", "Runs here")
    columns = tuple(Column(name.lower().replace(" ", "_"), name) for name in names)
    rows = []
    for name, words in ADAPTERS.items():
        rows.append(Row((*map(text_cell, words), text_cell("no" if BASELINES[name].missing() else f"as {name}"))))
    return Table("table_d1", "Visibility adaptation for external estimators", columns, tuple(rows))


def audit_cell(error: Estimate) -> Cell:
    """An endpoint error in pixels with its interval."""
    return estimate_cell(error, METRICS["ad"])


def audit_summary(title: str, stats: Mapping[str, AdjudicatorStats]) -> Table:
    """Statistics of each adjudicator (Figure 6)."""
    names = ("Adjudicator", "EPE, px", "Top-1 hit, %", "Effective support", "Gap closed, %")
    columns = [Column(name.partition(",")[0].lower().replace(" ", "_"), name) for name in names]
    columns += [Column(f"rank_{rank + 1}", f"Weight of rank {rank + 1}") for rank in range(len(stats["lpa"].by_rank))]
    rows = []
    for name, one in stats.items():
        closed, plain = 100 * gap_closed(stats, name), [one.support, *one.by_rank]
        support, *weights = (Cell(f"{mean.value:.3f}", mean.value, spread=(mean.low, mean.high)) for mean in plain)
        cells = audit_cell(one.error), estimate_cell(one.hit, METRICS["coverage"]), support
        rows.append(Row((text_cell(name), *cells, Cell(f"{closed:.0f}", closed), *weights)))
    return Table("figure_6", title, tuple(columns), tuple(rows), "Means over videos with 95 % intervals over videos.")


def sensitivity_cells(found: Sequence[Table]) -> list[Cell]:
    """LPA at the settings of which the paper's text states figures: the outer ones of motion and of coverage."""
    rows = [row.cells for table in found for row in table.rows if row.cells[0].text == "lpa"]
    return [cell for cells in rows for cell in (cells[1], cells[-1])]
