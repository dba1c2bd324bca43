"""Several methods on one data set, predicted, scored and reported; and the paper's ablations (Table 2).

An ablation is a named variant of training and inference that is trained, tracked and scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lpa_cwm.config import ADJUDICATORS, WORLD, Selection
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.predict import Method, manifest_of, open_dataset, predict_methods, untracked
from lpa_cwm.evaluation.score import ScoredRun, score_run, write_scores
from lpa_cwm.jobs import Executor, Shard, run_local
from lpa_cwm.metrics import Scores
from lpa_cwm.protocols import Dataset
from lpa_cwm.report.page import write_report
from lpa_cwm.report.tables import ABLATIONS
from lpa_cwm.training.lpa import LpaTraining, train_lpa


@dataclass(frozen=True)
class CompareResult:
    """What a comparison wrote."""

    folders: dict[str, Path]
    """Run folder of each row."""
    untracked: int
    """Videos that other shards still have to track; without them there are no scores and no report."""
    scores: dict[str, Scores]
    """Scores of each row."""
    report: Path | None
    """Page of the report."""


def compare(
    dataset: Dataset | Path | str,
    out: Path | str,
    methods: Sequence[Method | str] = ADJUDICATORS,
    *,
    selection: Selection | None = None,
    executor: Executor = run_local,
    shard: Shard | None = None,
    command: str = "",
) -> CompareResult:
    """Track a data set with several methods, score them and write a report; the data are read and hashed once.

    Args:
        dataset: A file or folder of TAP-Vid format, or an object that is a `Dataset`.
        out: Folder of the runs and of the report.
        methods: Names of adjudicators and baselines, or `Method`s with settings.
        selection: Part of the data set; everything by default.
        executor: How the work is done: here, or on a Ray cluster.
        shard: Part of the videos, for several machines.
        command: Command that the report names as its origin.

    Examples:
        >>> import pickle, tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> points, occluded = np.full((2, 4, 2), 0.5, np.float32), np.zeros((2, 4), bool)
        >>> video = {"video": np.zeros((4, 32, 32, 3), np.uint8), "points": points, "occluded": occluded}
        >>> _ = Path(f"{folder}/data.pkl").write_bytes(pickle.dumps({"still": video}))

        >>> result = compare(f"{folder}/data.pkl", f"{folder}/all", ["static"])
        >>> result.report.name
        'index.html'
    """
    rows = [Method(one) if isinstance(one, str) else one for one in methods]
    names = [one.row for one in rows]
    if len(set(names)) < len(names) or not names:
        raise InputError(f"The methods are {', '.join(names) or 'none'}; name each once, and at least one.")
    out, data = Path(out), open_dataset(dataset, selection)
    folders = {name: out / "runs" / name.replace("/", "_") for name in names}
    manifest = manifest_of(data)
    predict_methods(data, manifest, dict(zip(folders.values(), rows, strict=True)), executor, shard)
    if left := len(untracked(data.names, folders.values())):
        return CompareResult(folders, left, {}, None)
    scores = {}
    for name, folder in folders.items():
        found = score_run(ScoredRun.of(folder, data, manifest))
        write_scores(folder, found)
        scores[name] = found[0]
    report = write_report(list(folders.values()), out / "report", dataset=data, command=command)
    return CompareResult(folders, 0, scores, report)


Block = Literal["architecture", "objective", "localization"]


@dataclass(frozen=True)
class Variant:
    """One row of the ablation table."""

    name: str
    block: Block
    method: str = "lpa"
    training: dict[str, bool] = field(default_factory=dict)
    """Options of the training that differ from the full ones."""
    objective: dict[str, float] = field(default_factory=dict)
    """Weights of loss terms that differ from the full ones."""
    settings: dict[str, int] = field(default_factory=dict)
    """Settings of the tracker that differ from the given ones."""

    def of_training(self, training: LpaTraining) -> LpaTraining:
        """The training of this variant; variants that differ only in inference share the full one."""
        return replace(training, **self.training, objective=replace(training.objective, **self.objective))


STANDARD = {"windows": 0}
"""Standard localization: the maximum of the response distribution without Gaussian windows."""

VARIANTS = (
    Variant("uniform-windowed", "localization", "uniform"),
    Variant("apa-windowed", "localization", "apa"),
    Variant("lpa-windowed", "localization"),
    Variant("uniform-standard", "localization", "uniform", settings=STANDARD),
    Variant("apa-standard", "localization", "apa", settings=STANDARD),
    Variant("lpa-standard", "localization", settings=STANDARD),
    Variant("no-interaction", "architecture", training={"interaction": False}),
    Variant("response-and-scalars", "architecture", training={"visual": False}),
    Variant("no-visibility-head", "architecture", training={"visibility_head": False}),
    Variant("kl-only", "objective", objective={"coordinate": 0.0, "rank": 0.0, "visibility": 0.0, "decoded": 0.0}),
    Variant("kl-and-coordinate", "objective", objective={"rank": 0.0, "visibility": 0.0, "decoded": 0.0}),
    Variant("kl-and-best", "objective", objective={"coordinate": 0.0, "visibility": 0.0, "decoded": 0.0}),
    Variant("no-decoded", "objective", objective={"decoded": 0.0}),
    Variant("paper-objective", "objective", objective={"visibility": 0.0, "decoded": 0.0}),
)
"""`uniform-windowed` is the reference of the architecture block, `lpa-windowed` the full model of all three blocks."""


PAPER_VARIANTS = tuple(variant.name for variant in VARIANTS if ABLATIONS[variant.name])
"""The variants that the paper has."""


def ablate(
    dataset: Dataset | Path | str,
    caches: Sequence[Path],
    out: Path | str,
    *,
    variants: Sequence[str] = (),
    trainings: Path | None = None,
    training: LpaTraining | None = None,
    weights: Path | None = None,
    world: str = WORLD,
    score_model: str = "compact",
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
    selection: Selection | None = None,
    command: str = "",
) -> CompareResult:
    """Train the variants of LPA, track a data set with every variant, score and report; all variants if none is named.

    `training` is the full training, and `weights` are those of the full LPA if it is trained already. `settings` are
    the tracker's, which a variant's own settings override.
    """
    folder, training = trainings or Path(out) / "training", training or LpaTraining()
    methods = []
    for variant in find_variants(variants):
        changed = variant.of_training(training)
        own = None
        if variant.method == "lpa":
            full = changed == training
            name = "full" if full else variant.name
            own = weights if full and weights else train_lpa(caches, folder / name, changed, device)
        chosen = {**(settings or {}), **variant.settings}
        methods.append(Method(variant.method, world, score_model, own, device, chosen, variant.name))
    return compare(dataset, out, methods, selection=selection, command=command)


def find_variants(names: Sequence[str]) -> list[Variant]:
    """The variants of these names in the order of the table; all if no name is given."""
    known = [variant.name for variant in VARIANTS]
    for name in names:
        if name not in known:
            raise InputError(f"{name!r} is no variant; choose among {', '.join(known)}.")
    return [variant for variant in VARIANTS if not names or variant.name in names]
