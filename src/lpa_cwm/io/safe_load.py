"""Safe readers of untrusted pickles and weight files: numpy arrays, tensors and plain values; nothing is executed.

A pickle is a program, so four things are restricted here:

- Opcodes: only the ones that data needs are interpreted, by Python's own implementation of the unpickler. The one in C
  takes lengths and memo indices from the file at face value and allocates before it reads.
- Names: every admitted name is answered by a function of this module.
- Arrays: numpy never sees a dtype, a shape or a buffer of the file before all three were checked against each other,
  because `ndarray.__setstate__` reads out of bounds if they disagree.
- Memory: what is copied out of the file is limited by the size of the file.

Of a weight file only tensors are loaded; names, shapes and kinds of numbers must match the network.
"""

import argparse
import math
import os
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
import torch
from jaxtyping import Shaped
from numpy import ndarray
from safetensors import safe_open
from torch import Tensor, nn

from lpa_cwm.errors import InputError
from lpa_cwm.validation import file_size, reading, reason

DTYPE = re.compile(r"[biufcSU][1-9]\d{0,8}|O8?")
MAX_EMPTY_SIZE = 2**40
"""Product of the other dimensions of an array without elements; numpy multiplies them without regard to overflow."""
MAX_COPIES = 4
"""How often the content of a file may be copied on its way into arrays: decoded, converted, byte-swapped."""


def load_pickle(path: Path | str) -> Any:
    """Return the content of a pickle. The whole file passes through memory: the format cannot be read in parts."""
    try:
        file_size(Path(path))
        with Path(path).open("rb") as file:
            return SafeUnpickler(file).load()
    except UnsafePickle as refusal:
        raise InputError(f"{path} {refusal}; expected numpy arrays and plain containers; do not trust it.") from refusal
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); expected a pickle; check the path.") from error
    except Exception as error:  # A damaged stream makes the unpickler raise any exception.
        raise InputError(f"{path} is no complete pickle ({error or type(error).__name__}); copy it again.") from error


class UnsafePickle(Exception):
    """The file contains an operation that data never needs."""


class PlainDtype:
    """A dtype under construction: kind and size first, byte order from the state that follows."""

    def __init__(self, spec: object, *_: object) -> None:
        if not isinstance(spec, str) or not DTYPE.fullmatch(spec):
            raise UnsafePickle(f"holds an array of {spec}")
        self.dtype = np.dtype(spec)
        self.built = False

    def build(self, state: object) -> None:
        """Set the byte order."""
        if self.built:
            raise UnsafePickle("describes a dtype twice")
        _, order, subarray, names, fields, *_ = _tuple(state)
        if subarray is not None or names is not None or fields is not None:
            raise UnsafePickle("holds a structured array")
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)
        self.built = True


class PlainArray(ndarray):
    """An array under construction, filled once by the state that follows."""

    built = False

    def build(self, state: object) -> None:
        """Take shape and content if they agree."""
        # A second state would free memory that a view may still use.
        if self.built:
            raise UnsafePickle("fills an array twice")
        version, shape, kind, fortran, content = _tuple(state)
        dtype = _dtype(kind)
        checked: Any = _checked_objects(shape, content) if dtype.hasobject else _checked_bytes(shape, dtype, content)
        order: Any = bool(fortran)
        super().__setstate__((int(version), shape, dtype, order, checked))
        self.built = True

    def __setstate__(self, state: object, /) -> NoReturn:
        raise UnsafePickle("fills an array in an unknown way")


def _tuple(state: object) -> tuple[Any, ...]:
    if type(state) is not tuple:
        raise UnsafePickle("describes an array in an unknown way")
    return state


def _dtype(kind: object) -> np.dtype[Any]:
    if type(kind) is not PlainDtype:
        raise UnsafePickle("holds an array without a plain dtype")
    return kind.dtype


def _check_shape(shape: object) -> tuple[int, ...]:
    if type(shape) is not tuple or any(type(size) is not int or size < 0 for size in shape):
        raise UnsafePickle("holds an array of an impossible shape")
    if 0 in shape and math.prod(size for size in shape if size) > MAX_EMPTY_SIZE:
        raise UnsafePickle("holds an array of an impossible shape")
    return shape


def _checked_objects(shape: object, content: object) -> list[bytes | str | None]:
    """Return a copy of the elements, one for each place of the array."""
    if type(content) is not list or _check_shape(shape) != (len(content),):
        raise UnsafePickle("holds an array of objects whose shape is not their number")
    if any(type(item) not in (bytes, str, type(None)) for item in content):
        raise UnsafePickle("holds an array of objects that are neither bytes nor text")
    # A copy, since the file can still append to its own list.
    return list(content)


def _checked_bytes(shape: object, dtype: np.dtype[Any], content: object) -> bytes | bytearray:
    """Return the content, if it has as many bytes as shape and dtype say."""
    if type(content) is not bytes and type(content) is not bytearray:
        raise UnsafePickle("holds an array whose content is not bytes")
    if dtype.hasobject:
        raise UnsafePickle("holds an array of objects made of bytes")
    if math.prod(_check_shape(shape)) * dtype.itemsize != len(content):
        raise UnsafePickle("holds an array whose content has not the length of its shape")
    return content


def _array(*_: object) -> PlainArray:
    return PlainArray(0, np.uint8)


def _array_of_buffer(content: object, kind: object, shape: object, order: object, *_: object) -> Shaped[ndarray, "..."]:
    dtype = _dtype(kind)
    array = np.frombuffer(_checked_bytes(shape, dtype, content), dtype)
    return array.reshape(cast(tuple[int, ...], shape), order="F" if order == "F" else "C")


def _scalar(kind: object, content: object) -> Any:
    dtype = _dtype(kind)
    return np.frombuffer(_checked_bytes((), dtype, content), dtype)[0]


def _latin(text: object, encoding: object) -> bytes:
    """Return bytes from the text that old protocols write for them."""
    if encoding not in ("latin1", "latin-1"):
        raise UnsafePickle(f"calls _codecs.encode for {encoding}")
    if type(text) is not str:
        raise UnsafePickle("encodes something that is not text")
    return text.encode("latin1")


def _bytes(content: object = b"", *encoding: object) -> bytes:
    """Return bytes by their content, never by a number."""
    if encoding:
        return _latin(content, *encoding)
    if type(content) is not bytes and type(content) is not bytearray:
        raise UnsafePickle("makes bytes of something else")
    return bytes(content)


def _bytearray(*content: object) -> bytearray:
    return bytearray(_bytes(*content))


def _set(items: object = ()) -> set[Any]:
    if type(items) is not list and type(items) is not tuple:
        raise UnsafePickle("makes a set of something else than a list")
    return set(_checked_keys(items))


def _frozenset(items: object = ()) -> frozenset[Any]:
    return frozenset(_set(items))


def _dict(pairs: object = ()) -> dict[Any, Any]:
    if type(pairs) is not list and type(pairs) is not tuple:
        raise UnsafePickle("makes a dictionary of something else than a list")
    _checked_keys([key for key, _ in pairs])
    return dict(pairs)


KEY_TYPES = (str, bytes, int, float, bool, type(None))


def _checked_keys(keys: Iterable[Any]) -> list[Any]:
    """Return keys that can be hashed safely: the hash of a tuple nested a million times overflows the stack."""
    keys = list(keys)
    for key in keys:
        parts = key if type(key) is tuple else (key,)
        if any(type(part) not in KEY_TYPES and not isinstance(part, np.generic) for part in parts):
            raise UnsafePickle(f"holds a key of type {type(key).__name__}")
    return keys


NUMPY_NAMES: dict[str, Callable[..., Any]] = {
    "multiarray._reconstruct": _array,
    "multiarray.scalar": _scalar,
    "numeric._frombuffer": _array_of_buffer,
}
ALLOWED_NAMES: dict[str, Callable[..., Any] | None] = {
    "_codecs.encode": _latin,
    "builtins.bytearray": _bytearray,
    "builtins.bytes": _bytes,
    "builtins.frozenset": _frozenset,
    "builtins.set": _set,
    # Dictionaries keep their order, and unlike an OrderedDict have no attributes that a file could set.
    "collections.OrderedDict": _dict,
    "numpy.dtype": PlainDtype,
    # Only ever passed on, to `_array`; not callable, so that no file can call it.
    "numpy.ndarray": None,
    **{f"numpy.{home}.{name}": maker for home in ("core", "_core") for name, maker in NUMPY_NAMES.items()},
}
# Python 2 had other homes for the same names.
ALLOWED_NAMES |= {
    name.replace("builtins", "__builtin__"): maker for name, maker in ALLOWED_NAMES.items() if "builtins" in name
}

OPCODES = """
    MARK STOP POP POP_MARK DUP PROTO FRAME NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT
    BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES
    BINBYTES8 BYTEARRAY8 EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM
    SETITEMS EMPTY_SET ADDITEMS FROZENSET GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL
    REDUCE BUILD
"""


class BoundedFile:
    """A file that never allocates more than its size and never returns fewer bytes than requested."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, count: int) -> bytes:
        """Read exactly `count` bytes or fail."""
        if not 0 <= count <= self.size - self.file.tell():
            raise EOFError("it ends early")
        return self.file.read(count)

    def readline(self) -> bytes:
        """Read up to the end of a line."""
        return self.file.readline()


# The unpickler in C has no dispatch table that could be restricted; typeshed does not describe this one in full.
PythonUnpickler: Any = pickle._Unpickler


class SafeUnpickler(PythonUnpickler):
    """Interprets the allowed opcodes and names."""

    def __init__(self, file: BinaryIO) -> None:
        exact = BoundedFile(file)
        super().__init__(exact)
        self.allowance = MAX_COPIES * exact.size

    def find_class(self, module: str, name: str, /) -> Any:
        """The replacement of an allowed name; other names are refused."""
        whole = f"{module}.{name}"
        if whole not in ALLOWED_NAMES:
            raise UnsafePickle(f"asks for {whole}")
        return ALLOWED_NAMES[whole]

    def charge(self, arguments: Iterable[Any]) -> None:
        """Count what is about to be copied: a short file could copy one long text again and again."""
        self.allowance -= sum(len(part) for part in arguments if type(part) in (str, bytes, bytearray, list, tuple))
        if self.allowance < 0:
            raise UnsafePickle("unpacks to much more than its size")

    def load_reduce(self) -> None:
        """Call an allowed function."""
        arguments = _tuple(self.stack.pop())
        self.charge(arguments)
        self.stack[-1] = self.stack[-1](*arguments)

    def load_build(self) -> None:
        """Fill an array or complete a dtype; nothing else has a state."""
        state = _tuple(self.stack.pop())
        made = self.stack[-1]
        if type(made) is not PlainArray and type(made) is not PlainDtype:
            raise UnsafePickle(f"sets the state of a {type(made).__name__}")
        self.charge(state)
        made.build(state)

    def load_bytearray8(self) -> None:
        """Read before allocating."""
        (count,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(count)))

    def load_append(self) -> None:
        """Append to a list."""
        item = self.stack.pop()
        self.list_on_top().append(item)

    def load_appends(self) -> None:
        """Extend a list."""
        items = self.pop_mark()
        self.list_on_top().extend(items)

    def list_on_top(self) -> list[Any]:
        """Return the list on the stack; other things can be appended to as well."""
        if type(self.stack[-1]) is not list:
            raise UnsafePickle(f"appends to a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def load_setitem(self) -> None:
        """Set one entry of a dictionary."""
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def load_setitems(self) -> None:
        """Set entries of a dictionary."""
        self.set_items(self.pop_mark())

    def load_dict(self) -> None:
        """Make a dictionary of what lies above the mark."""
        items = self.pop_mark()
        self.append({})
        self.set_items(items)

    def set_items(self, items: list[Any]) -> None:
        """Set entries, given as keys and values in turn."""
        if type(self.stack[-1]) is not dict:
            raise UnsafePickle(f"sets entries of a {type(self.stack[-1]).__name__}")
        self.stack[-1].update(zip(_checked_keys(items[::2]), items[1::2], strict=True))

    def load_additems(self) -> None:
        """Add to a set."""
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise UnsafePickle(f"adds to a {type(self.stack[-1]).__name__}")
        self.stack[-1].update(_checked_keys(items))

    def load_frozenset(self) -> None:
        """Make a frozen set of what lies above the mark."""
        items = self.pop_mark()
        self.append(frozenset(_checked_keys(items)))


def _handler(name: str, code: int) -> Callable[[SafeUnpickler], None]:
    """The method that interprets an opcode."""

    def refuse(_: SafeUnpickler) -> NoReturn:
        raise UnsafePickle(f"uses the opcode {name}")

    ours = vars(SafeUnpickler).get(f"load_{name.lower()}")
    return (ours or PythonUnpickler.dispatch[code]) if name in OPCODES.split() else refuse


SafeUnpickler.dispatch = {ord(entry.code): _handler(entry.name, ord(entry.code)) for entry in pickletools.opcodes}


MAX_HEADER = 8 << 20
"""Bytes of the table of contents of a safetensors file."""
MAX_TENSOR_COPIES = 4
"""A file's tensors together may have this many times its size: tensors can share memory."""


def load_plain(path: Path) -> Any:
    """The content of a PyTorch file: tensors and plain values; code in it is not executed."""
    size = file_size(path)
    packed = zipfile.is_zipfile(path)
    if packed:
        with zipfile.ZipFile(path) as archive:
            # PyTorch stores; a packed entry would take memory that the size of the file does not limit.
            if any(entry.compress_type or entry.file_size > size for entry in archive.infolist()):
                raise ValueError("its entries are packed")
    # Checkpoints often hold the options of the training; a namespace runs no code.
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=packed)
    check_tensors(tensors_in(content), size)
    return content


def tensors_in(content: Any) -> Iterator[Tensor]:
    """All tensors of nested dictionaries, lists and tuples."""
    level = [content]
    while level:
        value = level.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            level += value.values()
        elif isinstance(value, list | tuple):
            level += value


def check_tensors(tensors: Iterator[Tensor], size: int) -> None:
    """Refuse tensors that are not dense, not in memory, or larger than a file of this size can hold."""
    most = MAX_TENSOR_COPIES * size
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"it holds a tensor that is {tensor.layout} on {tensor.device}")
        # A tensor whose strides are zero is larger than its memory.
        most -= tensor.numel() * tensor.element_size()
        if most < 0:
            raise ValueError("its tensors are larger than the file")


def load_state_dict(path: Path, expected: str, within: str | None = None) -> dict[str, Tensor]:
    """The named tensors of a PyTorch file, or of one entry of it."""
    try:
        content = load_plain(path)
        named = dict(content[within] if within else content)
        if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in named.items()):
            raise TypeError("not all of its entries are named tensors")
        return named
    except Exception as error:  # Any exception can come from unknown bytes.
        place = f" under {within!r}" if within else ""
        raise InputError(f"{path} does not hold named tensors{place}; expected {expected}; fetch it again.") from error


def check_state_dict(state: Mapping[str, Tensor], network: nn.Module, path: Path, expected: str) -> None:
    """Refuse tensors whose names or shapes differ from those of the network, and numbers that are not finite."""
    needed = network.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in needed.items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        given, due = (shapes.get(wrong[0], "absent") for shapes in (found, wanted))
        raise InputError(
            f"{path} is not {expected}: {len(wrong)} tensors differ, first {wrong[0]} ({given} instead of {due})."
        )
    for name, tensor in state.items():
        if tensor.is_floating_point() != needed[name].is_floating_point() or tensor.is_complex():
            raise InputError(f"{path} is not {expected}: {name} holds {tensor.dtype}.")
        if not tensor.isfinite().all():
            raise InputError(f"{path} is not {expected}: {name} has numbers that are not finite.")


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """A safetensors file, whose table of contents has a limited size."""
    size = file_size(path)
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8 or struct.unpack("<Q", head)[0] > min(size, MAX_HEADER):
        raise ValueError("its header is longer than the file")
    with safe_open(path, framework="pt") as opened:
        yield opened


def load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and texts of a safetensors file."""
    with open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def load_weights(network: nn.Module, path: Path, expected: str, remedy: str) -> None:
    """Load the weights of a safetensors file into a network of the same names and shapes, in single precision."""
    with reading(path, expected, remedy):
        state, _ = load_safetensors(path)
        check_state_dict(state, network, path, expected)
        network.load_state_dict({name: value.float() for name, value in state.items()})
