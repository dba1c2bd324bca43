"""Tracks as files and as pictures."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.io.overlay import draw_tracks
from lpa_cwm.types import Clip, Tracks


def save(tracks: Tracks, path: Path) -> None:
    """Write tracks in the format that the suffix names."""
    writers = {".npz": to_npz, ".csv": to_csv}
    if path.suffix not in writers:
        raise InputError(f"Cannot save tracks as {path.name!r}; the name must end in .csv or .npz.")
    writers[path.suffix](tracks, path)


def to_npz(tracks: Tracks, path: Path) -> None:
    """All fields that are known, as arrays."""
    with atomic_write(path) as aside, aside.open("wb") as file:
        arrays: dict[str, Any] = {name: value.cpu().numpy() for name, value in tracks.known().items()}
        np.savez_compressed(file, **arrays)


def to_csv(tracks: Tracks, path: Path) -> None:
    """A row per point and frame from its query on."""
    extras = {name: values for name, values in tracks.known().items() if name not in ("xy", "visible")}
    with atomic_write(path) as aside, aside.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["track", "frame", "x", "y", "visible", *extras])
        for track, frame in (~tracks.xy[..., 0].isnan()).nonzero().tolist():
            x, y = tracks.xy[track, frame].tolist()
            more = [f"{values[track, frame].item():.4g}" for values in extras.values()]
            table.writerow([track, frame, f"{x:.3f}", f"{y:.3f}", int(tracks.visible[track, frame]), *more])


def overlay(tracks: Tracks, clip: Clip, tail: int = 12) -> Iterator[UInt8[Tensor, "3 h w"]]:
    """The clip's frames with the tracks drawn on them."""
    for frame in range(len(clip)):
        yield draw_tracks(clip[frame], tracks.xy[:, : frame + 1], tracks.visible[:, : frame + 1], tail=tail)
