"""`lpa-cwm simulate`: motion data of our own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Simulate:
    """Make clips of colliding bodies with exact motion: records like MOVi-F's, or a benchmark like TAP-Vid's."""

    out: Path | None = None
    """Folder for the files; those that exist are kept, so the same command goes on after a stop."""
    preview: Path | None = None
    """Write a contact sheet of the first clips here, and nothing else."""
    form: Literal["movi", "tapvid"] = "movi"
    """TFRecord files in MOVi-F's format, or pickles of tracks in TAP-Vid's."""
    recipe: Literal["movi", "hard", "mixed"] = "movi"
    """MOVi-F's own statistics; fewer, larger, faster bodies and a livelier camera; or both in turn."""
    clips: int = 16
    """Number of clips in all."""
    per_file: int = 16
    """Clips in each file."""
    size: int = 256
    """Pixels of a side of the frames."""
    split: Literal["train", "val"] = "train"
    """Which objects and pictures are used; the two sides share none."""
    seed: int = 0
    """Clip i of a seed is always the same, whichever file and worker it falls to."""
    shard: str = "1/1"
    """Make every n-th file, beginning with the i-th: i/n."""
    assets: Path | None = None
    """Folder with objects/*.npz, textures/*.jpg and textures/panoramas/*.jpg; everything is invented without it."""
    samples: int = 2
    """Rays per side of a pixel where an edge passes through it."""
    shutter: float = 0.0
    """Share of the time between frames during which the shutter is open: motion blur."""
    tracks: int = 256
    """Tracks per clip, for the TAP-Vid form."""

    def run(self) -> None:
        """Write the files or the contact sheet, and print where they are."""
        from lpa_cwm.errors import InputError
        from lpa_cwm.sharding import Shard
        from lpa_cwm.simulator.assets import Assets
        from lpa_cwm.simulator.render import Film
        from lpa_cwm.simulator.write import Production, produce, write_sheet

        film = Film(self.size, self.samples, self.shutter)
        assets = Assets.of(self.assets, self.split)
        series = Production(assets, film, self.recipe, self.seed, self.clips, self.per_file)
        if self.preview is not None:
            print(write_sheet(series, self.preview))
        elif self.out is not None:
            for path in produce(series, self.out, self.form, Shard.parse(self.shard), self.tracks):
                print(path)
        else:
            raise InputError("Neither --out nor --preview was given; say where the files or the contact sheet go.")
