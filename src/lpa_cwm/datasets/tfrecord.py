"""Reader of TFRecord files of tf.train.Example, without TensorFlow.

A file is mapped into memory; features that are not requested are skipped. The checksums of all lengths and of every
returned record are verified.
"""

import mmap
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from lpa_cwm.errors import InputError, require

Feature = list[bytes] | np.ndarray
"""Byte strings, float32 numbers or int64 numbers."""
HEADER, FOOTER = 12, 4
VARINT, LENGTH_DELIMITED = 0, 2


def masked_crc(crc: int) -> int:
    """CRC-32C as TFRecord stores it: rotated, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode one protobuf base-128 varint; returns the value and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        if shift >= 70:
            raise ValueError("a number of more than ten bytes")
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def varints(data: UInt8[np.ndarray, "k"]) -> Int64[np.ndarray, "n"]:
    """Decode all varints of a packed list."""
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate(([0], ends + 1))[:-1]
    if len(ends) and (ends - starts).max() >= 10:
        raise ValueError("a number of more than ten bytes")
    values = (data[starts] & 127).astype(np.uint64)
    rest = np.flatnonzero(ends > starts)
    place = 1
    while len(rest):
        values[rest] |= (data[starts[rest] + place] & 127).astype(np.uint64) << np.uint64(7 * place)
        place += 1
        rest = rest[starts[rest] + place <= ends[rest]]
    return values.view(np.int64)


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Number and content of each field of a protobuf message; only wire types of tf.train.Example are supported."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == VARINT:
            yield tag >> 3, value
        elif tag & 7 == LENGTH_DELIMITED and at + value <= len(data):
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError(f"wire type {tag & 7}")


def messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields: messages, strings and packed lists."""
    return ((number, value) for number, value in fields(data) if isinstance(value, memoryview))


def feature(data: memoryview) -> Feature:
    """A tf.train.Feature: byte strings, packed floats or packed integers."""
    for kind, content in messages(data):
        if kind == 1:
            return [bytes(item) for _, item in messages(content)]
        packed = b"".join(item for _, item in messages(content))
        if kind == 2:
            return np.frombuffer(packed, dtype="<f4")
        return varints(np.frombuffer(packed, dtype=np.uint8))
    return []


def entries(example: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Name and undecoded content of each feature of a tf.train.Example."""
    for _, features in messages(example):
        for _, entry in messages(features):
            parts = dict(messages(entry))
            yield str(parts[1], "utf-8"), parts.get(2, memoryview(b""))


@dataclass(frozen=True, slots=True)
class Span:
    """Start and stop of a record's content in its file."""

    start: int
    stop: int


class RecordFile:
    """One TFRecord file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._crc: Callable[..., int] = require("crc32c", "data").crc32c
        if not path.is_file() or path.stat().st_size == 0:
            raise InputError(f"{path} is missing or empty; expected a TFRecord file; check the path or fetch it again.")
        with path.open("rb") as file:
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._spans = list(self._walk())

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, number: int) -> memoryview:
        """Content of a record, with verified checksum."""
        span = self._spans[number]
        content = self._data[span.start : span.stop]
        (stored,) = struct.unpack_from("<I", self._data, span.stop)
        if masked_crc(self._crc(content)) != stored:
            raise self._damaged(number, "its checksum does not fit its content")
        return content

    def __iter__(self) -> Iterator[memoryview]:
        """The content of each record, with verified checksums."""
        return map(self.__getitem__, range(len(self)))

    def features(self, number: int, wanted: Collection[str]) -> dict[str, Feature]:
        """The requested features of a record; a missing feature is an error."""
        found = self._pick(number, self[number], wanted)
        missing = sorted(set(wanted) - set(found))
        if missing:
            raise self._damaged(number, f"it has no {', '.join(missing)}")
        return found

    def peek(self, number: int, wanted: str) -> Feature:
        """One feature without verifying the checksum; empty if the record has none."""
        span = self._spans[number]
        return self._pick(number, self._data[span.start : span.stop], (wanted,)).get(wanted, [])

    def _pick(self, number: int, content: memoryview, wanted: Collection[str]) -> dict[str, Feature]:
        try:
            return {name: feature(data) for name, data in entries(content) if name in wanted}
        except (ValueError, IndexError, KeyError) as error:
            raise self._damaged(number, f"it is not a tf.train.Example ({error})") from error

    def _walk(self) -> Iterator[Span]:
        """Index the records; each length is checked against its checksum and the end of the file."""
        at, number, size = 0, 0, len(self._data)
        while at < size:
            if at + HEADER > size:
                raise self._damaged(number, f"the file ends after {size - at} of the {HEADER} bytes of its header")
            length, stored = struct.unpack_from("<QI", self._data, at)
            if masked_crc(self._crc(self._data[at : at + 8])) != stored:
                raise self._damaged(number, "the checksum of its length is wrong")
            start = at + HEADER
            if start + length + FOOTER > size:
                raise self._damaged(number, f"the file ends after {size - start} of its {length + FOOTER} bytes")
            yield Span(start, start + length)
            at, number = start + length + FOOTER, number + 1

    def _damaged(self, number: int, reason: str) -> InputError:
        return InputError(f"{self.path}, record {number}: {reason}; fetch this file again.")
