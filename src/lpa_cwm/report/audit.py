"""Table and figure of a mechanism audit."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from lpa_cwm.errors import need
from lpa_cwm.evaluation.audit import CORRECT_PX, ORACLE, AdjudicatorStats, gap_closed
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics.summary import Estimate

COLORS = {"uniform": "#8c8c8c", "apa": "#3f7fbf", "lpa": "#d1495b", ORACLE: "#2a9d6f"}
HEADER = ("adjudicator", "error, px", "top-1 hit, %", "effective support", "correct, %", "visible, %", "gap closed")


def interval(estimate: Estimate, digits: int = 2, scale: int = 1) -> str:
    """A value with its confidence interval."""
    value, low, high = (f"{scale * number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def audit_table(stats: Mapping[str, AdjudicatorStats]) -> str:
    """All statistics as a Markdown table."""
    rows = [markdown_row(HEADER), "|---" * len(HEADER) + "|"]
    for name, one in stats.items():
        percentages = (interval(value, 1, 100) for value in (one.correct, one.visible))
        cells = name, interval(one.error), interval(one.hit, 1, 100), interval(one.support), *percentages
        rows.append(markdown_row((*cells, f"{gap_closed(stats, name):.0%}")))
    return "\n".join(rows)


def markdown_row(cells: Iterable[str]) -> str:
    """One row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def describe_histogram(counts: list[int]) -> str:
    """A sentence on how many sets have no, some, or only correct candidates."""
    none, *some, every = (count / sum(counts) for count in counts)
    return (
        f"Candidates within {CORRECT_PX:g} px: none in {none:.1%} of the candidate sets, some in {sum(some):.1%}, "
        f"all {len(counts) - 1} in {every:.1%}."
    )


def draw_audit(stats: Mapping[str, AdjudicatorStats], path: Path) -> None:
    """Bars of the endpoint error, and curves of weight against true rank with 95 % video-bootstrap intervals."""
    need("matplotlib", "report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (name, one) in enumerate(stats.items()):
        error = one.error
        low, high = error.value - error.low, error.high - error.value
        color = COLORS.get(name, "#555555")
        left.bar(place, error.value, yerr=[[low], [high]], color=color, capsize=4, width=0.65)
        left.annotate(f"{error.value:.2f}", (place, error.high), ha="center", va="bottom", fontsize=9)
        if name != ORACLE:
            numbers = range(1, len(one.by_rank) + 1)
            label = f"{name}, {one.hit.value:.0%}"
            right.plot(numbers, [e.value for e in one.by_rank], "o-", color=color, label=label, markersize=4)
            bounds = [e.low for e in one.by_rank], [e.high for e in one.by_rank]
            right.fill_between(numbers, *bounds, color=color, alpha=0.18, linewidth=0)
    left.set_xticks(range(len(stats)), list(stats))
    left.set_ylabel("endpoint error of the weighted endpoint, px")
    right.set_xlabel("true rank of the candidate")
    right.set_ylabel("weight")
    right.legend(frameon=False, title="best candidate has the largest weight in")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.12)
    with atomic_write(path) as aside:
        figure.savefig(aside, dpi=160)
