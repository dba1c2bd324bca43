"""The figure and the table of a mechanism audit."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from lpa_cwm.errors import need
from lpa_cwm.evaluation.audit import BEST, RIGHT, Belief, gap_closed
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics.summary import Estimate

COLOURS = {"uniform": "#8c8c8c", "apa": "#3f7fbf", "lpa": "#d1495b", BEST: "#2a9d6f"}


def span(estimate: Estimate, digits: int = 2, scale: int = 1) -> str:
    """A value with its interval."""
    value, low, high = (f"{scale * number:.{digits}f}" for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def table(beliefs: Mapping[str, Belief]) -> str:
    """The figures as Markdown."""
    heads = ("adjudicator", "error, px", "top-1 hit, %", "effective support", "right, %", "seen, %", "gap closed")
    rows = [row(heads), "|---" * len(heads) + "|"]
    for name, belief in beliefs.items():
        shares = (span(share, 1, 100) for share in (belief.right, belief.seen))
        cells = name, span(belief.error), span(belief.hit, 1, 100), span(belief.support), *shares
        rows.append(row((*cells, f"{gap_closed(beliefs, name):.0%}")))
    return "\n".join(rows)


def row(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def choice(counts: list[int]) -> str:
    """In how many groups there is something to choose."""
    none, *some, every = (count / sum(counts) for count in counts)
    return (
        f"Candidates within {RIGHT:g} px: none in {none:.1%} of the groups, some in {sum(some):.1%}, "
        f"all {len(counts) - 1} in {every:.1%}."
    )


def draw(beliefs: Mapping[str, Belief], path: Path) -> None:
    """Error in candidate space, weight against true rank with 95 % video-bootstrap intervals, and hit rates."""
    need("matplotlib", "report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (name, belief) in enumerate(beliefs.items()):
        error = belief.error
        low, high = error.value - error.low, error.high - error.value
        color = COLOURS.get(name, "#555555")
        left.bar(place, error.value, yerr=[[low], [high]], color=color, capsize=4, width=0.65)
        left.annotate(f"{error.value:.2f}", (place, error.high), ha="center", va="bottom", fontsize=9)
        if name != BEST:
            numbers = range(1, len(belief.by_rank) + 1)
            label = f"{name}, {belief.hit.value:.0%}"
            right.plot(numbers, [e.value for e in belief.by_rank], "o-", color=color, label=label, markersize=4)
            bounds = [e.low for e in belief.by_rank], [e.high for e in belief.by_rank]
            right.fill_between(numbers, *bounds, color=color, alpha=0.18, linewidth=0)
    left.set_xticks(range(len(beliefs)), list(beliefs))
    left.set_ylabel("weighted-coordinate error, px")
    right.set_xlabel("true rank of the candidate")
    right.set_ylabel("weight")
    right.legend(frameon=False, title="best one is heaviest in")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.12)
    with atomic_write(path) as aside:
        figure.savefig(aside, dpi=160)
