"""A run: one folder of predictions, one configuration, one manifest of the data; `run.json` records them.

The manifest is a hash over the content of videos, tracks and frames. Two selections have the same hash if and only if
they hold the same videos with the same frames, queries and truth. The order of the videos and the name of the file do
not matter; the order of the tracks does, because predictions follow it.
"""

import json
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lpa_cwm.config import Selection
from lpa_cwm.errors import InputError
from lpa_cwm.files import pin_settings
from lpa_cwm.io.predictions import configuration_of, is_complete_prediction, predicted_videos
from lpa_cwm.protocols import Dataset
from lpa_cwm.types import Sample
from lpa_cwm.validation import read_json, reading, structure

FORMAT = "lpa-cwm run 1"


@dataclass(frozen=True)
class VideoDigest:
    """Size of one video, and hashes of its queries with their truth and of its frames."""

    tracks: int
    frames: int
    truth: str
    pixels: str


@dataclass(frozen=True)
class Manifest:
    """The videos of a selection by name."""

    videos: dict[str, VideoDigest]

    @cached_property
    def hash(self) -> str:
        """Equal for equal content."""
        return digest(self.to_dict())

    def check(self, other: "Manifest") -> None:
        """Refuse another selection and name the first difference."""
        if self.hash == other.hash:
            return
        absent, added = self.videos.keys() - other.videos.keys(), other.videos.keys() - self.videos.keys()
        if absent or added:
            examples = ", ".join(sorted(absent or added)[:3])
            what = f"lacks {len(absent)} of its videos" if absent else f"has {len(added)} other videos"
            raise mismatch(f"{what}, such as {examples}")
        name = min(name for name, video in self.videos.items() if video != other.videos[name])
        mine, theirs = asdict(self.videos[name]), asdict(other.videos[name])
        raise mismatch(f"has other {next(part for part in mine if mine[part] != theirs[part])} in the video {name}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of names."""
        return {name: asdict(self.videos[name]) for name in sorted(self.videos)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Manifest":
        """The inverse of `to_dict`."""
        return cls({name: VideoDigest(**video) for name, video in plain.items()})


def mismatch(what: str) -> InputError:
    """An error about data that differ from those of the run."""
    return InputError(f"The data set {what}; the run was made from other data; give the same file and selection.")


def manifest_of(dataset: Dataset) -> Manifest:
    """Read and hash every video once; bad videos are found before any work begins."""
    return Manifest({name: _digest_video(dataset, index) for index, name in enumerate(dataset.names)})


def _digest_video(dataset: Dataset, index: int) -> VideoDigest:
    sample = dataset[index]
    return VideoDigest(len(sample.queries), len(sample.clip), _digest_truth(sample), dataset.fingerprint(index))


def _digest_truth(sample: Sample) -> str:
    """Hash queries and truth, without the positions of occluded points."""
    visible = sample.truth.visible
    known = sample.truth.xy.where(visible[..., None], 0)
    whole = blake2b(repr(tuple(visible.shape)).encode(), digest_size=16)
    for part in (sample.queries.xy, sample.queries.frame, visible, known):
        whole.update(part.contiguous().numpy().tobytes())
    return whole.hexdigest()


def digest(plain: dict[str, Any]) -> str:
    """Hash of plain values, independent of the order of their names."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class EvaluationRun:
    """Everything that determines the predictions, and where they come from."""

    method: str
    settings: dict[str, Any]
    dataset: str
    """Path of the data set when the run began."""
    selection: Selection
    manifest: Manifest
    software: dict[str, str] = field(default_factory=dict)
    label: str = ""
    """Name of the row in tables; the method's name if empty."""

    @property
    def hash(self) -> str:
        """Hash of the configuration: method, settings and data."""
        return digest({"method": self.method, "settings": self.settings, "manifest": self.manifest.hash})

    def create(self, folder: Path) -> None:
        """Claim a folder by writing `run.json`; refuse a folder that holds another run."""
        load_run(folder)
        compared = {"method": self.method, "settings": self.settings, "manifest": self.manifest.to_dict()}
        notes = {"format": FORMAT, "hash": self.hash, "selection": asdict(self.selection)}
        notes |= {name: getattr(self, name) for name in ("dataset", "software", "label")}
        pin_settings(folder / "run.json", compared, notes)
        self.check_files(folder, damaged=False)

    def check_files(self, folder: Path, damaged: bool = True) -> None:
        """Refuse prediction files of other configurations, and `damaged` ones unless they will be made again."""
        for path in predicted_videos(folder).values():
            if (damaged or is_complete_prediction(path)) and configuration_of(path) != self.hash:
                raise InputError(f"{path} is not of this run's configuration; a folder holds one run; remove it.")


def load_run(folder: Path) -> EvaluationRun | None:
    """The run of a folder; None without `run.json`, as when another program wrote the predictions."""
    path = folder / "run.json"
    if not path.exists():
        return None
    with reading(path, "the description of a run", "restore it or give another folder"):
        plain = structure(read_json(path), dict[str, Any])
        return structure(
            {one.name: plain[one.name] for one in fields(EvaluationRun) if one.name != "label"}
            | {"manifest": {"videos": plain["manifest"]}, "label": plain.get("label", "")},
            EvaluationRun,
        )


def software() -> dict[str, str]:
    """Versions of Python, torch, numpy and this package, and the commit if the code is a checkout."""
    found = {name: version(name) for name in ("lpa-cwm", "torch", "numpy")}
    commit = _commit(Path(__file__))
    return {"python": platform.python_version(), **found, **({"commit": commit} if commit else {})}


def _commit(file: Path) -> str | None:
    """The commit of a file that git tracks; a checkout around an installed package is not its own."""
    git = ["git", "-C", str(file.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
