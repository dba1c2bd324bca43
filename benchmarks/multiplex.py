"""What asking about several queries in one prediction, and sharing re-evaluation masks, costs in accuracy.

    python benchmarks/multiplex.py --world compact           # about three minutes of processor time
    python benchmarks/multiplex.py --world compact-total     # without re-evaluation, about five

The compact world model answers for pairs of layered scenes with known motion. Its own responses (`compact`) add up
exactly, so a joint one is the sum of single ones and only their attribution can go wrong; with `compact-total` every
perturbed source is seen anew, matches and motion included, so that companions disturb one another.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import tyro

from lpa_cwm.adjudicate.uniform import uniform
from lpa_cwm.config import Method
from lpa_cwm.data.layered import Layered
from lpa_cwm.hub import load_world
from lpa_cwm.keys import generator
from lpa_cwm.sampling import unit_range
from lpa_cwm.tracker import CwmTracker, Shot, ShotPair
from lpa_cwm.world.compact.world import CompactWorld
from lpa_cwm.world.multiplex import Multiplexed

NEAR = 4.0
SETTINGS = {
    "compact": (
        ("pool", 1, True),
        ("joint", 1, True),
        ("joint", 4, True),
        ("joint", 4, False),
        ("joint", 8, True),
        ("pool", 4, True),
    ),
    "compact-total": (("none", 1, True), ("none", 2, True), ("none", 4, True), ("none", 4, False)),
}


@dataclass
class Joint:
    """The compact world model, asked about several points at once."""

    world: CompactWorld
    size: int = 256
    patch: int = 8

    def observe(self, source, target):
        return self.world.observe(source, target)

    def imagine(self, scene, hidden):
        return self.world.imagine(scene, hidden)

    def intervene(self, scene, factual, xy):
        return self.world.intervene(scene, factual, xy)

    def intervene_jointly(self, scene, factual, xy):
        if self.world.intervention == "content":
            return self.added(scene, factual, xy)
        before = self.world.predict(scene, factual)
        joint = torch.zeros(*xy.shape[:2], *before.shape[1:])
        for group, mask in (~xy.isnan().all((-2, -1))).nonzero().tolist():
            points = xy[group, mask]
            bumps = self.world.bump.image(points[~points.isnan().any(-1)], (self.size, self.size)).sum(0)
            other = self.observe(scene.view.source[0] + bumps, scene.target[0])
            again = self.imagine(other, factual.hidden[mask : mask + 1])
            joint[group, mask] = self.world.predict(other, again)[0] - before[mask]
        return joint

    def added(self, scene, factual, xy):
        """The sums of single responses."""
        present = ~xy.isnan().any(-1)
        points, index = xy[present].unique(dim=0, return_inverse=True)
        group, mask, _ = present.nonzero().unbind(1)
        single = self.intervene(scene, factual, points)[index, mask]
        joint = single.new_zeros(*xy.shape[:2], *single.shape[1:])
        return joint.index_put_((group, mask), single, accumulate=True)


def questions(example, count, index):
    """Random source points, half of them hidden in the target if there are any; where they go and whether seen."""
    places = []
    for kind in (example.visible, ~example.visible & example.flow.isfinite().all(0)):
        rows = kind.nonzero()
        order = torch.randperm(len(rows), generator=generator("multiplex", "points", index))
        places.append(rows[order[: count // 2]])
    row, column = torch.cat(places).unbind(1)
    xy = torch.stack((column, row), dim=1) + 0.5
    return xy, xy + example.flow[:, row, column].T, example.visible[row, column]


def measure(world, method, pairs, count, queries):
    """End-point errors of visible points, and strengths of visible and of hidden ones."""
    errors, shown, gone = [], [], []
    tracker = CwmTracker(world, uniform, method)
    for index in range(count):
        example = pairs.pair(index, world.size)
        xy, goal, visible = questions(example, queries, index)
        shots = [Shot(frame, unit_range(frame)) for frame in (example.source, example.target)]
        answer = tracker.follow(ShotPair(*shots, ("multiplex", index)), xy)
        errors.append((answer.xy - goal).norm(dim=1)[visible])
        shown.append(answer.strength[visible])
        gone.append(answer.strength[~visible])
    return torch.cat(errors), torch.cat(shown), torch.cat(gone)


def method_of(mode, queries):
    if mode == "none":
        return Method(masks=5, passes=0, batch=queries)
    return Method(reevaluation=mode, batch=queries)


@torch.no_grad()
def main(world: Literal["compact", "compact-total"] = "compact", pairs: int = 4, queries: int = 32) -> None:
    """Measure every setting on the same pairs, points and masks."""
    asked = Joint(load_world(world))
    source = Layered.of(None, "val")
    print("| re-evaluation | per pass | attributed | median error | within 4 px | visible kept | hidden kept out |")
    print("|---|---|---|---|---|---|---|")
    for mode, per_pass, attribute in SETTINGS[world]:
        several = asked if per_pass == 1 else Multiplexed(asked, per_pass, attribute=attribute)
        errors, shown, gone = measure(several, method_of(mode, queries), source, pairs, queries)
        near, seen, silent = ((errors < NEAR), shown >= Method.visible_from, gone < Method.visible_from)
        rates = " | ".join(f"{kind.float().mean():.3f}" for kind in (near, seen, silent))
        print(f"| {mode} | {per_pass} | {attribute} | {errors.median():.2f} | {rates} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
