"""Prediction files, the contract between trackers and scoring (`docs/predictions.md`).

One `.npz` per video: `xy [n t 2]`, `visible [n t]`, and if known `score [n t]` and `configuration`. Equal predictions
give equal bytes, so time, which never repeats, lies beside them in `seconds/`.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files
from lpa_cwm.metrics import Prediction

EPOCH = (1980, 1, 1, 0, 0, 0)


def file_of(folder: Path, video: str) -> Path:
    """Where a video's predictions are: its name percent-encoded, but for letters, digits, `_-~` and inner dots."""
    name = quote(video, safe="")
    # A leading dot would hide the file among those being written.
    return folder / f"{f'%2E{name[1:]}' if name.startswith('.') else name}.npz"


def videos_in(folder: Path) -> Iterator[str]:
    """The videos that have predictions."""
    return (unquote(path.stem) for path in data_files(folder, "*.npz"))


def write(folder: Path, video: str, prediction: Prediction, configuration: str) -> None:
    """Write one video's files; the predictions last, for a video counts as done when they are there."""
    arrays: dict[str, Any] = {"xy": prediction.xy.astype(np.float32), "visible": prediction.visible}
    if prediction.score is not None:
        arrays["score"] = prediction.score.astype(np.float32)
    arrays["configuration"] = np.array(configuration)
    target = file_of(folder, video)
    if prediction.seconds is not None:
        with atomic_write(_seconds(target)) as aside:
            aside.write_text(json.dumps({"seconds": prediction.seconds}))
    with atomic_write(target) as aside:
        _save(aside, arrays)


def _save(path: Path, arrays: dict[str, Shaped[ndarray, "..."]]) -> None:
    """What `numpy.savez` does, with the time of writing left out."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", EPOCH), "w") as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)


def read(folder: Path, video: str, tracks: int, frames: int) -> Prediction:
    """Read one video's predictions, which must be for so many tracks and frames."""
    path = file_of(folder, video)
    arrays = _load(path, ("xy", "visible", "score"))
    expected = {"xy": (tracks, frames, 2), "visible": (tracks, frames), "score": (tracks, frames)}
    for name in expected.keys() - ({"score"} - arrays.keys()):
        if name not in arrays:
            raise InputError(f"{path} has no `{name}`; expected `xy` and `visible`; see docs/predictions.md.")
        if arrays[name].shape != expected[name]:
            given, due = list(arrays[name].shape), list(expected[name])
            raise InputError(f"{path} has `{name}` of {given}; {tracks} tracks and {frames} frames ask for {due}.")
        _check_kind(path, name, arrays[name])
    return Prediction(**arrays, seconds=_time(path))


def _check_kind(path: Path, name: str, array: Shaped[ndarray, "..."]) -> None:
    kinds = "b" if name == "visible" else "f"
    if array.dtype.kind not in kinds:
        due = "booleans" if name == "visible" else "floats"
        raise InputError(f"{path} has `{name}` of {array.dtype}; expected {due}.")


def configuration_of(folder: Path, video: str) -> str | None:
    """The hash of the configuration that made a video's predictions, if they say so."""
    found = _load(file_of(folder, video), ("configuration",))
    return str(found["configuration"]) if found else None


def _load(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Some arrays of a file, those that it has."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names if name in archive}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no prediction file ({error}); remove it or write it again.") from error


def _seconds(path: Path) -> Path:
    return path.parent / "seconds" / f"{path.stem}.json"


def _time(path: Path) -> float | None:
    """How long the video took, if that is known."""
    try:
        return float(json.loads(_seconds(path).read_text())["seconds"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{_seconds(path)} does not tell the seconds that a video took; remove it.") from error
