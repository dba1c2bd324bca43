"""A remembering world model answers as its own does, and asks it once."""

from dataclasses import dataclass, field

import torch

from lpa_cwm.adjudicate.uniform import uniform
from lpa_cwm.config import Method
from lpa_cwm.interfaces import WorldModel
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Queries
from lpa_cwm.world.remember import Remembering
from lpa_cwm.world.toy import ToyMotion, ToyWorld, toy_clip

CLIP = toy_clip(ToyMotion(shift=(0.03, 0.01)), 4, (48, 64))
NUMBERS = Method(masks=3, reevaluation="joint")


@dataclass
class Counted:
    """A toy that writes down what it is asked."""

    world: ToyWorld = field(default_factory=lambda: ToyWorld(size=64, error=4.0, wrong=0.5))
    asked: list[str] = field(default_factory=list)
    size: int = 64
    patch: int = 8

    def observe(self, source, target):
        self.asked.append("observe")
        return self.world.observe(source, target)

    def imagine(self, scene, hidden):
        self.asked.append("imagine")
        return self.world.imagine(scene, hidden)

    def intervene(self, scene, factual, xy):
        return self.world.intervene(scene, factual, xy)


def query(x, y):
    return Queries(torch.tensor([[x, y]]), torch.tensor([0]))


def test_answers_are_the_worlds_own():
    counted = Counted()
    remembering = Remembering(counted)
    assert isinstance(remembering, WorldModel)
    for world in (counted, remembering, remembering):
        tracks = CwmTracker(world, uniform, NUMBERS).track(CLIP, query(20.0, 30.0))
        direct = CwmTracker(counted.world, uniform, NUMBERS).track(CLIP, query(20.0, 30.0))
        assert torch.equal(tracks.xy.nan_to_num(), direct.xy.nan_to_num())


def test_the_same_question_is_asked_once_and_a_second_point_shares_the_first_look():
    counted = Counted()
    tracker = CwmTracker(Remembering(counted, kept=20), uniform, NUMBERS)
    tracker.track(CLIP, query(20.0, 30.0))
    assert counted.asked == ["observe", "imagine", "imagine"] * 3
    tracker.track(CLIP, query(20.0, 30.0))
    assert len(counted.asked) == 9
    tracker.track(CLIP, query(50.0, 10.0))
    # Scenes and first masks are known; only the masks around the new endpoints are not.
    assert counted.asked[9:] == ["imagine"] * 3


def test_it_forgets_what_it_used_longest_ago():
    counted = Counted()
    world = Remembering(counted, kept=2)
    frames = [torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(seed)) * 0.5 + 0.2 for seed in range(3)]
    for source in (0, 1, 0, 2, 0, 1):
        world.observe(frames[source], frames[source])
    assert len(counted.asked) == 4
