"""A recording for the rerun viewer holds the clip and its tracks; without the extra one is told so at once."""

import subprocess
import sys

import pytest
import torch

from lpa_cwm.cli.main import main
from lpa_cwm.io import visualization
from lpa_cwm.types import Queries, Tracks
from lpa_cwm.worlds.toy import ToyMotion, toy_clip, toy_truth


def test_frames_points_tails_and_confidences_are_on_one_time_line(tmp_path):
    pytest.importorskip("rerun", reason="the extra `rerun` is not installed")
    motion = ToyMotion(shift=(0.02, 0.0))
    queries = Queries(torch.tensor([[20.0, 20.0], [30.0, 30.0]]), torch.tensor([0, 1]))
    truth = toy_truth(motion, queries, 3, (64, 64))
    tracks = Tracks(truth.xy, truth.visible, strength=torch.rand(2, 3))
    visualization.save_rerun(tmp_path / "run.rrd", toy_clip(motion, 3, (64, 64)), tracks)
    command = [sys.executable, "-m", "rerun", "rrd", "print", "-vv", str(tmp_path / "run.rrd")]
    shown = subprocess.run(command, capture_output=True, text=True).stdout
    for entity in ("/clip", "/clip/points", "/clip/tails", "/confidence/strength"):
        assert entity in shown
    assert [path.name for path in tmp_path.iterdir()] == ["run.rrd"]


def test_its_absence_is_said_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(SystemExit) as stop:
        main(["track", "--world", "toy", "--save", str(tmp_path / "run.rrd")])
    assert stop.value.code == 2
    assert 'pip install "lpa-cwm[rerun]"' in capsys.readouterr().err
