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
    """Option of commands that print results."""

    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True, kw_only=True)
class PresetOption:
    """Option of commands with settings of the method."""

    preset: PresetName = "default"
    """Default settings: ours, or exactly those of the paper. Other options override them."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of commands that train LPA."""

    steps: Steps = 10_000
    """Number of updates."""
    autocast: bool = False
    """Compute in bfloat16 where that is safe: faster; the final weights differ slightly."""


@dataclass(frozen=True, kw_only=True)
class ScoreModelOption:
    """Option of commands that use APA."""

    score_model: ScoreModel = "compact"
    """Score model of apa: compact, or adm (the published network)."""


@dataclass(frozen=True, kw_only=True)
class WeightsOption:
    """Option of commands that use LPA."""

    weights: InPath | None = None
    """LPA weights other than the bundled ones."""


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """Option of commands that use a device."""

    device: Device = "auto"
    """Where to compute; auto takes CUDA, else MPS, else the CPU."""

    def on(self) -> str:
        """The device in torch's words."""
        from lpa_cwm.registry import resolve_device

        return resolve_device(self.device)


@dataclass(frozen=True, kw_only=True)
class WorldOption(DeviceOption):
    """Options of commands that use a world model."""

    world: World = WORLD
    """World model."""


@dataclass(frozen=True, kw_only=True)
class AdjudicatorOptions(WorldOption, ScoreModelOption, WeightsOption):
    """Options of commands that run our tracker."""

    adjudicator: Name | None = None
    """How candidates are weighted: uniform, apa or lpa (the default)."""

    def names(self) -> dict[str, Any]:
        """World model, score model and weights, as `registry.load` takes them."""
        return {"world": self.world, "score_model": self.score_model, "weights": self.weights}

    def adjudicator_name(self) -> str:
        """Name of the chosen adjudicator."""
        name = self.adjudicator or ADJUDICATOR
        if name not in ADJUDICATORS:
            from lpa_cwm.baselines.registry import BASELINES

            raise InputError(
                f"{name!r} is not a known adjudicator; choose one of {', '.join(ADJUDICATORS)}, or a baseline by "
                f"--tracker: {', '.join(BASELINES)}."
            )
        return name

    def refuse_ignored(self, given: Collection[str]) -> None:
        """Refuse given options that the adjudicator does not use, even if they have their default value."""
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
    """Options of commands that run our tracker or a baseline."""

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
        """Refuse given options that the chosen method does not use, even if they have their default value."""
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
    """Masks, and so candidates, per query and target from the query's frame (M)."""
    hidden_share: Annotated[float, real(0.01, 0.99)] | None = None
    """Share of the target's patches that a mask of a whole frame hides."""
    gaps: tuple[Annotated[int, integer(1, 100_000)], ...] | None = None
    """Distances in frames from a target to further source frames, in addition to the query's frame."""
    gap_masks: Annotated[int, integer(1, 256)] | None = None
    """Masks per further source frame."""
    passes: Annotated[int, integer(0, 16)] | None = None
    """Re-evaluations after the first localization (R)."""
    windows: Annotated[int, integer(0, 16)] | None = None
    """Number of Gaussian windows on the response distribution before its maximum is taken; 0 for none."""
    sharpness: Positive | None = None
    """Inverse temperature of the response distribution (beta)."""
    visibility_threshold: Annotated[float, real(0.0, 1e3)] | None = None
    """Minimum response strength of a visible point."""
    mask_sharing: Literal["pair", "query"] | None = None
    """Masks of the first pass: shared by all queries of a frame pair, or drawn for each query."""
    reevaluation: Literal["query", "joint", "native"] | None = None
    """Re-evaluation in native crops around query and endpoint, or in the whole frame with masks edited for each query \
or for 32 queries at once (joint)."""
    subpixel: bool | None = None
    """Refine the endpoint to a fraction of a pixel; in the paper it is a pixel's center."""
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
    """Names or patterns such as badja/*, or a number N: N evenly spaced videos."""
    max_tracks: Count | None = None
    """Maximum number of tracks per video, evenly spaced among the tracks that are ever visible."""
    frames: Annotated[int, integer(2, 1_000_000)] | None = None
    """Maximum number of frames per video, from the first one on."""
    queries: Literal["first", "strided"] = "first"
    """Query each track in the first frame where it is visible, or in every fifth frame where it is visible."""

    def selection(self) -> Selection:
        """The options as a `Selection`."""
        return Selection(self.videos, self.max_tracks, self.frames, self.queries)


@dataclass(frozen=True, kw_only=True)
class ShardOption:
    """Option of commands whose work can be divided."""

    shard: Part = field(default_factory=Shard)
    """Only every N-th video or file, beginning with the I-th."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(ShardOption):
    """Options of commands that can use a cluster."""

    executor: Literal["local", "ray"] = "local"
    """Where videos are processed: in this process, or on a Ray cluster (`RAY_ADDRESS`, else this machine)."""
    workers: Annotated[int, integer(1, 4096)] | None = None
    """Ray actors; by default one for each device."""


@dataclass(frozen=True, kw_only=True)
class SplitOption:
    """Option of commands that generate data."""

    split: Literal["train", "val"] = "train"
    """Which objects, pictures and videos are used; the two splits share none."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Folders of pictures, videos and objects for frame pairs."""

    photos: InPath | None = None
    """Folder of photographs for layered scenes; without it, pictures are procedural."""
    natural: InPath | None = None
    """Folder of videos."""
    assets: InPath | None = None
    """Folder with the subfolders objects (.npz), textures (.jpg) and textures/panoramas (.jpg), for simulated scenes; \
procedural ones without it. Needs the extra `sim`."""
    cache: OutFolder = Path("runs/natural")
    """Folder for decoded videos."""

    def folders(self) -> "PairFolders":
        """The folders as the library takes them."""
        from lpa_cwm.training.flow_pairs import PairFolders

        return PairFolders(self.photos, self.natural, self.assets, self.cache)


@dataclass(frozen=True, kw_only=True)
class TrainingFolderOptions:
    """Options of commands that train a network."""

    out: OutFolder = Path("runs/training")
    """Folder of checkpoint, log and weights."""
    save_every: Steps = 100
    """Updates between checkpoints and lines of the log."""


@dataclass(frozen=True, kw_only=True)
class WorldTrainingOptions(TrainingFolderOptions):
    """Options of commands that train a world model."""

    init: InPath | None = None
    """Initial weights, if there is no checkpoint in `out`."""
    steps: Steps = 20_000
    """Last update; a larger number continues a finished training."""
    cooldown: Natural = 4_000
    """Number of last updates, over which the rate falls to zero."""
    rate: Rate = 1e-3
    """Learning rate."""
    workers: Annotated[int, integer(0, 256)] = 1
    """Background processes that make pairs."""
    threads: Annotated[int, integer(1, 1024)] = 1
    """Threads of the network on a CPU."""


def without_none(given: dict[str, Any]) -> dict[str, Any]:
    """The entries that have a value."""
    return {name: value for name, value in given.items() if value is not None}
