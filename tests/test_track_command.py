"""`lpa-cwm track` as a user meets it: results, and sentences for what cannot be."""

import csv
import json
import subprocess
import sys

import pytest
import torch

from lpa_cwm.cli.main import main
from lpa_cwm.io.video import read, write
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
    assert json.loads(capsys.readouterr().out)["targets"] == 8
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "64,3@0"], "not inside"),
        (["--points", "nan,3@0"], "not inside"),
        (["--points", "4,3@3"], "frames 0 to 2"),
        (["--points", "4;3"], "x,y@frame"),
        (["--points", "4,3@0", "--grid", "2"], "one of them"),
        (["--grid", "0"], "from 1 to"),
        (["--tracker", "nonsense"], "not a known"),
        (["--world", "nonsense"], "not a known world model"),
        (["--adjudicator", "lpa", "--weights", "absent.safetensors"], "no LPA weights"),
        (["--save", "tracks.txt"], "must end in"),
        (["--out", "overlay.txt"], "must end in"),
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


def test_help_does_not_import_torch():
    code = (
        "import sys\nfrom lpa_cwm.cli.main import main\n"
        "try: main(['track', '--help'])\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0
    assert "Follow points" in result.stdout
