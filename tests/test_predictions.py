"""The file contract: what is written is read, equal predictions are equal bytes, any other program can take part."""

import json
import zipfile

import numpy as np
import pytest

from lpa_cwm.errors import InputError
from lpa_cwm.io.predictions import (
    configuration_of,
    find_predictions,
    predicted_videos,
    prediction_path,
    read_prediction,
    write_prediction,
)
from lpa_cwm.metrics import Prediction


def read(folder, video, tracks, frames):
    return read_prediction(prediction_path(folder, video), tracks, frames)


def prediction(score=True):
    rng = np.random.default_rng(0)
    xy = rng.uniform(0, 256, (3, 5, 2)).astype(np.float32)
    xy[1, :2] = np.nan
    visible = rng.random((3, 5)) < 0.5
    return Prediction(xy, visible, rng.random((3, 5)).astype(np.float32) if score else None, seconds=1.5)


@pytest.mark.parametrize("score", [True, False])
def test_what_is_written_is_read(tmp_path, score):
    written = prediction(score)
    write_prediction(tmp_path, "a", written, "hash")
    found = read(tmp_path, "a", 3, 5)
    assert np.array_equal(found.xy, written.xy, equal_nan=True)
    assert np.array_equal(found.visible, written.visible)
    assert found.seconds == 1.5
    assert (found.score is None) == (written.score is None)
    assert configuration_of(tmp_path / "a.npz") == "hash"


def test_equal_predictions_are_equal_bytes(tmp_path):
    for folder in ("one", "two"):
        write_prediction(tmp_path / folder, "a", prediction(), "hash")
    assert (tmp_path / "one" / "a.npz").read_bytes() == (tmp_path / "two" / "a.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "one" / "a.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_names_become_file_names_and_back(tmp_path):
    names = ["badja/bear", "../../etc", "..", ".hidden", "ü ü", "a%2Fb", "a/b", "(x)+[y]", "A", "per cent %"]
    for name in names:
        write_prediction(tmp_path, name, prediction(), "hash")
    assert sorted(predicted_videos(tmp_path)) == sorted(names)
    assert all(path.parent == tmp_path for path in tmp_path.glob("**/*.npz"))


def test_files_of_other_programs_are_read(tmp_path):
    given = prediction()
    np.savez_compressed(tmp_path / "set%2Fa.npz", xy=given.xy.astype(np.float64), visible=given.visible, note="mine")
    found = read(tmp_path, "set/a", 3, 5)
    assert np.array_equal(found.xy, given.xy, equal_nan=True)
    assert found.score is None
    assert found.seconds is None
    assert configuration_of(tmp_path / "set%2Fa.npz") is None


GOOD = {"xy": np.zeros((3, 5, 2), np.float32), "visible": np.zeros((3, 5), bool)}
BAD = {
    "no visible": ({"xy": GOOD["xy"]}, "has no `visible`"),
    "tracks": (GOOD | {"xy": np.zeros((2, 5, 2), np.float32)}, r"`xy` of \[2, 5, 2\]; 3 tracks and 5 frames"),
    "frames": (GOOD | {"visible": np.zeros((3, 4), bool)}, r"`visible` of \[3, 4\]"),
    "score": (GOOD | {"score": np.zeros(3)}, r"`score` of \[3\]"),
    "integer points": (GOOD | {"xy": np.zeros((3, 5, 2), int)}, "`xy` of int64; expected floats"),
    "score for visible": (GOOD | {"visible": np.zeros((3, 5))}, "`visible` of float64; expected booleans"),
    "pickled": (GOOD | {"xy": np.array([[None]])}, "is not a prediction file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_named(tmp_path, name):
    arrays, sentence = BAD[name]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, "a", 3, 5)


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04broken"])
def test_bad_files_are_named(tmp_path, data):
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match="is not a prediction file"):
        read(tmp_path, "a", 3, 5)


def test_a_truncated_file_is_named(tmp_path):
    write_prediction(tmp_path, "a", prediction(), "hash")
    whole = (tmp_path / "a.npz").read_bytes()
    for end in range(0, len(whole) - 1, 97):
        (tmp_path / "a.npz").write_bytes(whole[:end])
        with pytest.raises(InputError, match="is not a prediction file"):
            read(tmp_path, "a", 3, 5)


def test_bad_times_are_named(tmp_path):
    write_prediction(tmp_path, "a", prediction(), "hash")
    (tmp_path / "seconds" / "a.json").write_text(json.dumps({"minutes": 3}))
    with pytest.raises(InputError, match="seconds that a video took"):
        read(tmp_path, "a", 3, 5)


def test_files_in_subfolders_are_found(tmp_path):
    for name in ("set/a", "deep/er/b", "c"):
        path = tmp_path / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **GOOD)
    found = find_predictions(tmp_path, ["set/a", "b", "c", "absent"])
    assert found == {"set/a": tmp_path / "set/a.npz", "b": tmp_path / "deep/er/b.npz", "c": tmp_path / "c.npz"}


def test_two_files_of_one_video_are_refused(tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("set/a.npz", "set%2Fa.npz"):
        np.savez(tmp_path / name, **GOOD)
    with pytest.raises(InputError, match="both for the video set/a"):
        predicted_videos(tmp_path)


def test_longer_predictions_are_trimmed(tmp_path):
    given = prediction()
    write_prediction(tmp_path, "a", given, "hash")
    found = read(tmp_path, "a", 3, 4)
    assert np.array_equal(found.xy, given.xy[:, :4], equal_nan=True)
    assert found.visible.shape == found.score.shape == (3, 4)
