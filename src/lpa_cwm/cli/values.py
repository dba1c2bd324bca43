"""Types of option values, each with its range.

A value that is out of range becomes `Invalid` while the words are parsed. `check` finds it in the parsed command and
says what was given and what was expected, before any work is done.
"""

import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional
from tyro.constructors import PrimitiveConstructorSpec

from lpa_cwm.errors import InputError, name_hint
from lpa_cwm.jobs import Shard
from lpa_cwm.registry import SCORE_MODELS, WORLDS

INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,2})?", re.ASCII)


class Invalid:
    """An invalid value; also an instance of the wanted type, so that the command can be built."""

    text: str
    reason: str


def check(command: object) -> None:
    """Refuse the first invalid value of a parsed command."""
    for name, value in _values(command):
        if isinstance(value, Invalid):
            raise InputError(f"{name} is {value.text!r}; {value.reason}.")


def _values(command: Any) -> Iterator[tuple[str, object]]:
    """Names and values of all options of a command, including nested groups and tuples."""
    for entry in fields(command):
        value: Any = getattr(command, entry.name)
        positional = Positional in getattr(entry.type, "__metadata__", ())
        name = "The argument" if positional else f"--{entry.name.replace('_', '-')}"
        if isinstance(value, Invalid) or not (is_dataclass(value) or isinstance(value, tuple)):
            yield name, value
        elif isinstance(value, tuple):
            yield from ((name, one) for one in value)
        else:
            yield from _values(value)


def checked(
    parse: Callable[..., Any], metavar: str, stand_in: Any = "", show: Callable[[Any], str] = str, words: int = 1
) -> Any:
    """How the parser reads one value: `parse` takes its words and raises ValueError with what was expected.

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
    """A name out of a table."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"it is not a known {kind}; {name_hint(text, names)}")
        return text

    return checked(parse, f"{{{','.join(names)}}}")


def parse_path(text: str) -> Path:
    """A path that can be opened and printed; the empty one would silently be the current folder."""
    if not _is_printable(text):
        raise ValueError("expected the path of a file or folder, without line breaks and other control characters")
    path = Path(text)
    _is(path, Path.exists)
    return path


def parse_in_path(text: str) -> Path:
    """A path to read, which need not exist; a device or a pipe may never end."""
    path = parse_path(text)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError("it is neither a file nor a folder; give one of them")
    return path


def out_file(*suffixes: str) -> Any:
    """A file to write, whose suffix names the format."""

    def parse(text: str) -> Path:
        path = parse_path(text)
        if suffixes and path.suffix.lower() not in suffixes:
            raise ValueError(f"the name must end in {' or '.join(', '.join(suffixes).rsplit(', ', 1))}")
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
    """Minimum and maximum number of frames between source and target."""
    given = [int(text) if INTEGER.fullmatch(text) else 0 for text in (least, most)]
    if not 1 <= given[0] <= given[1] <= 100_000:
        raise ValueError("expected two whole numbers, 1 <= MIN <= MAX")
    return given[0], given[1]


def parse_shard(text: str) -> Shard:
    """A part of the work, as in 2/8."""
    number, _, count = text.partition("/")
    given = [int(word) if INTEGER.fullmatch(word) else 0 for word in (number, count)]
    if not 1 <= given[0] <= given[1] <= 1_000_000:
        raise ValueError("expected I/N with 1 <= I <= N, for example 2/8")
    return Shard(*given)


def parse_stage(text: str) -> tuple[int, int, int]:
    """First step, side of the crops and pairs per step."""
    words = text.split(":")
    given = [int(word) if INTEGER.fullmatch(word) else -1 for word in words]
    if len(given) != 3 or given[0] < 0 or given[1] not in range(64, 257, 8) or not 1 <= given[2] <= 4096:
        raise ValueError(
            "expected FIRST:SIZE:BATCH: the first step, a multiple of 8 from 64 to 256, and 1 to 4096 pairs, "
            "for example 0:128:8"
        )
    return given[0], given[1], given[2]


def parse_frame_pair(text: str) -> tuple[int, int]:
    """Numbers of a source and a target frame."""
    words = text.split(":")
    given = [int(word) if INTEGER.fullmatch(word) else -1 for word in words]
    if len(given) != 2 or min(given) < 0 or max(given) > 1_000_000 or given[0] == given[1]:
        raise ValueError("expected SOURCE:TARGET, two different frame numbers from 0 to 1000000, for example 0:8")
    return given[0], given[1]


def parse_device(text: str) -> str:
    """A device by torch's name, or auto."""
    if not DEVICE.fullmatch(text):
        raise ValueError("expected auto, cpu, cuda, cuda:0 and so on, or mps")
    return text


def parse_text(text: str) -> str:
    """Any text that can be shown."""
    if not _is_printable(text):
        raise ValueError("expected some text, without line breaks and other control characters")
    return text


def _is_printable(text: str) -> bool:
    return bool(text.strip()) and not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


Count = Annotated[int, integer(1, 100_000)]
"""A count that memory or time limits."""
Natural = Annotated[int, integer(0, 100_000)]
Frame = Annotated[int, integer(0, 100_000_000)]
Steps = Annotated[int, integer(1, 1_000_000_000)]
Seed = Annotated[int, integer(0, 2**31 - 1)]
Port = Annotated[int, integer(1, 65535)]
Weight = Annotated[float, real(0.0, 1e6)]
"""Weight of a term of a loss."""
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
InPath = Annotated[Path, checked(parse_in_path, "PATH", Path())]
OutFolder = Annotated[Path, checked(parse_folder, "FOLDER", Path())]
Figure = Annotated[Path, out_file(".png", ".pdf", ".svg")]
Gaps = Annotated[tuple[int, int], checked(parse_gaps, "MIN MAX", (0, 0), "{0[0]} {0[1]}".format, words=2)]
Part = Annotated[Shard, checked(parse_shard, "I/N", Shard(), lambda shard: f"{shard.number}/{shard.count}")]
StageText = Annotated[
    tuple[int, int, int], checked(parse_stage, "FIRST:SIZE:BATCH", (0, 0, 0), lambda stage: ":".join(map(str, stage)))
]
FramePair = Annotated[
    tuple[int, int], checked(parse_frame_pair, "SOURCE:TARGET", (0, 0), lambda pair: ":".join(map(str, pair)))
]
