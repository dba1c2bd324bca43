"""Files of simulated clips: MOVi-F records (TFRecord, written without TensorFlow) and TAP-Vid pickles."""

import io
import pickle
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Integer, UInt8, UInt16
from PIL import Image

from lpa_cwm.datasets.movif import RecordFile, masked_crc
from lpa_cwm.errors import InputError, require
from lpa_cwm.files import atomic_write, pin_settings, share_pieces
from lpa_cwm.io import safe_load
from lpa_cwm.progress import progress
from lpa_cwm.sharding import Shard
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.clip import SimulatedClip, simulate_clip
from lpa_cwm.simulator.render import RenderSettings
from lpa_cwm.simulator.scene import SCENE_CONFIGS

Form = Literal["movi", "tapvid"]
QUALITY = 95
Feature = Sequence[bytes] | np.ndarray
"""Byte strings, floating-point numbers or whole numbers."""
LEVELS = 65535


@dataclass(frozen=True)
class ClipSeries:
    """A numbered series of clips; clip i does not depend on the division into files and shards."""

    assets: Assets
    render: RenderSettings
    recipe: str = "movi"
    """Name of a scene configuration, or "mixed" for all in turn."""
    seed: int = 0
    clips: int = 16
    per_file: int = 16

    def __post_init__(self) -> None:
        if self.clips < 1 or self.per_file < 1:
            raise InputError(
                f"{self.clips} clips in files of {self.per_file} were asked for; give at least one of each."
            )

    @property
    def files(self) -> int:
        """Number of files."""
        return -(-self.clips // self.per_file)

    def clip(self, number: int) -> SimulatedClip:
        """Simulate clip `number`."""
        names = list(SCENE_CONFIGS)
        recipe = names[number % len(names)] if self.recipe == "mixed" else self.recipe
        return simulate_clip((self.seed, number), recipe, self.assets, self.render)

    def clips_of(self, file: int) -> Iterator[SimulatedClip]:
        """The clips of one file, with a progress bar."""
        numbers = range(file * self.per_file, min((file + 1) * self.per_file, self.clips))
        label = f"file {file + 1} of {self.files}"
        return map(self.clip, progress(numbers, total=len(numbers), label=label))

    @property
    def stem(self) -> str:
        """Common prefix of the file names."""
        return f"sim_{self.recipe}_{self.render.size}-{self.assets.split}"

    def path(self, folder: Path, file: int, form: Form) -> Path:
        """Path of a file."""
        number = f"{file:05d}-of-{self.files:05d}"
        return folder / (f"{self.stem}.tfrecord-{number}" if form == "movi" else f"{self.stem}-{number}.pkl")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the files."""
        known = self.assets
        counts = {"objects": len(known.objects), "panoramas": len(known.panoramas)}
        counts["photographs"] = len(known.photographs.files)
        plain = {"recipe": self.recipe, "seed": self.seed, "clips": self.clips, "per_file": self.per_file}
        return {**plain, "split": known.split, "render": asdict(self.render), "assets": counts}


def write_series(
    series: ClipSeries, folder: Path, form: Form, shard: Shard | None = None, tracks: int = 256
) -> list[Path]:
    """Write the files of a shard; complete files are kept, and processes that do the same share the work."""
    claims = folder / f"{series.stem}.json"
    pin_settings(claims, {**series.settings, "form": form})
    paths = {file: series.path(folder, file, form) for file in (shard or Shard()).of(series.files)}
    for file in share_pieces(claims, list(paths), lambda file: is_complete(paths[file], form)):
        with atomic_write(paths[file]) as aside:
            if form == "movi":
                write_records(aside, map(movi_record, series.clips_of(file)))
            else:
                aside.write_bytes(pickle.dumps({c.name: tapvid_entry(c, tracks) for c in series.clips_of(file)}))
    return list(paths.values())


def is_complete(path: Path, form: Form) -> bool:
    """Whether a file of clips is there and can be read to its end; one that was cut short is made again."""
    if not path.exists():
        return False
    try:
        if form == "movi":
            return len(list(RecordFile(path))) > 0
        return bool(safe_load.load_pickle(path))
    except InputError:
        return False


def jpeg(picture: UInt8[np.ndarray, "h w 3"]) -> bytes:
    """A JPEG without chroma subsampling."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return buffer.getvalue()


def tapvid_entry(clip: SimulatedClip, tracks: int) -> dict[str, np.ndarray]:
    """A clip in TAP-Vid format: JPEG frames, points in [0, 1], and occlusion."""
    found = clip.tracks(tracks)
    return {
        "video": np.array([jpeg(clip.picture(frame)) for frame in range(len(clip))]),
        "points": (np.nan_to_num(found.xy, nan=-1.0) / clip.settings.size).astype(np.float32),
        "occluded": ~found.visible,
    }


def movi_record(clip: SimulatedClip) -> bytes:
    """A clip as tf.train.Example with the MOVi-F keys that `datasets/movif.py` reads, and its sizes."""
    video: dict[str, Feature] = {"video": [png(clip.picture(frame)) for frame in range(len(clip))]}
    return example({**video, **flows(clip), **metadata(clip)})


def to_levels(values: Float[np.ndarray, "*d"], low: float, high: float) -> UInt16[np.ndarray, "*d"]:
    """Quantize a range to 16 bits."""
    scaled = (np.clip(values, low, high) - low) / max(high - low, 1e-6)
    return np.round(scaled * LEVELS).astype(np.uint16)


def flows(clip: SimulatedClip) -> dict[str, Feature]:
    """Forward flow to the next frame, and backward flow as in MOVi-F: the motion that led into the frame."""
    found: dict[str, Feature] = {}
    for name, step in (("forward", 1), ("backward", -1)):
        offset = np.stack([step * clip.flow(frame, frame + step).offset[..., ::-1] for frame in range(len(clip))])
        # Points behind the camera have no position in the frame; they get the largest motion.
        limit = 4.0 * clip.settings.size
        offset = np.clip(np.nan_to_num(offset, nan=limit), -limit, limit)
        low, high = float(offset.min()), float(offset.max())
        found[f"{name}_flow"] = to_levels(offset, low, high)
        found[f"metadata/{name}_flow_range"] = np.array([low, high])
    return found


def metadata(clip: SimulatedClip) -> dict[str, Feature]:
    """Name and sizes of the clip."""
    return {
        "metadata/video_name": [clip.name.encode()],
        "metadata/width": np.array([clip.settings.size]),
        "metadata/height": np.array([clip.settings.size]),
        "metadata/num_frames": np.array([len(clip)]),
        "metadata/num_instances": np.array([len(clip.scene.meshes)]),
    }


def encode_varints(values: Integer[np.ndarray, "n"]) -> bytes:
    """Encode non-negative numbers as protobuf base-128 varints."""
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
    return encode_varints(np.array([number << 3 | 2])) + encode_varints(np.array([len(payload)])) + payload


def encode_feature(value: Feature) -> bytes:
    """A tf.train.Feature: a list of byte strings, floats or integers, numbers packed."""
    if not isinstance(value, np.ndarray):
        return field(1, b"".join(field(1, item) for item in value))
    flat = value.ravel()
    if np.issubdtype(flat.dtype, np.floating):
        return field(2, field(1, flat.astype("<f4").tobytes()))
    return field(3, field(1, encode_varints(flat)))


def example(features: Mapping[str, Feature]) -> bytes:
    """A tf.train.Example."""
    entries = (field(1, name.encode()) + field(2, encode_feature(value)) for name, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def write_records(path: Path, records: Iterator[bytes]) -> None:
    """Write a TFRecord file: length, record and checksums."""
    crc32c = require("crc32c", "sim").crc32c
    with path.open("wb") as file:
        for record in records:
            for part in (struct.pack("<Q", len(record)), record):
                file.write(part + struct.pack("<I", masked_crc(crc32c(part))))


def png(image: UInt8[np.ndarray, "h w c"] | UInt16[np.ndarray, "h w c"]) -> bytes:
    """Encode a PNG of one or three channels of 8 or 16 bits with the `up` filter."""
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
