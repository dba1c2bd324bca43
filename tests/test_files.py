"""Files of killed runs: no reader takes them for data, and the next run removes them."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from lpa_cwm import files
from lpa_cwm.baselines.registry import OPT_CWM, OptCwmCheckpoint
from lpa_cwm.cli.doctor import benchmarks
from lpa_cwm.datasets.movif import MoviClips
from lpa_cwm.datasets.tapvid import find_clips, load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files, pin_settings, remove_leftovers
from lpa_cwm.io import video
from lpa_cwm.io.predictions import predicted_videos, write_prediction
from lpa_cwm.metrics import Prediction
from lpa_cwm.simulator.assets import files_of_split
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pairs import decode_folder, split_of
from lpa_cwm.training import feature_cache
from lpa_cwm.training.feature_cache import CandidateSets
from lpa_cwm.training.pair_sampling import training_pairs
from lpa_cwm.worlds.toy import ToyMotion, toy_clip
from movi_files import drift
from movi_files import write as write_movi
from tapvid_files import entry, save

CLIP = toy_clip(ToyMotion(shift=(0.02, 0.01)), 4, (60, 80), name="toy")
TRAIN = [str(number) for number in range(40) if split_of(str(number)) == "train"][:3]


def make_cache(folder):
    shapes = {"source": (1, 3, 32, 32), "target": (1, 2, 3, 32, 32), "local_response": (1, 2, 32, 32)}
    shapes |= {
        "response": (1, 2, 32, 32),
        "context": (1, 6, 64, 64),
        "statistics": (1, 2, 16),
        "peak": (1, 2, 2),
        "end": (1, 2),
        "apa_weights": (1, 2),
        "response_sigma": (1,),
    }
    sets = CandidateSets(
        **{name: torch.zeros(shape) for name, shape in shapes.items()}, pair=torch.zeros(1, dtype=torch.int)
    )
    feature_cache.write_sets(folder / "000000.safetensors", sets, "a")


def make_movi(folder):
    write_movi(folder / "movi_f-train.tfrecord-0", *(drift((2.0, 1.0), 64, name=name) for name in TRAIN))


def make_tapvid(folder):
    save(folder / "tapvid_davis.pkl", [entry(n=1, t=2)])


def make_predictions(folder):
    write_prediction(folder, "a", Prediction(np.zeros((1, 2, 2)), np.ones((1, 2), bool)), "x")


def make_video(folder):
    video.write(folder / "a.mp4", CLIP.frames, 12.0)


def make_pictures(folder):
    for number in range(20):
        Image.new("RGB", (8, 8)).save(folder / f"{number}.png")


def make_weights(folder):
    (folder / OPT_CWM.folder).mkdir()
    (folder / OPT_CWM.folder / "cwm.pt").write_text("weights")


def of_doctor(folder):
    return [(finding.name, finding.state, finding.what) for finding in benchmarks((folder,))]


READERS = {
    "feature cache": (make_cache, lambda folder: feature_cache.read_cache(folder)[1]),
    "MOVi": (make_movi, lambda folder: MoviClips.of(folder, "train").entries),
    "cache from MOVi": (make_movi, lambda folder: len(training_pairs(folder).videos)),
    "TAP-Vid": (make_tapvid, lambda folder: load_dataset(folder).names),
    "predictions": (make_predictions, lambda folder: list(predicted_videos(folder))),
    "footage": (make_video, lambda folder: decode_folder(folder, folder / "cache", quiet=True)),
    "Kinetics": (make_video, find_clips),
    "photographs": (make_pictures, lambda folder: ImagePool.of(folder, "train").files),
    "assets": (make_pictures, lambda folder: files_of_split(folder, "*.png", "train")),
    "frames": (make_pictures, lambda folder: len(video.read(folder))),
    "doctor's records": (make_movi, of_doctor),
    "Opt-CWM": (make_weights, lambda folder: OptCwmCheckpoint().identity()),
}


@pytest.mark.parametrize("content", ["whole", "half"])
@pytest.mark.parametrize("name", READERS)
def test_a_leftover_changes_nothing(name, content, tmp_path, monkeypatch):
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path))
    make, read = READERS[name]
    make(tmp_path)
    before = read(tmp_path)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        # As the writer names them now, and as it did before.
        for temporary in (files._temporary(path), path.with_name(f".{path.stem}.k3_xz91a{path.suffix}")):
            shutil.copy(path, temporary)
            os.truncate(temporary, path.stat().st_size // (1 if content == "whole" else 2))
    assert read(tmp_path) == before


def test_listed_files_are_sorted_and_not_hidden(tmp_path):
    for name in ("b/2.x", "a/1.x", "a/.1.x", ".hidden/3.x", "4.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in data_files(tmp_path, "**/*.x")]
    assert found == ["4.x", "a/1.x", "b/2.x"]
    assert data_files(tmp_path / "absent") == []


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leftover(folder, pid, host=None, name="a", age=0.0):
    path = folder / f".{name}.lpa-{host or files._host()}-{pid}-abcd_123.npz"
    path.write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_run_removes_folders_that_killed_runs_left(tmp_path, gone):
    stale = tmp_path / f".shard.lpa-{files._host()}-{gone}-abcd_123"
    stale.mkdir()
    (stale / "half.npy").touch()
    with files.atomic_folder(tmp_path / "shard") as temporary:
        (temporary / "whole.npy").touch()
    with pytest.raises(FileNotFoundError), files.atomic_folder(tmp_path / "shard") as temporary:
        (temporary / "absent" / "other.npy").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["shard", "whole.npy"]


def test_a_run_removes_what_killed_runs_left(tmp_path, gone):
    stale = [leftover(tmp_path, gone), leftover(tmp_path, 1, "0" * 8, age=2 * files.DAY)]
    kept = [leftover(tmp_path, os.getpid(), age=2 * files.DAY), leftover(tmp_path, 1, "0" * 8, "b")]
    for name in (".a.k3_xz91a.npz", f"a.lpa-{files._host()}-{gone}-abcd_123.npz", ".a.lpa-notes.npz", ".hidden"):
        kept.append(tmp_path / name)
        kept[-1].touch()
    with atomic_write(tmp_path / "out.npz") as temporary:
        temporary.write_text("whole")
        assert files.TEMPORARY.fullmatch(temporary.name)
        # A process that is at work does not lose its file.
        remove_leftovers(tmp_path)
        assert temporary.exists()
    assert not any(path.exists() for path in stale)
    assert all(path.exists() for path in kept)
    assert (tmp_path / "out.npz").read_text() == "whole"


def test_a_run_with_nothing_left_to_write_removes_what_killed_runs_left(tmp_path, gone, monkeypatch):
    pin_settings(tmp_path / "settings.json", {"masks": 2})
    stale = leftover(tmp_path, gone)
    monkeypatch.setattr(files, "_swept", set())
    pin_settings(tmp_path / "settings.json", {"masks": 2})
    assert not stale.exists()


def test_a_setting_that_is_left_out_differs_from_one_that_the_folder_has(tmp_path):
    """As when a folder was begun with an option, and goes on without it; notes do not count."""
    path = tmp_path / "settings.json"
    pin_settings(path, {"masks": 2, "preset": "paper"}, {"written": "today"})
    with pytest.raises(InputError, match="preset was paper and is None"):
        pin_settings(path, {"masks": 2}, {"written": "later"})
    pin_settings(path, {"masks": 2, "preset": "paper"}, {"written": "later"})


def test_long_names_can_be_written(tmp_path):
    path = tmp_path / f"{'%C3%BC' * 41}.npz"
    with atomic_write(path) as temporary:
        temporary.write_text("whole")
    assert path.exists()


COMMAND = """
import signal, sys, time
from pathlib import Path
from lpa_cwm.cli import main as cli
from lpa_cwm.files import atomic_write


class Slow:
    def run(self):
        with atomic_write(Path(sys.argv[1]) / "out.npz") as temporary:
            temporary.write_text("half")
            print("ready", flush=True)
            time.sleep(60)


# A shell starts jobs in the background with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.parse = lambda arguments: Slow()
cli.main([])
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_leaves_no_temporary_file(tmp_path, sent, code):
    command = [sys.executable, "-c", COMMAND, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(sent)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "nothing was written" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_killed_command_is_cleaned_up_after_by_the_next(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_write(tmp_path / "out.npz") as temporary:
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_infinite_settings_are_pinned_and_found_again(tmp_path):
    """The paper's preset does not clip gradients: its largest norm is infinite."""
    for _ in range(2):
        pin_settings(tmp_path / "settings.json", {"clip": math.inf, "rate": 0.5})
    with pytest.raises(InputError, match="clip"):
        pin_settings(tmp_path / "settings.json", {"clip": 1.0, "rate": 0.5})
