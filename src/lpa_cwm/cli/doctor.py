"""`lpa-cwm doctor`: what is installed and at hand, what is missing, and the command that gets it."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from lpa_cwm.config import ADJUDICATOR

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "missing", "wrong"]
PACKAGE = "lpa-cwm"
REMEDIES = {"lpa.safetensors": "lpa-cwm train lpa"}
STORE = "https://storage.googleapis.com/dm-tapnet"


class Benchmark(NamedTuple):
    """A published data set: names its files have, and the command that brings them."""

    pattern: str
    remedy: str


def zipped(name: str) -> str:
    """The command for one archive of the publisher."""
    return f"curl -LO {STORE}/{name}.zip && unzip {Path(name).name}.zip"


BENCHMARKS = {
    "TAP-Vid DAVIS": Benchmark("tapvid_davis.pkl", zipped("tapvid_davis")),
    "TAP-Vid Kinetics": Benchmark("tapvid_kinetics.csv", zipped("tapvid_kinetics") + "; then add the Kinetics clips"),
    "TAP-Vid RGB-Stacking": Benchmark("tapvid_rgb_stacking.pkl", zipped("tapvid_rgb_stacking")),
    "RoboTAP": Benchmark("robotap_split*.pkl", zipped("robotap/robotap")),
    "MOVi-F": Benchmark(
        "movi_f-*.tfrecord-*", "gsutil -m cp -r gs://kubric-public/tfds/movi_f/128x128/1.0.0 movi_f (about 35 GB)"
    ),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    section: str
    name: str
    state: State
    what: str
    """What was found."""
    remedy: str | None = None
    """What to type, or to do, if something should be changed."""
    needed: bool = False
    """Whether the default command cannot do without it."""


@dataclass(frozen=True)
class Doctor:
    """Say what is installed, which weights and data are at hand, what is missing and how to get it."""

    data: tuple[Path, ...] = (Path("."), Path("data"))
    """Folders, up to two levels deep, in which to look for published data sets."""
    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Look at everything, print it, and fail if the default command cannot work."""
        found = [*software(), *devices(), *extras(), *shipped_weights(), *fetched_weights(), *methods()]
        found += benchmarks(self.data)
        healthy = all(one.state == "ok" or (one.state == "missing" and not one.needed) for one in found)
        if self.json:
            print(json.dumps({"healthy": healthy, "findings": [asdict(one) for one in found]}, indent=2))
        else:
            print(text(found))
            print("\nAll that the default needs is here." if healthy else "\nNot all is well: see ✗ and the default.")
        raise SystemExit(0 if healthy else 1)


def text(found: list[Finding]) -> str:
    """A paragraph per section, a line per finding, and a line on what to do where something is missing."""
    wide = max(len(one.name) for one in found)
    lines, section = [], None
    for one in found:
        if one.section != section:
            section = one.section
            lines += ["", section.capitalize()]
        mark = {"ok": "✓", "missing": "·", "wrong": "✗"}[one.state]
        lines.append(f"  {mark} {one.name:{wide}}  {one.what}")
        if one.remedy:
            lines.append(f"    {'':{wide}}  → {one.remedy}")
    return "\n".join(lines[1:])


def software() -> Iterator[Finding]:
    """The interpreter, the package and what it cannot do without."""
    import platform

    from lpa_cwm import __version__

    machine = f"{platform.system()} {platform.machine()}"
    yield Finding("software", "python", "ok", f"{platform.python_version()} on {machine}")
    yield Finding("software", PACKAGE, "ok", __version__)
    for requirement in sorted(requirements()[""], key=lambda one: one.name):
        version = installed(requirement)
        state = "ok" if version else "wrong"
        remedy = None if version else f'pip install "{requirement}"'
        yield Finding("software", requirement.name, state, version or f"expected {requirement}", remedy, needed=True)


def devices() -> Iterator[Finding]:
    """Where one can compute."""
    import os

    import torch

    yield Finding("devices", "cpu", "ok", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads")
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        yield Finding("devices", f"cuda:{index}", "ok", f"{about.name}, {about.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        yield Finding("devices", "mps", "ok", "Apple GPU")
    if not torch.cuda.is_available():
        yield Finding("devices", "cuda", "missing", "none that torch can use", "install the torch build for your GPU")


def extras() -> Iterator[Finding]:
    """Optional parts."""
    for extra, wanted in requirements().items():
        if not extra:
            continue
        versions = {requirement.name: installed(requirement) for requirement in wanted}
        absent = [name for name, version in versions.items() if not version]
        if absent:
            what, remedy = f"lacks {', '.join(absent)}", f'pip install "{PACKAGE}[{extra}]"'
            yield Finding("extras", extra, "missing", what, remedy)
        else:
            what = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding("extras", extra, "ok", what)


def requirements() -> "dict[str, list[Requirement]]":
    """What the package asks for: under "" what it always needs, else by extra."""
    from importlib.metadata import metadata, requires

    from packaging.requirements import Requirement

    names = ["", *sorted(metadata(PACKAGE).get_all("Provides-Extra") or [])]
    every = [Requirement(line) for line in requires(PACKAGE) or []]
    always = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    groups = {name: [one for one in every if one.marker and one.marker.evaluate({"extra": name})] for name in names[1:]}
    return {"": always} | {name: [one for one in group if one not in always] for name, group in groups.items()}


def installed(requirement: "Requirement") -> str | None:
    """The version that is there, if it will do."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return None
    return found if requirement.specifier.contains(found, prereleases=True) else None


def shipped_weights() -> Iterator[Finding]:
    """Files of the package, against the hash on their model card."""
    from lpa_cwm import registry
    from lpa_cwm.files import bundled_weights, data_files

    folder = bundled_weights("")
    names = {path.stem for path in data_files(folder) if path.suffix in (".md", ".safetensors")}
    for name in sorted(names | {Path(registry.LPA_FILE).stem}):
        path, card = folder / f"{name}.safetensors", folder / f"{name}.md"
        found = re.search(r"sha256 `([0-9a-f]{64})`", card.read_text()) if card.is_file() else None
        yield weights_finding("shipped weights", path, found and found[1], REMEDIES.get(path.name))


def fetched_weights() -> Iterator[Finding]:
    """Files that others publish, in the cache."""
    from lpa_cwm.datasets.download import DOWNLOADS

    for parcel in DOWNLOADS.values():
        hashes = dict(zip(parcel.paths(), parcel.origin.hashes.values(), strict=True))
        for name, path in parcel.paths().items():
            yield weights_finding("fetched weights", path, hashes[name], f"lpa-cwm fetch {parcel.name}")


def weights_finding(section: str, path: Path, sha256: str | None, remedy: str | None) -> Finding:
    """Whether a file is there and is the one it should be."""
    from lpa_cwm.datasets.download import sha256_of

    if not path.is_file():
        return Finding(section, path.name, "missing", "not there", remedy)
    size = f"{path.stat().st_size / 1e6:.1f} MB in {path.parent}"
    if sha256 is None:
        return Finding(section, path.name, "ok", f"{size}; no hash is published")
    if sha256_of(path) == sha256:
        return Finding(section, path.name, "ok", f"{size}; hash verified")
    return Finding(section, path.name, "wrong", f"{size}; another hash", remedy and f"remove it and run {remedy}")


def methods() -> Iterator[Finding]:
    """Which trackers can run."""
    from lpa_cwm.cli.methods import listed

    for entry in listed():
        lacks, needed = entry["missing"], entry["name"] == ADJUDICATOR
        what = "runs here, the default" if needed else "runs here"
        yield Finding("methods", entry["name"], "missing" if lacks else "ok", lacks or what, needed=needed)


def benchmarks(folders: tuple[Path, ...]) -> Iterator[Finding]:
    """Published data sets below some folders, and the clip that ships."""
    from lpa_cwm.bundled import DEMO_CLIP
    from lpa_cwm.files import data_files

    yield Finding("data", "bundled clip", "ok" if DEMO_CLIP.is_file() else "wrong", str(DEMO_CLIP), needed=True)
    for name, (pattern, remedy) in BENCHMARKS.items():
        depths = (pattern, f"*/{pattern}", f"*/*/{pattern}")
        files = [path for folder in folders for depth in depths for path in data_files(folder, depth)]
        if files:
            others = f" and {len(files) - 1} more" if len(files) > 1 else ""
            yield Finding("data", name, "ok", f"{files[0]}{others}")
        else:
            looked = ", ".join(str(folder) for folder in folders)
            yield Finding("data", name, "missing", f"no {pattern} in {looked}", remedy)
