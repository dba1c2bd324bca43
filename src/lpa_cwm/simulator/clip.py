"""Simulated clips: frames, exact motion, training pairs, and files: MOVi-F records (TFRecord) and TAP-Vid pickles."""

import pickle
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Float32, Int16, Integer, UInt8, UInt16
from torch import Tensor

from lpa_cwm.datasets.movif import FLOW_LEVELS, RecordFile, masked_crc
from lpa_cwm.errors import InputError, require
from lpa_cwm.files import atomic_write, pin_settings, share_pieces
from lpa_cwm.jobs import Shard, progress
from lpa_cwm.rng import KeyPart, numpy_rng
from lpa_cwm.simulator.assets import Assets, Points
from lpa_cwm.simulator.render import Camera, FrameRenderer, RayHits, RenderSettings, raster_centers
from lpa_cwm.simulator.scene import SCENE_CONFIGS, SceneConfig, SimulatedScene, sample_scene, scene_config
from lpa_cwm.synth.images import encode_jpeg
from lpa_cwm.synth.pairs import Example
from lpa_cwm.synth.video_flow import is_complete_pickle

TRACK_FRAMES = 8
"""Number of frames in which the points of tracks are sampled."""
TRACKS = 256
"""Tracks of a clip in the TAP-Vid format unless the command says otherwise."""


@dataclass(frozen=True)
class DenseFlow:
    """Optical flow and visibility of each pixel from one frame to another."""

    offset: Float32[np.ndarray, "h w 2"]
    """(dx, dy); NaN where the point is behind the camera."""
    visible: Bool[np.ndarray, "h w"]
    """Whether the point is inside the other frame and not occluded."""


@dataclass(frozen=True)
class PointTracks:
    """Ground-truth tracks of material points."""

    xy: Float32[np.ndarray, "n t 2"]
    visible: Bool[np.ndarray, "n t"]
    body: Int16[np.ndarray, "n"]


@dataclass(frozen=True, eq=False)
class SimulatedClip:
    """The frames of one scene; frames and hits are computed when they are read, once."""

    name: str
    scene: SimulatedScene
    settings: RenderSettings
    _hits: dict[int, RayHits] = field(default_factory=dict, repr=False)
    _pictures: dict[int, UInt8[np.ndarray, "h w 3"]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.scene.config.frames

    @cached_property
    def _camera(self) -> Camera:
        return Camera(self.scene, self.settings.size)

    @cached_property
    def _renderer(self) -> FrameRenderer:
        return FrameRenderer(self._camera, self.settings)

    def hits(self, frame: int) -> RayHits:
        """Ray hits of the pixel centers of a frame."""
        if frame not in self._hits:
            self._hits[frame] = self._camera.cast(self.scene.moment(frame), raster_centers(self.settings.size))
        return self._hits[frame]

    def picture(self, frame: int) -> UInt8[np.ndarray, "h w 3"]:
        """Render a frame."""
        if frame not in self._pictures:
            self._pictures[frame] = self._renderer.picture(frame, self.hits(frame))
        return self._pictures[frame]

    def body(self, frame: int) -> Int16[np.ndarray, "h w"]:
        """Body index per pixel: 0 is the environment, k is body k - 1."""
        return self.hits(frame).body.reshape(self.settings.size, self.settings.size)

    def flow(self, source: int, target: int) -> DenseFlow:
        """Flow from one frame to another; the target may be one frame outside the clip."""
        size, hits = self.settings.size, self.hits(source)
        moment = self.scene.moment(target)
        xy, seen = self._camera.project_visible(moment, self.scene.place(hits.local, hits.body, moment))
        offset = np.ascontiguousarray((xy - raster_centers(size)).T)
        return DenseFlow(offset.reshape(size, size, 2), seen.reshape(size, size))

    def tracks(self, count: int) -> PointTracks:
        """Tracks of random points: a third each on moving bodies, resting bodies and the environment."""
        local, body = self._points(count)
        xy = np.empty((count, len(self), 2), dtype=np.float32)
        seen = np.empty((count, len(self)), dtype=bool)
        for frame in range(len(self)):
            moment = self.scene.moment(frame)
            place, seen[:, frame] = self._camera.project_visible(moment, self.scene.place(local, body, moment))
            xy[:, frame] = place.T
        return PointTracks(xy, seen, body)

    def _points(self, count: int) -> tuple[Points, Int16[np.ndarray, "n"]]:
        """Material points that are visible in at least one frame."""
        rng = numpy_rng("tracks", self.name)
        frames = rng.permutation(len(self))[:TRACK_FRAMES].tolist()
        each = -(-8 * count // len(frames))
        found = []
        for frame in frames:
            xy = rng.uniform(0, self.settings.size, (2, each)).astype(np.float32)
            found.append(self._camera.cast(self.scene.moment(frame), xy))
        local = np.concatenate([hits.local for hits in found], axis=1)
        body = np.concatenate([hits.body for hits in found])
        kind = np.concatenate(([0], 1 + self.scene.moving))[body]
        share = (1 / np.bincount(kind, minlength=3).clip(1))[kind]
        chosen = rng.choice(len(body), count, replace=False, p=share / share.sum())
        return local[:, chosen], body[chosen]


def simulate_clip(
    identity: tuple[KeyPart, ...], config: SceneConfig | str, assets: Assets, settings: RenderSettings | None = None
) -> SimulatedClip:
    """The clip of an identity; the scene does not depend on the frame size."""
    known = scene_config(config) if isinstance(config, str) else config
    name = "-".join([known.name, assets.split, *map(str, identity)])
    return SimulatedClip(name, sample_scene(known, assets, identity), settings or RenderSettings())


STEPS = 3


def channels_first(image: np.ndarray) -> Tensor:
    """[h w c] to [c h w]."""
    return rearrange(torch.from_numpy(image), "h w c -> c h w").contiguous()


@dataclass(frozen=True)
class SimulatedPairs:
    """Simulated clips as a source of pairs with exact flow and visibility.

    Simulation and rendering dominate the cost, so each clip gives six pairs: three steps of a random walk through its
    frames, each in both directions.
    """

    config: SceneConfig
    assets: Assets
    seed: int = 0
    gaps: tuple[int, int] = (1, 8)
    """Minimum and maximum number of frames between source and target."""
    name: str = "simulated"
    _last: dict[tuple[int, int], SimulatedClip] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.gaps[0] <= self.gaps[1] <= self.config.frames // 2:
            raise InputError(
                f"The gaps are {self.gaps}; expected the fewest and the most frames from source to target, from 1 to "
                f"{self.config.frames // 2}, half the clip."
            )

    def __getstate__(self) -> dict[str, Any]:
        # Embree scenes cannot be pickled; the other process makes them again.
        return {**self.__dict__, "_last": {}}

    def pair(self, index: int, size: int) -> Example:
        """Pair `index` at `size` x `size` pixels."""
        number, turn = divmod(index, 2 * STEPS)
        clip = self._clip(number, size)
        source, target = self._walk(number)[turn // 2 :][:2][:: -1 if turn % 2 else 1]
        flow = clip.flow(source, target)
        return Example(
            source=channels_first(clip.picture(source)),
            target=channels_first(clip.picture(target)),
            flow=channels_first(flow.offset),
            visible=torch.from_numpy(flow.visible),
        )

    def _walk(self, number: int) -> list[int]:
        """Frames of the random walk, each a gap away from the previous one."""
        rng = numpy_rng("simulated pairs", self.config.name, self.assets.split, self.seed, number)
        last = self.config.frames - 1
        frames = [int(rng.integers(last + 1))]
        for gap in rng.integers(self.gaps[0], self.gaps[1] + 1, STEPS).tolist():
            reached = [frame for frame in (frames[-1] - gap, frames[-1] + gap) if 0 <= frame <= last]
            frames.append(reached[int(rng.integers(len(reached)))])
        return frames

    def _clip(self, number: int, size: int) -> SimulatedClip:
        """Clip `number`; the last clip is kept, because its pairs are read in sequence."""
        if (number, size) not in self._last:
            self._last.clear()
            self._last[number, size] = simulate_clip(
                (self.seed, number), self.config, self.assets, RenderSettings(size)
            )
        return self._last[number, size]


Form = Literal["movi", "tapvid"]
Feature = Sequence[bytes] | np.ndarray
"""Byte strings, floating-point numbers or whole numbers."""


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
    series: ClipSeries, folder: Path, form: Form, shard: Shard | None = None, tracks: int = TRACKS
) -> list[Path]:
    """Write the files of a shard; complete files are kept, and processes that do the same share the work."""
    claims = folder / f"{series.stem}.json"
    # Left out at its default, and where it has no effect: the folder may have been begun without it.
    drawn = {"tracks": tracks} if form == "tapvid" and tracks != TRACKS else {}
    pin_settings(claims, {**series.settings, "form": form, **drawn})
    paths = {file: series.path(folder, file, form) for file in (shard or Shard()).of(series.files)}
    for file in share_pieces(claims, list(paths), lambda file: is_complete_series(paths[file], form)):
        with atomic_write(paths[file]) as temporary:
            if form == "movi":
                write_records(temporary, map(movi_record, series.clips_of(file)))
            else:
                temporary.write_bytes(pickle.dumps({c.name: tapvid_entry(c, tracks) for c in series.clips_of(file)}))
    return list(paths.values())


def is_complete_series(path: Path, form: Form) -> bool:
    """Whether a file of clips exists and is complete; a truncated one is made again."""
    if not path.exists():
        return False
    try:
        if form == "movi":
            return len(list(RecordFile(path))) > 0
        return is_complete_pickle(path)
    except InputError:
        return False


def tapvid_entry(clip: SimulatedClip, tracks: int) -> dict[str, np.ndarray]:
    """A clip in TAP-Vid format: JPEG frames, points in [0, 1], and occlusion."""
    found = clip.tracks(tracks)
    return {
        "video": np.array([encode_jpeg(clip.picture(frame)) for frame in range(len(clip))]),
        "points": (np.nan_to_num(found.xy, nan=-1.0) / clip.settings.size).astype(np.float32),
        "occluded": ~found.visible,
    }


def movi_record(clip: SimulatedClip) -> bytes:
    """A clip as tf.train.Example with the MOVi-F keys that `datasets/movif.py` reads, and its sizes."""
    video: dict[str, Feature] = {"video": [encode_png(clip.picture(frame)) for frame in range(len(clip))]}
    return example({**video, **flows(clip), **metadata(clip)})


def to_levels(values: Float[np.ndarray, "*d"], low: float, high: float) -> UInt16[np.ndarray, "*d"]:
    """Quantize a range to 16 bits."""
    scaled = (np.clip(values, low, high) - low) / max(high - low, 1e-6)
    return np.round(scaled * FLOW_LEVELS).astype(np.uint16)


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


def encode_field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return encode_varints(np.array([number << 3 | 2])) + encode_varints(np.array([len(payload)])) + payload


def encode_feature(value: Feature) -> bytes:
    """A tf.train.Feature: a list of byte strings, floats or integers, numbers packed."""
    if not isinstance(value, np.ndarray):
        return encode_field(1, b"".join(encode_field(1, item) for item in value))
    flat = value.ravel()
    if np.issubdtype(flat.dtype, np.floating):
        return encode_field(2, encode_field(1, flat.astype("<f4").tobytes()))
    return encode_field(3, encode_field(1, encode_varints(flat)))


def example(features: Mapping[str, Feature]) -> bytes:
    """A tf.train.Example."""
    entries = (
        encode_field(1, name.encode()) + encode_field(2, encode_feature(value)) for name, value in features.items()
    )
    return encode_field(1, b"".join(encode_field(1, entry) for entry in entries))


def write_records(path: Path, records: Iterator[bytes]) -> None:
    """Write a TFRecord file: length, record and checksums."""
    crc32c = require("crc32c", "sim").crc32c
    with path.open("wb") as file:
        for record in records:
            for part in (struct.pack("<Q", len(record)), record):
                file.write(part + struct.pack("<I", masked_crc(crc32c(part))))


def encode_png(image: UInt8[np.ndarray, "h w c"] | UInt16[np.ndarray, "h w c"]) -> bytes:
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
