"""The figures of docs/reproduction_notes.md: what re-evaluation, windows, Eq. 3, weights and Eq. 1 do.

python benchmarks/notes.py DATA [--part reevaluation windows score gain total] [--videos 8] [--world compact]

DATA is annotated videos in TAP-Vid's formats, or a folder of MOVi-F records.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from tyro.conf import Positional

from lpa_cwm import registry
from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.config import PAPER
from lpa_cwm.decode import localize
from lpa_cwm.evaluation.sweep import choose_queries, open_pairs
from lpa_cwm.geometry import rescale
from lpa_cwm.masks import hide, neighborhood, random_masks
from lpa_cwm.metrics.comparison import THRESHOLDS
from lpa_cwm.pair_tracking import reevaluate, track_pair
from lpa_cwm.probe import ObservedPair, first_pass, observe_pair
from lpa_cwm.training.pair_sampling import Correspondence
from lpa_cwm.types import Candidates, Judgement, Pair

RIGHT, WRONG = 4.0, 8.0
"""A candidate within the first number of pixels of the truth is right, one beyond the second is wrong."""
Name = Literal["reevaluation", "windows", "score", "gain", "total"]
METHODS = ("uniform", "apa", "lpa")


def worst_candidate(pair: Pair, candidates: Candidates) -> Judgement:
    """All weight on the candidate that is farthest from the others: an adjudicator that chooses badly on purpose."""
    far = torch.cdist(candidates.peak, candidates.peak).sum(-1)
    return Judgement.of(torch.nn.functional.one_hot(far.argmax(1), far.shape[1]).to(far))


@dataclass(frozen=True)
class Notes:
    """Print the figures of the notes on the same frame pairs and queries."""

    data: Annotated[Path, Positional]
    part: tuple[Name, ...] = ("reevaluation", "windows", "score", "gain", "total")
    videos: int = 8
    queries: int = 4
    """Queries of each video."""
    gaps: tuple[int, int] = (1, 12)
    """Fewest and most frames between source and target."""
    world: str = "learned"
    literal: str = "learned-total"
    """The same world model with the literal total effect."""
    points: int = 8
    """Queries on which the total effect is measured, which is slow."""
    threads: int = 1

    @torch.inference_mode()
    def run(self):
        torch.set_num_threads(self.threads)
        count = self.videos * self.queries
        source = open_pairs(self.data, self.queries, self.gaps)
        pairs = [pair for video in choose_queries(source, self.videos, count) for pair in video]
        queries = sum(len(pair.xy) for pair in pairs)
        print(f"{queries} queries, {len(pairs)} frame pairs of {self.data.stem}, world model {self.world}", flush=True)
        for part in self.part:
            getattr(self, part)(pairs)

    def observed(self, pairs, name: str, **settings) -> Iterator[tuple[ObservedPair, Correspondence]]:
        world = registry.load_world(name)
        config = replace(world.defaults, **settings)
        for pair in pairs:
            yield observe_pair(world, pair.source, pair.target, ("clip", *pair.identity), config, "cpu"), pair

    def candidates(self, pairs, **settings) -> Iterator[tuple[ObservedPair, Pair, Candidates, torch.Tensor]]:
        """Candidates of the first pass with the true endpoints, in pixels of the world model."""
        for observed, pair in self.observed(pairs, self.world, passes=0, **settings):
            for rows, seen, candidates in first_pass(observed, pair.xy):
                yield observed, seen, candidates, observed.crop.to_crop(pair.end)[rows]

    def reevaluation(self, pairs):
        """How often different adjudicators end at the same place, before and after the paper's re-evaluation."""
        judges = {name: registry.load_adjudicator(name) for name in ("uniform", "lpa")} | {"worst": worst_candidate}
        first, last, revealed = {name: [] for name in judges}, {name: [] for name in judges}, []
        visible = 0
        for observed, pair in self.observed(pairs, self.world, **PAPER.tracker | {"passes": 0}):
            for name, result in track_pair(observed, judges, pair.xy).items():
                for places, one in ((first, result), (last, reevaluate(observed, pair.xy, result, 1))):
                    places[name].append(rescale(one.xy, observed.source.hw, (256, 256)))
            ends = rescale(first["lpa"][-1], (256, 256), (observed.world.size, observed.world.size))
            for near in neighborhood(ends, observed.world.size, observed.world.patch):
                masks = random_masks(observed.config.masks, observed.patches, *observed.identity, "pass", 1)
                revealed += (hide(masks, near, "raster") != masks).sum(1).div(2).tolist()
                visible = int((~masks[0]).sum())
        print(f"re-evaluation changes {sum(revealed) / len(revealed):.2f} of {visible} visible patches of a mask")
        for other in ("lpa", "worst"):
            before, after = (torch.cat(places[other]) - torch.cat(places["uniform"]) for places in (first, last))
            same = [int((gap.norm(dim=-1) < 0.5).sum()) for gap in (before, after)]
            moved = before.norm(dim=-1) >= 0.5
            kept = int((after[moved].norm(dim=-1) < 0.5).sum())
            print(
                f"uniform and {other} at the same pixel: {same[0]} of {len(before)} before, {same[1]} after; of the "
                f"{int(moved.sum())} that differed before, {kept} are the same after"
            )

    def windows(self, pairs):
        """Share of endpoints that two Gaussian windows move, by sharpness."""
        judges = {name: registry.load_adjudicator(name) for name in ("uniform", "lpa")}
        moved = {}
        for observed, seen, candidates, _ in self.candidates(pairs, subpixel=False):
            for name, judge in judges.items():
                response = candidates.response.aggregate(judge(seen, candidates).weights)
                for sharpness in (50.0, 200.0, 1000.0, 5000.0):
                    config = replace(observed.config, sharpness=sharpness)
                    ends = [localize(response, replace(config, windows=windows)) for windows in (0, 2)]
                    moved.setdefault((name, sharpness), []).append((ends[0] - ends[1]).norm(dim=-1) > 0.5)
        for (name, sharpness), flags in moved.items():
            share = torch.cat(flags).double().mean()
            print(f"{name}: two windows move {share:.1%} of the endpoints at beta = {sharpness:g}")

    def score(self, pairs):
        """Eq. 3 at right and wrong candidates, with the score model and with random vectors in its place."""
        real = registry.load_adjudicator("apa")
        draw = torch.Generator().manual_seed(0)
        noise = APA(lambda frames: torch.randn(frames.shape, generator=draw))
        found = {"score": [], "random vectors": []}
        errors = []
        for _, seen, candidates, end in self.candidates(pairs):
            errors.append((candidates.peak - end[:, None]).norm(dim=-1))
            for name, apa in (("score", real), ("random vectors", noise)):
                # Weights of one query sum to one, so that queries count alike.
                found[name].append(apa(seen, candidates).weights)
        error = torch.cat(errors)
        mixed = (error < RIGHT).any(1) & (error > WRONG).any(1)
        print(f"{int(mixed.sum())} of {len(error)} sets have candidates within {RIGHT:g} px and beyond {WRONG:g} px")
        for name, parts in found.items():
            weights, near = torch.cat(parts)[mixed], error[mixed]
            right = (weights * (near < RIGHT)).sum(1) / (near < RIGHT).sum(1)
            wrong = (weights * (near > WRONG)).sum(1) / (near > WRONG).sum(1)
            ratio = (wrong.mean() / right.mean()).item()
            more = (wrong > right).double().mean().item()
            print(f"{name}: wrong candidates weigh {ratio:.2f} times right ones; more in {more:.0%} of the sets")

    def gain(self, pairs):
        """How much of the gain over uniform weights is visibility and how much is choice."""
        judges = {name: registry.load_adjudicator(name) for name in METHODS}
        near, shown = {name: [] for name in METHODS}, {name: [] for name in METHODS}
        for observed, pair in self.observed(pairs, self.world, passes=0):
            for name, result in track_pair(observed, judges, pair.xy).items():
                error = rescale(result.xy - pair.end, observed.source.hw, (256, 256)).norm(dim=-1)
                near[name].append((error[:, None] < torch.tensor(THRESHOLDS)).double().mean(1))
                shown[name].append((result.strength >= observed.config.visibility_threshold).double())
        for name in METHODS:
            accuracy, seen = torch.cat(near[name]), torch.cat(shown[name])
            own = f"{100 * (accuracy * seen).mean():.1f} with its own visibility, which shows {100 * seen.mean():.1f} %"
            print(f"{name}: accuracy {100 * accuracy.mean():.1f} if all points are shown, {own}")

    def total(self, pairs):
        """Endpoint errors with motion held fixed, and with the literal total effect (Eq. 1)."""
        left, few = self.points, []
        for pair in pairs:
            few.append(replace(pair, xy=pair.xy[:1], end=pair.end[:1]))
            left -= 1
            if left == 0:
                break
        for name in (self.world, self.literal):
            errors = []
            for observed, pair in self.observed(few, name, passes=0):
                xy = track_pair(observed, {"uniform": registry.load_adjudicator("uniform")}, pair.xy)["uniform"].xy
                errors.append(rescale(xy - pair.end, observed.source.hw, (256, 256)).norm(dim=-1))
            error = torch.cat(errors)
            print(f"{name}: mean error {error.mean():.2f} px, median {error.median():.2f} px on {len(error)} points")


if __name__ == "__main__":
    tyro.cli(Notes).run()
