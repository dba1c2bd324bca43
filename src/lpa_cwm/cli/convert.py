"""`lpa-cwm convert`: the published Opt-CWM files as one safetensors file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Convert:
    """Rewrite Opt-CWM's published predictor and generator as one file that loads faster and runs nothing."""

    size: Literal[256, 512] = 256
    """Side in pixels of the frames the predictor sees."""
    folder: Path | None = None
    """Where the published files are; by default where `lpa-cwm fetch opt-cwm` puts them."""
    out: Path | None = None
    """File to write; by default beside the published ones, where it is then used instead of them."""

    def run(self) -> None:
        """Convert, and say what was left out."""
        from lpa_cwm.files import cache_dir
        from lpa_cwm.worlds.opt_cwm.checkpoint import CONVERTED, PUBLISHED, PUBLISHED_GENERATOR, load_published, save

        folder = self.folder or cache_dir() / "opt-cwm"
        base, architecture = PUBLISHED[self.size]
        world, ignored = load_published(folder / base, folder / PUBLISHED_GENERATOR, architecture)
        print(f"not used: {ignored}")
        print(save(world, self.out or folder / CONVERTED.format(size=self.size)))
