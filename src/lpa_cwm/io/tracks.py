"""Tracks as files: tables, arrays, and the formats of other programs."""

import csv
import inspect
import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import HW
from lpa_cwm.types import Tracks
from lpa_cwm.validation import check_array, file_size, parse_json, read_npz, read_text, reading, structure

MAX_FILE = 1 << 30
"""Largest file that is read, in bytes."""
MAX_LINE = 10_000
"""Longest line of a table, in characters."""
MAX_CELLS = 100_000_000
"""Largest product of tracks and frames of a file that is read."""
CELLS_PER_ROW = 1000
"""Maximum number of cells per row of a table: most frames of a track may be missing, but not nearly all."""
MAX_NUMBER = 1_000_000_000
"""Numbers of tracks and frames are smaller than this."""
SCORER = "lpa-cwm"
"""Name of the scorer in DeepLabCut's files."""


@dataclass(frozen=True, slots=True)
class TrackSource:
    """What a file says about the video of the tracks: frame numbers, rate, size, name, and the user's track numbers."""

    frames: Sequence[int] | None = None
    fps: float | None = None
    hw: HW | None = None
    name: str = "clip"
    track_ids: Sequence[int] | None = None
    """The user's numbers of the tracks; by default they are counted from 0."""

    def track_id(self, row: int) -> int:
        """Number of a track."""
        return row if self.track_ids is None else self.track_ids[row]

    def number(self, index: int) -> int:
        """The clip's number of a frame."""
        return index if self.frames is None else self.frames[index]

    def time(self, index: int) -> float | None:
        """Seconds from the clip's start."""
        return None if self.fps is None else self.number(index) / self.fps


def save_tracks(tracks: Tracks, path: Path, source: TrackSource | None = None, form: str | None = None) -> None:
    """Write tracks in the format of the suffix, or in the form `tapvid`, `coco`, `cvat` or `deeplabcut`."""
    writer_of(path, form)(tracks, path, source or TrackSource())


def writer_of(path: Path, form: str | None = None) -> Callable[[Tracks, Path, TrackSource], None]:
    """The writer of a format; a suffix that does not fit is refused."""
    suffix = path.suffix.lower()
    if form is None:
        if suffix not in WRITERS:
            *most, last = WRITERS
            raise InputError(f"Cannot save tracks as {path.name!r}; the name must end in {', '.join(most)} or {last}.")
        return WRITERS[suffix]
    if (form, suffix) not in FORMS:
        fit = [ending for name, ending in FORMS if name == form]
        raise InputError(f"Cannot save tracks as {path.name!r} in the format {form}; the name must end in {fit[0]}.")
    return FORMS[form, suffix]


def write_npz(tracks: Tracks, path: Path, source: TrackSource | None = None) -> None:
    """All fields that are known, as arrays."""
    arrays = {name: value.cpu().numpy() for name, value in tracks.known().items()}
    if source and source.frames is not None:
        arrays["frame"] = np.asarray(source.frames)
    if source and source.track_ids is not None:
        arrays["track"] = np.asarray(source.track_ids)
    _write_arrays(path, arrays)


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def write_csv(tracks: Tracks, path: Path, source: TrackSource | None = None) -> None:
    """A row per point and frame from its query on."""
    rows = to_rows(tracks, source or TrackSource())
    with atomic_write(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["track", "frame", "x", "y", "visible"])
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _shown(name, value) for name, value in row.items()})


@dataclass
class RowPrinter:
    """Prints rows to stdout as they come: a CSV table with its header, or one JSON object per line."""

    as_json: bool = False
    started: bool = False

    def __call__(self, row: dict[str, Any]) -> None:
        """Print one row at once."""
        shown = {name: _shown(name, value) for name, value in row.items()}
        if self.as_json:
            print(json.dumps({name: _finite(value) for name, value in row.items()}), flush=True)
            return
        if not self.started:
            print(",".join(shown))
            self.started = True
        print(",".join(shown.values()), flush=True)


def _shown(name: str, value: float | int) -> str:
    # Adding 0 turns -0 into 0.
    return str(int(value)) if name in ("track", "frame", "visible") else f"{value + 0.0:{PRECISION.get(name, '.4g')}}"


def _finite(value: float | int) -> float | int | None:
    """A number that JSON has; NaN and infinities become null."""
    return value if math.isfinite(value) else None


PRECISION = {"x": ".3f", "y": ".3f", "time": ".4f"}


def to_rows(tracks: Tracks, source: TrackSource) -> list[dict[str, Any]]:
    """A row per point and frame from its query on; a column `time` in seconds where the rate is known."""
    known = {name: value.cpu() for name, value in tracks.known().items()}
    xy, visible = known.pop("xy"), known.pop("visible")
    rows = []
    for track, frame in (~xy[..., 0].isnan()).nonzero().tolist():
        time = source.time(frame)
        place = {
            "track": source.track_id(track),
            "frame": source.number(frame),
            **({} if time is None else {"time": time}),
        }
        x, y = xy[track, frame].tolist()
        extras = {name: values[track, frame].item() for name, values in known.items()}
        rows.append({**place, "x": x, "y": y, "visible": bool(visible[track, frame]), **extras})
    return rows


def load_tracks(path: Path) -> Tracks:
    """Tracks from a file that `save` wrote; frames are those from the first to the last that the file names."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise InputError(f"Cannot load tracks from {path.name!r}; the name must end in {', '.join(READERS)}.")
    with reading(path, "a file of saved tracks", "give one that `save` wrote"):
        file_size(path, MAX_FILE)
        return READERS[suffix](path)


def _from_npz(path: Path) -> Tracks:
    held = read_npz(path, [entry.name for entry in fields(Tracks)], MAX_FILE)
    check_array(held["xy"], (None, None, 2), "f", "`xy`", finite=False)
    size = held["xy"].shape[:2]
    for name, values in held.items():
        if name != "xy":
            check_array(values, size, "b" if name == "visible" else "f", f"`{name}`", finite=False)
    return Tracks(**{name: torch.from_numpy(values) for name, values in held.items()})


def _from_csv(path: Path) -> Tracks:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(short_lines(file))
        names = next(rows)
        columns: dict[str, array[float]] = {name: array("d") for name in names if name in COLUMNS}
        for row in rows:
            for name, text in zip(names, row, strict=True):
                if name in columns:
                    columns[name].append(float(text) if text else math.nan)
    return _from_columns({name: np.frombuffer(values, "f8") for name, values in columns.items()})


def short_lines(file: TextIO) -> Iterator[str]:
    """Lines of a table; one that never ends would become a list as long as the file."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise ValueError(f"it has a line of more than {MAX_LINE} characters")
        yield line


def _from_json(path: Path) -> Tracks:
    tracks = structure(parse_json(read_text(path, MAX_FILE)), dict[str, Any])["tracks"]
    rows = [
        {"track": one["track"], **structure(point, dict[str, float | bool | None])}
        for one in structure(tracks, list[dict[str, Any]])
        for point in structure(one["points"], list[dict[str, Any]])
    ]
    names = [name for name in COLUMNS if rows and name in rows[0]]
    values = ([math.nan if row[name] is None else row[name] for row in rows] for name in names)
    return _from_columns({name: np.array(column, "f8") for name, column in zip(names, values, strict=True)})


def _from_columns(columns: Mapping[str, np.ndarray]) -> Tracks:
    """Tracks from the columns of a table; a number that is missing is NaN."""
    places = np.stack([columns["track"], columns["frame"]])
    rows = places.shape[1]
    if not rows or not ((places >= 0) & (places < MAX_NUMBER) & (places == places.round())).all():
        raise ValueError("its tracks and frames are not numbered by whole numbers from 0 on")
    # Users may number tracks as they like, such as 7 and 9.
    places[0] = np.unique(places[0], return_inverse=True)[1]
    size = (int(places[0].max()) + 1, int(places[1].max()) + 1)
    # A small file must not ask for much memory by one large number.
    if size[0] * size[1] > min(MAX_CELLS, max(1_000_000, CELLS_PER_ROW * rows)):
        raise ValueError(f"it has {rows} rows for {size[0]} tracks of {size[1]} frames")
    at = tuple(torch.from_numpy(places).long())

    def column(name: str) -> torch.Tensor:
        values = torch.full(size, torch.nan)
        values[at] = torch.from_numpy(columns[name]).float()
        return values

    extras = [name for name in COLUMNS[5:] if name in columns]
    xy = torch.stack([column("x"), column("y")], dim=-1)
    return Tracks(xy, column("visible") == 1, **{name: column(name) for name in extras})


COLUMNS = ("track", "frame", "x", "y", "visible")
COLUMNS += tuple(entry.name for entry in fields(Tracks) if entry.name not in ("xy", "visible"))
"""Columns of a table that are read."""
READERS: dict[str, Callable[[Path], Tracks]] = {".npz": _from_npz, ".csv": _from_csv, ".json": _from_json}


def to_pandas(tracks: Tracks, source: TrackSource | None = None) -> Any:
    """The rows of `to_rows` as a data frame."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("A data frame needs pandas: pip install pandas.") from error
    return pandas.DataFrame(to_rows(tracks, source or TrackSource()))


def to_supervision(tracks: Tracks, frame: int) -> Any:
    """One object whose key points are the tracks; confidence 0 marks points that are not tracked."""
    try:
        import supervision
    except ImportError as error:
        raise InputError("Key points need supervision: pip install supervision.") from error
    xy = tracks.xy[:, frame].nan_to_num(0.0).cpu().numpy()[None]
    confidence = tracks.known().get("confidence", tracks.visible.float())[:, frame].nan_to_num(0.0)
    values = confidence.cpu().numpy().astype(np.float32)[None]
    # Since version 0.29 visibility is separate and the confidence has another name.
    if "keypoint_confidence" in inspect.signature(supervision.KeyPoints).parameters:
        visible = tracks.visible[:, frame].cpu().numpy()[None]
        return supervision.KeyPoints(xy=xy, keypoint_confidence=values, visible=visible)
    return supervision.KeyPoints(xy=xy, confidence=values)


def write_json(tracks: Tracks, path: Path, source: TrackSource) -> None:
    """An object per track with its points; numbers that are not known or not finite are null."""
    found: dict[int, dict[str, Any]] = {}
    for number in map(source.track_id, range(len(tracks.xy))):
        found[number] = {"track": number, "points": []}
    for row in to_rows(tracks, source):
        point = {name: _finite(value) for name, value in row.items() if name != "track"}
        found[row["track"]]["points"].append(point)
    _write_json(
        path,
        {"clip": source.name, "fps": source.fps, "size": source.hw and source.hw[::-1], "tracks": [*found.values()]},
    )


def _write_json(path: Path, held: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(held, indent=1))


def queries_of(tracks: Tracks) -> np.ndarray:
    """The first known frame of each track."""
    return (~tracks.xy[..., 0].isnan()).int().argmax(1).cpu().numpy()


def write_tapvid(tracks: Tracks, path: Path, source: TrackSource) -> None:
    """TAP-Vid's arrays in the clip's pixels: tracks [n t 2], occluded [n t], query_points [n 3] as t, y, x."""
    first = queries_of(tracks)
    xy = tracks.xy.cpu().numpy()
    start = xy[np.arange(len(xy)), first]
    known = np.where(np.isnan(xy), start[:, None], xy)
    points = np.stack([first, start[:, 1], start[:, 0]], axis=1)
    occluded = ~tracks.visible.cpu().numpy()
    _write_arrays(path, {"tracks": known.astype(np.float32), "occluded": occluded, "query_points": points})


def write_coco(tracks: Tracks, path: Path, source: TrackSource) -> None:
    """COCO keypoints: an image per frame, one annotation with all points; v is 2 visible, 1 hidden, 0 not tracked."""
    height, width = source.hw or (0, 0)
    count, frames = tracks.visible.shape
    images, annotations = [], []
    for index in range(frames):
        number, known = source.number(index), ~tracks.xy[:, index, 0].isnan()
        file = f"{source.name}/{number:06d}.jpg"
        images.append({"id": number, "file_name": file, "width": width, "height": height})
        state = torch.where(known, 1 + tracks.visible[:, index].int(), 0)
        xy = tracks.xy[:, index].nan_to_num(0.0)
        points = [value for (x, y), v in zip(xy.tolist(), state.tolist(), strict=True) for value in (x, y, v)]
        annotation = {"id": index + 1, "image_id": number, "category_id": 1, "keypoints": points, "iscrowd": 0}
        box = _bounding_box(tracks.xy[known, index])
        annotation |= {"num_keypoints": int(known.sum()), "bbox": box, "area": box[2] * box[3]}
        annotations.append(annotation)
    category = {"id": 1, "name": "points", "keypoints": _point_names(count, source), "skeleton": []}
    _write_json(path, {"images": images, "annotations": annotations, "categories": [category]})


def _bounding_box(xy: Float[Tensor, "n 2"]) -> list[float]:
    """x, y, width and height of the smallest box around some points; zeros without any."""
    if len(xy) == 0:
        return [0.0] * 4
    low, high = xy.amin(0), xy.amax(0)
    return [*low.tolist(), *(high - low).tolist()]


def _point_names(count: int, source: TrackSource) -> list[str]:
    return [f"point{source.track_id(row)}" for row in range(count)]


def write_cvat(tracks: Tracks, path: Path, source: TrackSource) -> None:
    """CVAT for video 1.1: a track of points for each track; `outside` where it is not tracked."""
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    for number, (xy, visible) in enumerate(zip(tracks.xy.tolist(), tracks.visible.tolist(), strict=True)):
        track = ElementTree.SubElement(root, "track", id=str(source.track_id(number)), label="point", source=SCORER)
        last = None
        for index, ((x, y), seen) in enumerate(zip(xy, visible, strict=True)):
            known = x == x
            if not known and last is None:
                continue
            last = (x, y) if known else last
            place = "{:.2f},{:.2f}".format(*last or (x, y))
            where = {"frame": str(source.number(index)), "points": place, "z_order": "0", "keyframe": "1"}
            state = {"outside": str(int(not known)), "occluded": str(int(known and not seen))}
            ElementTree.SubElement(track, "points", where | state)
    ElementTree.indent(root, " ")
    with atomic_write(path) as temporary:
        ElementTree.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)


def deeplabcut_columns(tracks: Tracks, source: TrackSource) -> tuple[list[tuple[str, str, str]], np.ndarray]:
    """Columns (scorer, bodypart, coordinate) and a row per frame: x, y and likelihood of each point."""
    parts = _point_names(len(tracks.xy), source)
    columns = [(SCORER, part, name) for part in parts for name in ("x", "y", "likelihood")]
    confidence = tracks.known().get("confidence", tracks.visible.float())
    values = torch.cat([tracks.xy, confidence[..., None].to(tracks.xy)], dim=-1)
    return columns, values.transpose(0, 1).flatten(1).cpu().numpy()


def write_deeplabcut_csv(tracks: Tracks, path: Path, source: TrackSource) -> None:
    """DeepLabCut's table with its three header rows."""
    columns, values = deeplabcut_columns(tracks, source)
    with atomic_write(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        for level, name in enumerate(("scorer", "bodyparts", "coords")):
            writer.writerow([name, *(column[level] for column in columns)])
        for index, row in enumerate(values.tolist()):
            writer.writerow([source.number(index), *("" if value != value else f"{value:.3f}" for value in row)])


def write_deeplabcut_h5(tracks: Tracks, path: Path, source: TrackSource) -> None:
    """DeepLabCut's HDF5 file; needs pandas and tables."""
    require_hdf5()
    import pandas

    columns, values = deeplabcut_columns(tracks, source)
    names = pandas.MultiIndex.from_tuples(columns, names=["scorer", "bodyparts", "coords"])
    index = [source.number(row) for row in range(len(values))]
    with atomic_write(path) as temporary:
        pandas.DataFrame(values, index=index, columns=names).to_hdf(temporary, key="df_with_missing", mode="w")


def require_hdf5() -> None:
    """Refuse to write HDF5 without the packages for it."""
    try:
        import pandas  # noqa: F401
        import tables  # noqa: F401
    except ImportError as error:
        raise InputError("HDF5 needs pandas and tables: pip install pandas tables; or save a .csv.") from error


WRITERS: dict[str, Callable[[Tracks, Path, TrackSource], None]] = {
    ".csv": write_csv,
    ".json": write_json,
    ".npz": write_npz,
    ".h5": write_deeplabcut_h5,
    ".xml": write_cvat,
}
FORMS: dict[tuple[str, str], Callable[[Tracks, Path, TrackSource], None]] = {
    ("tapvid", ".npz"): write_tapvid,
    ("coco", ".json"): write_coco,
    ("cvat", ".xml"): write_cvat,
    ("deeplabcut", ".csv"): write_deeplabcut_csv,
    ("deeplabcut", ".h5"): write_deeplabcut_h5,
}
"""Formats that the suffix alone does not determine."""
