"""Atomic writing, folders with pinned settings, locks, and paths of cache and bundled files."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lpa_cwm.errors import InputError
from lpa_cwm.validation import read_json, reading, structure

TEMPORARY = re.compile(r"\..*\.lpa-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[a-z0-9_]{8}(\..*)?")
"""Names of what `atomic_write` and `atomic_folder` make."""
DAY = 24 * 60 * 60
BLOCK = 4096
"""Bytes of a block of a file system."""
_swept: set[Path] = set()
"""Folders in which this process has looked for leftovers."""


def data_files(folder: Path, pattern: str = "*") -> list[Path]:
    """List what matches a pattern in a folder, sorted; hidden files may be half written, so they are no data."""
    found = sorted(folder.glob(pattern))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders of runs that were killed."""
    for path in folder.glob(".*.lpa-*"):
        # Another process may remove it at the same time.
        with suppress(FileNotFoundError):
            if is_leftover(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_leftover(path: Path) -> bool:
    """Whether a path is a temporary file whose process has ended; files of other machines expire after a day."""
    found = TEMPORARY.fullmatch(path.name)
    if found is None or path.is_symlink() or not (path.is_file() or path.is_dir()):
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
    """Make an empty hidden file beside a path, with the same suffix and a name that identifies the writing process."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=path.suffix)
    os.close(descriptor)
    return Path(name)


def _prefix(path: Path) -> str:
    # Cut, because a long name must not become too long for the file system.
    return f".{path.stem[:40]}.lpa-{_host()}-{os.getpid()}-"


def _prepare(folder: Path) -> None:
    """Make a folder that is written to, and remove leftovers the first time."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() not in _swept:
        _swept.add(folder.resolve())
        remove_leftovers(folder)


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path with the same suffix; rename it to `path` on success, remove it on failure.

    File and folder are synced to the disk: after a loss of power the path has the whole new content or the old one.
    """
    path = Path(path)
    _prepare(path.parent)
    temporary = _temporary(path)
    try:
        with report_full_disk(path):
            yield temporary
            # mkstemp makes private files; results have the permissions that the umask allows.
            temporary.chmod(0o666 & ~_umask())
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for files; it becomes `path`, also in place of another, or is removed on failure."""
    _prepare(path.parent)
    temporary, old = (Path(tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path))) for _ in range(2))
    try:
        with report_full_disk(path):
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for part in (*temporary.iterdir(), temporary):
                sync(part)
            with suppress(FileNotFoundError):
                path.replace(old)
            temporary.replace(path)
            sync(path.parent)
    finally:
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Turn every error that a full disk causes while a path is written into the system's own error."""
    try:
        yield
    except Exception as error:
        if is_disk_full(error, path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # Some file systems cannot sync a folder.
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def is_disk_full(error: Exception, folder: Path) -> bool:
    """Whether a write failed because the disk is full; libraries report that by errors of their own."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOSPC
    return "os error 28" in str(error) or shutil.disk_usage(folder).free < BLOCK


def pin_settings(path: Path, settings: dict[str, Any], notes: dict[str, Any] | None = None) -> None:
    """Claim a folder for files of one kind: create `path` with the settings, or refuse if it holds other settings.

    Creation is atomic: of two processes with different settings one is refused, and processes with equal settings
    share the folder. A setting that is left out, as at its default, differs from one that the folder has. `notes` are
    written beside the settings and never compared.
    """
    # JSON has no infinity: readers refuse it.
    settings = json.loads(json.dumps(settings), parse_constant=str)
    # Even if all files exist already and nothing will be written.
    _prepare(path.parent)
    if _create(path, json.dumps({**settings, **(notes or {})}, indent=1)):
        return
    with reading(path, "the settings of its folder's files", "restore or remove it"):
        before = structure(read_json(path), dict[str, Any])
    names = [*settings, *(before.keys() - settings.keys() - (notes or {}).keys())]
    changes = [change for name in names for change in _changes(before.get(name), settings.get(name), name)]
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise InputError(
            f"{path.parent} holds files of other settings ({', '.join(changes[:3])}{more}; see {path.name}); "
            "give another folder, or remove the files to make them again."
        )


@contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file for this process; other processes are refused. The lock ends with the process.

    It also ends if this process opens and closes the file again; processes that this one starts do not inherit it.
    """
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise InputError(
                f"Another process {what} in {path.parent}; wait until it ends, or give another folder."
            ) from error
        yield


def share_pieces(path: Path, pieces: Sequence[int], is_done: Callable[[int], bool]) -> Iterator[int]:
    """Numbers of the pieces that this process does; other processes on the same folder do the rest.

    A piece is claimed by a lock on one byte of a file, which ends with the process. At the end come pieces that another
    process had claimed and did not finish.
    """
    with path.open("rb+") as file:
        claimed_by_others = []
        for wait in (False, True):
            for piece in claimed_by_others if wait else pieces:
                if not is_done(piece) and _lock_byte(file.fileno(), piece, wait):
                    # Another process may have finished it between the two checks.
                    if not is_done(piece):
                        yield piece
                elif not wait and not is_done(piece):
                    claimed_by_others.append(piece)


def _lock_byte(descriptor: int, place: int, wait: bool) -> bool:
    """Lock one byte of a file by an open-file-description lock (Linux); elsewhere nothing is locked."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return True
    # struct flock: type, whence, start, length, process.
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        # A file system without locks: the work is done twice, which harms nothing.
        return True
    return True


def _create(path: Path, text: str) -> bool:
    """Create a file with this content, complete from the first moment; False if it exists already."""
    if path.exists():
        return False
    temporary = _temporary(path)
    try:
        temporary.write_text(text)
        temporary.chmod(0o666 & ~_umask())
        sync(temporary)
        # Unlike a rename, a hard link never replaces a file that another process has just created.
        with suppress(PermissionError):
            os.link(temporary, path)
            sync(path.parent)
            return True
        # Some file systems have no hard links.
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _changes(old: Any, new: Any, name: str) -> Iterator[str]:
    """Describe the values that differ, each by its path."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{name} was {str(old)[:100]} and is {str(new)[:100]}"
        return
    for key in sorted(old.keys() | new.keys()):
        yield from _changes(old.get(key), new.get(key), f"{name}.{key}")


def cache_dir() -> Path:
    """Folder of downloaded files, which `LPA_CWM_CACHE` overrides."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lpa-cwm"
    return Path(os.environ.get("LPA_CWM_CACHE", default))


def bundled_weights(name: str) -> Path:
    """A weight file of the package."""
    return Path(__file__).parent / "weights" / name
