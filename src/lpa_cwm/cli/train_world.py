"""`lpa-cwm train world`: the compact world model that ships."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lpa_cwm.synth.images import Split
    from lpa_cwm.synth.pairs import PairSource
    from lpa_cwm.worlds.layered.world import LayeredMotionNetwork

UNSEEN = 100
"""Held-out pairs before this one had a part in choosing constants of the model; figures are of those after."""

SHARES = (0.3, 0.3, 0.2, 0.2)
"""Of layered scenes, natural video, and simulated scenes with little and with much motion."""


@dataclass(frozen=True)
class TrainWorld:
    """Train the compact world model by masked prediction of frame pairs; run again to go on after a stop."""

    photos: Path | None = None
    """Folder of photographs for layered scenes; procedural pictures without one."""
    natural: Path | None = None
    """Folder of videos, as many pairs as of layered scenes."""
    assets: Path | None = None
    """Folder of objects and textures for simulated scenes, two fifths of the pairs; needs the extra `sim`."""
    cache: Path = Path("runs/natural")
    """Where decoded videos are kept."""
    out: Path = Path("runs/world")
    """Where checkpoint, log and weights go."""
    begin: Path | None = None
    """Weights to begin with, if there is no checkpoint in `out`."""
    steps: int = 20_000
    """Update at which to stop; give more to go on."""
    cooldown: int = 4_000
    """Last updates, over which the rate falls to zero; a run stopped before them can go on for longer."""
    batch: int = 8
    """Pairs per update and process."""
    sizes: tuple[int, ...] = (128, 192)
    """Sides of the frames, in pixels; 1500 updates of each, the last to the end."""
    rate: float = 1e-3
    """Learning rate."""
    workers: int = 1
    """Background processes that make pairs."""
    threads: int = 1
    """Threads of the network on a CPU."""
    every: int = 100
    """Updates between checkpoints and lines of the log."""
    check_every: int = 500
    """Updates between evaluations on a few held-out pairs, which go into the log."""
    evaluate: bool = False
    """Train nothing; print the figures of `begin` (of the weights that ship if not given) on held-out pairs."""
    pairs: int = 24
    """Held-out pairs of each kind for `evaluate`."""

    def run(self) -> None:
        """Train, or only evaluate."""
        import torch

        torch.set_num_threads(self.threads)
        if self.evaluate:
            print(self.measured())
        else:
            print(self.trained())

    def trained(self) -> Path:
        """Train and write the weights."""
        from lpa_cwm.synth.pairs import Mixture
        from lpa_cwm.training import world
        from lpa_cwm.training.crops import Crops

        layered, *others = self.sources("train")
        shares = (SHARES[0], *SHARES[1 if self.natural else 2 :])[: 1 + len(others)]
        pairs = Mixture((Crops(layered), *others), shares)
        schedule = world.Schedule(batch=self.batch, sizes=self.sizes, rate=self.rate)
        trainer = world.Trainer(
            pairs, schedule, self.out, self.every, self.workers, self.begin, self.check, self.check_every
        )
        return trainer.fit(world.Ending(self.steps, self.cooldown))

    def check(self, network: "LayeredMotionNetwork") -> dict[str, float]:
        """A few figures on a few held-out layered pairs, for the log."""
        from lpa_cwm.config import TrackerConfig
        from lpa_cwm.synth.layered import LayeredPairs
        from lpa_cwm.training.world_evaluate import evaluate
        from lpa_cwm.worlds.layered.world import LayeredMotionWorld

        return evaluate(
            LayeredMotionWorld(network), LayeredPairs.of(self.photos, "val"), range(6), TrackerConfig(masks=3)
        )

    def measured(self) -> str:
        """A table of figures."""
        from lpa_cwm.config import TrackerConfig
        from lpa_cwm.training.world_evaluate import evaluate, table
        from lpa_cwm.worlds.layered.world import LayeredMotionWorld

        model = LayeredMotionWorld.load(self.begin)
        columns = {}
        for source in self.sources("val"):
            columns[source.name] = evaluate(model, source, range(UNSEEN, UNSEEN + self.pairs), TrackerConfig())
        return table(columns)

    def sources(self, split: "Split") -> "list[PairSource]":
        """Layered scenes, then what else was asked for."""
        from lpa_cwm.synth.layered import LayeredPairs
        from lpa_cwm.synth.video_pairs import VideoPairs

        found: list[PairSource] = [LayeredPairs.of(self.photos, split)]
        if self.natural is not None:
            found.append(VideoPairs.of(self.natural, self.cache, split))
        if self.assets is not None:
            from lpa_cwm.simulator.assets import Assets
            from lpa_cwm.simulator.pairs import SimulatedPairs
            from lpa_cwm.simulator.recipe import recipe_named

            assets = Assets.of(self.assets, split)
            for recipe, name in (("movi", "simulated"), ("hard", "simulated_hard")):
                found.append(SimulatedPairs(recipe_named(recipe), assets, name=f"{name}_{split}"))
        return found
