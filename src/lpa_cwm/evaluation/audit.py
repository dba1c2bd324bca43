"""Mechanism audit: how adjudicators weigh cached candidates whose true endpoints are known, as table and figure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.adjudicators.lpa import load_lpa
from lpa_cwm.errors import InputError, require
from lpa_cwm.files import atomic_write
from lpa_cwm.metrics.scores import Estimate, estimates
from lpa_cwm.registry import bundled_lpa
from lpa_cwm.training.feature_cache import CandidateSets, read_cache
from lpa_cwm.training.lpa import VISIBILITY_THRESHOLD, endpoint_error, predict_sets
from lpa_cwm.types import Judgement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORACLE = "best of M"
"""Name of the adjudicator that knows the best candidate."""
CORRECT_PX = 4.0
"""Endpoint error in pixels below which a candidate is correct, the threshold of CTS4."""
COLORS = {"uniform": "#e69f00", "apa": "#1e88e5", "lpa": "#d81b60", ORACLE: "#78909c"}
LABELS = {"uniform": "Uniform", "apa": "APA", "lpa": "LPA"}
MARKERS = {"uniform": "s", "apa": "^", "lpa": "o"}
HEADER = ("adjudicator", "error, px", "top-1 hit, %", "effective support", "correct, %", "visible, %", "gap closed")


@dataclass(frozen=True)
class AdjudicatorStats:
    """Statistics of one adjudicator, with equal weight for each video."""

    error: Estimate
    """Endpoint error of the weighted endpoint in pixels."""
    hit: Estimate
    """Rate at which the largest weight is on the best candidate; uniform weights hit by chance."""
    support: Estimate
    """Effective number of candidates."""
    correct: Estimate
    """Total weight of the correct candidates."""
    visible: Estimate
    """Rate at which the tracker's rule calls the point, which is visible, visible."""
    by_rank: list[Estimate]
    """Mean weight of the candidate of each true rank, best first."""


@dataclass(frozen=True)
class AuditResult:
    """Statistics of the adjudicators on one cache."""

    sets: int
    """Candidate sets."""
    videos: int
    n_correct: list[int]
    """Number of sets with 0, 1, ..., M correct candidates."""
    stats: dict[str, AdjudicatorStats]


def audit(
    cache: Path, weights: Path | None = None, within: float | None = None, unweighted: bool = False
) -> AuditResult:
    """Compare uniform, APA, LPA and the oracle on the visible points of a cache.

    With `within`, only sets in which a candidate comes within this many pixels of the truth are used. With
    `unweighted`, visibility follows from the mean strength of all candidates, as in the paper.
    """
    sets, videos = read_cache(cache)
    rows = sets.visible_rows
    rows = rows if within is None else rows[sets.min_error[rows] <= within]
    if not len(rows):
        raise InputError(f"No set of {cache} can be audited; give visible points, or a wider --within.")
    sets, videos = sets.select(rows), [videos[row] for row in rows.tolist()]
    judgements = {
        "uniform": Judgement.of(torch.ones_like(sets.apa_weights)),
        "apa": Judgement.of(sets.apa_weights),
        "lpa": predict_sets(load_lpa(weights or bundled_lpa()), sets, torch.arange(len(sets))),
    }
    stats = audit_sets(sets, videos, judgements, unweighted)
    return AuditResult(len(sets), len(set(videos)), n_correct_histogram(sets), stats)


def true_ranks(errors: Float[Tensor, "g m"]) -> Int[Tensor, "g m"]:
    """Candidates in the order of their true errors, best first."""
    return errors.argsort(dim=1, stable=True)


def top1_hits(weights: Float[Tensor, "g m"], errors: Float[Tensor, "g m"]) -> Float[Tensor, "g"]:
    """Probability that a candidate of the largest weight, ties broken at random, has the smallest error."""
    largest = weights == weights.amax(1, keepdim=True)
    best = errors == errors.amin(1, keepdim=True)
    return (largest & best).sum(1) / largest.sum(1)


def mean_by_video(values: Float[Tensor, "g k"], videos: list[str]) -> Float[np.ndarray, "v k"]:
    """Mean over the candidate sets of each video."""
    names = sorted(set(videos))
    index = torch.tensor([names.index(video) for video in videos])
    member = torch.nn.functional.one_hot(index).to(values)
    return (einsum(member, values, "g v, g k -> v k") / member.sum(0)[:, None]).double().numpy()


def audit_sets(
    sets: CandidateSets, videos: list[str], judgements: Mapping[str, Judgement], unweighted: bool = False
) -> dict[str, AdjudicatorStats]:
    """Statistics of several adjudicators, and of the oracle."""
    oracle = torch.nn.functional.one_hot(sets.errors.argmin(1), sets.peak.shape[1]).to(sets.peak)
    every = {**judgements, ORACLE: Judgement.of(oracle)}
    return {name: summarize_adjudicator(sets, videos, judgement, unweighted) for name, judgement in every.items()}


def summarize_adjudicator(
    sets: CandidateSets, videos: list[str], judgement: Judgement, unweighted: bool = False
) -> AdjudicatorStats:
    """Statistics of one adjudicator."""
    weights, errors = judgement.weights, sets.errors
    judged = judgement.visibility * (weights * sets.strength).sum(1)
    strength = sets.strength.mean(1) if unweighted else judged
    columns = torch.cat(
        (
            endpoint_error(weights, sets.peak, sets.end)[:, None],
            top1_hits(weights, errors)[:, None],
            judgement.support[:, None],
            (weights * (errors < CORRECT_PX)).sum(1, keepdim=True),
            (strength[:, None] >= VISIBILITY_THRESHOLD).to(weights),
            weights.gather(1, true_ranks(errors)),
        ),
        dim=1,
    )
    error, hit, support, correct, visible, *by_rank = estimates(mean_by_video(columns, videos))
    return AdjudicatorStats(error, hit, support, correct, visible, by_rank)


def n_correct_histogram(sets: CandidateSets) -> list[int]:
    """Number of sets with 0, 1, ..., M correct candidates; weights matter only between 0 and M."""
    correct = sets.errors < CORRECT_PX
    return torch.bincount(correct.sum(1), minlength=correct.shape[1] + 1).tolist()


def gap_closed(stats: Mapping[str, AdjudicatorStats], name: str, reference: str = "uniform") -> float:
    """Fraction of the error gap between the reference and the oracle that an adjudicator closes."""
    start, end = stats[reference].error.value, stats[ORACLE].error.value
    return (start - stats[name].error.value) / (start - end)


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
    """Write the figure of an audit."""
    figure = audit_figure(stats)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=160)


def audit_figure(stats: Mapping[str, AdjudicatorStats]) -> "Figure":
    """Bars of the endpoint error; curves of weight against true rank with an inset of the top-1 hit rates.

    Error bars and bands are 95 % video-bootstrap intervals.
    """
    require("matplotlib", "report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    inset = right.inset_axes((0.6, 0.6, 0.38, 0.3))
    for place, (name, one) in enumerate(stats.items()):
        color = COLORS.get(name, "#555555")
        draw_bar(left, place, one.error, color, f"{one.error.value:.2f}")
        if name != ORACLE:
            draw_ranks(right, name, one.by_rank)
            draw_bar(inset, place, one.hit, color, f"{one.hit.value:.0%}", 6.5)
    ranks = len(next(iter(stats.values())).by_rank)
    left.set_xticks(range(len(stats)), [LABELS.get(name, f"Best of {ranks}") for name in stats])
    left.set_title("(a) Candidate-space weighted-coordinate EPE", fontsize=9)
    left.set_ylabel("EPE, px")
    right.set_title("(b) Weight versus ground-truth candidate rank", fontsize=9)
    right.set_xlabel("ground-truth rank, best first")
    right.set_ylabel("mean weight")
    right.set_xticks(range(1, ranks + 1))
    # Room for the inset above the curves.
    highest = max(max(e.value for e in one.by_rank) for name, one in stats.items() if name != ORACLE)
    right.set_ylim(0, 1.9 * highest)
    right.legend(frameon=False, loc="upper left", fontsize=8)
    inset.set_title("top-1 hit rate", fontsize=7)
    inset.set_xticks([])
    inset.set_yticks([])
    for axes in (left, right, inset):
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (left, inset):
        axes.margins(y=0.18)
    return figure


def draw_ranks(axes: "Axes", name: str, by_rank: list[Estimate]) -> None:
    """The weight of the candidate of each rank, with a band."""
    color, numbers = COLORS.get(name, "#555555"), range(1, len(by_rank) + 1)
    marker, label = MARKERS.get(name, "D"), LABELS.get(name, name)
    axes.plot(numbers, [e.value for e in by_rank], marker=marker, color=color, label=label, markersize=4)
    axes.fill_between(
        numbers, [e.low for e in by_rank], [e.high for e in by_rank], color=color, alpha=0.18, linewidth=0
    )


def draw_bar(axes: "Axes", place: int, estimate: Estimate, color: str, text: str, size: float = 9) -> None:
    """A bar with its interval and its value."""
    known = estimate.low == estimate.low
    error_bar = [[estimate.value - estimate.low], [estimate.high - estimate.value]] if known else None
    axes.bar(place, estimate.value, yerr=error_bar, color=color, capsize=3, width=0.65, error_kw={"elinewidth": 1.2})
    top = estimate.high if known else estimate.value
    axes.annotate(text, (place, top), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=size)
