"""Types of option values, each with its range, and the options that several commands share.

A value that is out of range becomes `Invalid` while the words are parsed. `check` finds it in the parsed command and
says what was given and what was expected, before any work is done.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.constructors import PrimitiveConstructorSpec

from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD, Selection
from lpa_cwm.errors import InputError
from lpa_cwm.presets import PRESETS, PresetName
from lpa_cwm.registry import SCORE_MODELS, WORLDS
from lpa_cwm.sharding import Shard

INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,2})?", re.ASCII)


class Invalid:
    """Stands for a value that cannot be used; also of the type that was wanted, so that a command can be made."""

    text: str
    reason: str


def check(command: object) -> None:
    """Refuse the first invalid value of a parsed command."""
    for name, value in _values(command):
        if isinstance(value, Invalid):
            raise InputError(f"--{name.replace('_', '-')} is {value.text!r}; {value.reason}.")


def _values(command: Any) -> Iterator[tuple[str, object]]:
    """Names and values of all options, those of nested groups and tuples too."""
    for entry in fields(command):
        value: Any = getattr(command, entry.name)
        if isinstance(value, Invalid) or not (is_dataclass(value) or isinstance(value, tuple)):
            yield entry.name, value
        elif isinstance(value, tuple):
            yield from ((entry.name, one) for one in value)
        else:
            yield from _values(value)


def checked(
    parse: Callable[..., Any], metavar: str, stand_in: Any = "", show: Callable[[Any], str] = str, words: int = 1
) -> Any:
    """How the parser reads one value: `parse` takes its words, and raises ValueError with what was expected.

    `stand_in` is a value of the wanted type.
    """
    kind, copied = type(stand_in), () if is_dataclass(stand_in) else (stand_in,)

    def read(given: list[str]) -> Any:
        try:
            return parse(*given)
        except ValueError as error:
            said = {"text": " ".join(given), "reason": str(error)}
            return type(f"Invalid{kind.__name__}", (Invalid, kind), said)(*copied)

    return PrimitiveConstructorSpec(
        nargs=words,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: value is not None,
        str_from_instance=lambda value: show(value).split(" ", words - 1),
    )


def integer(least: int, most: int) -> Any:
    """A whole number in decimal ASCII digits."""

    def parse(text: str) -> int:
        if not INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return int(text)

    return checked(parse, "N", 0)


def real(least: float, most: float, above: bool = False, infinite: bool = False) -> Any:
    """A finite number in decimal ASCII digits; `above` excludes the lower bound, `infinite` admits inf."""
    said = f"expected a number {'above' if above else 'from'} {least:g} {'up ' if above else ''}to {most:g}"

    def parse(text: str) -> float:
        if infinite and text == "inf":
            return math.inf
        value = float(text) if REAL.fullmatch(text) else math.nan
        if not (least < value if above else least <= value) or not value <= most:
            raise ValueError(said + (" or inf" if infinite else ""))
        return value

    return checked(parse, "X", 0.0, "{:g}".format)


def one_of(kind: str, names: tuple[str, ...]) -> Any:
    """A name of a table."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"it is not a known {kind}; choose one of {', '.join(names)}")
        return text

    return checked(parse, f"{{{','.join(names)}}}")


def parse_path(text: str) -> Path:
    """Any path; the empty one would silently be the current folder."""
    if not text or "\0" in text:
        raise ValueError("expected the path of a file or folder")
    return Path(text)


def out_file(*suffixes: str) -> Any:
    """A file to write, whose suffix names the format."""

    def parse(text: str) -> Path:
        path = parse_path(text)
        if suffixes and path.suffix.lower() not in suffixes:
            raise ValueError(f"the name must end in {' or '.join(suffixes)}")
        if _is(path, Path.is_dir):
            raise ValueError("it is a folder; give the name of a file")
        _check_writable(path.absolute().parent)
        return path

    return checked(parse, "FILE", Path())


def parse_folder(text: str) -> Path:
    """A folder to write to, which need not exist yet."""
    path = parse_path(text)
    _check_writable(path.absolute())
    return path


def _check_writable(folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents) if _is(path, Path.exists))
    if not there.is_dir():
        raise ValueError(f"{there} is a file, not a folder; give another path")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{there} cannot be written to; give another path")


def _is(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except OSError as error:
        raise ValueError(f"the system refuses this path ({error.strerror})") from error


def parse_gaps(least: str, most: str) -> tuple[int, int]:
    """Fewest and most frames between source and target."""
    given = [int(text) if INTEGER.fullmatch(text) else 0 for text in (least, most)]
    if not 1 <= given[0] <= given[1] <= 100_000:
        raise ValueError("expected two whole numbers, 1 <= fewest <= most")
    return given[0], given[1]


def parse_shard(text: str) -> Shard:
    """A part of the work, as in 2/8."""
    number, _, count = text.partition("/")
    given = [int(word) if INTEGER.fullmatch(word) else 0 for word in (number, count)]
    if not 1 <= given[0] <= given[1] <= 1_000_000:
        raise ValueError("expected I/N with 1 <= I <= N, for example 2/8")
    return Shard(*given)


def parse_device(text: str) -> str:
    """A device by torch's name, or auto."""
    if not DEVICE.fullmatch(text):
        raise ValueError("expected auto, cpu, cuda, cuda:0 and so on, or mps")
    return text


def parse_text(text: str) -> str:
    """Any text but none."""
    if not text.strip():
        raise ValueError("expected some text")
    return text


Count = Annotated[int, integer(1, 100_000)]
"""How many of something that is in memory or made one by one."""
Natural = Annotated[int, integer(0, 100_000)]
Frame = Annotated[int, integer(0, 100_000_000)]
Steps = Annotated[int, integer(1, 1_000_000_000)]
Seed = Annotated[int, integer(0, 2**31 - 1)]
Port = Annotated[int, integer(1, 65535)]
Side = Annotated[int, integer(16, 4096)]
"""Of a frame, in pixels."""
Weight = Annotated[float, real(0.0, 1e6)]
"""Of a term of a loss."""
Rate = Annotated[float, real(0.0, 10.0, above=True)]
Share = Annotated[float, real(0.0, 1.0)]
Pixels = Annotated[float, real(0.0, 1e6)]
Positive = Annotated[float, real(0.0, 1e6, above=True)]
GradientNorm = Annotated[float, real(0.0, 1e6, above=True, infinite=True)]
Text = Annotated[str, checked(parse_text, "TEXT")]
Name = Annotated[str, checked(parse_text, "NAME")]
World = Annotated[str, one_of("world model", tuple(WORLDS))]
ScoreModel = Annotated[str, one_of("score model", tuple(SCORE_MODELS))]
Device = Annotated[str, checked(parse_device, "{auto,cpu,cuda,mps}")]
InPath = Annotated[Path, checked(parse_path, "PATH", Path())]
OutFolder = Annotated[Path, checked(parse_folder, "FOLDER", Path())]
Figure = Annotated[Path, out_file(".png", ".pdf", ".svg")]
Gaps = Annotated[tuple[int, int], checked(parse_gaps, "FEWEST MOST", (0, 0), "{0[0]} {0[1]}".format, words=2)]
Part = Annotated[Shard, checked(parse_shard, "I/N", Shard(), lambda shard: f"{shard.number}/{shard.count}")]


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Of commands that print results."""

    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True, kw_only=True)
class PresetOption:
    """Of commands in which settings of the method appear."""

    preset: PresetName = "default"
    """Settings that hold unless an option says otherwise: ours, or those that the paper states and nothing else."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Of commands that train LPA."""

    steps: Steps = 10_000
    """Updates of a training."""
    autocast: bool = False
    """Compute in bfloat16 where that is safe: faster, with slightly other weights at the end."""


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
        from lpa_cwm.devices import resolve_device

        return resolve_device(self.device)


@dataclass(frozen=True, kw_only=True)
class WorldOption(DeviceOption):
    """Of commands that ask a world model."""

    world: World = WORLD
    """World model that is asked."""


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

    def refuse_ignored(self, settings: Iterable[str]) -> None:
        """Refuse options that the chosen method would ignore."""
        if self.tracker is None:
            return
        differ = {"weights": self.weights, "world": self.world != WORLD, "score_model": self.score_model != "compact"}
        ignored = [*(name for name, given in differ.items() if given), *settings]
        if ignored:
            names = ", ".join("--" + name.replace("_", "-") for name in ignored)
            raise InputError(f"{self.tracker} does not take {names}; leave out what only our tracker has.")


@dataclass(frozen=True, kw_only=True)
class ExpertOptions(PresetOption):
    """Settings of the tracker; options that are not given keep the preset's values."""

    masks: Annotated[int, integer(1, 1000)] | None = None
    """Masks, and so candidate responses, per query and target (M)."""
    gaps: tuple[Annotated[int, integer(1, 100_000)], ...] | None = None
    """Frames between a target and further sources of candidates, beside the query's frame."""
    gap_masks: Annotated[int, integer(1, 1000)] | None = None
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
    reevaluation: Literal["query", "joint"] | None = None
    """Masks of the re-evaluation: edited for each query, or for 32 queries at once."""
    subpixel: bool | None = None
    """Refine the endpoint between pixels; the paper answers with a pixel's center."""
    batch: Annotated[int, integer(1, 4096)] | None = None
    """Queries whose responses are in memory at once."""

    def given(self) -> dict[str, Any]:
        """The preset's settings, and over them those that were given."""
        given = {name: value for name, value in asdict(self).items() if name != "preset" and value is not None}
        return {**PRESETS[self.preset].tracker, **given}

    def given_names(self) -> list[str]:
        """Names of the options that were given."""
        preset = [] if self.preset == "default" else ["preset"]
        return preset + [name for name, value in asdict(self).items() if name != "preset" and value is not None]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The part of a data set that is used."""

    videos: tuple[Text, ...] = ()
    """Names or patterns such as badja/*, or one number: this many videos, evenly spread."""
    max_tracks: Count | None = None
    """At most this many tracks of each video, evenly spread over the tracks that are ever visible."""
    frames: Annotated[int, integer(2, 1_000_000)] | None = None
    """At most this many frames of each video, from its first on."""
    queries: Literal["first", "strided"] = "first"
    """Query each track where it is first visible, or at every fifth frame where it is."""

    def selection(self) -> Selection:
        """As the data sets take it."""
        return Selection(self.videos, self.max_tracks, self.frames, self.queries)


@dataclass(frozen=True, kw_only=True)
class ShardOption:
    """Of commands whose work comes in parts."""

    shard: Part = field(default_factory=Shard)
    """Do every N-th video or file, beginning with the I-th; the parts together make the whole."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(ShardOption):
    """Of commands that can use a cluster."""

    executor: Literal["local", "ray"] = "local"
    """One video after the other here, or over a Ray cluster (`RAY_ADDRESS`, else this machine)."""
    workers: Annotated[int, integer(1, 4096)] | None = None
    """Ray actors; by default one for each device."""
