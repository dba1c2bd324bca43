"""Where files go, and writing them so that nobody ever sees half of one."""

import hashlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lpa_cwm.errors import InputError

TEMPORARY = re.compile(r"\..*\.lpa-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[a-z0-9_]{8}(\..*)?")
"""Names of the files that `atomic_write` makes."""
DAY = 24 * 60 * 60
_swept: set[Path] = set()
"""Folders in which this process has looked for leftovers."""


def data_files(folder: Path, pattern: str = "*") -> list[Path]:
    """List what matches a pattern in a folder, sorted; hidden files may be half written, so they are no data."""
    found = sorted(folder.glob(pattern))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of runs that were killed."""
    for path in folder.glob(".*.lpa-*"):
        # Another process may remove it at the same time.
        with suppress(FileNotFoundError):
            if is_leftover(path):
                path.unlink()


def is_leftover(path: Path) -> bool:
    """Whether a file is a temporary one of ours whose process has ended; those of other machines end after a day."""
    found = TEMPORARY.fullmatch(path.name)
    if found is None or path.is_symlink() or not path.is_file():
        return False
    if found["host"] == _host():
        return not _is_alive(int(found["pid"]))
    return time.time() - path.stat().st_mtime > DAY


def _host() -> str:
    """Return a short hash of this machine's name: process numbers mean nothing on another one."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # A process of another user.
        return True
    return True


def _temporary(path: Path) -> Path:
    """Make an empty file beside a path, hidden, with the same suffix and a name that tells who writes it."""
    # Cut, because a long name must not become too long for the file system.
    prefix = f".{path.stem[:40]}.lpa-{_host()}-{os.getpid()}-"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=path.suffix)
    os.close(descriptor)
    return Path(name)


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path with the same suffix; rename it to `path` on success, remove it on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.resolve() not in _swept:
        _swept.add(path.parent.resolve())
        remove_leftovers(path.parent)
    aside = _temporary(path)
    try:
        yield aside
        # mkstemp makes private files; results are for everybody the umask admits.
        aside.chmod(0o666 & ~_umask())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


FIGURES = (".png", ".pdf", ".svg")


def figure_path(path: Path) -> Path:
    """A path whose suffix says which kind of figure is wanted, or a sentence before any work is done."""
    if path.suffix.lower() not in FIGURES:
        raise InputError(f"{path} is no name for a figure; give one that ends in {', '.join(FIGURES)}.")
    return path


def pin_settings(path: Path, settings: dict[str, Any], notes: dict[str, Any] | None = None) -> None:
    """Claim a folder for files of one kind: create `path` with the settings, or refuse if it holds other settings.

    Creation is atomic: of two processes with different settings one is refused, and processes with equal settings
    share the folder. `notes` are written beside the settings and never compared.
    """
    settings = json.loads(json.dumps(settings))
    if _create(path, json.dumps({**settings, **(notes or {})}, indent=1)):
        return
    try:
        before = json.loads(path.read_text())
        changes = [change for name in settings for change in _changes(before.get(name), settings[name], name)]
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path} does not hold the settings of its folder's files; restore or remove it.") from error
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise InputError(
            f"{path.parent} holds files of other settings ({', '.join(changes[:3])}{more}; see {path.name}); "
            "give another folder, or remove the files to make them anew."
        )


def _create(path: Path, text: str) -> bool:
    """Create a file with this content, complete from the first moment; False if it exists already."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _temporary(path)
    try:
        aside.write_text(text)
        aside.chmod(0o666 & ~_umask())
        # Unlike a rename, a hard link never replaces a file that another process has just created.
        with suppress(PermissionError):
            os.link(aside, path)
            return True
        # Some file systems have no hard links.
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _changes(old: Any, new: Any, name: str) -> Iterator[str]:
    """Describe the values that differ, each by its path."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{name} was {old} and is {new}"
        return
    for key in sorted(old.keys() | new.keys()):
        yield from _changes(old.get(key), new.get(key), f"{name}.{key}")


def cache_dir() -> Path:
    """Fetched files live here; `LPA_CWM_CACHE` moves it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lpa-cwm"
    return Path(os.environ.get("LPA_CWM_CACHE", default))


def bundled_weights(name: str) -> Path:
    """A weight file that ships inside the package."""
    return Path(__file__).parent / "weights" / name
