"""What shaping the perturbation to the query could win: candidate errors of bumps of several sizes, and of a choice.

The response to a perturbation of appearance is linear in it: its shape is all that a generator could learn. The
*oracle* takes for every query the size with the least error, which no generator can beat; the *photometric* choice
takes the size whose endpoint looks most like the query, which is what a self-supervised generator would be taught.

python benchmarks/bump.py --photos FOLDER
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lpa_cwm.evaluation.world_stages import EvaluationPoints
from lpa_cwm.masks import random_masks
from lpa_cwm.sampling import crop, unit_range
from lpa_cwm.synth.layered import LayeredPairs
from lpa_cwm.types import Candidates
from lpa_cwm.worlds.layered.render import GaussianBump
from lpa_cwm.worlds.layered.world import LayeredMotionWorld


@dataclass(frozen=True)
class Shapes:
    """Compare sizes of the bump on held-out layered pairs."""

    photos: Path | None = None
    """Photographs to make pairs from; procedural ones without."""
    pairs: int = 12
    first: int = 200
    sigmas: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0)
    threads: int = 1

    @torch.inference_mode()
    def run(self):
        torch.set_num_threads(self.threads)
        errors, looks, motions = [], [], []
        for index in range(self.first, self.first + self.pairs):
            pair = self.measure(index)
            if pair is not None:
                for total, part in zip((errors, looks, motions), pair, strict=True):
                    total.append(part)
        error, look, motion = torch.cat(errors), torch.cat(looks), torch.cat(motions).mean()
        print(
            f"{len(error)} queries, 10 candidates each; end-point error / mean motion: mean of candidates, best of ten"
        )
        for column, sigma in enumerate(self.sigmas):
            self.show(f"sigma {sigma:g} px", error[..., column], motion)
        chosen = look.mean(1).argmin(-1)
        self.show("photometric choice", picked(error, chosen), motion)
        self.show("oracle choice", picked(error, error.mean(1).argmin(-1)), motion)

    def measure(self, index):
        """Errors and photometric differences [query, candidate, sigma] of one pair, and the queries' motion."""
        example = LayeredPairs.of(self.photos, "val").pair(index, 256)
        points = EvaluationPoints.of(example, 16, index)
        seen = points.visible
        xy, goal = points.xy[seen], points.end[seen]
        if not len(xy):
            return None
        source, target = unit_range(example.source), unit_range(example.target)
        world = LayeredMotionWorld.load()
        scene = world.observe(world.describe(source), world.describe(target))
        factual = world.imagine(scene, random_masks(10, 1024, "bump", index))
        errors, looks = [], []
        for sigma in self.sigmas:
            world.bump = GaussianBump(sigma)
            peak = Candidates.of(world.intervene(scene, factual, xy)).peak
            errors.append((peak - goal[:, None]).norm(dim=-1))
            around = crop(target.expand(peak.shape[0] * 10, -1, -1, -1), peak.flatten(0, 1), 16.0, 16)
            own = crop(source.expand(len(xy), -1, -1, -1), xy, 16.0, 16).repeat_interleave(10, 0)
            looks.append((around - own).square().mean((1, 2, 3)).unflatten(0, (-1, 10)))
        return torch.stack(errors, -1), torch.stack(looks, -1), (goal - xy).norm(dim=-1)

    def show(self, name, error, motion):
        print(f"{name:20s} {error.mean() / motion:.3f} {error.amin(1).mean() / motion:.3f}")


def picked(error, choice):
    """The errors of one size per query."""
    return error.gather(-1, choice[:, None, None].expand(-1, error.shape[1], 1))[..., 0]


if __name__ == "__main__":
    tyro.cli(Shapes).run()
