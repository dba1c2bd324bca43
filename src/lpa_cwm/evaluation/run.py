"""A run: one folder, one configuration, one manifest; `run.json` says which."""

import json
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lpa_cwm.config import Selection
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation import predictions
from lpa_cwm.evaluation.manifest import Manifest, digest
from lpa_cwm.files import atomic_write

FORMAT = "lpa-cwm run 1"


@dataclass(frozen=True)
class Run:
    """Everything that fixes the predictions, and where they come from."""

    method: str
    settings: dict[str, Any]
    dataset: str
    """Path of the data set when the run began."""
    selection: Selection
    manifest: Manifest
    software: dict[str, str] = field(default_factory=dict)

    @property
    def configuration(self) -> dict[str, Any]:
        """What must be equal for predictions to be of one kind."""
        return {"method": self.method, "settings": self.settings, "manifest": self.manifest.hash}

    @property
    def hash(self) -> str:
        """Of the configuration."""
        return digest(self.configuration)

    def check(self, folder: Path) -> None:
        """Refuse a folder that holds another run."""
        present = load_run(folder) or self
        if present.hash != self.hash:
            changes = ", ".join(_changes(present.configuration, self.configuration))
            raise InputError(f"{folder} holds a run of another configuration ({changes}); give another --out.")
        for video in predictions.videos_in(folder):
            if predictions.configuration_of(folder, video) != self.hash:
                path = predictions.file_of(folder, video)
                raise InputError(f"{path} is not of this run's configuration; a folder holds one run; remove it.")

    def claim(self, folder: Path) -> None:
        """Make an empty folder this run's."""
        if not (folder / "run.json").exists():
            with atomic_write(folder / "run.json") as aside:
                aside.write_text(self.to_json())

    def to_json(self) -> str:
        """The content of `run.json`."""
        plain = {"format": FORMAT, "hash": self.hash, "selection": asdict(self.selection)}
        plain |= {name: getattr(self, name) for name in ("method", "settings", "dataset", "software")}
        return json.dumps(plain | {"manifest": self.manifest.to_dict()}, indent=1)


def load_run(folder: Path) -> Run | None:
    """The run that a folder belongs to; None if it has no `run.json`, as when another program wrote it."""
    path = folder / "run.json"
    if not path.exists():
        return None
    try:
        plain = json.loads(path.read_text())
        chosen = plain["selection"]
        return Run(
            plain["method"],
            plain["settings"],
            plain["dataset"],
            Selection(**chosen | {"videos": tuple(chosen["videos"])}),
            Manifest.from_dict(plain["manifest"]),
            plain["software"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not describe a run ({error}); restore it or give another folder.") from error


def software() -> dict[str, str]:
    """Versions of what computes, and the commit if the code is a checkout."""
    found = {name: version(name) for name in ("lpa-cwm", "torch", "numpy")}
    commit = _commit(Path(__file__))
    return {"python": platform.python_version(), **found, **({"commit": commit} if commit else {})}


def _commit(file: Path) -> str | None:
    """The commit of a file that git knows; elsewhere the checkout around it, if any, is not its own."""
    git = ["git", "-C", str(file.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _changes(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Which values differ, by their path."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{name} was {old} and is {new}"
        return
    for key in sorted(old.keys() | new.keys()):
        yield from _changes(old.get(key), new.get(key), f"{name}.{key}" if name else key)
