"""Prediction files, the contract between trackers and scoring (`docs/predictions.md`).

One `.npz` per video: `xy [n t 2]`, `visible [n t]`, optionally `score [n t]` and `configuration`. Equal predictions
give equal bytes; the time of a video, which never repeats, is kept beside them in `seconds/`.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files
from lpa_cwm.metrics import Prediction
from lpa_cwm.validation import read_json, read_npz, reading, structure

EPOCH = (1980, 1, 1, 0, 0, 0)


def prediction_path(folder: Path, video: str) -> Path:
    """Path of a video's predictions: its name percent-encoded, except letters, digits, `_-~` and inner dots."""
    name = quote(video, safe="")
    # A leading dot would hide the file among those being written.
    return folder / f"{f'%2E{name[1:]}' if name.startswith('.') else name}.npz"


def predicted_videos(folder: Path) -> dict[str, Path]:
    """All prediction files of a folder and its subfolders, by video name: `a%2Fb.npz` and `a/b.npz` are both `a/b`."""
    found: dict[str, Path] = {}
    for path in data_files(folder, "**/*.npz"):
        name = unquote(path.relative_to(folder).with_suffix("").as_posix())
        if name in found:
            raise InputError(f"{found[name]} and {path} are both for the video {name}; remove one.")
        found[name] = path
    return found


def find_predictions(folder: Path, videos: Sequence[str]) -> dict[str, Path]:
    """Prediction files of these videos; a file in a subfolder may also be called by the video's name alone."""
    present = predicted_videos(folder)
    found = {}
    for video in videos:
        exact = [present[video]] if video in present else []
        paths = exact or [path for name, path in present.items() if name.endswith(f"/{video}")]
        if len(paths) > 1:
            raise InputError(f"{paths[0]} and {paths[1]} may both be for the video {video}; keep one of them.")
        if paths:
            found[video] = paths[0]
    return found


def write_prediction(folder: Path, video: str, prediction: Prediction, configuration: str) -> None:
    """Write the files of one video; the predictions last, because a video counts as done when they exist."""
    arrays: dict[str, Any] = {"xy": prediction.xy.astype(np.float32), "visible": prediction.visible}
    if prediction.score is not None:
        arrays["score"] = prediction.score.astype(np.float32)
    arrays["configuration"] = np.array(configuration)
    target = prediction_path(folder, video)
    if prediction.seconds is not None:
        with atomic_write(_seconds_path(target)) as temporary:
            temporary.write_text(json.dumps({"seconds": prediction.seconds}))
    with atomic_write(target) as temporary:
        _save(temporary, arrays)


def _save(path: Path, arrays: dict[str, Shaped[ndarray, "..."]]) -> None:
    """`numpy.savez` without the time of writing."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", EPOCH), "w") as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)


def read_prediction(path: Path, tracks: int, frames: int) -> Prediction:
    """Read the predictions of one video; frames beyond the expected number are cut off."""
    arrays = _load(path, ("xy", "visible", "score"))
    expected = {"xy": (tracks, frames, 2), "visible": (tracks, frames), "score": (tracks, frames)}
    for name in [name for name in expected if name in arrays or name != "score"]:
        if name not in arrays:
            raise InputError(f"{path} has no `{name}`; expected `xy` and `visible`; {_advice(path, name)}.")
        given, due = arrays[name].shape, expected[name]
        if len(given) != len(due) or given[0] != due[0] or given[1] < due[1] or given[2:] != due[2:]:
            swapped = len(given) == len(due) and given[1] == due[0] and given[0] >= due[1]
            advice = "exchange the first two axes" if swapped else "write a row per track and a column per frame"
            raise InputError(
                f"{path} has `{name}` of {list(given)}; {tracks} tracks and {frames} frames ask for {list(due)}; "
                f"{advice}."
            )
        _check_type(path, name, arrays[name])
    return Prediction(**{name: array[:, :frames] for name, array in arrays.items()}, seconds=_seconds(path))


OTHER_NAMES = {"visible": ("occluded", "visibility", "vis"), "xy": ("tracks", "points", "coords", "pred_tracks")}
"""Names of arrays in files of other trackers."""


def _advice(path: Path, name: str) -> str:
    """What to do about a missing array: name the array that probably holds it."""
    found = next(iter(_load(path, OTHER_NAMES[name])), None) if name in OTHER_NAMES else None
    if found == "occluded":
        return "write visible = ~occluded"
    return f"rename `{found}`" if found else "see docs/predictions.md"


def is_complete_prediction(path: Path) -> bool:
    """Whether a prediction file exists and is complete; a truncated one is made again."""
    try:
        return bool(_load(path, ("xy", "visible", "score", "configuration")))
    except InputError:
        return False


def frame_count(path: Path) -> int:
    """Number of frames that a prediction file has."""
    visible = _load(path, ("visible",)).get("visible")
    if visible is None or visible.ndim != 2:
        raise InputError(f"{path} has no `visible` of tracks and frames; see docs/predictions.md.")
    return visible.shape[1]


def _check_type(path: Path, name: str, array: Shaped[ndarray, "..."]) -> None:
    kinds = "b" if name == "visible" else "f"
    if array.dtype.kind not in kinds:
        due = "booleans, such as probability > 0.5" if name == "visible" else "floats"
        raise InputError(f"{path} has `{name}` of {array.dtype}; expected {due}.")


def configuration_of(path: Path) -> str | None:
    """Hash of the configuration that made a prediction file; None if another program wrote the file."""
    found = _load(path, ("configuration",))
    return str(found["configuration"])[:200] if found else None


def _load(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Arrays of a file by name; absent names are left out."""
    with reading(path, "a prediction file", "remove it or write it again"):
        return read_npz(path, names)


def _seconds_path(path: Path) -> Path:
    return path.parent / "seconds" / f"{path.stem}.json"


def _seconds(path: Path) -> float | None:
    """Time that the video took, if it is known."""
    path = _seconds_path(path)
    if not path.exists():
        return None
    with reading(path, "the number of seconds that a video took", "remove it"):
        seconds = structure(read_json(path), dict[str, float])["seconds"]
        if seconds < 0:
            raise ValueError(f"{seconds}")
        return seconds
