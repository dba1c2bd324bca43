"""Calibration of confidence: the tracker runs over annotated clips, then a logistic regression is fitted.

It is fitted on four fifths of the clips and evaluated on the others.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from lpa_cwm import registry
from lpa_cwm.config import Calibration
from lpa_cwm.errors import InputError
from lpa_cwm.estimates import EVIDENCE, FOUND_WITHIN, EstimateTable, confidence
from lpa_cwm.evaluation.predict import Method, manifest_of
from lpa_cwm.files import atomic_write, pin_settings, share_pieces
from lpa_cwm.geometry import rescale
from lpa_cwm.jobs import progress
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.online import SINGLE
from lpa_cwm.protocols import Dataset
from lpa_cwm.tracker import CwmTracker, run_online
from lpa_cwm.types import Sample
from lpa_cwm.validation import check_array, read_npz, reading

HOLD_OUT = 5
"""One clip in this many is held out."""
RIDGE = 1e-3
BINS = 10
NAMES = ("evidence", "spread", "visible", "error")
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Estimates:
    """Evidence, outputs and truth of the tracker's estimates after the queries."""

    evidence: Float[Tensor, "s e"]
    spread: Float[Tensor, "s"]
    visible: Bool[Tensor, "s"]
    error: Float[Tensor, "s"]
    """Distance from the truth in pixels of 256 x 256; infinite where the point cannot be seen."""

    @property
    def found(self) -> Bool[Tensor, "s"]:
        """Visible, and near the truth."""
        return self.visible & (self.error <= FOUND_WITHIN)

    @classmethod
    def join(cls, parts: Sequence["Estimates"]) -> "Estimates":
        """The estimates of several clips as one."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in NAMES))


def track_estimates(tracker: CwmTracker, sample: Sample) -> Estimates:
    """Track the queries of a clip and compare with the truth."""
    done = EstimateTable()
    run_online(tracker.online(sample.clip.name), sample.clip, sample.queries, {SINGLE: done}, True, lambda frame: None)
    after = torch.arange(len(done)) > sample.queries.frame[:, None]
    visible = sample.truth.visible[after]
    places = (rescale(xy, sample.clip.hw, (SIZE, SIZE))[after] for xy in (done.stacked("xy"), sample.truth.xy))
    error = torch.sub(*places).norm(dim=-1)
    return Estimates(
        done.stacked("evidence")[after], done.stacked("spread")[after], visible, error.where(visible, torch.inf)
    )


def collect(tracker: CwmTracker, dataset: Dataset, out: Path) -> list[Estimates]:
    """The estimates of all clips, one file for each; processes share the work, and whole files are kept."""
    paths = [out / "estimates" / f"{index:05d}.npz" for index in range(len(dataset))]
    missing = [index for index, path in enumerate(paths) if not is_whole(path)]
    shared = share_pieces(out / SETTINGS, missing, lambda index: is_whole(paths[index]))
    for index in progress(shared, len(missing), "confidence"):
        one = track_estimates(tracker, dataset[index])
        with atomic_write(paths[index]) as temporary:
            np.savez(temporary, **{name: getattr(one, name).numpy() for name in NAMES})
    return [read_estimates(path) for path in paths]


def is_whole(path: Path) -> bool:
    """Whether a file of estimates exists and can be read; a truncated one is made again."""
    try:
        return path.is_file() and len(read_estimates(path).error) >= 0
    except InputError:
        return False


def read_estimates(path: Path) -> Estimates:
    """The estimates of one clip."""
    with reading(path, "a file of estimates", "remove it, and its clip is tracked again"):
        kept = read_npz(path, NAMES)
        check_array(kept["evidence"], (None, None), "f", "`evidence`", finite=False)
        for name, kind in (("spread", "f"), ("visible", "b"), ("error", "f")):
            check_array(kept[name], (len(kept["evidence"]),), kind, f"`{name}`", finite=False)
        return Estimates(*(torch.from_numpy(kept[name]) for name in NAMES))


def fit_logistic(x: Float[Tensor, "s e"], label: Bool[Tensor, "s"]) -> tuple[float, ...]:
    """Weights, then the bias, of a ridge-penalized logistic regression by L-BFGS."""
    mean, scale = x.double().mean(0), x.double().std(0).clamp(min=1e-6)
    inputs, target = (x.double() - mean) / scale, label.double()
    weights = torch.zeros(x.shape[1] + 1, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(inputs @ weights[:-1] + weights[-1], target) + RIDGE * weights[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    slope = (weights[:-1] / scale).detach()
    bias = weights[-1] - (slope * mean).sum()
    return tuple(round(value, 4) for value in (*slope.tolist(), bias.item()))


def fit(estimates: Estimates) -> Calibration:
    """The regression of what is visible and found."""
    return Calibration(fit_logistic(estimates.evidence, estimates.found))


def agreement(calibration: Calibration, estimates: Estimates) -> dict[str, float]:
    """How well the reported visibility agrees with the truth."""
    said, seen = confidence(calibration, estimates.evidence) >= calibration.threshold, estimates.visible
    hit, missed = said & estimates.found, seen & ~(said & estimates.found)
    return {
        "accuracy": (said == seen).double().mean().item(),
        "balanced_accuracy": (said[seen].double().mean() + (~said[~seen]).double().mean()).nan_to_num().item() / 2,
        "jaccard": (hit.sum() / (said | missed).sum().clamp(min=1)).item(),
    }


def evaluate(calibration: Calibration, estimates: Estimates) -> dict[str, Any]:
    """Ranking and reliability of the confidence, and rank correlations of confidence and spread with the error."""
    confident = confidence(calibration, estimates.evidence)
    seen, curve = estimates.visible, bins(confident, estimates)
    return {
        "estimates": len(confident),
        **agreement(calibration, estimates),
        "auc": area_under_curve(confident, estimates.found),
        "calibration_error": sum(abs(one["confidence"] - one["found"]) * one["share"] for one in curve),
        "rank_confidence_error": -rank_correlation(confident[seen], estimates.error[seen]),
        "rank_spread_error": rank_correlation(estimates.spread[seen].nan_to_num(), estimates.error[seen]),
        "reliability": curve,
    }


def bins(confident: Float[Tensor, "s"], estimates: Estimates) -> list[dict[str, float]]:
    """The reliability curve: mean confidence and share of found points, by tenths of the confidence."""
    number = (confident * BINS).long().clamp(max=BINS - 1)
    rows = [number == one for one in range(BINS)]
    return [
        {
            "confidence": confident[row].mean().item(),
            "found": estimates.found[row].double().mean().item(),
            "share": row.double().mean().item(),
        }
        for row in rows
        if bool(row.any())
    ]


def ranks(values: Float[Tensor, "s"]) -> Float[Tensor, "s"]:
    """Ranks from 0; equal values have their mean rank."""
    _, inverse, counts = values.double().unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts + 1) / 2)[inverse]


def rank_correlation(first: Float[Tensor, "s"], second: Float[Tensor, "s"]) -> float:
    """Spearman's coefficient."""
    return torch.corrcoef(torch.stack((ranks(first), ranks(second))))[0, 1].item()


def area_under_curve(score: Float[Tensor, "s"], label: Bool[Tensor, "s"]) -> float:
    """Probability that a random positive has a larger score than a random negative (Mann-Whitney)."""
    positive, negative = int(label.sum()), int((~label).sum())
    return ((ranks(score)[label].sum() - positive * (positive - 1) / 2) / max(1, positive * negative)).item()


def calibrate(method: Method, dataset: Dataset, out: Path) -> dict[str, Any]:
    """Fit on annotated clips, evaluate on every fifth of them, and write `calibration.json`."""
    if len(dataset) < HOLD_OUT:
        raise InputError(
            f"{dataset.path} has {len(dataset)} clips; expected {HOLD_OUT} or more, of which one is held out; "
            "make some with `lpa-cwm data simulate`."
        )
    world = registry.load_world(method.world)
    identity = {"method": method.name, **method.identity(world), "dataset": asdict(manifest_of(dataset))}
    pin_settings(out / SETTINGS, identity)
    adjudicator = registry.load_adjudicator(method.name, method.score_model, method.weights, method.device)
    parts = collect(CwmTracker(world, adjudicator, method.config(world), method.device), dataset, out)
    calibration = fit(Estimates.join([part for index, part in enumerate(parts) if index % HOLD_OUT]))
    held_out = evaluate(calibration, Estimates.join(parts[::HOLD_OUT]))
    report = {"evidence": EVIDENCE, "calibration": asdict(calibration), "held_out": held_out}
    with atomic_write(out / "calibration.json") as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n")
    return report
