"""What the world model is trained on: pairs from folders of photographs, videos and objects, and shards of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lpa_cwm.files import pin_settings
from lpa_cwm.jobs import Shard
from lpa_cwm.rng import seed_of
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pair_shards import (
    SETTINGS,
    SHARD_PAIRS,
    SIMULATED_KINDS,
    FlowSource,
    ReversedFlow,
    layered_sources,
    write_shards,
)
from lpa_cwm.synth.pairs import Split
from lpa_cwm.synth.video_pairs import VideoPairs, decode_folder, video_stills

if TYPE_CHECKING:
    from lpa_cwm.simulator.clip import SimulatedPairs

PROCEDURAL = 0.05
"""Share of procedural pictures among photographs and frames of videos."""
RECIPES = {"movi": "simulated", "hard": "simulated_hard"}
"""Names of the sources of simulated pairs, by the recipe of their scenes."""


@dataclass(frozen=True)
class PairFolders:
    """Folders that pairs are made from; without any, pictures and objects are procedural."""

    photos: Path | None = None
    """Photographs for layered scenes."""
    natural: Path | None = None
    """Videos."""
    assets: Path | None = None
    """Objects and textures for simulated scenes."""
    cache: Path = Path("runs/natural")
    """Where decoded videos are kept."""

    def video_pairs(self, split: Split) -> VideoPairs | None:
        """Pairs of the videos, if there are any."""
        return None if self.natural is None else VideoPairs.of(self.natural, self.cache, split)

    def simulated_pairs(self, split: Split) -> "dict[str, SimulatedPairs]":
        """Simulated pairs by the recipe of their scenes."""
        from lpa_cwm.simulator.assets import Assets
        from lpa_cwm.simulator.clip import SimulatedPairs
        from lpa_cwm.simulator.scene import scene_config

        assets = Assets.of(self.assets, split)
        return {
            recipe: SimulatedPairs(scene_config(recipe), assets, name=f"{name}_{split}")
            for recipe, name in RECIPES.items()
        }

    def layered_flow(self, split: Split) -> tuple[dict[str, FlowSource], tuple[Path, ...]]:
        """Sources of layered pairs, and the pictures they use."""
        pool = ImagePool.of(self.photos, split, procedural=PROCEDURAL)
        if self.natural is not None:
            shots = decode_folder(self.natural, self.cache)
            stills = video_stills(shots, split, self.cache / "stills" / split)
            # Without photographs the pool was all procedural.
            pool = replace(pool, files=pool.files + stills, procedural=PROCEDURAL)
        return layered_sources(pool), pool.files

    def simulated_flow(self, split: Split) -> tuple[dict[str, FlowSource], tuple[Path, ...]]:
        """Sources of simulated pairs, and the objects and pictures they use."""
        by_recipe = self.simulated_pairs(split)
        recipes = [by_recipe[name] for name in ("hard", "movi")]
        assets = recipes[0].assets
        sources = {kind: ReversedFlow(pairs) for kind, pairs in zip(SIMULATED_KINDS, recipes, strict=True)}
        return sources, assets.objects + assets.panoramas + assets.photographs.files


def make_pairs(
    folders: PairFolders,
    out: Path,
    kind: Literal["layered", "simulated"] = "layered",
    split: Split = "train",
    pairs: int = 3000,
    shard: Shard | None = None,
) -> Iterator[Path]:
    """Make pairs with exact backward flow in shards, as `lpa-cwm data pairs` does; shards that exist are kept.

    Args:
        folders: What the pairs are made from.
        out: Folder of the shards.
        kind: Layered or simulated scenes.
        split: Which part of the pictures, videos and objects is used.
        pairs: Pairs in all.
        shard: Which part of the work is done; by default all.
    """
    sources, files = folders.layered_flow(split) if kind == "layered" else folders.simulated_flow(split)
    content = f"{seed_of(*(path.name for path in files)):016x}"
    pin_settings(out / SETTINGS, {"kind": kind, "split": split, "files": content})
    yield from write_shards(out, sources, (shard or Shard()).of(-(-pairs // SHARD_PAIRS)))
