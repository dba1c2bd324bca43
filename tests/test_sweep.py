"""The sweep measures the tracker it is given, on the same queries in every setting."""

import pytest
import torch

from lpa_cwm.adjudicators.uniform import uniform
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.sweep import MASKS, PASSES, measured, sweep
from lpa_cwm.report.write import write_report
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.pair_sampling import Correspondence
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip


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


def test_a_stopped_sweep_goes_on_and_is_reported(tmp_path):
    folder = tmp_path / "how many"
    tracker = CwmTracker(ToyWorld(size=64, sigma=2.0), uniform)
    begun = sweep(tracker, OnePair(), folder)
    first = [next(begun), next(begun)]
    begun.close()
    cells = list(sweep(tracker, OnePair(), folder))
    # Times differ from run to run, so what was measured before is recognized by them.
    assert cells[:2] == first
    assert measured(folder) == cells
    page = write_report([folder], tmp_path / "report").read_text()
    assert "R = 2" in page
    table = (tmp_path / "report/tables/how many_sweep.md").read_text()
    assert f"{cells[-1].seconds:.3f}" in table


def test_what_does_not_move_is_refused():
    class Still(OnePair):
        def of(self, video):
            return iter(())

    with pytest.raises(InputError, match="Nothing moves"):
        next(sweep(CwmTracker(ToyWorld(size=64, sigma=2.0), uniform), Still()))
