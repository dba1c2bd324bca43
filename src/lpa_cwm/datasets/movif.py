"""Reader of MOVi-F (Greff et al. 2022, Kubric, arXiv 2203.03570): TFRecord files, frames, and flow between neighbors.

TFRecord files of tf.train.Example are read without TensorFlow. A file is mapped into memory; features that are not
requested are skipped. The checksums of all lengths and of every returned record are verified.

`lpa-cwm data simulate` writes the same format. In the files flow is (dy, dx), and `backward_flow[t]` is the motion
that led into frame t, x(t) - x(t-1). This module returns flow as (dx, dy), and backward flow from frame t to t - 1 as
in the paper: F + B = 0 where both see the same point.
"""

import mmap
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64, UInt8
from torch import Tensor

from lpa_cwm.datasets.tapvid import EncodedFrames
from lpa_cwm.errors import InputError, require
from lpa_cwm.files import data_files
from lpa_cwm.geometry import axis_centers
from lpa_cwm.synth.pairs import Split, split_of
from lpa_cwm.validation import check_array, check_name, reading

Feature = list[bytes] | np.ndarray
"""Byte strings, float32 numbers or int64 numbers."""
HEADER, FOOTER = 12, 4
VARINT, LENGTH_DELIMITED = 0, 2


def masked_crc(crc: int) -> int:
    """CRC-32C as TFRecord stores it: rotated, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def decode_varint(data: memoryview, at: int) -> tuple[int, int]:
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


def decode_varints(data: UInt8[np.ndarray, "k"]) -> Int64[np.ndarray, "n"]:
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
        tag, at = decode_varint(data, at)
        value, at = decode_varint(data, at)
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
        return decode_varints(np.frombuffer(packed, dtype=np.uint8))
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


FLOW_LEVELS = 65535
MAX_FLOW = 1e6
"""Pixels."""
NATIVE = 128
"""Frame side of the variant in whose pixels thresholds are given."""
FLOWS = ("forward", "backward")
RANGES = tuple(f"metadata/{name}_flow_range" for name in FLOWS)
WANTED = ("video", "forward_flow", "backward_flow", *RANGES, "metadata/video_name")

FlowField = Float32[np.ndarray, "h w 2"]


@dataclass(frozen=True, eq=False)
class MoviClip:
    """One clip; frames and flow are decoded when they are read."""

    name: str
    frames: EncodedFrames
    levels: dict[str, Int[np.ndarray, "t h w 2"]]
    ranges: dict[str, tuple[float, float]]

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def size(self) -> int:
        """Side of the frames in pixels."""
        return self.levels["forward"].shape[1]

    def frame(self, t: int) -> UInt8[Tensor, "3 h w"]:
        """The frame at time t."""
        return self.frames.decode(t)

    def forward(self, t: int) -> FlowField:
        """(dx, dy) from frame t to frame t + 1."""
        return self._flow("forward", t)

    def backward(self, t: int) -> FlowField:
        """(dx, dy) from frame t to frame t - 1."""
        return -self._flow("backward", t)

    def _flow(self, name: str, t: int) -> FlowField:
        low, high = self.ranges[name]
        pixels = self.levels[name][t, ..., ::-1].astype(np.float32) * np.float32((high - low) / FLOW_LEVELS)
        return pixels + np.float32(low)


def numeric(feature: Feature) -> np.ndarray:
    """The feature itself; byte strings are refused."""
    if not isinstance(feature, np.ndarray):
        raise InputError("A MOVi-F feature holds byte strings; expected numbers; fetch the file again.")
    return feature


def read_clip(records: RecordFile, number: int) -> MoviClip:
    """Decode one record; the sign of its backward flow is not checked yet."""
    found = records.features(number, WANTED)
    video = video_name(found["metadata/video_name"], records.path)
    frames = EncodedFrames(video, byte_strings(found["video"]))
    levels = {name: numeric(found[f"{name}_flow"]) for name in FLOWS}
    side = round((len(levels["forward"]) / max(1, 2 * len(frames))) ** 0.5)
    if not frames or any(len(field) != 2 * len(frames) * side**2 for field in levels.values()):
        sizes = ", ".join(f"{len(field)} {name} flow values" for name, field in levels.items())
        raise InputError(f"{records.path}, record {number}: {len(frames)} frames and {sizes} do not fit together.")
    if any(field.min() < 0 or field.max() > FLOW_LEVELS for field in levels.values()):
        raise InputError(
            f"{records.path}, record {number}: flow has levels outside 0 to {FLOW_LEVELS}; fetch it again."
        )
    if frames.decode(0).shape[1:] != (side, side):
        raise InputError(f"{records.path}, record {number}: frames are not of {side}x{side} pixels as the flow is.")
    return MoviClip(
        name=video,
        frames=frames,
        levels={name: field.reshape(-1, side, side, 2) for name, field in levels.items()},
        ranges={name: flow_range(found[key], records.path) for name, key in zip(FLOWS, RANGES, strict=True)},
    )


def byte_strings(feature: Feature) -> list[bytes]:
    """The feature itself; numbers are refused."""
    if not isinstance(feature, list):
        raise InputError("A MOVi-F feature holds numbers; expected byte strings; fetch the file again.")
    return feature


def video_name(feature: Feature, path: Path) -> str:
    """The name of a record's video; empty if it has none."""
    names = byte_strings(feature)
    with reading(path, "a file of MOVi-F", "fetch it again"):
        return check_name(names[0].decode(), f"A video of {path}") if names else ""


def flow_range(feature: Feature, path: Path) -> tuple[float, float]:
    """Smallest and largest flow in pixels."""
    bounds = numeric(feature)
    with reading(path, "a file of MOVi-F", "fetch it again"):
        check_array(bounds, (2,), "f", "the range of the flow")
        if not -MAX_FLOW < bounds[0] <= bounds[1] < MAX_FLOW:
            raise ValueError(f"the range of the flow is {bounds}")
        return float(bounds[0]), float(bounds[1])


def rounded_targets(flow: FlowField) -> tuple[Int[np.ndarray, "h w 2"], Bool[np.ndarray, "h w"]]:
    """(column, row) of the pixel that each pixel center moves into, and whether it is inside; zero where it is not."""
    height, width = flow.shape[:2]
    columns, rows = np.meshgrid(axis_centers(0, width), axis_centers(0, height))
    dx, dy = np.moveaxis(np.where(np.isfinite(flow), flow, np.inf).clip(-1e6, 1e6), -1, 0)
    column, row = (np.floor(place + step).astype(int) for place, step in ((columns, dx), (rows, dy)))
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return np.stack((column, row), axis=-1) * inside[..., None], inside


def round_trip_error(forward: FlowField, backward: FlowField) -> Float32[np.ndarray, "h w"]:
    """Forward-backward error ||F(p) + B(round(p'))||, without interpolation; NaN where p' is outside the frame."""
    target, inside = rounded_targets(forward)
    with np.errstate(invalid="ignore"):
        error = np.linalg.norm(forward + backward[target[..., 1], target[..., 0]], axis=-1)
    return np.where(inside, error, np.nan).astype(np.float32)


def check_flow_sign(clip: MoviClip, where: str) -> None:
    """Refuse a clip whose backward flow does not undo its forward flow, for example because its sign is reversed."""
    right, wrong = [], []
    for t in range(0, len(clip) - 1, 4):
        forward, backward = clip.forward(t), clip.backward(t + 1)
        moving = np.linalg.norm(forward, axis=-1) > 0.5 * clip.size / NATIVE
        right.append(round_trip_error(forward, backward)[moving])
        wrong.append(round_trip_error(forward, -backward)[moving])
    errors = [np.concatenate(parts) for parts in (right, wrong)]
    errors = [part[np.isfinite(part)] for part in errors]
    if len(errors[0]) < 64:
        return
    agree, oppose = (float(np.median(part)) for part in errors)
    if agree > 0.5 * oppose:
        kind = "has the opposite sign" if oppose < 0.5 * agree else "does not belong to its forward flow"
        raise InputError(
            f"{where}: the backward flow {kind} (median disagreement {agree:.2f} px as MOVi-F stores it, {oppose:.2f} "
            "px with the opposite sign); expected x(t) - x(t-1) in channel order (dy, dx)."
        )


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """Position of a record and the name of its video."""

    path: Path
    number: int
    name: str


@lru_cache(maxsize=64)
def open_records(path: Path) -> RecordFile:
    """Open a file; each process indexes it once."""
    return RecordFile(path)


@lru_cache(maxsize=4)
def clip_at(path: Path, number: int) -> MoviClip:
    """A clip with checked flow sign; the last few clips are kept."""
    clip = read_clip(open_records(path), number)
    check_flow_sign(clip, f"{path}, record {number}")
    return clip


@dataclass(frozen=True)
class MoviClips:
    """The clips of TFRecord files on one side of the split; clips of one source video stay together."""

    entries: tuple[RecordEntry, ...]
    split: Split

    @classmethod
    def of(cls, folder: Path, split: Split, pattern: str = "*train.tfrecord-*") -> "MoviClips":
        """All records of the matching files whose video is in this split."""
        paths = data_files(folder, pattern)
        every = [entry for path in paths for entry in entries_of(path)]
        kept = tuple(entry for entry in every if split_of(entry.name) == split)
        if not kept:
            raise InputError(
                f"{folder} holds {len(every)} records in {len(paths)} files named {pattern}, none for the split "
                f"'{split}'; fetch MOVi-F or run lpa-cwm data simulate."
            )
        return cls(kept, split)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> MoviClip:
        """Read one clip."""
        return clip_at(self.entries[index].path, self.entries[index].number)


def entries_of(path: Path) -> list[RecordEntry]:
    """List the records of a file with the names of their videos."""
    records = open_records(path)
    names = [records.peek(number, "metadata/video_name") for number in range(len(records))]
    return [RecordEntry(path, number, video_name(name, path)) for number, name in enumerate(names)]
