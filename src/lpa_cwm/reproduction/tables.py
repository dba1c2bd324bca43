"""The tables of the paper, laid out as there: our figures, and in small print the paper's with the difference."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lpa_cwm.adjudicators.features import COMPRESSED, STATISTIC_NAMES
from lpa_cwm.adjudicators.lpa import load_lpa
from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics import METRICS, Scores
from lpa_cwm.report.page import WRITERS
from lpa_cwm.report.results import MethodSet
from lpa_cwm.report.tables import (
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

MAIN = ("coverage", "complete", "dca_avg", "cts_4", "vis_ba", "of1", "lcc", "aj", "delta_avg", "ad", "md", "oa")
"""Columns of Tables 1 and 2."""
THRESHOLDS = ("coverage", "complete", *(f"dca_{k}" for k in (1, 2, 4, 8, 16)), "dca_avg", "cts_4", "cts_8")
"""Columns of Table C.1."""
VISIBILITY = ("vis_ba", "of1", "lcc", "fragmentation")
"""Columns of Table C.2."""
NOTE = (
    "Ours; in small print the paper's figure and ours minus it. The paper's subsets of videos, tracks and frames are "
    "not published. A dash: no run here."
)
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


def write_table(table: Table, out: Path) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX."""
    paths = []
    for suffix, to_text in WRITERS.items():
        paths.append(out / f"{table.slug}.{suffix}")
        with atomic_write(paths[-1]) as aside:
            aside.write_text(to_text(table))
    return paths


def published(table: str, dataset: str) -> dict[str, dict[str, float]]:
    """Figures of one of the paper's tables for a data set, by method and metric; none if the paper lacks the set."""
    found: dict[str, dict[str, float]] = {}
    for figure in paper_figures():
        if figure.table == table and same_name(figure.dataset, dataset):
            found.setdefault(figure.method, {})[figure.metric] = figure.value
    return found


def _column(name: str) -> Column:
    """The column of a measure; complete tracks are those of at least 80 % coverage."""
    return metric_column(name, "C@.8" if name == "complete" else None)


def beside_paper(cell: Cell, paper: float | None) -> Cell:
    """A cell with the paper's figure and the difference as small print."""
    if paper is None:
        return cell
    known = isinstance(cell.value, float) and cell.value == cell.value
    gap = (f"{float(cell.value) - paper:+.2f}",) if known else ()
    return Cell(cell.text, cell.value, (f"paper {paper:.2f}", *gap), cell.undefined, cell.spread)


def dataset_table(
    slug: str, title: str, table: str, metrics: Sequence[str], method_sets: Sequence[MethodSet], note: str = NOTE
) -> Table:
    """Rows by data set and method: those of the paper in its order, then our further ones."""
    columns = (Column("dataset", "Dataset"), Column("method", "Method"), *map(_column, metrics))
    rows = []
    for scored in method_sets:
        rows += with_best(columns, _dataset_rows(scored, published(table, scored.dataset), metrics))
    return Table(slug, title, columns, tuple(rows), note)


def _dataset_rows(scored: MethodSet, paper: Mapping[str, Mapping[str, float]], metrics: Sequence[str]) -> Iterator[Row]:
    mine: dict[str | None, list[Scores]] = {}
    for scores in scored.methods:
        mine.setdefault(paper_row(scores), []).append(scores)
    for name, figures in paper.items():
        for scores in mine.pop(name, [None]):
            label = name if scores is None else f"{name} ({scores.method})"
            yield _measured_row(scored, scores, (scored.dataset, label), figures, metrics)
    for scores in (one for rest in mine.values() for one in rest):
        yield _measured_row(scored, scores, (scored.dataset, scores.method), {}, metrics)


def _measured_row(
    scored: MethodSet,
    scores: Scores | None,
    heads: Sequence[str],
    paper: Mapping[str, float],
    metrics: Sequence[str],
) -> Row:
    found = scored.estimates[scores.method] if scores else {}
    cells = []
    for name in metrics:
        cell = estimate_cell(found[name], METRICS[name]) if name in found else Cell("–", float("nan"))
        cells.append(beside_paper(cell, paper.get(name)))
    return Row((*map(text_cell, heads), *cells))


def ablation_table(scored: MethodSet) -> Table:
    """Architecture, objective, and aggregation with localization (Table 2)."""
    columns = (Column("block", "Block"), Column("configuration", "Configuration"), *map(_column, MAIN))
    paper, mine = published("ablation", scored.dataset), {one.method: one for one in scored.methods}
    rows = []
    for block, variants in BLOCKS.items():
        part = [
            _measured_row(scored, mine.get(variant), (block, row), paper.get(row, {}), MAIN)
            for row, variant in variants.items()
        ]
        rows += with_best(columns, part)
    title = f"Ablations on {scored.dataset}"
    return Table("table_2", title, columns, tuple(rows), NOTE)


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
    return Table("table_a1", "Candidate scalar descriptor of LPA", columns, tuple(rows), note)


def adapters_table() -> Table:
    """How visibility of external estimators is decided, and what each lacks here (Table D.1)."""
    names = ("Method", "Visibility source", "Threshold", "Sampling", "Runs here")
    columns = tuple(Column(name.lower().replace(" ", "_"), name) for name in names)
    rows = []
    for name, words in ADAPTERS.items():
        rows.append(Row((*map(text_cell, words), text_cell("no" if BASELINES[name].missing() else f"as {name}"))))
    return Table("table_d1", "Visibility adaptation for external estimators", columns, tuple(rows))
