"""`lpa-cwm train lpa|score|world|confidence`: training of the bundled weights, and calibration."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional

from lpa_cwm.cli.options import (
    AdjudicatorOptions,
    DataOptions,
    DeviceOption,
    JsonOption,
    PresetOption,
    SourceOptions,
    TrainingFolderOptions,
    TrainingOptions,
    WorldTrainingOptions,
    without_none,
)
from lpa_cwm.cli.values import (
    Count,
    GradientNorm,
    InPath,
    OutFolder,
    Rate,
    Seed,
    StageText,
    Steps,
    Weight,
    integer,
)

if TYPE_CHECKING:
    from lpa_cwm.training.lpa import LpaTraining

SETTINGS = (
    *("steps", "autocast", "batch", "rate", "save_every", "seed", "clip", "oversample", "augment", "average"),
    *("max_oracle_error", "visibility_head"),
)
"""Options of `train lpa` that are fields of `LpaTraining`."""


@dataclass(frozen=True, kw_only=True)
class TrainLpa(DeviceOption, TrainingOptions, TrainingFolderOptions, PresetOption):
    """Train LPA on cached candidates; run again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm train lpa cache/train --steps 10000 --out runs/lpa"
    cache: Annotated[tuple[InPath, ...], Positional]
    """Folders that `lpa-cwm data cache` filled."""
    out: OutFolder = Path("runs/lpa")
    """Where checkpoint, log and weights go."""
    batch: Count | None = None
    """Candidate sets per update; 16 unless given."""
    rate: Rate | None = None
    """Learning rate at the start, 3e-4 unless given; it falls as a cosine."""
    save_every: Steps = 250
    """Updates between checkpoints; weights are selected among them."""
    seed: Seed = 0
    """Seed of the initial weights and of the batches."""
    clip: GradientNorm | None = None
    """Largest norm of the gradient: 1, or inf (no clipping) in the paper."""
    oversample: Count | None = None
    """Factor by which sets with disagreeing candidates are oversampled: 3, or 1 in the paper."""
    augment: bool | None = None
    """Flip, transpose and recolor each batch; the paper does not."""
    average: bool | None = None
    """Select among averaged weights (exponential moving average); the paper does not."""
    max_oracle_error: GradientNorm | None = None
    """Leave out sets whose best candidate is further from the truth than this many pixels, in training and selection:
    8, or inf (none is left out) in the paper."""
    visibility_head: bool | None = None
    """Predict visibility by a head of its own, not only by the weights; the paper has none. Needs the visibility
    term."""
    coordinate: Weight | None = None
    """Weight of the coordinate term; 2 unless given."""
    rank_weight: Weight | None = None
    """Weight of the best-candidate term; 0.2 unless given."""
    visibility: Weight | None = None
    """Weight of the visibility term, which needs hidden points in the cache: 4, or 0 (none) in the paper."""
    decoded_weight: Weight | None = None
    """Weight of the accuracy of the decoded endpoint: 20, or 0 (none) in the paper."""
    init: InPath | None = None
    """Initial weights instead of random ones, for example to fine-tune LPA on other videos."""

    def run(self) -> None:
        """Train and print the path of the weights."""
        from lpa_cwm.training.lpa import train_lpa

        print(train_lpa(self.cache, self.out, self.training(), self.on(), self.init))

    def training(self) -> "LpaTraining":
        """The preset's settings, overridden by the options that were given."""
        from lpa_cwm.training.lpa import LpaTraining

        terms = {"coordinate": self.coordinate, "rank": self.rank_weight}
        terms |= {"visibility": self.visibility, "decoded": self.decoded_weight}
        settings = without_none({name: getattr(self, name) for name in SETTINGS})
        return LpaTraining.of_preset(self.preset, without_none(terms), **settings)


@dataclass(frozen=True, kw_only=True)
class TrainScore(TrainingFolderOptions):
    """Train the compact score model of APA on photographs, or evaluate it; run again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm train score --photos photos --out runs/score"
    photos: InPath
    """Folder of photographs; one in ten, chosen by its name, is held out."""
    out: OutFolder = Path("runs/score")
    """Where checkpoint, log and weights go."""
    steps: Steps = 2_500
    """Updates."""
    batch: Count = 16
    """Crops per update."""
    crop: Annotated[int, integer(2, 1024)] = 48
    """Side of a crop, in pixels; an even number."""
    evaluate: bool = False
    """Do not train; print the denoising gain of the bundled weights on the held-out photographs."""

    def run(self) -> None:
        """Train and evaluate, or only evaluate."""
        from lpa_cwm.adjudicators.apa import load_compact_score
        from lpa_cwm.synth.images import ImagePool
        from lpa_cwm.training.score_model import ScoreTraining, denoising_gain, train_score_model

        # Evaluation needs held-out photographs: checked before the training, not after it.
        ImagePool.of(self.photos, "val")
        weights = None
        if not self.evaluate:
            training = ScoreTraining(self.steps, self.batch, self.crop, save_every=self.save_every)
            weights = train_score_model(self.photos, self.out, training)
            print(weights)
        print(denoising_gain(self.photos, load_compact_score(weights)))


@dataclass(frozen=True, kw_only=True)
class TrainWorld(WorldTrainingOptions, SourceOptions):
    """Train the learned world model on sharded pairs and natural video; run again to resume.

    With `torchrun --nproc-per-node N --no-python lpa-cwm train world ...` N processes average their gradients.
    """

    EXAMPLE: ClassVar[str] = "lpa-cwm train world pairs/layered pairs/simulated --natural videos --out runs/world"
    pairs: Annotated[tuple[InPath, ...], Positional]
    """Folders that `lpa-cwm data pairs` filled; shards that are added later are used from the next start on."""
    out: OutFolder = Path("runs/world")
    """Where checkpoint, log and weights go."""
    stages: tuple[StageText, ...] = ((0, 128, 8),)
    """First update, side of the crops, pairs per update and process; when all have begun, they take turns."""

    def run(self) -> None:
        """Train and print the path of the weights."""
        import torch

        from lpa_cwm.training.flow_pairs import Stage
        from lpa_cwm.training.loop import StopSchedule
        from lpa_cwm.training.world import train_world

        torch.set_num_threads(self.threads)
        stages = [Stage(*stage) for stage in self.stages]
        settings = {name: getattr(self, name) for name in ("rate", "save_every", "workers", "init")}
        stop = StopSchedule(self.steps, self.cooldown)
        if weights := train_world(self.pairs, self.folders(), self.out, stages, stop, **settings):
            print(weights)


@dataclass(frozen=True, kw_only=True)
class TrainConfidence(JsonOption):
    """Calibrate the tracker's confidence on annotated clips; run again to resume.

    The result is written as `calibration.json`; every fifth clip is held out to evaluate it.
    """

    EXAMPLE: ClassVar[str] = "lpa-cwm train confidence simulated --max-tracks 16 --out runs/confidence"
    dataset: Annotated[InPath, Positional]
    """Annotated clips: what `lpa-cwm data simulate` wrote, or another TAP-Vid pickle or folder of them."""
    out: OutFolder = Path("runs/confidence")
    """Where the estimates of the tracker and the calibration go."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the data set that is used."""
    model: AdjudicatorOptions = field(default_factory=AdjudicatorOptions)
    """World model, adjudicator and device."""

    def run(self) -> None:
        """Track, fit, and tell how good the calibration is on the held-out clips."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.calibration import calibrate
        from lpa_cwm.evaluation.predict import Method

        method = Method(self.model.adjudicator_name(), device=self.model.on(), **self.model.names())
        report = calibrate(method, load_dataset(self.dataset, self.selection.selection()), self.out)
        if self.json:
            print(json.dumps(report))
            return
        for name, value in report["held_out"].items():
            if name != "reliability":
                print(f"{name.replace('_', ' '):24}{value:.3f}" if isinstance(value, float) else f"{name:24}{value}")
        for one in report["held_out"]["reliability"]:
            print(f"confidence {one['confidence']:.2f}: {one['found']:.2f} found, {one['share']:.0%} of the estimates")
        print(self.out / "calibration.json")
