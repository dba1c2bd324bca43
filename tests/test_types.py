"""Tracks as files and pictures; grids."""

import csv

import numpy as np
import pytest
import torch

from lpa_cwm.errors import InputError
from lpa_cwm.types import Clip, Grid, Tracks


@pytest.fixture
def tracks():
    xy = torch.tensor([[[float("nan")] * 2, [1.5, 2.25], [3.0, 4.0]]])
    visible = torch.tensor([[False, True, False]])
    return Tracks(xy, visible, strength=torch.tensor([[float("nan"), 1.0, 0.04]]))


def test_csv_has_a_row_per_point_and_frame_from_the_query_on(tracks, tmp_path):
    tracks.save(tmp_path / "tracks.csv")
    rows = list(csv.DictReader((tmp_path / "tracks.csv").read_text().splitlines()))
    assert [(row["frame"], row["x"], row["y"], row["visible"], row["strength"]) for row in rows] == [
        ("1", "1.500", "2.250", "1", "1"),
        ("2", "3.000", "4.000", "0", "0.04"),
    ]


def test_npz_round_trip(tracks, tmp_path):
    tracks.save(tmp_path / "tracks.npz")
    with np.load(tmp_path / "tracks.npz") as stored:
        assert set(stored) == {"xy", "visible", "strength"}
        np.testing.assert_array_equal(stored["xy"], tracks.xy.numpy())


def test_other_formats_are_refused_and_nothing_is_written(tracks, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.csv, \.json"):
        tracks.save(tmp_path / "tracks.txt")
    assert not list(tmp_path.iterdir())


def test_overlay_marks_visible_points_only_where_they_are():
    clip = Clip(torch.full((2, 3, 480, 500), 128, dtype=torch.uint8), "gray")
    xy = torch.tensor([[[100.5, 50.5], [200.5, 300.5]]])
    frames = list(Tracks(xy, torch.ones(1, 2, dtype=torch.bool)).overlay(clip))
    assert [frame.shape for frame in frames] == [(3, 480, 500)] * 2
    changed = (frames[0] != 128).any(0).nonzero().float()
    assert (changed.mean(0) - torch.tensor([50.0, 100.0])).norm() < 1.5
    assert (frames[1][:, 300, 200] != 128).any()


def test_a_grid_is_centered_in_equal_cells():
    queries = Grid(2, frame=3).on((100, 200))
    assert queries.xy.tolist() == [[50, 25], [150, 25], [50, 75], [150, 75]]
    assert queries.frame.tolist() == [3] * 4
