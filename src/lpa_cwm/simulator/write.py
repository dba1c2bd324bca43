"""Files of simulated clips: MOVi-F records to train on, TAP-Vid pickles to be measured by."""

import io
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, pin_settings
from lpa_cwm.progress import progress
from lpa_cwm.sharding import Shard
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.clip import SimClip, simulate_clip
from lpa_cwm.simulator.movi import movi_record
from lpa_cwm.simulator.preview import sheet
from lpa_cwm.simulator.recipe import RECIPES
from lpa_cwm.simulator.record import write_records
from lpa_cwm.simulator.render import Film

Form = Literal["movi", "tapvid"]
QUALITY = 95


@dataclass(frozen=True)
class Production:
    """A numbered series of clips: clip i is the same however the series is cut into files and shared out."""

    assets: Assets
    film: Film
    recipe: str = "movi"
    """A recipe's name, or "mixed": the recipes in turn."""
    seed: int = 0
    clips: int = 16
    per_file: int = 16

    def __post_init__(self) -> None:
        if self.clips < 1 or self.per_file < 1:
            raise InputError(
                f"{self.clips} clips in files of {self.per_file} were asked for; give at least one of each."
            )

    @property
    def files(self) -> int:
        """How many files there are."""
        return -(-self.clips // self.per_file)

    def clip(self, number: int) -> SimClip:
        """The clip of this number."""
        names = list(RECIPES)
        recipe = names[number % len(names)] if self.recipe == "mixed" else self.recipe
        return simulate_clip((self.seed, number), recipe, self.assets, self.film)

    def clips_of(self, file: int) -> Iterator[SimClip]:
        """The clips of one file, with a progress line."""
        numbers = range(file * self.per_file, min((file + 1) * self.per_file, self.clips))
        label = f"file {file + 1} of {self.files}"
        return map(self.clip, progress(numbers, total=len(numbers), label=label))

    @property
    def stem(self) -> str:
        """What the names of the files begin with."""
        return f"sim_{self.recipe}_{self.film.size}-{self.assets.split}"

    def path(self, folder: Path, file: int, form: Form) -> Path:
        """Where a file goes."""
        number = f"{file:05d}-of-{self.files:05d}"
        return folder / (f"{self.stem}.tfrecord-{number}" if form == "movi" else f"{self.stem}-{number}.pkl")

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the files depend on."""
        known = self.assets
        counts = {"objects": len(known.objects), "panoramas": len(known.panoramas)}
        counts["photographs"] = len(known.photographs.files)
        plain = {"recipe": self.recipe, "seed": self.seed, "clips": self.clips, "per_file": self.per_file}
        return {**plain, "split": known.split, "film": asdict(self.film), "assets": counts}


def produce(series: Production, folder: Path, form: Form, shard: Shard | None = None, tracks: int = 256) -> list[Path]:
    """Write a shard's files of a series; those that exist are left alone."""
    pin_settings(folder / f"{series.stem}.json", {**series.settings, "form": form})
    paths = []
    for file in (shard or Shard()).of(series.files):
        path = series.path(folder, file, form)
        paths.append(path)
        if not path.exists():
            with atomic_write(path) as aside:
                if form == "movi":
                    write_records(aside, map(movi_record, series.clips_of(file)))
                else:
                    aside.write_bytes(pickle.dumps({c.name: tapvid_entry(c, tracks) for c in series.clips_of(file)}))
    return paths


def write_sheet(series: Production, path: Path) -> Path:
    """The contact sheet of a series."""
    with atomic_write(path) as aside:
        Image.fromarray(sheet(list(series.clips_of(0)))).save(aside)
    return path


def jpeg(picture: UInt8[np.ndarray, "h w 3"]) -> bytes:
    """A JPEG without chroma subsampling."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return buffer.getvalue()


def tapvid_entry(clip: SimClip, tracks: int) -> dict[str, np.ndarray]:
    """A clip as TAP-Vid has it: JPEG frames, points as shares of the frame, and where they are hidden."""
    found = clip.tracks(tracks)
    return {
        "video": np.array([jpeg(clip.picture(frame)) for frame in range(len(clip))]),
        "points": (np.nan_to_num(found.xy, nan=-1.0) / clip.film.size).astype(np.float32),
        "occluded": ~found.visible,
    }
