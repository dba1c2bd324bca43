"""`lpa-cwm train lpa`: the learned adjudicator."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

if TYPE_CHECKING:
    from lpa_cwm.adjudicators.lpa import LPA


@dataclass(frozen=True)
class TrainLpa:
    """Train LPA on cached evidence; run again to go on after a stop."""

    cache: Annotated[tuple[Path, ...], Positional]
    """Folders that `lpa-cwm cache` filled."""
    out: Path = Path("runs/lpa")
    """Where checkpoint, log and weights go."""
    steps: int = 10_000
    """Updates."""
    batch: int = 16
    """Candidate sets per update."""
    rate: float = 3e-4
    """Learning rate at the start; it falls as a cosine."""
    every: int = 250
    """Updates between checkpoints and selections."""
    seed: int = 0
    """Another seed gives another training."""
    clip: float = 1.0
    """Longest gradient; inf does not shorten any, as in the paper."""
    choice: int = 3
    """How often sets whose candidates disagree are shown for each time that the others are; 1 is the paper's."""
    interaction: bool = True
    """Let candidates see each other (the set transformer)."""
    visual: bool = True
    """Look at the frames, not only at responses and statistics."""
    sight: bool = True
    """Learn to say whether a point is seen by a head of its own, not only by the weights; needs the visibility term."""
    coordinate: float = 2.0
    """Weight of the coordinate term."""
    best: float = 0.2
    """Weight of the best-candidate term."""
    visibility: float = 4.0
    """Weight of the visibility term, which needs hidden points in the cache; the paper has none (0)."""
    answer: float = 20.0
    """Weight of the accuracy of the answer, where the weighted responses are highest; the paper has none (0)."""
    start: Path | None = None
    """Weights to begin with instead of random ones: go on with a finished training, or fit LPA to other videos."""
    autocast: bool = False
    """Compute in bfloat16 where that is safe: faster, with slightly other weights at the end."""
    device: str = "cpu"
    """Where to compute."""

    def run(self) -> None:
        """Train and say where the weights are."""
        from lpa_cwm.registry import fingerprint_of
        from lpa_cwm.training.lpa import Recipe, fit
        from lpa_cwm.training.objective import Objective

        recipe = Recipe(
            steps=self.steps,
            batch=self.batch,
            rate=self.rate,
            every=self.every,
            seed=self.seed,
            clip=self.clip,
            choice=self.choice,
            interaction=self.interaction,
            visual=self.visual,
            sight=self.sight,
            objective=Objective(self.coordinate, self.best, self.visibility, self.answer),
            autocast=self.autocast,
            start=fingerprint_of([self.start]) if self.start else "",
        )
        print(fit(self.cache, self.out, recipe, self.device, self.begun()))

    def begun(self) -> "LPA | None":
        """The network to start from, if there is one; it must have the branches that were asked for."""
        from lpa_cwm.adjudicators.lpa import load_lpa
        from lpa_cwm.errors import InputError

        if self.start is None:
            return None
        network = load_lpa(self.start)
        has = network.interaction, network.visual, network.visibility_head is not None
        # Sight may be added to a network that has none: it begins by changing nothing.
        if has != (self.interaction, self.visual, has[2] and self.sight):
            raise InputError(
                f"{self.start} is of a network with interaction {has[0]}, visual {has[1]} and sight {has[2]}, "
                f"but {self.interaction}, {self.visual} and {self.sight} were asked for; "
                "give the options it was trained with."
            )
        return network
