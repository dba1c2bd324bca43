"""The package as a Python user meets it: one function, tracks that show and save themselves, sentences for misuse."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lpa_cwm as lc
from lpa_cwm.errors import InputError, InterruptedTracking
from lpa_cwm.io.inputs import as_clip, as_queries
from lpa_cwm.io.visualization import player_html
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

QUICK = {"method": "uniform", "world": "toy", "masks": 1}


@pytest.fixture(scope="module")
def clip():
    return toy_clip(ToyMotion(shift=(0.02, 0.0)), 4, (48, 64))


@pytest.fixture
def tracks():
    xy = torch.tensor([[[float("nan")] * 2, [1.5, 2.25], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0], [9.0, 9.5]]])
    visible = torch.tensor([[False, True, False], [True, True, True]])
    strength = torch.tensor([[float("nan"), 1.0, 0.04], [0.5, 0.25, 0.125]])
    return lc.Tracks(xy, visible, strength=strength)


def test_only_public_names_are_shown():
    assert [name for name in dir(lc) if name.startswith("_")] == ["__version__"]
    assert {"track", "load", "read", "Tracks", "grid"} <= set(dir(lc))
    for name in dir(lc):
        assert getattr(lc, name) is not None


def test_one_function_takes_what_one_has(clip, tmp_path):
    frames = torch.stack([clip[index] for index in range(4)])
    array = frames.permute(0, 2, 3, 1).numpy()
    queries = lc.Queries(torch.tensor([[20.0, 10.0]]), torch.tensor([1]))
    expected = lc.load("uniform", "toy", masks=1).track(lc.Clip(frames, "array"), queries)
    for video in (array, frames, list(array), lc.Clip(frames, "array")):
        found = lc.track(video, [[20, 10]], frame=1, **QUICK)
        torch.testing.assert_close(found.xy, expected.xy, equal_nan=True)
    for points in (np.array([[20, 10]]), [(20.0, 10.0)], torch.tensor([[20, 10]]), (20, 10), ["20,10@1"], "20,10@1"):
        found = lc.track(frames, points, frame=1, **QUICK)
        torch.testing.assert_close(found.xy, expected.xy, equal_nan=True)
    assert not lc.track(frames, [[20, 10]], frame=3, backward=True, **QUICK).xy.isnan().any()
    lc.write(tmp_path / "clip.mkv", frames[:2], 12.0)
    assert len(lc.track(str(tmp_path / "clip.mkv"), method="static")) == 64


@pytest.mark.parametrize(
    ("video", "said"),
    [
        (np.zeros((4, 8, 8, 3)), "expected uint8"),
        (np.zeros((4, 8, 8), np.uint8), "expected [t h w 3]"),
        (np.zeros((4, 8, 8, 4), np.uint8), "expected [t h w 3]"),
        (np.zeros((4, 3, 8, 3), np.uint8), "first or last"),
        (np.zeros((0, 8, 8, 3), np.uint8), "expected [t h w 3]"),
        ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 9, 3), np.uint8)], "different sizes"),
        (["a.png", "b.png"], "cannot be read"),
        (7, "of type int"),
        ("absent.mp4", "There is no absent.mp4"),
        ("https://example.org/clip.mp4", "https://example.org/clip.mp4 is an address"),
    ],
)
def test_videos_that_could_be_misread_are_refused(video, said):
    with pytest.raises(InputError, match=re.escape(said)):
        as_clip(video)


@pytest.mark.parametrize(
    ("points", "frame", "said"),
    [
        ([[1, 2, 3]], 0, "three columns"),
        ([[[1, 2]]], 0, "expected rows"),
        ([], 0, "expected rows"),
        ([[float("nan"), 2]], 0, "finite"),
        ([[0.5, 0.25], [1.0, 0.0]], 0, "expected pixels"),
        ({"x": 1}, 0, "cannot be read"),
        ([[1, 2]], [1, 2], "one for each of the 1 points"),
        (None, [1, 2], "a grid lies in one frame"),
        (["a,b"], 0, "x,y@frame"),
    ],
)
def test_points_that_could_be_misread_are_refused(points, frame, said):
    with pytest.raises(InputError, match=said):
        as_queries(points, frame)


def test_clips_describe_themselves(clip):
    assert repr(clip) == f"Clip('toy', 4 frames, {clip.fps:g} per second)"


def test_trackers_say_what_they_take():
    with pytest.raises(InputError, match="does not take masks"):
        lc.load("static", masks=3)
    with pytest.raises(InputError, match="not a known method"):
        lc.load("nonsense")


def test_every_method_of_the_shell_is_loaded_by_name_or_says_what_is_missing():
    from lpa_cwm.baselines.registry import BASELINES

    for name, baseline in BASELINES.items():
        if baseline.missing() is None:
            assert lc.load(name) is not None
        else:
            with pytest.raises(InputError):
                lc.load(name)


def test_tracks_describe_themselves(tracks):
    assert repr(tracks) == "Tracks(2 tracks, 3 frames, visible 80%)"
    assert len(tracks) == 2
    assert repr(tracks[0]) == "Tracks(1 track, 3 frames, visible 50%)"
    assert torch.equal(tracks[1:].xy, tracks.xy[1:])
    assert torch.equal(tracks[torch.tensor([True, False])].visible, tracks.visible[:1])


@pytest.mark.parametrize("name", ["t.npz", "t.csv", "t.json"])
def test_saved_tracks_are_loaded_again(tracks, tmp_path, name):
    tracks.save(tmp_path / name)
    loaded = lc.Tracks.load(tmp_path / name)
    for field, value in tracks.known().items():
        torch.testing.assert_close(loaded.known()[field], value, equal_nan=True)


def test_tracks_are_saved_with_the_times_of_the_clip_and_in_other_formats(tracks, clip, tmp_path):
    tracks.save(tmp_path / "t.csv", clip=clip)
    row = (tmp_path / "t.csv").read_text().splitlines()[1].split(",")
    assert row[:5] == ["0", "1", f"{1 / clip.fps:.4f}", "1.500", "2.250"]
    tracks.save(tmp_path / "t.npz", format="tapvid")
    assert np.load(tmp_path / "t.npz")["query_points"].tolist() == [[1, 2.25, 1.5], [0, 6, 5]]
    tracks.save(tmp_path / "t.json", format="coco", clip=clip)
    assert json.loads((tmp_path / "t.json").read_text())["images"][0]["width"] == 64
    with pytest.raises(InputError, match="must end in"):
        tracks.save(tmp_path / "t.csv", format="coco")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,b\n1,2\n"),
        ("t.csv", "track,frame,x,y,visible\n-1,0,1,1,1\n"),
        ("t.csv", "track,frame,x,y,visible\n9999,9999999,1,1,1\n"),
        ("t.csv", "track,frame,x,y,visible\n0,0,1,1\n"),
        ("t.csv", "x," * 6000),
        ("t.json", "[]"),
        ("t.json", '{"tracks": [{"track": 0, "points": [{"frame": "0"}]}]}'),
        ("t.npz", "x"),
        ("t.txt", ""),
    ],
)
def test_files_without_tracks_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        lc.Tracks.load(tmp_path / name)


def test_the_player_holds_positions_and_pictures(tracks, clip):
    data = json.loads(re.search(r"const data = (.*), root", tracks._repr_html_())[1])
    assert data["tracks"][0]["points"] == [None, [1.5, 2.2, 1], [3.0, 4.0, 0]]
    assert data["pictures"] == []
    found = lc.track(clip, [[20, 10]], "static")
    assert found.play(clip)._repr_html_().count("data:image/jpeg") == 4
    assert player_html(found) != player_html(found), "two players of one page need two names"


def test_tracks_become_tables_and_key_points(tracks, monkeypatch):
    held = {}
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: rows))
    assert tracks.to_pandas()[0]["x"] == 1.5
    monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(KeyPoints=lambda **given: held.update(given)))
    tracks.to_supervision(0)
    assert held["xy"].shape == (1, 2, 2)
    assert held["confidence"].tolist() == [[0.0, 1.0]]

    def newest(xy, keypoint_confidence=None, visible=None):
        held.update(confidence=keypoint_confidence, visible=visible)

    monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(KeyPoints=newest))
    tracks.to_supervision(0)
    assert held["confidence"].tolist() == [[0.0, 1.0]]
    assert held["visible"].tolist() == [[False, True]]


def test_an_interrupt_carries_what_was_found(clip):
    class Interrupted(list):
        def __getitem__(self, index):
            if index == 3:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    video = lc.Clip(Interrupted(clip[index] for index in range(4)), "toy")
    with pytest.raises(InterruptedTracking) as stop:
        lc.track(video, [[20, 10]], **QUICK)
    assert stop.value.tracks.xy.isfinite().all(-1).tolist() == [[True, True, True, False]]


def test_torch_hub_loads_trackers_from_the_checkout():
    root = Path(__file__).parents[1]
    tracker = torch.hub.load(str(root), "tracker", source="local", method="uniform", world="toy")
    assert tracker.config.masks == lc.load("uniform", "toy").config.masks


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"masks": 0}, "masks is 0; expected a whole number from 1 on"),
        ({"batch": 1.5}, "expected a whole number"),
        ({"sharpness": 0.0}, "expected a number above 0"),
        ({"gaps": (0,)}, r"as in \(1, 4\)"),
        ({"mask": 3}, "There is no setting mask; did you mean masks?"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, sentence):
    with pytest.raises(lc.InputError, match=sentence):
        lc.load("uniform", "toy", **settings)


def test_a_tracker_shows_its_parts_in_a_line():
    assert repr(lc.load("uniform", "toy")) == "CwmTracker(ToyWorld, uniform, device='cpu')"
