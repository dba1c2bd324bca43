"""`lpa-cwm doctor`: what is installed and available, what is missing, and the command that gets it."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypedDict

from lpa_cwm.cli.options import JsonOption
from lpa_cwm.cli.values import InPath
from lpa_cwm.config import ADJUDICATOR
from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


State = Literal["ok", "missing", "wrong"]
PACKAGE = "lpa-cwm"
REMEDIES = {"lpa.safetensors": "lpa-cwm train lpa"}
TAPNET_URL = "https://storage.googleapis.com/dm-tapnet"


class Benchmark(NamedTuple):
    """A published data set: pattern of its file names, and the command that downloads it."""

    pattern: str
    remedy: str


def archive_command(name: str) -> str:
    """The command for one archive of the publisher."""
    return f"curl -LO {TAPNET_URL}/{name}.zip && unzip {Path(name).name}.zip"


BENCHMARKS = {
    "TAP-Vid DAVIS": Benchmark("tapvid_davis.pkl", archive_command("tapvid_davis")),
    "TAP-Vid Kinetics": Benchmark(
        "tapvid_kinetics.csv", archive_command("tapvid_kinetics") + "; then add the Kinetics clips"
    ),
    "TAP-Vid RGB-Stacking": Benchmark("tapvid_rgb_stacking.pkl", archive_command("tapvid_rgb_stacking")),
    "RoboTAP": Benchmark("robotap_split*.pkl", archive_command("robotap/robotap")),
    "MOVi-F": Benchmark(
        "movi_f-*.tfrecord-*", "gsutil -m cp -r gs://kubric-public/tfds/movi_f/128x128/1.0.0 movi_f (about 35 GB)"
    ),
}


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    section: str
    name: str
    state: State
    what: str
    """What was found."""
    remedy: str | None = None
    """Command or action that repairs it."""
    needed: bool = False
    """Whether the default command needs it."""


@dataclass(frozen=True, kw_only=True)
class Doctor(JsonOption):
    """Check the installation: decode a clip, track a pair, find weights and data, say how to get what is missing."""

    EXAMPLE: ClassVar[str] = "lpa-cwm doctor --data data"
    data: tuple[InPath, ...] = (Path("."), Path("data"))
    """Folders, up to two levels deep, in which to look for published data sets."""

    def run(self) -> None:
        """Run all checks, print the results, and fail if the default command cannot work."""
        for folder in self.data:
            if not folder.is_dir() and self.data != Doctor.data:
                raise InputError(f"There is no folder {folder}; give existing folders.")
        found = [*installation(), *devices(), *trials(), *extras(), *bundled(), *fetched(), *methods()]
        found += benchmarks(self.data)
        healthy = all(one.state == "ok" or (one.state == "missing" and not one.needed) for one in found)
        if self.json:
            print(json.dumps({"healthy": healthy, "findings": [asdict(one) for one in found]}, indent=2))
        else:
            print(text(found))
            print("\nThe default tracker can run." if healthy else "\nSomething is wrong or missing: see ✗ and →.")
        raise SystemExit(0 if healthy else 1)


def text(found: list[Finding]) -> str:
    """A paragraph per section, a line per finding, and a line with the remedy where something is missing."""
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


def installation() -> Iterator[Finding]:
    """The interpreter, the package and its required dependencies."""
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
    """The devices of this machine."""
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


def trials() -> Iterator[Finding]:
    """Decode a frame of the bundled clip, and track a point from its first frame to its second."""
    import torch

    from lpa_cwm import registry
    from lpa_cwm.io.video import read
    from lpa_cwm.registry import DEMO_CLIP
    from lpa_cwm.tracker import validate_queries
    from lpa_cwm.types import Clip, Grid

    remedy = 'pip install --force-reinstall "lpa-cwm"'
    try:
        clip = read(DEMO_CLIP)
        first, second = clip[0], clip[1]
    except Exception as error:  # A broken installation can raise any exception, which is then the finding.
        yield Finding("trials", "decoding", "wrong", f"{type(error).__name__}: {error}", remedy, needed=True)
        return
    yield Finding("trials", "decoding", "ok", f"frame of {first.shape[2]}x{first.shape[1]} from {DEMO_CLIP.name}")
    try:
        start, pair = time.perf_counter(), Clip(torch.stack([first, second]), clip.name)
        tracks = registry.load().track(pair, validate_queries(pair, Grid(1)))
        x, y = tracks.xy[0, 1].tolist()
    except Exception as error:
        yield Finding("trials", "tracking", "wrong", f"{type(error).__name__}: {error}", remedy, needed=True)
        return
    seconds = time.perf_counter() - start
    what = f"one pair in {seconds:.1f} s with loading; the center point went to {x:.1f}, {y:.1f}"
    yield Finding("trials", "tracking", "ok", what)


def extras() -> Iterator[Finding]:
    """The extras."""
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
    """Declared requirements by extra; those without an extra are under the empty name."""
    from importlib.metadata import metadata, requires

    from packaging.requirements import Requirement

    names = ["", *sorted(metadata(PACKAGE).get_all("Provides-Extra") or [])]
    every = [Requirement(line) for line in requires(PACKAGE) or []]
    always = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    groups = {name: [one for one in every if one.marker and one.marker.evaluate({"extra": name})] for name in names[1:]}
    return {"": always} | {name: [one for one in group if one not in always] for name, group in groups.items()}


def installed(requirement: "Requirement") -> str | None:
    """The installed version, if it is recent enough."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return None
    return found if requirement.specifier.contains(found, prereleases=True) else None


def bundled() -> Iterator[Finding]:
    """Bundled weights, compared with the hashes on their model cards."""
    from lpa_cwm import registry
    from lpa_cwm.files import bundled_weights, data_files

    folder = bundled_weights("")
    names = {path.stem for path in data_files(folder) if path.suffix in (".md", ".safetensors")}
    for name in sorted(names | {Path(registry.LPA_FILE).stem}):
        path, card = folder / f"{name}.safetensors", folder / f"{name}.md"
        found = re.search(r"sha256 `([0-9a-f]{64})`", card.read_text()) if card.is_file() else None
        yield weights_finding("bundled weights", path, found and found[1], REMEDIES.get(path.name))


def fetched() -> Iterator[Finding]:
    """Downloaded weights in the cache."""
    from lpa_cwm.datasets.download import DOWNLOADS

    for parcel in DOWNLOADS.values():
        hashes = dict(zip(parcel.paths(), parcel.origin.hashes.values(), strict=True))
        for name, path in parcel.paths().items():
            yield weights_finding("fetched weights", path, hashes[name], f"lpa-cwm data fetch {parcel.name}")


def weights_finding(section: str, path: Path, sha256: str | None, remedy: str | None) -> Finding:
    """Whether a file exists and has the expected hash."""
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
    for entry in listed():
        lacks, needed = entry["missing"], entry["name"] == ADJUDICATOR
        what = "runs here, the default" if needed else "runs here"
        yield Finding("trackers", entry["name"], "missing" if lacks else "ok", lacks or what, needed=needed)


def benchmarks(folders: tuple[Path, ...]) -> Iterator[Finding]:
    """Published data sets below some folders, and the bundled clip."""
    from lpa_cwm.files import data_files
    from lpa_cwm.registry import DEMO_CLIP

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


class TrackerEntry(TypedDict):
    """One tracker of the list."""

    name: str
    what: str
    license: str
    source: str
    missing: str | None


ADJUDICATOR_NOTES = {
    "uniform": "The world model's candidate responses, weighted equally.",
    "apa": "Analytic adjudication: candidates weighted by a score model, appearance against motion.",
    "lpa": "Learned adjudication: candidates weighted by a small set transformer.",
}


@dataclass(frozen=True, kw_only=True)
class ListTrackers(JsonOption):
    """List all trackers, ours and baselines: what each is, its license, and what is missing to run it here."""

    EXAMPLE: ClassVar[str] = "lpa-cwm list-trackers"

    def run(self) -> None:
        """Print the list."""
        entries = listed()
        if self.json:
            print(json.dumps(entries, indent=2))
            return
        width = max(len(entry["name"]) for entry in entries)
        for entry in entries:
            state = "Runs here." if entry["missing"] is None else f"Missing: {entry['missing']}"
            print(f"{entry['name']:{width}}  {entry['what']}")
            print(f"{'':{width}}  License: {entry['license']}. From: {entry['source']}.")
            print(f"{'':{width}}  {state}")


def listed() -> list[TrackerEntry]:
    """Our adjudicators first, then the baselines."""
    from lpa_cwm.baselines.registry import BASELINES

    ours = [
        TrackerEntry(name=name, what=what, license="Apache-2.0", source="built in", missing=missing(name))
        for name, what in ADJUDICATOR_NOTES.items()
    ]
    baselines = [
        TrackerEntry(name=one.name, what=one.what, license=one.license, source=one.obtain, missing=one.missing())
        for one in BASELINES.values()
    ]
    return [*ours, *baselines]


def missing(name: str) -> str | None:
    """What is missing to run an adjudicator with the default world model and weights."""
    from lpa_cwm import registry

    try:
        registry.load(name)
    except InputError as error:
        return str(error)
    return None
