"""MOVi-F clips, real or simulated in the same format: frames and the dense motion between neighbors.

In the files flow is (dy, dx) and `backward_flow[t]` is the motion that led into frame t, x(t) - x(t-1). Past this
module flow is (dx, dy) and backward flow leads from frame t to t - 1, as the paper writes it: F + B = 0 where both
see the same point.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float32, Int, UInt8
from torch import Tensor

from lpa_cwm.datasets.tapvid_record import EncodedPictures
from lpa_cwm.datasets.tfrecord import Feature, Shard
from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files
from lpa_cwm.geometry import axis_centers
from lpa_cwm.sampling import resize_frame
from lpa_cwm.synth.pairs import Example, Split, draws, split_of

NATIVE = 128
"""The variant in whose pixels thresholds are given."""
FLOWS = ("forward", "backward")
RANGES = tuple(f"metadata/{name}_flow_range" for name in FLOWS)
WANTED = ("video", "forward_flow", "backward_flow", *RANGES, "metadata/video_name")

FlowField = Float32[np.ndarray, "h w 2"]


@dataclass(frozen=True, eq=False)
class MoviClip:
    """One clip; frames and flow are decoded when asked for."""

    name: str
    pictures: EncodedPictures
    levels: dict[str, Int[np.ndarray, "t h w 2"]]
    ranges: dict[str, tuple[float, float]]

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def size(self) -> int:
        """Side of the frames."""
        return self.levels["forward"].shape[1]

    def frame(self, t: int) -> UInt8[Tensor, "3 h w"]:
        """The picture at time t."""
        return self.pictures.decode(t)

    def forward(self, t: int) -> FlowField:
        """(dx, dy) from frame t to frame t + 1."""
        return self._flow("forward", t)

    def backward(self, t: int) -> FlowField:
        """(dx, dy) from frame t to frame t - 1."""
        return -self._flow("backward", t)

    def _flow(self, name: str, t: int) -> FlowField:
        low, high = self.ranges[name]
        pixels = self.levels[name][t, ..., ::-1].astype(np.float32) * np.float32((high - low) / 65535)
        return pixels + np.float32(low)


def numbers(feature: Feature) -> np.ndarray:
    """A feature that must be numeric."""
    if not isinstance(feature, np.ndarray):
        raise InputError("A feature that should hold numbers holds byte strings; the record is not of MOVi-F.")
    return feature


def read_clip(shard: Shard, number: int) -> MoviClip:
    """A record as it is stored; nothing is said yet about the sign of its backward flow."""
    found = shard.features(number, WANTED)
    video = bytes(found["metadata/video_name"][0]).decode()
    pictures = EncodedPictures(video, [bytes(picture) for picture in found["video"]])
    levels = {name: numbers(found[f"{name}_flow"]) for name in FLOWS}
    side = round((len(levels["forward"]) / max(1, 2 * len(pictures))) ** 0.5)
    if not pictures or any(len(field) != 2 * len(pictures) * side**2 for field in levels.values()):
        sizes = ", ".join(f"{len(field)} {name} flow values" for name, field in levels.items())
        raise InputError(f"{shard.path}, record {number}: {len(pictures)} frames and {sizes} do not fit together.")
    return MoviClip(
        name=video,
        pictures=pictures,
        levels={name: field.reshape(-1, side, side, 2) for name, field in levels.items()},
        ranges={name: tuple(numbers(found[key]).tolist()) for name, key in zip(FLOWS, RANGES, strict=True)},
    )


def rounded_goals(flow: FlowField) -> tuple[Int[np.ndarray, "h w 2"], Bool[np.ndarray, "h w"]]:
    """(column, row) of the pixel each pixel's center moves into, and whether it is in the frame; zeros where not."""
    height, width = flow.shape[:2]
    columns, rows = np.meshgrid(axis_centers(0, width), axis_centers(0, height))
    dx, dy = np.moveaxis(np.where(np.isfinite(flow), flow, np.inf).clip(-1e6, 1e6), -1, 0)
    column, row = (np.floor(place + step).astype(int) for place, step in ((columns, dx), (rows, dy)))
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    return np.stack((column, row), axis=-1) * inside[..., None], inside


def disagreement(forward: FlowField, backward: FlowField) -> Float32[np.ndarray, "h w"]:
    """||F(p) + B(round(p'))||, the backward flow read without interpolation; NaN where p' is outside."""
    goal, inside = rounded_goals(forward)
    with np.errstate(invalid="ignore"):
        error = np.linalg.norm(forward + backward[goal[..., 1], goal[..., 0]], axis=-1)
    return np.where(inside, error, np.nan).astype(np.float32)


def check_signs(clip: MoviClip, where: str) -> None:
    """Refuse a clip whose backward flow does not undo its forward flow, as when its sign is the other way round."""
    right, wrong = [], []
    for t in range(0, len(clip) - 1, 4):
        forward, backward = clip.forward(t), clip.backward(t + 1)
        moving = np.linalg.norm(forward, axis=-1) > 0.5 * clip.size / NATIVE
        right.append(disagreement(forward, backward)[moving])
        wrong.append(disagreement(forward, -backward)[moving])
    errors = [np.concatenate(parts) for parts in (right, wrong)]
    errors = [part[np.isfinite(part)] for part in errors]
    if len(errors[0]) < 64:
        return
    agree, oppose = (float(np.median(part)) for part in errors)
    if agree > 0.5 * oppose:
        kind = "is the other way round" if oppose < 0.5 * agree else "does not belong to its forward flow"
        raise InputError(
            f"{where}: the backward flow {kind} (median disagreement {agree:.2f} px as MOVi-F stores it, {oppose:.2f} "
            "px with the sign turned); expected x(t) - x(t-1) in channel order (dy, dx)."
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a file."""

    path: Path
    number: int
    name: str


@lru_cache(maxsize=64)
def shard_at(path: Path) -> Shard:
    """A file, opened and walked through once in each process."""
    return Shard(path)


@lru_cache(maxsize=4)
def clip_at(path: Path, number: int) -> MoviClip:
    """A clip that passed the check of its signs; the last few are kept."""
    clip = read_clip(shard_at(path), number)
    check_signs(clip, f"{path}, record {number}")
    return clip


@dataclass(frozen=True)
class MoviClips:
    """The clips of some TFRecord files on one side of a split by source video."""

    entries: tuple[Entry, ...]
    split: Split

    @classmethod
    def of(cls, folder: Path, split: Split, pattern: str = "*train.tfrecord-*") -> "MoviClips":
        """Every record of the matching files of a folder whose video falls on this side of the split."""
        paths = data_files(folder, pattern)
        every = [entry for path in paths for entry in entries_of(path)]
        kept = tuple(entry for entry in every if split_of(entry.name) == split)
        if not kept:
            raise InputError(
                f"{folder} holds {len(every)} records in {len(paths)} files named {pattern}, none for the split "
                f"'{split}'; fetch MOVi-F or run lpa-cwm simulate."
            )
        return cls(kept, split)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> MoviClip:
        """The clip of this number."""
        return clip_at(self.entries[index].path, self.entries[index].number)


def entries_of(path: Path) -> list[Entry]:
    """The records of a file by the names of their videos."""
    shard = shard_at(path)
    names = [shard.glance(number, "metadata/video_name") for number in range(len(shard))]
    return [Entry(path, number, bytes(name[0]).decode() if len(name) else "") for number, name in enumerate(names)]


@dataclass(frozen=True)
class MoviPairs:
    """Neighboring frames of MOVi-F clips as a source of pairs, forwards and backwards in time.

    Visibility is judged by the agreement of forward and backward flow, which is all that the format tells.
    """

    clips: MoviClips
    seed: int = 0
    per_clip: int = 8
    """Successive pairs that share a clip, whose decoding is most of their cost."""
    agreement: float = 1.0
    """Largest disagreement of a visible point, in pixels of the 128 variant."""

    @property
    def name(self) -> str:
        """`movif_train` or `movif_val`."""
        return f"movif_{self.clips.split}"

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number: a random square of the frames, or the whole frames enlarged if they are smaller."""
        turn = draws(self.name, self.seed, "clip", index // self.per_clip)
        clip = self.clips[int(turn.integers(len(self.clips)))]
        rng = draws(self.name, self.seed, "pair", index)
        early = int(rng.integers(len(clip) - 1))
        later = early + 1
        times, flows = (early, later), (clip.forward(early), clip.backward(later))
        if rng.random() < 0.5:
            times, flows = times[::-1], flows[::-1]
        agree = disagreement(*flows) <= self.agreement * clip.size / NATIVE
        frames = [clip.frame(t) for t in times]
        corner = rng.integers(0, max(1, clip.size - size + 1), 2)
        return window(frames, flows[0], agree, corner, size)


def window(
    frames: list[UInt8[Tensor, "3 h w"]],
    flow: FlowField,
    agree: Bool[np.ndarray, "h w"],
    corner: Int[np.ndarray, "2"],
    size: int,
) -> Example:
    """The part of a pair to the lower right of a corner (x, y), or all of it enlarged."""
    native = len(agree)
    if native < size:
        at = (axis_centers(0, size) * native / size).astype(int)
        frames = [resize_frame(frame, (size, size)) for frame in frames]
        flow, agree = flow[at][:, at] * np.float32(size / native), agree[at][:, at]
    x, y = corner.tolist()
    rows, columns = slice(y, y + size), slice(x, x + size)
    part = flow[rows, columns]
    visible = agree[rows, columns] & rounded_goals(part)[1]
    source, target = (frame[:, rows, columns].contiguous() for frame in frames)
    channels_first = rearrange(torch.from_numpy(part), "h w d -> d h w").contiguous()
    return Example(source, target, channels_first, torch.from_numpy(visible))
