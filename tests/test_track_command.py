"""`lpa-cwm track` as a user meets it: results, and sentences for what cannot be."""

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from lpa_cwm.cli.main import main
from lpa_cwm.io.video import read, write
from lpa_cwm.types import Tracks
from lpa_cwm.worlds.toy import ToyMotion, toy_clip


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.mkv"
    frames = toy_clip(ToyMotion(shift=(0.02, 0.0)), 3, (64, 64)).frames
    write(path, frames, 12.0)
    return path


def run(*arguments):
    words = [str(argument) for argument in arguments]
    # The toy world answers at once; what is tested is the command.
    return main([*words, "--world", "toy"] if "--world" not in words else words)


def test_points_in_tracks_and_overlay_out(clip, tmp_path, capsys):
    run("track", clip, "--points", "20,20@0", "30,30@1", "--masks", 2, "--save", tmp_path / "t.csv",
        "--out", tmp_path / "o.mp4", "--json")  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    assert said["tracks"] == 2
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert len(rows) == 3 + 2
    assert len(read(tmp_path / "o.mp4")) == 3


def test_the_plan_is_printed_and_nothing_is_done(clip, tmp_path, capsys):
    run("track", clip, "--grid", 2, "--dry-run", "--json", "--save", tmp_path / "t.csv")
    cost = json.loads(capsys.readouterr().out)
    assert cost["targets"] == 8
    assert cost["seconds"] > 0
    assert cost["peak_bytes"] > 2**20
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "64,3@0"], "not inside"),
        (["--points", "nan,3@0"], "x,y@frame"),
        (["--points", "4,3@3"], "frames 0 to 2"),
        (["--points", "4;3"], "x,y@frame"),
        (["--points", "4,3@0", "--grid", "2"], "one of them"),
        (["--grid", "0"], "from 1 to"),
        (["--grid", "2", "--spacing", "9"], "one of them"),
        (["--start", "2"], "clip has 3 frames; of these --start 2, --end 3 and --stride 1 leave 1; tracking needs"),
        (["--points", "0.5,0.25", "0.1,1"], "expected pixels: multiply x by the width"),
        (["--start", "1", "--points", "4,3@0"], "not among the frames used"),
        (["--stride", "2", "--grid", "1", "--frame", "1"], "not among the frames used"),
        (["--points", "4,3@0", "--frame", "1"], "is for grids"),
        (["--points", "absent.csv"], "There is no absent.csv"),
        (["--points", "٤,3@0"], "x,y@frame"),
        (["--format", "coco"], "must end in .json"),
        (["--save", "t.h5"], "HDF5 needs pandas and tables"),
        (["--tracker", "static", "--world", "toy"], "does not take --world"),
        (["--tracker", "nonsense"], "not a known"),
        (["--world", "nonsense"], "not a known world model"),
        (["--adjudicator", "lpa", "--weights", "absent.safetensors"], "no LPA weights"),
        (["--save", "tracks.txt"], "must end in"),
        (["--out", "overlay.txt"], "must end in"),
        (["--object", "absent.png"], "neither a box"),
        (["--object", "absent.npy"], "neither a box"),
        (["--object", "1,2,99,9"], "not inside the frame of 64x64"),
        (["--object", "9,9,9,9"], "x0 < x1"),
        (["--object", "clip.mkv"], "neither a box"),
        (["--object", "1,2,9,9", "--points", "4,3"], "one of them"),
        (["--points", "4,3@0#x"], "x,y@frame"),
        (["--batch", "0"], "from 1 to"),
        (["--device", "mps"], "no device mps"),
        (["--save", "clip.mkv", "--out", "clip.mkv"], "must end in .csv"),
        (["--out", "clip.mkv"], "is a clip that is tracked"),
        (["--tail", "-1"], "from 0 to"),
        (["--scale", "9"], "from 1 to 8"),
        (["--masks", "1", "--tracker", "static", "--world", "toy"], "does not take --world, --masks"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(clip, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run("track", clip, "--save", tmp_path / "t.csv", *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mkv"}


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


QUICK = ("--adjudicator", "uniform", "--masks", 1)


def test_a_part_of_the_frames_keeps_the_clips_numbers_and_times(clip, tmp_path):
    run("track", clip, *QUICK, "--points", "20,20@0", "--stride", 2, "--save", tmp_path / "t.csv")
    rows = rows_of(tmp_path / "t.csv")
    assert [row["frame"] for row in rows] == ["0", "2"]
    assert [float(row["time"]) for row in rows] == pytest.approx([0, 2 / 12], abs=1e-3)
    run("track", clip, *QUICK, "--grid", 1, "--start", 1, "--end", 3, "--save", tmp_path / "u.csv")
    assert [row["frame"] for row in rows_of(tmp_path / "u.csv")] == ["1", "2"]


def test_points_come_from_files(clip, tmp_path):
    (tmp_path / "p.csv").write_text("x,y,frame\n20,20,0\n21,22,1\n")
    (tmp_path / "p.json").write_text(json.dumps({"points": [{"x": 30, "y": 30, "frame": 1}, [5, 6]]}))
    run("track", clip, *QUICK, "--points", tmp_path / "p.csv", tmp_path / "p.json", "9,9", "--save", tmp_path / "t.csv")
    firsts = {row["track"]: (float(row["x"]), float(row["y"])) for row in reversed(rows_of(tmp_path / "t.csv"))}
    assert firsts == {"0": (20, 20), "1": (21, 22), "2": (30, 30), "3": (5, 6), "4": (9, 9)}


def test_tracks_keep_the_numbers_that_the_user_gave(clip, tmp_path, capsys, monkeypatch):
    (tmp_path / "p.csv").write_text("x,y,frame,track\n20,20,0,7\n21,22,2,7\n30,30,1,0\n9,9,,\n")
    words = (*QUICK, "--points", tmp_path / "p.csv", "5,5#9")

    def saved(name, *options):
        run("track", clip, *words, "--save", tmp_path / name, *options)
        return tmp_path / name

    lengths = {"7": 3, "0": 2, "1": 3, "9": 3}
    assert Counter(row["track"] for row in rows_of(saved("t.csv"))) == lengths
    assert [str(one["track"]) for one in json.loads(saved("t.json").read_text())["tracks"]] == list(lengths)
    assert len(Tracks.load(tmp_path / "t.csv")) == len(Tracks.load(tmp_path / "t.json")) == 4
    assert np.load(saved("t.npz"))["track"].tolist() == [7, 0, 1, 9]
    assert [one.get("id") for one in ElementTree.parse(saved("t.xml")).getroot().findall("track")] == list(lengths)
    coco = json.loads(saved("c.json", "--format", "coco").read_text())
    assert coco["categories"][0]["keypoints"] == ["point7", "point0", "point1", "point9"]
    assert "point9" in saved("d.csv", "--format", "deeplabcut").read_text().splitlines()[1]
    capsys.readouterr()
    with clip.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        run("track", "-", *QUICK, "--points", "5,5#9")
    assert {row["track"] for row in csv.DictReader(capsys.readouterr().out.splitlines())} == {"9"}


def test_a_point_without_a_frame_is_in_the_first_one_used(clip, tmp_path):
    (tmp_path / "p.csv").write_text("x,y\n20,20\n")
    run("track", clip, *QUICK, "--points", "9,9", tmp_path / "p.csv", "--start", 1, "--save", tmp_path / "t.csv")
    assert [row["frame"] for row in rows_of(tmp_path / "t.csv")] == ["1", "2"] * 2


def test_json_has_no_number_that_json_lacks(tmp_path):
    def refuse(name):
        raise ValueError(name)

    strength = torch.tensor([[0.5, -torch.inf, torch.nan]])
    Tracks(torch.ones(1, 3, 2), torch.ones(1, 3, dtype=torch.bool), strength).save(tmp_path / "t.json")
    held = json.loads((tmp_path / "t.json").read_text(), parse_constant=refuse)
    assert [point["strength"] for point in held["tracks"][0]["points"]] == [0.5, None, None]


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '[{"x": 1}]', "[[1e99, 2]]", "[[NaN, 2]]", "[" * 10**5])
def test_tables_that_hold_no_points_are_refused(clip, tmp_path, capsys, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(SystemExit) as stop:
        run("track", clip, "--points", tmp_path / "p.json", "--save", tmp_path / "t.csv")
    assert stop.value.code == 2
    assert "is not a table of points" in capsys.readouterr().err


def test_a_grid_by_spacing_in_any_frame(clip, tmp_path):
    run("track", clip, *QUICK, "--spacing", 30, "--frame", 1, "--save", tmp_path / "t.csv")
    rows = rows_of(tmp_path / "t.csv")
    assert {row["frame"] for row in rows} == {"1", "2"}
    starts = [(float(row["x"]), float(row["y"])) for row in rows if row["frame"] == "1"]
    assert starts == [(17, 17), (47, 17), (17, 47), (47, 47)]


def test_without_outputs_files_beside_the_clip_are_chosen_and_said(clip, tmp_path, capsys):
    run("track", clip, *QUICK, "--grid", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mkv", "clip.tracks.csv", "clip.tracks.mp4"}
    said = capsys.readouterr()
    assert str(tmp_path / "clip.tracks.mp4") in said.out
    assert "neither --out nor --save" in said.err


def test_files_that_were_chosen_never_replace_earlier_ones(clip, tmp_path):
    for _ in range(2):
        run("track", clip, *QUICK, "--grid", 1)
    again = {"clip.tracks.2.csv", "clip.tracks.2.mp4"}
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mkv", "clip.tracks.csv", "clip.tracks.mp4", *again}
    run("track", tmp_path, *QUICK, "--grid", 1, "--save", tmp_path / "{clip}.json")
    assert [path.name for path in tmp_path.glob("*.json")] == ["clip.json"], "results are no clips"


def test_a_folder_is_a_clip_of_pictures_or_holds_clips(clip, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture = Image.fromarray(read(clip)[0].permute(1, 2, 0).numpy())
    picture.save("0.png")
    run("track", ".", *QUICK, "--grid", 1, "--save", "{clip}.csv")
    assert Path("clip.csv").exists(), "one picture beside videos is no clip"
    picture.save("1.png")
    with pytest.raises(SystemExit) as stop:
        run("track", ".", *QUICK, "--grid", 1)
    assert stop.value.code == 2
    assert "holds 2 pictures and also videos" in capsys.readouterr().err
    clip.unlink()
    run("track", ".", *QUICK, "--grid", 1, "--save", "{clip}.csv")
    assert Path(f"{tmp_path.name}.csv").exists(), "the folder's own name"


def test_the_bundled_clips_files_go_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("track", *QUICK, "--grid", 1, "--end", 3)
    assert {path.name for path in tmp_path.iterdir()} == {"toy.tracks.csv", "toy.tracks.mp4"}


def test_several_clips_and_folders_in_one_call(clip, tmp_path, capsys):
    folder = tmp_path / "more"
    folder.mkdir()
    for name in ("a.mp4", "b.mp4"):
        write(folder / name, list(read(clip).frames), 12.0)
    run("track", clip, folder, *QUICK, "--grid", 1, "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(line["written"][0]).name for line in lines] == ["clip.tracks.csv", "a.tracks.csv", "b.tracks.csv"]
    with pytest.raises(SystemExit):
        run("track", clip, folder, "--save", tmp_path / "t.csv")
    assert "cannot be written to one file" in capsys.readouterr().err


def test_several_clips_are_named_by_a_pattern(clip, tmp_path, capsys):
    other = tmp_path / "other.mp4"
    write(other, list(read(clip).frames), 12.0)
    run("track", clip, other, *QUICK, "--grid", 1, "--save", tmp_path / "{clip}_tracks.json")
    assert {path.name for path in tmp_path.glob("*.json")} == {"clip_tracks.json", "other_tracks.json"}


@pytest.mark.parametrize("options", [[], ["--save", "all.csv"], ["--out", "all.gif"]], ids=str)
def test_two_clips_never_share_a_file(clip, tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    clip.with_suffix(".mp4").write_bytes(clip.read_bytes())
    with pytest.raises(SystemExit) as stop:
        run("track", clip, clip.with_suffix(".mp4"), *QUICK, "--grid", 1, *options)
    assert stop.value.code == 2
    assert "cannot be written to one file" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mkv", "clip.mp4"}


def test_an_interrupt_keeps_what_was_tracked(clip, tmp_path, capsys, monkeypatch):
    from lpa_cwm.online import OnlineTracker

    step = OnlineTracker.step

    def interrupted(self, frame):
        if self.time == 2:
            raise KeyboardInterrupt
        return step(self, frame)

    monkeypatch.setattr(OnlineTracker, "step", interrupted)
    with pytest.raises(SystemExit) as stop:
        run("track", clip, *QUICK, "--grid", 1, "--save", tmp_path / "t.csv")
    assert stop.value.code == 130
    assert "stopped after 2 of 3 frames" in capsys.readouterr().err
    assert [row["frame"] for row in rows_of(tmp_path / "t.csv")] == ["0", "1"]


def test_an_interrupt_before_the_first_frame_writes_nothing(clip, tmp_path, capsys, monkeypatch):
    def interrupted(self, index):
        raise KeyboardInterrupt

    monkeypatch.setattr("lpa_cwm.tracker.WatchedFrames.__getitem__", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["track", str(clip), "--tracker", "dis"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "lpa-cwm: stopped; nothing was written.\n"
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mkv"}


@pytest.mark.parametrize("backward", [False, True])
def test_frame_by_frame_gives_what_tracking_gives(clip, backward):
    from lpa_cwm import registry
    from lpa_cwm.tracker import track_clip
    from lpa_cwm.types import Grid

    tracker = registry.load_cwm("uniform", "toy", masks=2)
    result = track_clip(tracker, read(clip), Grid(2, frame=1), backward=backward)
    expected = tracker.track(read(clip), Grid(2, frame=1), backward=backward)
    assert result.done == result.total == (6 if backward else 3)
    torch.testing.assert_close(result.tracks.xy, expected.xy, equal_nan=True)
    assert torch.equal(result.tracks.visible, expected.visible)


def test_both_directions_and_corrections(clip, tmp_path):
    run("track", clip, *QUICK, "--points", "20,20@2", "--backward", "--save", tmp_path / "t.csv")
    assert [row["frame"] for row in rows_of(tmp_path / "t.csv")] == ["0", "1", "2"]
    (tmp_path / "p.csv").write_text("track,x,y,frame\n7,20,20,0\n,9,9,1\n7,31.5,32.5,2\n")
    run("track", clip, *QUICK, "--points", tmp_path / "p.csv", "--save", tmp_path / "t.csv")
    rows = {(row["track"], row["frame"]): (float(row["x"]), float(row["y"])) for row in rows_of(tmp_path / "t.csv")}
    assert set(rows) == {("7", "0"), ("7", "1"), ("7", "2"), ("0", "1"), ("0", "2")}
    assert rows["7", "2"] == (31.5, 32.5)
    run("track", clip, *QUICK, "--points", "20,20@0#3", "31.5,32.5@2#3", "--save", tmp_path / "u.csv")
    assert float(rows_of(tmp_path / "u.csv")[2]["x"]) == 31.5


def test_baselines_go_backward_and_are_corrected_too(clip, tmp_path):
    points = ["20,20@0#0", "30,30@2#0", "5,6@1"]
    main(["track", str(clip), "--points", *points, "--tracker", "static", "--backward", "--save",
          str(tmp_path / "t.csv")])  # fmt: skip
    found = [(row["track"], row["frame"], float(row["x"])) for row in rows_of(tmp_path / "t.csv")]
    # In the middle frame both given positions are equally near; the earlier one counts.
    assert found == [("0", "0", 20), ("0", "1", 20), ("0", "2", 30), ("1", "0", 5), ("1", "1", 5), ("1", "2", 5)]


def test_points_on_an_object(clip, tmp_path):
    def starts(*options):
        run("track", clip, *QUICK, *options, "--save", tmp_path / "t.csv")
        return [(float(row["x"]), float(row["y"])) for row in rows_of(tmp_path / "t.csv") if row["frame"] == "0"]

    assert starts("--object", "10,20,30,40", "--grid", 2) == [(15, 25), (25, 25), (15, 35), (25, 35)]
    mask = np.zeros((64, 64), np.uint8)
    mask[20:40, 10:20] = mask[20:30, 20:30] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    assert starts("--object", tmp_path / "mask.png", "--spacing", 10) == [(15, 25), (25, 25), (15, 35)]
    for array in (mask > 0, mask[None].astype(float)):
        np.save(tmp_path / "mask.npy", array)
        assert starts("--object", tmp_path / "mask.npy", "--spacing", 10) == [(15, 25), (25, 25), (15, 35)]
    mask[:] = 0
    mask[7, 9] = 1
    Image.fromarray(mask).save(tmp_path / "mask.png")
    assert starts("--object", tmp_path / "mask.png") == [(9.5, 7.5)]


@pytest.mark.parametrize("name", ["lk", "dis-chain", "dis"])
def test_an_interrupted_baseline_keeps_what_it_found(name):
    """The frames raise as Ctrl-C does; results up to there are those of a run that was not interrupted."""
    pytest.importorskip("cv2")
    from lpa_cwm import registry
    from lpa_cwm.tracker import track_clip
    from lpa_cwm.types import Clip, Grid

    frames = toy_clip(ToyMotion(shift=(0.02, 0.0)), 8, (64, 64)).frames

    class Interrupted(list):
        def __getitem__(self, index):
            if index == 6:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    tracker = registry.load(name)
    result = track_clip(tracker, Clip(Interrupted(frames), "toy"), Grid(2))
    whole = track_clip(tracker, Clip(list(frames), "toy"), Grid(2))
    assert whole.complete
    assert 4 <= result.done < result.total == 8
    torch.testing.assert_close(result.tracks.xy[:, : result.done], whole.tracks.xy[:, : result.done])
    assert result.tracks.xy[:, result.done :].isnan().all()


@pytest.mark.parametrize("name", ["lk", "dis", "dis-gaps"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_baseline_reports_its_frames(name, backward):
    pytest.importorskip("cv2")
    from lpa_cwm import registry
    from lpa_cwm.tracker import track_clip
    from lpa_cwm.types import Grid

    heard = []
    clip = toy_clip(ToyMotion(shift=(0.02, 0.0)), 5, (64, 64))
    track_clip(
        registry.load(name), clip, Grid(2, frame=2), backward=backward, on_frame=lambda *news: heard.append(news)
    )
    total = 10 if backward else 5
    assert heard == sorted(heard), "the progress never goes back"
    assert heard[-1] == (total - 1, total)


@pytest.mark.parametrize(("name", "pairs"), [("dis", 3 + 2), ("dis-gaps", (1 + 2 + 3) + (1 + 2)), ("dis-chain", 3 + 2)])
def test_the_plan_counts_the_pairs_of_a_baseline_in_both_directions(name, pairs):
    """From frame 2 of 6 to frames 3, 4, 5 and to frames 1, 0; gaps of one and two frames come on top."""
    pytest.importorskip("cv2")
    from lpa_cwm import registry
    from lpa_cwm.types import Grid
    from lpa_cwm.video_tracking import estimate_cost

    clip = toy_clip(ToyMotion(shift=(0.02, 0.0)), 6, (64, 64))
    cost = estimate_cost(registry.load(name), clip, Grid(2, frame=2).on(clip.hw), backward=True)
    assert (cost.targets, cost.pairs, cost.factual) == (4 * 5, pairs, None)
    assert cost.seconds > 0


def test_formats_of_other_programs(clip, tmp_path):
    def saved(name, *options):
        run("track", clip, *QUICK, "--points", "20,30@1", "9,9@0", "--save", tmp_path / name, *options)
        return tmp_path / name

    arrays = np.load(saved("t.npz", "--format", "tapvid"))
    assert arrays["tracks"].shape == (2, 3, 2)
    assert arrays["query_points"].tolist() == [[1, 30, 20], [0, 9, 9]]
    assert arrays["occluded"][0, 0]
    assert set(np.load(saved("u.npz"))) >= {"xy", "visible", "frame"}
    coco = json.loads(saved("t.json", "--format", "coco").read_text())
    assert coco["annotations"][0]["keypoints"][:3] == [0, 0, 0]
    assert coco["annotations"][1]["keypoints"][:3] == [20, 30, 2]
    assert coco["annotations"][0]["bbox"] == [9, 9, 0, 0]
    assert coco["images"][0]["width"] == 64
    own = json.loads(saved("u.json").read_text())
    assert own["tracks"][0]["points"][0]["frame"] == 1
    points = ElementTree.parse(saved("t.xml")).getroot().findall("track")[0].findall("points")
    assert points[0].attrib.items() >= {"frame": "1", "outside": "0", "points": "20.00,30.00"}.items()
    lines = saved("t.csv", "--format", "deeplabcut").read_text().splitlines()
    assert lines[1] == "bodyparts,point0,point0,point0,point1,point1,point1"
    assert lines[2] == "coords,x,y,likelihood,x,y,likelihood"
    assert lines[3].startswith("0,,,0.000,9.000,9.000,1.000")


def test_a_video_on_standard_input_is_tracked_as_it_arrives(clip, tmp_path, capsys, monkeypatch):
    def stream(*options):
        with clip.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
            run("track", "-", *QUICK, "--points", "20,20@0", "30,30@1", *options)
        return capsys.readouterr().out

    shown = list(csv.DictReader(stream().splitlines()))
    run("track", clip, *QUICK, "--points", "20,20@0", "30,30@1", "--save", tmp_path / "t.csv")
    expected = sorted(rows_of(tmp_path / "t.csv"), key=lambda row: (row["frame"], row["track"]))
    assert [(row["track"], row["frame"], row["time"]) for row in shown] == [
        (row["track"], row["frame"], row["time"]) for row in expected
    ]
    capsys.readouterr()
    assert [json.loads(line)["frame"] for line in stream("--json", "--end", 2).splitlines()] == [0, 1, 1]
    stream("--out", tmp_path / "o.mp4", "--save", tmp_path / "u.json", "--side-by-side")
    assert len(read(tmp_path / "o.mp4")) == 3
    assert read(tmp_path / "o.mp4").hw == (64, 128)
    assert len(json.loads((tmp_path / "u.json").read_text())["tracks"][1]["points"]) == 2
    for color_by, (stronger, weaker) in {"track": (0, 1), "confidence": (1, 0)}.items():
        # The first track is red; as a query it is certain, and so green.
        stream("--out", tmp_path / "c.mp4", "--color-by", color_by, "--dot-size", 12)
        color = read(tmp_path / "c.mp4")[0][:, 20, 20].int()
        assert color[stronger] > color[weaker] + 80


def test_an_interrupted_stream_keeps_what_was_tracked(clip, tmp_path, capsys, monkeypatch):
    from lpa_cwm.io import video

    def endless():
        yield from read(clip).frames
        raise KeyboardInterrupt

    monkeypatch.setattr(video, "read_camera", lambda index: endless())
    with pytest.raises(SystemExit) as stop:
        run("track", "camera:1", *QUICK, "--grid", 1, "--save", tmp_path / "t.csv", "--out", tmp_path / "o.mp4")
    assert stop.value.code == 130
    assert "stopped after 3 frames" in capsys.readouterr().err
    assert len(rows_of(tmp_path / "t.csv")) == len(read(tmp_path / "o.mp4")) == 3


@pytest.mark.parametrize("option", [["--start", "1"], ["--stride", "2"], ["--backward"], ["--dry-run"]])
def test_streams_have_no_end_to_begin_with(option, capsys):
    with pytest.raises(SystemExit) as stop:
        run("track", "-", *option)
    assert stop.value.code == 2
    assert f"{option[0]} is for clips" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["o.gif", "o.webm", "o.mp4"])
def test_overlays_by_suffix_and_style(clip, tmp_path, name):
    style = ["--dot-size", 5, "--tail", 2, "--numbers", "--color-by", "confidence", "--side-by-side", "--scale", 2]
    run("track", clip, *QUICK, "--grid", 2, "--out", tmp_path / name, *style)
    assert len(read(tmp_path / name)) == 3
    assert read(tmp_path / name).hw == (128, 256)


@pytest.mark.parametrize(
    ("name", "codec", "kept"),
    [("o.mp4", "aac", "aac"), ("o.mkv", "aac", "aac"), ("o.webm", "aac", "opus"), ("o.mov", "flac", "aac")],
)
@pytest.mark.parametrize(("start", "end"), [(0, 12), (3, 9)])
def test_sound_is_kept(tmp_path, name, codec, kept, start, end):
    """All frames and the sound of their time, copied or encoded again."""
    import av

    path = tmp_path / "loud.mkv"
    with av.open(str(path), "w") as container:
        picture, sound = container.add_stream("libx264", rate=12), container.add_stream(codec, rate=44100)
        picture.width = picture.height = 64
        picture.pix_fmt = "yuv420p"
        for index in range(12):
            pixels = np.full((64, 64, 3), 20 * index, np.uint8)
            container.mux(picture.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(picture.encode())
        wave = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
        wave.sample_rate = 44100
        wave.pts = 0
        container.mux(sound.encode(wave))
        container.mux(sound.encode())
    options = ("--tracker", "static", "--start", start, "--end", end, "--out", tmp_path / name)
    main(["track", str(path), *map(str, options)])
    with av.open(str(tmp_path / name)) as made:
        assert made.streams.audio[0].codec_context.name.removeprefix("lib") == kept
        heard = sum(frame.samples / frame.rate for frame in made.decode(audio=0))
        assert heard == pytest.approx((end - start) / 12, abs=0.1)
    assert len(read(tmp_path / name)) == end - start


@pytest.mark.parametrize("content", [b"", b"not a video"])
def test_corrupt_files_are_refused(tmp_path, capsys, content):
    path = tmp_path / "bad.mp4"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        run("track", path)
    assert stop.value.code == 2
    assert "bad.mp4" in capsys.readouterr().err


def test_one_frame_is_not_a_video(tmp_path, capsys):
    write(tmp_path / "one.mp4", [torch.zeros(3, 32, 32, dtype=torch.uint8)], 12.0)
    with pytest.raises(SystemExit):
        run("track", tmp_path / "one.mp4")
    assert "at least two" in capsys.readouterr().err
