"""`lpa-cwm train world`: the compact world model that ships."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainWorld:
    """Train the compact world model by masked prediction of frame pairs; run again to go on after a stop."""

    photos: Path | None = None
    """Folder of photographs for layered scenes; procedural pictures without one."""
    natural: Path | None = None
    """Folder of videos, to make two fifths of the pairs."""
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
    rate: float = 1e-3
    """Learning rate."""
    workers: int = 1
    """Background processes that make pairs."""
    threads: int = 1
    """Threads of the network on a CPU."""
    every: int = 100
    """Updates between checkpoints and lines of the log."""
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
        from lpa_cwm.data.layered import Layered
        from lpa_cwm.data.natural import NaturalVideo
        from lpa_cwm.data.pairs import Mixture, PairSource
        from lpa_cwm.training import world
        from lpa_cwm.training.crops import Crops

        pairs: PairSource = Crops(Layered.of(self.photos, "train"))
        if self.natural is not None:
            videos = NaturalVideo.of(self.natural, self.cache, "train")
            pairs = Mixture((pairs, videos), (0.6, 0.4))
        schedule = world.Schedule(batch=self.batch, rate=self.rate)
        trainer = world.Trainer(pairs, schedule, self.out, self.every, self.workers, self.begin)
        return trainer.fit(world.Ending(self.steps, self.cooldown))

    def measured(self) -> str:
        """A table of figures."""
        from lpa_cwm.config import Method
        from lpa_cwm.data.layered import Layered
        from lpa_cwm.data.natural import NaturalVideo
        from lpa_cwm.data.pairs import PairSource
        from lpa_cwm.training.world_evaluate import evaluate, table
        from lpa_cwm.world.compact.world import CompactWorld

        model = CompactWorld.load(self.begin)
        sources: list[PairSource] = [Layered.of(self.photos, "val")]
        if self.natural is not None:
            sources.append(NaturalVideo.of(self.natural, self.cache, "val"))
        return table({source.name: evaluate(model, source, range(self.pairs), Method()) for source in sources})
