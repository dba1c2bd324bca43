"""Options that the commands for training and evaluating world models share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from lpa_cwm.cli.values import INTEGER, InPath, Natural, OutFolder, Rate, Steps, checked, integer

if TYPE_CHECKING:
    from lpa_cwm.simulator.clip import SimulatedPairs
    from lpa_cwm.synth.pairs import Split
    from lpa_cwm.synth.video_pairs import VideoPairs

SIMULATED = {"movi": "simulated", "hard": "simulated_hard"}
"""Names of the sources of simulated pairs, by the recipe of their scenes."""


def parse_stage(text: str) -> tuple[int, int, int]:
    """First step, side of the crops and pairs per step."""
    words = text.split(":")
    given = [int(word) if INTEGER.fullmatch(word) else -1 for word in words]
    if len(given) != 3 or given[0] < 0 or given[1] not in range(64, 257, 8) or not 1 <= given[2] <= 4096:
        raise ValueError(
            "expected FIRST:SIZE:BATCH: the first step, a multiple of 8 from 64 to 256, and 1 to 4096 pairs, "
            "for example 0:128:8"
        )
    return given[0], given[1], given[2]


def parse_frame_pair(text: str) -> tuple[int, int]:
    """Numbers of a source and a target frame."""
    words = text.split(":")
    given = [int(word) if INTEGER.fullmatch(word) else -1 for word in words]
    if len(given) != 2 or min(given) < 0 or max(given) > 1_000_000 or given[0] == given[1]:
        raise ValueError("expected SOURCE:TARGET, two different frame numbers from 0 to 1000000, for example 0:8")
    return given[0], given[1]


StageText = Annotated[
    tuple[int, int, int], checked(parse_stage, "FIRST:SIZE:BATCH", (0, 0, 0), lambda stage: ":".join(map(str, stage)))
]
FramePair = Annotated[
    tuple[int, int], checked(parse_frame_pair, "SOURCE:TARGET", (0, 0), lambda pair: ":".join(map(str, pair)))
]


@dataclass(frozen=True, kw_only=True)
class SplitOption:
    """Of commands that generate data."""

    split: Literal["train", "val"] = "train"
    """Which objects, pictures and videos are used; the two sides share none."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where pictures, videos and objects for frame pairs are."""

    photos: InPath | None = None
    """Folder of photographs for layered scenes; procedural pictures without one."""
    natural: InPath | None = None
    """Folder of videos."""
    assets: InPath | None = None
    """Folder of objects and textures for simulated scenes; needs the extra `sim`."""
    cache: OutFolder = Path("runs/natural")
    """Where decoded videos are kept."""

    def video_pairs(self, split: "Split") -> "VideoPairs | None":
        """Pairs of the videos, if there are any."""
        from lpa_cwm.synth.video_pairs import VideoPairs

        return None if self.natural is None else VideoPairs.of(self.natural, self.cache, split)

    def simulated_pairs(self, split: "Split") -> "dict[str, SimulatedPairs]":
        """Simulated pairs by the recipe of their scenes; procedural scenes without assets."""
        from lpa_cwm.simulator.assets import Assets
        from lpa_cwm.simulator.clip import SimulatedPairs
        from lpa_cwm.simulator.config import scene_config

        assets = Assets.of(self.assets, split)
        return {
            recipe: SimulatedPairs(scene_config(recipe), assets, name=f"{name}_{split}")
            for recipe, name in SIMULATED.items()
        }


@dataclass(frozen=True, kw_only=True)
class WorldTrainingOptions:
    """Of commands that train a world model."""

    out: OutFolder = Path("runs/world")
    """Where checkpoint, log and weights go."""
    init: InPath | None = None
    """Weights to begin with, if there is no checkpoint in `out`."""
    steps: Steps = 20_000
    """Update at which to stop; give more to go on."""
    cooldown: Natural = 4_000
    """Last updates, over which the rate falls to zero; a run stopped before them can go on for longer."""
    rate: Rate = 1e-3
    """Learning rate."""
    workers: Annotated[int, integer(0, 256)] = 1
    """Background processes that make pairs."""
    threads: Annotated[int, integer(1, 1024)] = 1
    """Threads of the network on a CPU."""
    save_every: Steps = 100
    """Updates between checkpoints and lines of the log."""
