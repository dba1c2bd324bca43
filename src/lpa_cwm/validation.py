"""Checks of files that others wrote: size, structure, types, shapes and numbers, before memory is taken for them.

Every reader of the package uses these functions. `reading` turns errors from damaged files into one sentence.
"""

import json
import math
import types
import typing
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Union, get_args, get_origin
from urllib.parse import quote

from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    # Imported where arrays are read, because the command line's help needs no numpy.
    from numpy import ndarray

MAX_TEXT = 32 << 20
"""Bytes of a text file. The worst JSON, a list of empty dictionaries, takes 24 times as much memory."""
MAX_DEPTH = 32
"""Levels of nested lists and dictionaries."""
MAX_ARRAYS = 256 << 20
"""Bytes of all arrays of an archive together."""
MAX_PIXELS = 40_000_000
"""Pixels of a picture; 8K video has 33 million. A decoded picture is in memory up to four times for a moment."""
MAX_NAME = 240
"""Bytes of a name in the percent-encoding of file names, which have at most 255."""
MAX_INTEGER = 2**63
"""Bound of whole numbers in files."""


@contextmanager
def reading(path: Path | str, expected: str, remedy: str) -> Iterator[None]:
    """Turn any error about the content of a file into one sentence that says what was expected."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"There is no {path}; expected {expected}; {remedy}.") from error
    except Exception as error:
        raise InputError(f"{path} is not {expected} ({reason(error)}); {remedy}.") from error


def reason(error: BaseException) -> str:
    """The last line of an error's message, short and printable."""
    # FFmpeg's errors are no OSErrors, but have the same fields.
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    line = text.splitlines()[-1].strip()
    return "".join(char if char.isprintable() else "?" for char in line)[:200]


def file_size(path: Path, most: int | None = None) -> int:
    """Size of a regular file; a pipe or a device, which may never end, is refused, as is a file that is too large."""
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    size = path.stat().st_size
    if most is not None and size > most:
        raise ValueError(f"it has {size >> 20} MB, at most {most >> 20} are read")
    return size


def read_text(path: Path, most: int = MAX_TEXT) -> str:
    """A text file of limited size."""
    file_size(path, most)
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file of limited size."""
    return parse_json(read_text(path))


def parse_json(text: str, finite: bool = True) -> Any:
    """Plain values; nesting, numbers and texts that nothing after this could handle are refused."""
    held = json.loads(text)
    level = [held]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            else:
                _check_plain(value, finite)
        level = inner
        if not level:
            return held
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _check_plain(value: Any, finite: bool) -> None:
    if type(value) is str:
        # Escapes can make half of a surrogate pair, which cannot be printed or written.
        value.encode("utf-8")
    elif type(value) is float and finite and not math.isfinite(value):
        raise ValueError(f"it holds the number {value}")
    elif type(value) is int and abs(value) >= MAX_INTEGER:
        raise ValueError("it holds a number of more than 63 bits")


def structure(value: Any, kind: Any, where: str = "it") -> Any:
    """A value of JSON as an annotated type: numbers, texts, lists, tuples, dictionaries and dataclasses of these."""
    if kind is Any or kind is object:
        return value
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(value, kind, where)
    if origin in (Union, types.UnionType):
        return _union(value, parts, where)
    if origin is Literal and value in parts:
        return value
    if origin in (list, tuple) and isinstance(value, list):
        return _items(value, origin, parts, where)
    if origin is dict and isinstance(value, dict):
        return {name: structure(item, parts[1], f"{where}.{name}") for name, item in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str, bool, type(None), dict) and type(value) is kind:
        return value
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    raise ValueError(f"{where} is {shown[:60]}, expected {getattr(kind, '__name__', kind)}")


def _union(value: Any, parts: tuple[Any, ...], where: str) -> Any:
    """The first of several types that fits."""
    for part in parts[:-1]:
        try:
            return structure(value, part, where)
        except ValueError:
            continue
    return structure(value, parts[-1], where)


def _items(value: list[Any], origin: type, parts: tuple[Any, ...], where: str) -> Any:
    """A list, a tuple of any length or a tuple of a fixed length."""
    fixed = origin is tuple and parts[-1] is not Ellipsis
    if fixed and len(value) != len(parts):
        raise ValueError(f"{where} has {len(value)} items, expected {len(parts)}")
    kinds = parts if fixed else (parts[0],) * len(value)
    items = (structure(item, part, f"{where}[{i}]") for i, (item, part) in enumerate(zip(value, kinds, strict=True)))
    return origin(items)


def _dataclass(value: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {type(value).__name__}, expected the fields of {kind.__name__}")
    hints = typing.get_type_hints(kind)
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    if not needed <= value.keys() or not value.keys() <= hints.keys():
        raise ValueError(f"{where} has the fields {', '.join(value)[:100]}, expected {', '.join(hints)}")
    return kind(**{name: structure(item, hints[name], f"{where}.{name}") for name, item in value.items()})


def read_npz(path: Path, names: Collection[str] | None = None, most: int = MAX_ARRAYS) -> dict[str, Any]:
    """Arrays of an `.npz` archive by name, those of `names` if given; numbers and text only.

    Header, content and the size that the archive states must agree before an array is made.
    """
    file_size(path)
    found: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if names is None or name in names:
                most -= member.file_size
                if most < 0 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"`{name}` unpacks to {member.file_size} bytes or is packed in an unusual way")
                with archive.open(member) as file:
                    found[name] = _array(file, member.file_size)
    return found


def read_npy(path: Path, most: int = MAX_ARRAYS) -> "ndarray":
    """The array of an `.npy` file; numbers and text only."""
    size = file_size(path, most)
    with path.open("rb") as file:
        return _array(file, size)


def _array(file: IO[bytes], size: int) -> "ndarray":
    import numpy as np

    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{file.name} has the format {version}")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.kind not in "biufSU" or any(side < 0 for side in shape):
        raise ValueError(f"{file.name} is an array of {dtype} and {shape}")
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"{file.name} has not the length of its shape")
    return np.frombuffer(bytearray(file.read()), dtype).reshape(shape, order="F" if fortran else "C")


def check_array(array: Any, shape: Sequence[int | None], kinds: str, what: str, finite: bool = True) -> None:
    """Refuse an array of another rank, shape (None is any length), kind of number, or with numbers not finite."""
    import numpy as np

    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
        raise ValueError(f"{what} is of {getattr(array, 'dtype', type(array).__name__)}")
    if array.ndim != len(shape) or any(due not in (None, side) for side, due in zip(array.shape, shape, strict=True)):
        expected = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"{what} has the shape {list(array.shape)}, expected [{expected}]")
    if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what} has numbers that are not finite")


def check_name(name: Any, what: str) -> str:
    """A name that can be printed and can become the name of a file."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(quote(name, safe="")) <= MAX_NAME:
        shown = repr(name)[:60] if isinstance(name, str | bytes | int) else type(name).__name__
        raise InputError(f"{what} is called {shown}; expected printable text of 1 to {MAX_NAME} bytes.")
    return name
