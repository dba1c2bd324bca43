"""The paper's tables and figures as parts: what each needs, costs and writes; finished parts are not made again."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from lpa_cwm import registry
from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.audit import audit, audit_figure
from lpa_cwm.explain import Explanation, explain
from lpa_cwm.files import atomic_write
from lpa_cwm.probe import first_pass
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.results import sensitivity, sweep_table
from lpa_cwm.report.tables import Cell, same_name
from lpa_cwm.reproduction import cases, figures, tables
from lpa_cwm.reproduction.index import deviations, write_index
from lpa_cwm.reproduction.inputs import PUBLISHED, PaperRun
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Queries
from lpa_cwm.validation import read_json, reading, structure
from lpa_cwm.video_tracking import estimate_cost

MAIN_CASES, FURTHER_CASES = 4, 14
"""Cases of Figure 4 and of Figure F.1."""
EXPLAINED = 6
"""Cases of which Figure 3 shows the query with the strongest second mode; Figure A.1 shows one of them, too."""


@dataclass(frozen=True)
class Part:
    """One table or figure of the paper."""

    name: str
    paper: str
    """Its number in the paper."""
    title: str
    make: Callable[[PaperRun], list[Path]]
    needs: str
    """Its expensive input: runs, ablation, candidates, sweep, or none."""


@dataclass(frozen=True)
class PartResult:
    """What was written, and in how many seconds; runs that several parts share count for the first of them."""

    name: str
    paper: str
    title: str
    files: list[str]
    seconds: float
    sizes: list[int] = field(default_factory=list)
    """Bytes of each file; one that was cut short is made again."""


def make_parts(run: PaperRun, only: Sequence[str] = ()) -> Iterator[PartResult]:
    """Make all parts, or some by name; yields each when it is finished, and writes `index.md` at the end."""
    chosen = find_parts(only)
    run.pin()
    done = []
    for part in chosen:
        done.append(finished(run.out, part) or make_part(run, part))
        yield done[-1]
    write_index(run, [(part, result) for part in PARTS if (result := finished(run.out, part))])


def find_parts(names: Sequence[str]) -> list[Part]:
    """Parts by name, in the order of the paper; all if none is named."""
    known = [part.name for part in PARTS]
    for name in names:
        if name not in known:
            raise InputError(f"{name!r} is no part of the paper; choose among {', '.join(known)}.")
    return [part for part in PARTS if not names or part.name in names]


def finished(out: Path, part: Part) -> PartResult | None:
    """The result of an earlier run, if all of its files are still there, whole."""
    path = out / "parts" / f"{part.name}.json"
    if not path.exists():
        return None
    with reading(path, "the list of a part's files", "remove it, and the part is made again"):
        result = structure(read_json(path), PartResult)
        if not all((out / name).exists() for name in result.files):
            return None
        return result if result.sizes in ([], sizes_of(out, result.files)) else None


def sizes_of(out: Path, files: Sequence[str]) -> list[int]:
    """Bytes of each file."""
    return [(out / name).stat().st_size for name in files]


def make_part(run: PaperRun, part: Part) -> PartResult:
    """Make one part and note its files."""
    begin = time.perf_counter()
    paths = part.make(run)
    seconds = time.perf_counter() - begin
    files = [str(path.relative_to(run.out)) for path in paths]
    result = PartResult(part.name, part.paper, part.title, files, round(seconds, 1), sizes_of(run.out, files))
    with atomic_write(run.out / "parts" / f"{part.name}.json") as temporary:
        temporary.write_text(json.dumps(asdict(result)))
    return result


def needs_of_baselines(run: PaperRun) -> dict[str, str]:
    """What is needed to run the paper's baselines that have no row."""
    return {name: BASELINES[name].missing() or "not asked for" for name in PUBLISHED if name not in run.rows}


def costs(run: PaperRun) -> dict[str, float]:
    """Seconds of our trackers by what parts need, from the time of one frame pair here; trainings come on top."""
    names = [name.partition("@") for name in run.rows]
    rows = Counter(world or run.world for adjudicator, _, world in names if adjudicator in ADJUDICATORS)
    sample, each, again = run.datasets[0][0], {}, 0
    for world in dict.fromkeys((*rows, run.world)):
        # With the bundled weights: a plan trains nothing.
        tracker = registry.load_cwm("lpa", world, device=run.device, **run.settings)
        cost = estimate_cost(tracker, sample.clip, sample.queries)
        each[world], again = cost.seconds / max(1, cost.targets), tracker.config.passes

    def shared(count: int) -> float:
        """Cost of some adjudicators relative to one: the first pass is shared, re-evaluations are not."""
        return (1 + again * count) / (1 + again)

    targets = [sum(_targets(data, index) for index in range(len(data))) for data in run.datasets]
    variants = 3 if not run.trains else 9
    return {
        "runs": sum(targets) * sum(each[world] * shared(count) for world, count in rows.items()),
        "ablation": targets[0] * each[run.world] * (shared(variants) + shared(3)),
        "candidates": 640 * each[run.world] / (1 + again),
        # Sum over M and R of M (1 + R), relative to M = 10.
        "sweep": run.queries * each[run.world] * 210 / (10 * (1 + again)),
    }


def _targets(dataset: Dataset, index: int) -> int:
    sample = dataset[index]
    return int((len(sample.clip) - 1 - sample.queries.frame).sum())


def dry_run(run: PaperRun, only: Sequence[str] = ()) -> list[dict[str, object]]:
    """Each part with its cost in seconds and what it lacks; shared inputs are counted for the first part."""
    seconds = costs(run)
    listed = []
    for part in find_parts(only):
        about = {"name": part.name, "paper": part.paper, "title": part.title, "needs": part.needs}
        done = finished(run.out, part) is not None
        cost = 0.0 if done else round(seconds.pop(part.needs, 0.0), 1)
        listed.append({**about, "seconds": cost, "done": done, "lacks": deviations(run, part)})
    return listed


# --- Tables -----------------------------------------------------------------------------------------------------------


def table_1(run: PaperRun) -> list[Path]:
    """All methods on all benchmarks."""
    return write_measured(run, "table_1", "Cross-dataset evaluation", "main", tables.MAIN)


def write_measured(run: PaperRun, slug: str, title: str, table: str, metrics: Sequence[str]) -> list[Path]:
    """Measures of all methods on all benchmarks, and their differences from the paper."""
    blocks = list(tables.dataset_lines(table, run.method_sets))
    kind = tables.WideTable if table == "visibility" else tables.MeasuredTable
    groups = tables.GROUPS if table == "main" else ()
    return kind(slug, title, tables.DATASET_HEADS, metrics, blocks, groups).write(run.out)


def table_2(run: PaperRun) -> list[Path]:
    """Architecture, objective, and aggregation with localization."""
    title, heads = f"Ablations on {run.ablation.dataset}", tables.ABLATION_HEADS
    blocks = list(tables.ablation_lines(run.ablation))
    return tables.MeasuredTable("table_2", title, heads, tables.MAIN, blocks, tables.GROUPS, "title").write(run.out)


def table_a1(run: PaperRun) -> list[Path]:
    """The statistics of a candidate."""
    return tables.write_words(tables.statistics_table(run.lpa), run.out)


def table_c1(run: PaperRun) -> list[Path]:
    """CMC accuracy at each threshold."""
    return write_measured(run, "table_c1", "Threshold-wise CMC accuracy", "thresholds", tables.THRESHOLDS)


def table_c2(run: PaperRun) -> list[Path]:
    """Visibility and continuity."""
    title = "Visibility and continuity diagnostics for CMC"
    return write_measured(run, "table_c2", title, "visibility", tables.VISIBILITY)


def table_d1(run: PaperRun) -> list[Path]:
    """How visibility of external estimators is decided."""
    return tables.write_words(tables.adapters_table(), run.out)


# --- Figures ----------------------------------------------------------------------------------------------------------


def cases_of(run: PaperRun) -> list[cases.Case]:
    """Cases of Figures 4 and F.1."""
    return cases.find_cases(run.shown, MAIN_CASES + FURTHER_CASES)


def folders_of(run: PaperRun, method: str) -> dict[str, Path]:
    """Run folders of a method by data set."""
    return {scored.dataset: scored.folders[method] for scored in run.method_sets}


def columns_of(run: PaperRun) -> list[tuple[str, dict[str, Path]]]:
    """Five methods: two baselines, SEA-RAFT and CoTracker3 if they have runs, and uniform, APA and LPA."""
    names = [one.method for one in run.method_sets[0].methods if " (" not in one.method]
    ours = [name for name in figures.OURS if name in names]
    order = ("sea-raft", "cotracker3", *PUBLISHED)
    rivals = [name for name in names if name not in ours]
    rivals = sorted(rivals, key=lambda name: order.index(name) if name in order else len(order))
    return [(name, folders_of(run, name)) for name in (*rivals[: 5 - len(ours)], *ours)]


def figure_1(run: PaperRun) -> list[Path]:
    """Teaser."""
    before, after = (folders_of(run, name) for name in ("uniform", "lpa"))
    figure = cases.teaser_figure(cases_of(run), before, after, run.method_sets[0])
    return figures.save_figure(figure, run.out, "figure_1")


def figure_3(run: PaperRun) -> list[Path]:
    """Windows on the response distribution with the strongest second mode."""
    tracker = run.tracker()
    found = [one for case in cases_of(run)[:EXPLAINED] for one in explained_queries(tracker, case)]
    chosen = max(found, key=lambda one: cases.second_mode(one.distributions[0]))
    return figures.save_figure(cases.windowed_figure(chosen), run.out, "figure_3")


def explained_queries(tracker: CwmTracker, case: cases.Case) -> Iterator[Explanation]:
    """All steps of the queries of a case."""
    queries, clip = case.sample.queries, case.sample.clip
    observed = tracker.observe(clip, case.source, case.target)
    for row in case.rows:
        query = Queries(queries.xy[row : row + 1], queries.frame[row : row + 1])
        yield explain(tracker, clip, query, case.target, observed)


def figure_4(run: PaperRun) -> list[Path]:
    """The first cases."""
    figure = cases.qualitative_figure(cases_of(run)[:MAIN_CASES], columns_of(run))
    return figures.save_figure(figure, run.out, "figure_4")


def figure_f1(run: PaperRun) -> list[Path]:
    """The further cases; the first ones again if there are no others."""
    chosen = cases_of(run)[MAIN_CASES:] or cases_of(run)
    blocks = 2 if len(chosen) > 1 else 1
    return figures.save_figure(cases.qualitative_figure(chosen, columns_of(run), blocks), run.out, "figure_f1")


def figure_5(run: PaperRun) -> list[Path]:
    """Radar of the first benchmark."""
    scored = run.method_sets[0]
    blocks = list(tables.dataset_lines("main", [scored]))
    title = f"CMC summary on {scored.dataset}"
    table = tables.MeasuredTable("figure_5", title, tables.DATASET_HEADS, figures.AXES, blocks)
    written = figures.save_figure(figures.radar_figure(scored), run.out, "figure_5")
    return written + tables.write_table(table.table, run.out, table.latex)


def figure_6(run: PaperRun) -> list[Path]:
    """Audit of adjudicators on held-out candidates."""
    result = audit(run.candidates, run.lpa, unweighted=run.preset == "paper")
    stated = tables.STATED["figure_6"]
    title = f"Candidate weighting, {result.sets} sets of {result.videos} videos"
    ours = {tables.LPA_EPE: tables.audit_cell(result.stats["lpa"].error)}
    return [
        *figures.save_figure(audit_figure(result.stats), run.out, "figure_6"),
        *tables.write_table(tables.audit_summary(title, result.stats), run.out),
        *tables.write_table(tables.stated_table("figure_6", title, stated, ours), run.out),
    ]


@torch.inference_mode()
def figure_a1(run: PaperRun) -> list[Path]:
    """Evidence of the case in which candidates disagree most."""
    tracker = run.tracker("apa")
    found = []
    for case in cases_of(run)[:EXPLAINED]:
        observed = tracker.observe(case.sample.clip, case.source, case.target)
        points = case.sample.queries.xy[case.rows].to(run.device)
        found += [(pair, candidates) for _, pair, candidates in first_pass(observed, points)]
    pair, candidates = max(found, key=lambda one: cases.disagreement(one[1]).max().item())
    assert isinstance(tracker.adjudicator, APA)
    figure = cases.evidence_figure(tracker.adjudicator, pair, candidates)
    return figures.save_figure(figure, run.out, "figure_a1")


def figure_c1(run: PaperRun) -> list[Path]:
    """Sensitivity on the first benchmark."""
    scored = run.method_sets[0]
    written = figures.save_figure(figures.sensitivity_figure(scored), run.out, "figure_c1")
    found = list(sensitivity(scored))
    for table in found:
        written += tables.write_table(replace(table, slug=f"figure_c1_{table.slug}"), run.out)
    stated = tables.STATED["figure_c1"] if same_name("DAVIS", scored.dataset) else {}
    ours = dict(zip(stated, tables.sensitivity_cells(found), strict=False))
    title = f"Threshold sensitivity on {scored.dataset}"
    return written + tables.write_table(tables.stated_table("figure_c1", title, stated, ours), run.out)


def figure_e1(run: PaperRun) -> list[Path]:
    """Heat maps of the sweep."""
    figure = figures.sweep_figure(run.sweep_cells)
    table = replace(sweep_table(run.out / "sweep"), slug="figure_e1")
    deployed = [one for one in run.sweep_cells if (one.masks, one.passes) == figures.DEPLOYED]
    ours = {tables.DEPLOYED_EPE: Cell(f"{deployed[0].error:.2f}", deployed[0].error)} if deployed else {}
    title = "Masks and re-evaluations: paper, ours, difference"
    return [
        *figures.save_figure(figure, run.out, "figure_e1"),
        *tables.write_table(table, run.out),
        *tables.write_table(tables.stated_table("figure_e1", title, tables.STATED["figure_e1"], ours), run.out),
    ]


PARTS = (
    Part("table-a1", "Table A.1", "Candidate scalar descriptor", table_a1, ""),
    Part("table-d1", "Table D.1", "Visibility of external estimators", table_d1, ""),
    Part("table-1", "Table 1", "Cross-dataset evaluation", table_1, "runs"),
    Part("table-c1", "Table C.1", "CMC by threshold", table_c1, "runs"),
    Part("table-c2", "Table C.2", "Visibility and continuity", table_c2, "runs"),
    Part("figure-1", "Figure 1", "Teaser: the three cases of largest gain over uniform weights", figure_1, "runs"),
    Part("figure-3", "Figure 3", "Windowed localization in 2D and 3D", figure_3, "cases"),
    Part("figure-4", "Figure 4", "Qualitative correspondence", figure_4, "runs"),
    Part("figure-5", "Figure 5", "CMC radar", figure_5, "runs"),
    Part("figure-c1", "Figure C.1", "Threshold sensitivity", figure_c1, "runs"),
    Part("figure-f1", "Figure F.1", "Further qualitative cases", figure_f1, "runs"),
    Part("figure-a1", "Figure A.1", "NSG evidence chain", figure_a1, "cases"),
    Part("figure-6", "Figure 6", "Mechanism audit", figure_6, "candidates"),
    Part("figure-e1", "Figure E.1", "Masks and re-evaluations", figure_e1, "sweep"),
    Part("table-2", "Table 2", "Ablations", table_2, "ablation"),
)
"""In the order in which they are made: what is cheap first, what needs most runs last."""
