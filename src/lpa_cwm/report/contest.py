"""Runs that answer the same question: one data set, one protocol, several methods."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lpa_cwm.errors import InputError
from lpa_cwm.metrics import Estimate, Scores, load_scores, summarize


@dataclass(frozen=True)
class Contest:
    """Methods and trivial predictors on one data set, each under a name of its own."""

    methods: tuple[Scores, ...]
    references: tuple[Scores, ...]
    folders: dict[str, Path]
    """Where each method's predictions are."""

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.methods[0].dataset

    @property
    def everyone(self) -> tuple[Scores, ...]:
        """Methods, then references."""
        return self.methods + self.references

    @cached_property
    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Every measure of everyone, averaged over videos."""
        return {scores.method: summarize(scores) for scores in self.everyone}


def load_contests(folders: list[Path]) -> list[Contest]:
    """Read the runs' score files and sort them by data set."""
    found: dict[str, list[tuple[Path, list[Scores]]]] = {}
    for folder in folders:
        scores = load_scores(folder / "scores.json")
        if not scores or not scores[0].videos:
            raise InputError(f"{folder / 'scores.json'} holds no videos; score the run again.")
        found.setdefault(scores[0].dataset, []).append((folder, scores))
    return [_contest(entries) for entries in found.values()]


def _contest(entries: list[tuple[Path, list[Scores]]]) -> Contest:
    """Check that all runs were asked the same, and tell equal names apart by their folders."""
    (first_folder, (first, *references)), *_ = entries
    for folder, (own, *_) in entries:
        if own.task != first.task:
            raise InputError(
                f"{folder} and {first_folder} are both of {own.dataset}, but of other videos, tracks, frames or "
                "thresholds; report them apart, or score both on the same manifest."
            )
    times = Counter(own.method for _, (own, *_) in entries)
    names = [own.method if times[own.method] == 1 else f"{own.method} ({folder.name})" for folder, (own, *_) in entries]
    methods = tuple(replace(own, method=name) for name, (_, (own, *_)) in zip(names, entries, strict=True))
    return Contest(
        tuple(scores.in_order_of(first) for scores in methods),
        tuple(scores for scores in references if scores.reference),
        {name: folder for name, (folder, _) in zip(names, entries, strict=True)},
    )
