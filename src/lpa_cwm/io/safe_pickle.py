"""Reading pickles that strangers made: numpy arrays and plain containers come out, nothing else is ever called.

Not even numpy sees the file's description of a dtype: a crafted one can make it take raw bytes for pointers. So every
admitted name is answered by a function of this module, which builds arrays from checked parts.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from lpa_cwm.errors import InputError

KINDS = frozenset("biufcSUO")


def load(path: Path | str) -> Any:
    """The content of a pickle; the whole file passes through memory, for the format cannot be read in parts."""
    try:
        with Path(path).open("rb") as file:
            return PlainUnpickler(file).load()
    except Refused as refusal:
        raise InputError(f"{path} {refusal}; expected numpy arrays and plain containers; do not trust it.") from refusal
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); expected a pickle; check the path.") from error
    except Exception as error:  # A damaged stream makes the unpickler fail in whatever way its bytes suggest.
        raise InputError(f"{path} is no complete pickle ({error or type(error).__name__}); copy it again.") from error


class Refused(Exception):
    """The file asks for something that data never needs."""


class PlainDtype:
    """A dtype in the making: its kind and size first, its byte order from the state that follows."""

    def __init__(self, spec: str, *_: object) -> None:
        self.dtype = np.dtype(spec)
        if self.dtype.kind not in KINDS:
            raise Refused(f"holds an array of {spec}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, parts, names, fields, *_ = state
        if parts is not None or names is not None or fields is not None:
            raise Refused("holds a structured array")
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)


class PlainArray(ndarray):
    """An array in the making, filled by the state that follows."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, fortran, content = state
        if not isinstance(kind, PlainDtype):
            raise Refused("holds an array without a plain dtype")
        super().__setstate__((version, shape, kind.dtype, fortran, content))


def _array(*_: object) -> PlainArray:
    return PlainArray(0, np.uint8)


def _array_of_buffer(
    content: Any, kind: PlainDtype, shape: tuple[int, ...], order: str, *_: object
) -> Shaped[ndarray, "..."]:
    return np.frombuffer(content, kind.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


def _scalar(kind: PlainDtype, content: bytes) -> Any:
    return np.frombuffer(content, kind.dtype)[0]


def _latin(text: str, encoding: str) -> bytes:
    """How old protocols write bytes."""
    if encoding != "latin1":
        raise Refused(f"calls _codecs.encode for {encoding}")
    return text.encode("latin1")


NUMPY: dict[str, Any] = {
    "multiarray._reconstruct": _array,
    "multiarray.scalar": _scalar,
    "numeric._frombuffer": _array_of_buffer,
}
ADMITTED: dict[str, Callable[..., Any] | None] = {
    "_codecs.encode": _latin,
    "builtins.bytearray": bytearray,
    "builtins.bytes": bytes,
    "builtins.frozenset": frozenset,
    "builtins.set": set,
    "collections.OrderedDict": OrderedDict,
    "numpy.dtype": PlainDtype,
    # Only ever passed on, to `_array`; not callable, so that no file can call it.
    "numpy.ndarray": None,
    **{f"numpy.{home}.{name}": maker for home in ("core", "_core") for name, maker in NUMPY.items()},
}
# Python 2 had other homes for the same names.
ADMITTED |= {name.replace("builtins", "__builtin__"): maker for name, maker in ADMITTED.items() if "builtins" in name}


class PlainUnpickler(pickle.Unpickler):
    """Admits the names above."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Answer an admitted name; refuse every other by name."""
        whole = f"{module}.{name}"
        if whole not in ADMITTED:
            raise Refused(f"asks for {whole}")
        return ADMITTED[whole]

    def persistent_load(self, pid: Any, /) -> Any:
        """Refuse references to things outside the file."""
        raise Refused("refers to something outside itself")
