"""The options that several commands share, each declared once."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lpa_cwm.cli.values import (
    Count,
    Device,
    InPath,
    Name,
    Natural,
    OutFolder,
    Part,
    Positive,
    Rate,
    ScoreModel,
    Steps,
    Text,
    World,
    integer,
    real,
)
from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, PRESETS, WORLD, PresetName, Selection
from lpa_cwm.errors import InputError
from lpa_cwm.jobs import Shard

if TYPE_CHECKING:
    from lpa_cwm.training.flow_pairs import PairFolders


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Of commands that print results."""

    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True, kw_only=True)
class PresetOption:
    """Of commands in which settings of the method appear."""

    preset: PresetName = "default"
    """Default settings: ours, or exactly those of the paper. Other options override them."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Of commands that train LPA."""

    steps: Steps = 10_000
    """Updates of a training."""
    autocast: bool = False
    """Compute in bfloat16 where that is safe: faster; the final weights differ slightly."""


@dataclass(frozen=True, kw_only=True)
class ScoreModelOption:
    """Of commands that use APA."""

    score_model: ScoreModel = "compact"
    """Score model of apa: compact, or adm (the published network)."""


@dataclass(frozen=True, kw_only=True)
class WeightsOption:
    """Of commands that use LPA."""

    weights: InPath | None = None
    """LPA weights other than the bundled ones."""


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """Of commands that compute."""

    device: Device = "auto"
    """Where to compute; auto takes CUDA, else MPS, else the CPU."""

    def on(self) -> str:
        """The device in torch's words."""
        from lpa_cwm.registry import resolve_device

        return resolve_device(self.device)


@dataclass(frozen=True, kw_only=True)
class WorldOption(DeviceOption):
    """Of commands that ask a world model."""

    world: World = WORLD
    """World model."""


@dataclass(frozen=True, kw_only=True)
class AdjudicatorOptions(WorldOption, ScoreModelOption, WeightsOption):
    """Of commands that run our tracker."""

    adjudicator: Name | None = None
    """How candidates are weighted: uniform, apa or lpa (the default)."""

    def names(self) -> dict[str, Any]:
        """World model, score model and weights, as `registry.load` takes them."""
        return {"world": self.world, "score_model": self.score_model, "weights": self.weights}

    def adjudicator_name(self) -> str:
        """The adjudicator that was asked for."""
        name = self.adjudicator or ADJUDICATOR
        if name not in ADJUDICATORS:
            from lpa_cwm.baselines.registry import BASELINES

            raise InputError(
                f"{name!r} is not a known adjudicator; choose one of {', '.join(ADJUDICATORS)}, or a baseline by "
                f"--tracker: {', '.join(BASELINES)}."
            )
        return name

    def refuse_ignored(self, given: Collection[str]) -> None:
        """Refuse options that were given, even with their default, but that the adjudicator does not use."""
        name = self.adjudicator_name()
        for option, users in {"weights": "lpa", "score_model": "apa"}.items():
            if option in given and name != users:
                shown = option.replace("_", "-")
                raise InputError(f"--{shown} is for {users}, but the adjudicator is {name}; leave out --{shown}.")


def check_method(name: str) -> None:
    """Refuse a name that is neither an adjudicator nor a baseline."""
    if name not in ADJUDICATORS:
        from lpa_cwm.baselines.registry import get_baseline

        get_baseline(name)


@dataclass(frozen=True, kw_only=True)
class MethodOptions(AdjudicatorOptions):
    """Of commands that run our tracker or a baseline."""

    tracker: Name | None = None
    """A baseline instead of our tracker, NAME or NAME:CHECKPOINT; see `lpa-cwm list-trackers`."""

    def method(self) -> str:
        """The name of the adjudicator or the baseline."""
        if self.tracker is None:
            return self.adjudicator_name()
        if self.adjudicator is not None:
            raise InputError(
                f"Both --adjudicator {self.adjudicator} and --tracker {self.tracker} were given; give one of them."
            )
        if self.tracker in ADJUDICATORS:
            raise InputError(f"{self.tracker} is one of our adjudicators; give it as --adjudicator {self.tracker}.")
        check_method(self.tracker)
        return self.tracker

    def refuse_ignored(self, given: Collection[str]) -> None:
        """Refuse options that were given, even with their default, but that the chosen method does not use."""
        self.method()
        if self.tracker is None:
            super().refuse_ignored(given)
            return
        ours = ["weights", "world", "score_model", *(entry.name for entry in fields(ExpertOptions))]
        ignored = [name for name in ours if name in given]
        if ignored:
            names = ", ".join("--" + name.replace("_", "-") for name in ignored)
            raise InputError(f"{self.tracker} does not take {names}; leave out what only our tracker has.")


@dataclass(frozen=True, kw_only=True)
class ExpertOptions(PresetOption):
    """Settings of the tracker; options that are not given keep the preset's values."""

    masks: Annotated[int, integer(1, 256)] | None = None
    """Masks, and so candidate responses, per query and target, from the query's frame (M)."""
    gaps: tuple[Annotated[int, integer(1, 100_000)], ...] | None = None
    """Frames between a target and further source frames of candidates, in addition to the query's frame."""
    gap_masks: Annotated[int, integer(1, 256)] | None = None
    """Masks per further source."""
    passes: Annotated[int, integer(0, 16)] | None = None
    """Re-evaluations after the first localization (R)."""
    windows: Annotated[int, integer(0, 16)] | None = None
    """Gaussian windows before the maximum of the response distribution is taken; 0 takes it at once."""
    sharpness: Positive | None = None
    """Inverse temperature of the response distribution (beta)."""
    visibility_threshold: Annotated[float, real(0.0, 1e3)] | None = None
    """Response strength from which a point counts as visible."""
    mask_sharing: Literal["pair", "query"] | None = None
    """First masks shared by all queries of a frame pair, or drawn for each query."""
    reevaluation: Literal["query", "joint", "native"] | None = None
    """Re-evaluations: in native crops around places of the query, or in the whole frame with masks edited for each \
query or for 32 queries at once (joint)."""
    subpixel: bool | None = None
    """Refine the endpoint between pixels; the paper answers with a pixel's center."""
    batch: Annotated[int, integer(1, 4096)] | None = None
    """Queries whose responses are in memory at once."""

    def given(self) -> dict[str, Any]:
        """The preset's settings, overridden by the options that were given."""
        given = {name: value for name, value in asdict(self).items() if name != "preset" and value is not None}
        return {**PRESETS[self.preset].tracker, **given}


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The part of a data set that is used."""

    videos: tuple[Text, ...] = ()
    """Names or patterns such as badja/*, or one number: that many videos, evenly spaced."""
    max_tracks: Count | None = None
    """Maximum number of tracks per video, evenly spaced among the tracks that are ever visible."""
    frames: Annotated[int, integer(2, 1_000_000)] | None = None
    """Maximum number of frames per video, from the first one on."""
    queries: Literal["first", "strided"] = "first"
    """Query each track where it is first visible, or at every fifth frame where it is."""

    def selection(self) -> Selection:
        """As the data sets take it."""
        return Selection(self.videos, self.max_tracks, self.frames, self.queries)


@dataclass(frozen=True, kw_only=True)
class ShardOption:
    """For commands whose work is divided into parts."""

    shard: Part = field(default_factory=Shard)
    """Do every N-th video or file, beginning with the I-th; the parts together make the whole."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(ShardOption):
    """Of commands that can use a cluster."""

    executor: Literal["local", "ray"] = "local"
    """One video after the other here, or over a Ray cluster (`RAY_ADDRESS`, else this machine)."""
    workers: Annotated[int, integer(1, 4096)] | None = None
    """Ray actors; by default one for each device."""


@dataclass(frozen=True, kw_only=True)
class SplitOption:
    """Of commands that generate data."""

    split: Literal["train", "val"] = "train"
    """Which objects, pictures and videos are used; the two splits share none."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where pictures, videos and objects for frame pairs are."""

    photos: InPath | None = None
    """Folder of photographs for layered scenes; procedural pictures without one."""
    natural: InPath | None = None
    """Folder of videos."""
    assets: InPath | None = None
    """Folder with the subfolders objects (.npz), textures (.jpg) and textures/panoramas (.jpg), for simulated scenes; \
procedural ones without it. Needs the extra `sim`."""
    cache: OutFolder = Path("runs/natural")
    """Where decoded videos are kept."""

    def folders(self) -> "PairFolders":
        """The folders as the library takes them."""
        from lpa_cwm.training.flow_pairs import PairFolders

        return PairFolders(self.photos, self.natural, self.assets, self.cache)


@dataclass(frozen=True, kw_only=True)
class TrainingFolderOptions:
    """Of commands that train a network."""

    out: OutFolder = Path("runs/training")
    """Where checkpoint, log and weights go."""
    save_every: Steps = 100
    """Updates between checkpoints and lines of the log."""


@dataclass(frozen=True, kw_only=True)
class WorldTrainingOptions(TrainingFolderOptions):
    """Of commands that train a world model."""

    init: InPath | None = None
    """Weights to begin with, if there is no checkpoint in `out`."""
    steps: Steps = 20_000
    """Update at which to stop; give more to go on."""
    cooldown: Natural = 4_000
    """Last updates, over which the rate falls to zero; a run stopped before them can go on for longer."""
    rate: Rate = 1e-3
    """Learning rate."""
    workers: Annotated[int, integer(0, 256)] = 1
    """Background processes that make pairs."""
    threads: Annotated[int, integer(1, 1024)] = 1
    """Threads of the network on a CPU."""


def without_none(given: dict[str, Any]) -> dict[str, Any]:
    """The entries that have a value."""
    return {name: value for name, value in given.items() if value is not None}
