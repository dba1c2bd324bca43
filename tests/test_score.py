"""Scores are those of the metrics on the files, whoever wrote them; what is incomplete or foreign is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm import metrics
from lpa_cwm.cli.main import main
from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.score import open_run, score, score_run, write_scores
from lpa_cwm.metrics import Prediction, Truth, load_scores, measure
from tapvid_files import entries, save
from test_predict import Drifting, on_raster, write_run

REAL = Path(__file__).parents[2] / "shared" / "data" / "real_dev.pkl"


@pytest.fixture
def pickled(tmp_path):
    return save(tmp_path / "data.pkl", entries(5, n=4, t=12))


@pytest.fixture
def folder(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "run")
    return tmp_path / "run"


def truth_of(sample):
    return Truth(on_raster(sample.truth.xy, sample.clip), sample.truth.visible.numpy(), sample.queries.frame.numpy())


def test_scores_are_the_metrics_of_the_files(folder, pickled):
    own, *trivial = score_run(open_run(folder))
    dataset = load_dataset(pickled)
    assert list(own.videos) == dataset.names
    assert [one.method for one in trivial] == list(metrics.TRIVIAL)
    for index, name in enumerate(dataset.names):
        sample = dataset[index]
        tracks = Drifting().track(sample.clip, sample.queries)
        plain = measure(Prediction(on_raster(tracks.xy, sample.clip), tracks.visible.numpy()), truth_of(sample))
        for measured, value in plain.values.items():
            assert own.videos[name][measured] == pytest.approx(value, nan_ok=True)
        assert own.videos[name]["latency"] > 0
        assert len(own.videos[name].sweep["coverage"]) == len(own.thresholds) > 1


def test_scores_survive_writing(folder):
    scores = score_run(open_run(folder))
    found = load_scores(write_scores(folder, scores))
    assert [one.method for one in found] == ["drifting", "static point", "ground truth"]
    assert found[0].manifest == open_run(folder).manifest.hash
    assert np.array_equal(found[0].column("delta_avg"), scores[0].column("delta_avg"))


def test_an_incomplete_run_is_refused_or_fails_where_it_is_empty(folder):
    whole = score_run(open_run(folder))[0]
    (folder / "set%2Fb1.npz").unlink()
    with pytest.raises(InputError, match=r"lacks 1 of 5 videos, such as set/b1; .* --partial"):
        score_run(open_run(folder))
    part = score_run(open_run(folder), partial=True)[0]
    assert part.notes["missing"] == ["set/b1"]
    assert len(part.videos) == 5
    assert part.videos["set/b1"]["coverage"] == part.videos["set/b1"]["delta_avg"] == 0
    for name in whole.videos.keys() - {"set/b1"}:
        assert part.videos[name]["delta_avg"] == whole.videos[name]["delta_avg"]


def test_other_data_are_refused(tmp_path, folder, pickled):
    other = entries(5, n=4, t=12)
    other["set/a0"]["points"][0, 1] = 0.5
    with pytest.raises(InputError, match="other truth in the video set/a0"):
        open_run(folder, save(tmp_path / "other.pkl", other))
    moved = tmp_path / "moved.pkl"
    pickled.rename(moved)
    with pytest.raises(InputError, match="There is no"):
        open_run(folder)
    assert len(score_run(open_run(folder, moved))[0].videos) == 5


def test_mixed_configurations_are_refused(tmp_path, folder, pickled):
    write_run(pickled, Drifting(0.02), tmp_path / "other")
    (tmp_path / "other" / "set%2Fc2.npz").replace(folder / "set%2Fc2.npz")
    with pytest.raises(InputError, match="one run"):
        open_run(folder)


def test_predictions_of_another_program_are_scored(tmp_path, folder, pickled):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in folder.glob("*.npz"):
        with np.load(path) as arrays:
            np.savez(foreign / path.name, xy=arrays["xy"], visible=arrays["visible"])
    with pytest.raises(InputError, match="give --dataset"):
        open_run(foreign)
    own = score_run(open_run(foreign, pickled))[0]
    assert own.method == "foreign"
    assert np.array_equal(own.column("aj"), score_run(open_run(folder))[0].column("aj"))
    part = open_run(foreign, pickled, Selection(videos=("*c2", "*d3")))
    assert len(score_run(part)[0].videos) == 2
    with pytest.raises(InputError, match="3 tracks and 12 frames"):
        score_run(open_run(foreign, pickled, Selection(max_tracks=3)))
    with pytest.raises(InputError, match="no predictions"):
        open_run(tmp_path / "nowhere", pickled)


def test_the_tracker_of_the_documentation_takes_part(tmp_path, pickled, monkeypatch):
    monkeypatch.chdir(pickled.parent)
    page = (Path(__file__).parents[1] / "docs" / "predictions.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    exec(compile(code, "predictions.md", "exec"), {})
    own, still, _ = score_run(open_run(tmp_path / "runs" / "still", pickled))
    for name in ("aj", "delta_avg", "coverage", "dca_avg"):
        assert np.allclose(own.column(name), still.column(name), equal_nan=True)


def test_strided_runs_are_scored_as_such(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "run", queries="strided")
    own = score_run(open_run(tmp_path / "run"))[0]
    assert own.protocol.mode == "strided"
    assert score_run(open_run(tmp_path / "run"))[2].column("aj").tolist() == [1.0] * 5


def test_the_command_writes_and_prints(folder, capsys):
    main(["eval", "score", str(folder)])
    assert "static point" in capsys.readouterr().out
    main(["eval", "score", str(folder), "--json", "--motion", "1e6"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["methods"]["ground truth"]["aj"]["value"] == 1
    assert printed["methods"]["drifting"]["coverage"]["undefined"] == 5
    assert printed["methods"]["drifting"]["coverage"]["value"] is None
    assert printed["written"] == str(folder / "scores.json")
    assert replace(load_scores(folder / "scores.json")[0].protocol, mode="first").motion == 1e6


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is absent")
def test_a_point_that_never_moves_scores_as_published(tmp_path, capsys):
    published = {"badja": 11.6, "tum": 12.9, "middlebury": 76.2}
    for subset, percent in published.items():
        out = str(tmp_path / subset)
        main(["eval", "predict", str(REAL), "--tracker", "static", "--out", out, "--videos", f"{subset}/*"])
        capsys.readouterr()
        main(["eval", "score", out, "--json"])
        found = json.loads(capsys.readouterr().out)["methods"]["static"]["delta_avg"]["value"]
        assert 100 * found == pytest.approx(percent, abs=0.05)


def test_score_is_a_function_that_prints_nothing(folder, capsys):
    own, *trivial = score(folder, label="mine")
    assert own.method == "mine"
    assert [one.method for one in load_scores(folder / "scores.json")] == ["mine", *(one.method for one in trivial)]
    assert capsys.readouterr() == ("", "")


def foreign_run(parent, pickled, change):
    """The true tracks as another program might write them, in subfolders named by the sets."""
    dataset = load_dataset(pickled)
    for index, name in enumerate(dataset.names):
        sample = dataset[index]
        path = parent / "foreign" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, xy=change(on_raster(sample.truth.xy, sample.clip)), visible=sample.truth.visible.numpy())
    return parent / "foreign"


CHANGES = {
    "as they should be": (lambda xy: xy, None),
    "normalized": (lambda xy: xy / 256, "are from 0 to 1 instead of pixels"),
    "of grid_sample": (lambda xy: xy / 128 - 1, "are from -1 to 1 instead of pixels"),
    "native pixels": (lambda xy: xy / 256 * np.float32((854, 480)), "a raster of about 854 x 480"),
    "exchanged": (lambda xy: xy[..., ::-1], "have x and y exchanged"),
    "rows first, normalized": (lambda xy: xy[..., ::-1] / 256, "have x and y exchanged and are from 0 to 1"),
    "pixel centers at 0": (lambda xy: xy - np.float32(0.5), r"are off by \(-0.5, -0.5\)"),
    "shuffled": (lambda xy: np.roll(xy, 1, axis=0), "are in another order of tracks"),
    "nonsense": (lambda xy: 256 - xy**2 / 256, "check units, x and y, and the order of tracks"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_wrong_conventions_are_recognized_at_the_query_frame(tmp_path, pickled, name):
    change, sentence = CHANGES[name]
    notices = score(foreign_run(tmp_path, pickled, change), pickled)[0].notes["notices"]
    assert len(notices) == (sentence is not None)
    if sentence:
        assert re.search(sentence, notices[0])


def test_inverted_visibility_is_recognized_at_the_query_frame(tmp_path, pickled):
    folder = foreign_run(tmp_path, pickled, lambda xy: xy)
    for path in folder.rglob("*.npz"):
        held = np.load(path)
        np.savez(path, xy=held["xy"], visible=~held["visible"])
    (notice,) = score(folder, pickled)[0].notes["notices"]
    assert notice.startswith("100% of the tracks are hidden at their query frame")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("tracks", "visible"), "has no `xy`; expected `xy` and `visible`; rename `tracks`."),
        (("xy", "occluded"), "write visible = ~occluded."),
        (("xy", "seen"), "see docs/predictions.md."),
    ],
)
def test_arrays_of_other_names_are_recognized(tmp_path, pickled, names, said):
    folder = foreign_run(tmp_path, pickled, lambda xy: xy)
    path = next(folder.rglob("*.npz"))
    np.savez(path, **dict(zip(names, np.load(path).values(), strict=True)))
    with pytest.raises(InputError, match=re.escape(said)):
        score(folder, pickled)


def test_longer_predictions_are_trimmed_with_a_notice(tmp_path, pickled, capsys):
    folder = foreign_run(tmp_path, pickled, lambda xy: xy)
    main(["eval", "score", str(folder), "--dataset", str(pickled), "--frames", "8"])
    assert "have 12 frames, as in 4 other videos; the first 8 were scored" in capsys.readouterr().out
    assert load_scores(folder / "scores.json")[0].column("oa").tolist() == [1.0] * 5
