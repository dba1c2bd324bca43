"""Where files go, and writing them so that nobody ever sees half of one."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lpa_cwm.errors import InputError


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path with the same suffix; rename it to `path` on success, remove it on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(descriptor)
    aside = Path(name)
    try:
        yield aside
        # mkstemp makes private files; results are for everybody the umask admits.
        umask = os.umask(0)
        os.umask(umask)
        aside.chmod(0o666 & ~umask)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


FIGURES = (".png", ".pdf", ".svg")


def figure_path(path: Path) -> Path:
    """A path whose suffix says which kind of figure is wanted, or a sentence before any work is done."""
    if path.suffix.lower() not in FIGURES:
        raise InputError(f"{path} is no name for a figure; give one that ends in {', '.join(FIGURES)}.")
    return path


def pin_settings(path: Path, settings: dict[str, Any]) -> None:
    """Note beside files what they were made with, or refuse to mix files made otherwise with them."""
    if not path.exists():
        with atomic_write(path) as aside:
            aside.write_text(json.dumps(settings, indent=2))
        return
    try:
        before = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} does not hold the settings of its folder's files; restore or remove it.") from error
    changed = [name for name, value in settings.items() if before.get(name) != value]
    if changed:
        raise InputError(
            f"{path.parent} holds files of other settings ({', '.join(changed)}; see {path.name}); give another "
            "folder, or remove the files to make them anew."
        )


def cache_dir() -> Path:
    """Fetched files live here; `LPA_CWM_CACHE` moves it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lpa-cwm"
    return Path(os.environ.get("LPA_CWM_CACHE", default))


def bundled_weights(name: str) -> Path:
    """A weight file that ships inside the package."""
    return Path(__file__).parents[1] / "weights" / name
