"""The sweep measures the tracker it is given, on the same queries in every setting."""

import torch

from lpa_cwm.adjudicate.uniform import uniform
from lpa_cwm.experiments.sweep import MASKS, PASSES, sweep
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.groups import Correspondence
from lpa_cwm.world.toy import ToyMotion, ToyWorld, toy_clip


class OnePair:
    videos = ("toy",)

    def of(self, video):
        clip = toy_clip(ToyMotion(shift=(2 / 64, 0.0)), 2, (64, 64))
        xy = torch.tensor([[20.5, 20.5], [30.5, 40.5]])
        yield Correspondence(clip[0], clip[1], xy, xy + torch.tensor([2.0, 0.0]), ("toy", 0, 1))


def test_every_setting_is_measured_on_every_query():
    cells = list(sweep(CwmTracker(ToyWorld(size=64, sigma=2.0), uniform), OnePair()))
    assert [(cell.masks, cell.passes) for cell in cells] == [(m, r) for m in MASKS for r in PASSES]
    assert {cell.queries for cell in cells} == {2}
    assert all(cell.error < 0.5 for cell in cells if cell.passes)
    assert all(cell.seconds > 0 for cell in cells)
