"""Where files go, and writing them so that nobody ever sees half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: Path | str) -> Iterator[Path]:
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


def cache_dir() -> Path:
    """Fetched files live here; `LPA_CWM_CACHE` moves it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lpa-cwm"
    return Path(os.environ.get("LPA_CWM_CACHE", default))


def packaged_weights(name: str) -> Path:
    """A weight file that ships inside the package."""
    return Path(__file__).parent / "weights" / name
