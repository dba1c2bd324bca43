"""The page that lists tables and figures: what was used, what came out beside the paper, and every part shown."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lpa_cwm import registry
from lpa_cwm.files import atomic_write
from lpa_cwm.report.tables import same_name
from lpa_cwm.reproduction.inputs import DATASETS, LOCALIZATION, PUBLISHED, PaperRun

if TYPE_CHECKING:
    from lpa_cwm.reproduction.parts import Part, PartResult

DEPLOYED = ("10", "1")
FAMILY = ("Uniform CWM", "APA-CWM", "LPA-CWM")
LOCALIZED = ("Uniform", "APA", "LPA")
ORDER = ("Figure 1", "Figure 3", "Table 1", "Figure 4", "Figure 5", "Table 2", "Figure 6")
"""Parts of the main text in the order of the paper; those of the appendix follow by letter and number."""
Rows = list[dict[str, str]]


def write_index(run: PaperRun, done: Sequence[tuple["Part", "PartResult"]]) -> Path:
    """Say what was used and what came out, list the parts with their files, and show them, in the paper's order."""
    rows, done = [], sorted(done, key=lambda one: place_of(one[0].paper))
    for part, result in done:
        files = ", ".join(f"[{name}]({name})" for name in result.files)
        rows.append(f"| {part.paper} | {part.title} | {files} | {result.seconds:g} | {deviations(run, part)} |")
    lines = [
        "# Tables and figures of the paper",
        "",
        *describe_run(run, sum(result.seconds for _, result in done)),
        "",
        *(["## Beside the paper", "", *findings(run.out), ""] if list(findings(run.out)) else []),
        "## Files",
        "",
        "| in the paper | what | files | seconds | differs from the paper |",
        "|---|---|---|---:|---|",
        *rows,
        "",
        "Figure 2 of the paper is a drawing of the method and is not made. Runs, trainings and candidates that several "
        "parts share count for the first of them.",
        *(line for part, result in done for line in show(run.out, part, result)),
        "",
    ]
    path = run.out / "index.md"
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(lines))
    return path


def place_of(paper: str) -> tuple[int, str]:
    """Where a part stands in the paper, from its number."""
    return (ORDER.index(paper), "") if paper in ORDER else (len(ORDER), paper.partition(" ")[2] + paper)


def show(out: Path, part: "Part", result: "PartResult") -> Iterator[str]:
    """A part under its number: its picture, or its first table."""
    yield from ("", f"## {part.paper}: {part.title}", "")
    pictures = [name for name in result.files if name.endswith(".png")]
    tables = [name for name in result.files if name.endswith(".md")]
    if pictures:
        yield from (f"![{part.title}]({name})" for name in pictures)
    else:
        # Without the title of the table, which the heading repeats.
        yield from (out / tables[0]).read_text().split("\n", 2)[2].rstrip().splitlines()


def describe_run(run: PaperRun, seconds: float) -> Iterator[str]:
    """Command, time, world model, weights and data, as Markdown."""
    lpa = f"trained here, {run.steps} updates" if run.trains else "given weights" if run.weights else "the bundled one"
    yield f"```sh\n{run.command}\n```"
    yield ""
    yield (
        f"{seconds / 60:.0f} minutes. World model `{run.world}`, weights {registry.fingerprint(run.world)[:12]}; LPA: "
        f"{lpa}; score model of APA `{run.score_model}`; `--preset {run.preset}`."
    )
    yield from ("", "| benchmark | videos | tracks | frames |", "|---|---:|---:|---:|")
    for dataset in run.datasets:
        samples = [dataset[index] for index in range(len(dataset))]
        tracks = sum(len(sample.queries.frame) for sample in samples)
        yield f"| {dataset.name} | {len(samples)} | {tracks} | {sum(len(one.clip) for one in samples)} |"
    trained = run.data.train.name if run.data.train else "none"
    motion = f"Training: {trained}. Held out, for Figures 6 and E.1: {run.data.held_out.name}."
    yield from ("", " ".join([motion, *run.data.left_out]))


def deviations(run: PaperRun, part: "Part") -> str:
    """What a part lacks or does otherwise than the paper, as sentences."""
    said = []
    if part.needs == "runs":
        absent = [name for name in DATASETS if not any(same_name(name, path.stem) for path in run.data.benchmarks)]
        said += [f"Data without {', '.join(absent)}."] if absent else []
        rivals = [name for name in PUBLISHED if name not in run.rows]
        said += [f"No runs of {', '.join(rivals)}."] if rivals else []
    if part.needs == "ablation" and not run.trains:
        said.append(f"No training: {len(LOCALIZATION)} rows only.")
    if part.needs in ("candidates", "sweep") and run.data.val is None:
        said.append(f"No held-out motion data: {run.data.held_out.stem} instead.")
    if part.needs and run.data.train is None and not run.weights:
        said.append("The bundled LPA, trained with other settings.")
    return " ".join(said)


# --- What came out, in sentences --------------------------------------------------------------------------------------


def findings(out: Path) -> Iterator[str]:
    """Sentences made from the tables that were written, so that they are true of this run."""
    for path, describe in (
        ("table_1_difference.csv", describe_accuracy),
        ("table_1.csv", describe_literal),
        ("table_2_difference.csv", describe_windows),
        ("figure_6.csv", describe_audit),
        ("figure_e1.csv", describe_sweep),
    ):
        if (out / path).exists():
            with (out / path).open(newline="") as file:
                yield from (f"- {sentence}" for sentence in describe(list(csv.DictReader(file))))


def describe_accuracy(rows: Rows) -> Iterator[str]:
    """DCA of the three weightings here and in the paper, for each data set that the paper has."""
    known = [row for row in rows if row["measure"].startswith("DCA") and row["ours"]]
    found = {(row["dataset"], row["method"]): row for row in known}
    for dataset in dict.fromkeys(name for name, _ in found):
        chosen = [found[dataset, name] for name in FAMILY if (dataset, name) in found]
        if len(chosen) == len(FAMILY):
            ours, paper = ([float(row[column]) for row in chosen] for column in ("ours", "paper"))
            yield (
                f"DCA of uniform, APA and LPA weights on {dataset}: {_numbers(ours)}; in the paper {_numbers(paper)}. "
                f"LPA minus uniform: {ours[2] - ours[0]:+.1f}; in the paper {paper[2] - paper[0]:+.1f}."
            )


def describe_literal(rows: Rows) -> Iterator[str]:
    """DCA with the literal total effect, beside the same weights with the motion held fixed."""
    found = {(row["dataset"], row["method"]): float(row["dca_avg"]) for row in rows if row["dca_avg"]}
    told: dict[str, list[str]] = {}
    for (dataset, method), value in found.items():
        name, _, world = method.partition(" (")
        if world == "learned-total)" and (dataset, name) in found:
            told.setdefault(dataset, []).append(f"{value:.1f} against {found[dataset, name]:.1f} ({name})")
    for dataset, values in told.items():
        yield f"Eq. 1 literally (`learned-total`) against motion held fixed, DCA on {dataset}: {', '.join(values)}."


def describe_windows(rows: Rows) -> Iterator[str]:
    """What the two windows add to DCA."""
    found = {row["configuration"]: row for row in rows if row["measure"].startswith("DCA") and row["ours"]}
    pairs = [(f"{name} + Win.", f"{name} + Std.") for name in LOCALIZED]
    if all(name in found for pair in pairs for name in pair):
        gains = [[float(found[a][column]) - float(found[b][column]) for a, b in pairs] for column in ("ours", "paper")]
        ours, paper = (_numbers(one, "+.1f") for one in gains)
        yield f"DCA, windowed minus standard localization, uniform, APA and LPA weights: {ours}; in the paper {paper}."


def describe_audit(rows: Rows) -> Iterator[str]:
    """Errors of the weighted endpoints."""
    told = []
    for row in rows:
        ends = [row.get(f"epe_{end}") for end in ("low", "high")]
        interval = f" ({float(ends[0]):.2f} … {float(ends[1]):.2f})" if ends[0] and ends[1] else ""
        told.append(f"{row['adjudicator']} {float(row['epe']):.2f}{interval}")
    yield f"Error of the weighted endpoint on held-out candidates, px: {', '.join(told)}."


def describe_sweep(rows: Rows) -> Iterator[str]:
    """The smallest error of the sweep, and the error at the setting of the paper."""
    errors = {(row["masks"], row["passes"]): float(row["error"]) for row in rows}
    best = min(errors, key=lambda setting: errors[setting])
    deployed = f"; M = 10, R = 1: {errors[DEPLOYED]:.2f} px" if DEPLOYED in errors else ""
    yield f"Smallest error over M and R: {errors[best]:.2f} px, with M = {best[0]} and R = {best[1]}{deployed}."


def _numbers(values: Sequence[float], form: str = ".1f") -> str:
    *most, last = (f"{value:{form}}" for value in values)
    return f"{', '.join(most)} and {last}"
