"""Writing tf.train.Example records in TFRecord files without TensorFlow."""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt8, UInt16

from lpa_cwm.datasets.tfrecord import masked_crc
from lpa_cwm.errors import need

Feature = Sequence[bytes] | np.ndarray
"""Byte strings, floating-point numbers or whole numbers."""


def varints(values: Integer[np.ndarray, "n"]) -> bytes:
    """Non-negative numbers in protobuf's base-128 code, seven bits a byte, the last byte of each below 128."""
    rest, used = values.astype(np.uint64), np.ones(values.shape, dtype=bool)
    columns: list[np.ndarray] = []
    places: list[np.ndarray] = []
    while used.any():
        more = rest > 127
        columns.append((rest & np.uint64(127)).astype(np.uint8) | (more.astype(np.uint8) << 7))
        places.append(used)
        rest, used = rest >> np.uint64(7), more
    return np.stack(columns, axis=1)[np.stack(places, axis=1)].tobytes() if columns else b""


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varints(np.array([number << 3 | 2])) + varints(np.array([len(payload)])) + payload


def feature(value: Feature) -> bytes:
    """A tf.train.Feature: a list of byte strings, floats or integers, numbers packed."""
    if not isinstance(value, np.ndarray):
        return field(1, b"".join(field(1, item) for item in value))
    flat = value.ravel()
    if np.issubdtype(flat.dtype, np.floating):
        return field(2, field(1, flat.astype("<f4").tobytes()))
    return field(3, field(1, varints(flat)))


def example(features: Mapping[str, Feature]) -> bytes:
    """A tf.train.Example."""
    entries = (field(1, name.encode()) + field(2, feature(value)) for name, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def write_records(path: Path, records: Iterator[bytes]) -> None:
    """A TFRecord file: each record between its length and its checksum."""
    crc32c = need("crc32c", "sim").crc32c
    with path.open("wb") as file:
        for record in records:
            for part in (struct.pack("<Q", len(record)), record):
                file.write(part + struct.pack("<I", masked_crc(crc32c(part))))


def png(image: UInt8[np.ndarray, "h w c"] | UInt16[np.ndarray, "h w c"]) -> bytes:
    """A PNG of one or three channels of 8 or 16 bits, each row coded as its difference from the one above."""
    height, width, channels = image.shape
    rows = np.ascontiguousarray(image.astype(image.dtype.newbyteorder(">"))).view(np.uint8).reshape(height, -1)
    above = np.concatenate((np.zeros_like(rows[:1]), rows[:-1]))
    lines = np.concatenate((np.full((height, 1), 2, dtype=np.uint8), rows - above), axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8 * image.itemsize, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 3)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
