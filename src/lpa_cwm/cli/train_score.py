"""`lpa-cwm train score`: the denoiser behind the compact score field of APA."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainScore:
    """Train the compact score field of APA on photographs, or measure it; run again to go on after a stop."""

    photos: Path
    """Folder of photographs; one in ten, chosen by its name, is held out."""
    out: Path = Path("runs/score")
    """Where checkpoint, log and weights go."""
    steps: int = 2_500
    """Updates."""
    batch: int = 16
    """Crops per update."""
    crop: int = 48
    """Side of a crop, in pixels."""
    rate: float = 2e-3
    """Highest learning rate; it rises for 2 % of the steps, then falls as a cosine."""
    every: int = 100
    """Updates between checkpoints and lines of the log."""
    evaluate: bool = False
    """Train nothing; print the denoising gain of `weights` on the held-out photographs."""
    weights: Path | None = None
    """Weights to evaluate; those that ship if not given."""

    def run(self) -> None:
        """Train and evaluate, or only evaluate."""
        from lpa_cwm.adjudicators.score_models.compact import load_compact_score
        from lpa_cwm.training import score

        weights = self.weights
        if not self.evaluate:
            schedule = score.Schedule(self.steps, self.batch, self.crop, self.rate, self.every)
            weights = score.fit(self.photos, self.out, schedule)
            print(weights)
        print(score.evaluate(self.photos, load_compact_score(weights)))
