"""Nothing is lost or half-written: loss of power, a full disk, files cut short, and several processes on one folder."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from lpa_cwm import files
from lpa_cwm.cli.main import main
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, exclusive_lock, pin_settings, share_pieces
from lpa_cwm.io import video
from lpa_cwm.io.predictions import is_complete_prediction, write_prediction
from lpa_cwm.io.visualization import write_gif, write_webm
from lpa_cwm.metrics import Prediction
from lpa_cwm.reproduction.parts import PARTS, finished
from lpa_cwm.training.feature_cache import is_complete as is_cached
from lpa_cwm.training.loop import save_checkpoint
from tapvid_files import entries, save


def test_data_are_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    done = []
    synced, replaced = files.sync, os.replace
    monkeypatch.setattr(files, "sync", lambda path: done.append(path) or synced(path))
    monkeypatch.setattr(os, "replace", lambda *names: done.append("rename") or replaced(*names))
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("x")
    # The path library renames by the same call of the system.
    assert [one for one in done if one != "rename"] == [temporary, tmp_path]
    done.clear()
    pin_settings(tmp_path / "new" / "settings.json", {"a": 1})
    assert done[-1] == tmp_path / "new"


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def noise_frames(count=8):
    return [torch.randint(0, 256, (3, 128, 128), dtype=torch.uint8) for _ in range(count)]


def write_safetensors(path):
    from safetensors.torch import save_file

    with atomic_write(path) as temporary:
        save_file({"a": torch.rand(50_000)}, temporary)


def write_predictions(path):
    xy = np.random.default_rng(0).random((40, 400, 2)).astype("f4")
    write_prediction(path.parent, path.stem, Prediction(xy, np.ones((40, 400), bool)), "c")


def write_folder(path):
    with files.atomic_folder(path) as temporary:
        np.save(temporary / "a.npy", np.zeros(50_000))


WRITERS = {
    "shard": write_folder,
    "text.json": lambda path: files.pin_settings(path, {"a": "x" * 100_000}),
    "clip.npz": write_predictions,
    "checkpoint.pt": lambda path: save_checkpoint(path, {"a": torch.rand(50_000)}),
    "weights.safetensors": write_safetensors,
    "clip.mp4": lambda path: video.write(path, noise_frames(), 24.0),
    "clip.gif": lambda path: write_gif(path, noise_frames(), 24.0),
    "clip.webm": lambda path: write_webm(path, noise_frames(), 24.0),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_said_and_leaves_nothing(tiny_disk, name):
    with pytest.raises(OSError, match="No space left") as failure:
        WRITERS[name](tiny_disk / name)
    assert failure.value.errno == errno.ENOSPC
    assert not [path for path in tiny_disk.rglob("*") if path.is_file()]


QUICK = "--world toy --masks 2"
ON_FULL_DISK = {
    "eval predict": "eval predict {data} --tracker static --out {disk}/run",
    "eval compare": "eval compare {data} --methods static --out {disk}/run",
    "eval score": "eval score {disk}/scored --dataset {data}",
    "eval sweep": f"eval sweep {{data}} --videos 1 --queries 1 --adjudicator uniform {QUICK} --out {{disk}}/sweep",
    "data cache": f"data cache {{data}} {QUICK} --out {{disk}}/cache",
    "data simulate": "data simulate --clips 1 --per-file 1 --size 32 --out {disk}/clips",
    "train score": "train score --photos {photos} --steps 1 --batch 1 --crop 16 --save-every 1 --out {disk}/score",
    "track": f"track {QUICK} --adjudicator uniform --points 9,9@22 --save {{disk}}/t.csv",
    "track, video": f"track {QUICK} --adjudicator uniform --points 9,9@22 --out {{disk}}/t.mp4",
    "explain": f"explain {QUICK} --adjudicator uniform --out {{disk}}/e.png",
    "paper": f"paper --data {{data}} {QUICK} --methods static --only table-1 --out {{disk}}/paper",
}


@pytest.mark.parametrize("name", ON_FULL_DISK)
def test_a_full_disk_is_one_sentence_of_the_program(tiny_disk, tmp_path, capsys, name):
    """Whatever a command writes first; nothing stays of it."""
    data, photos = save(tmp_path / "data.pkl", entries(1, t=4)), tmp_path / "photos"
    photos.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"photo_{number:02}.png")
    main(["eval", "predict", str(data), "--tracker", "static", "--out", str(tiny_disk / "scored")])
    fill(tiny_disk)
    before = sorted(path for path in tiny_disk.rglob("*") if path.is_file())
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(ON_FULL_DISK[name].format(data=data, disk=tiny_disk, photos=photos).split())
    assert stop.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lpa-cwm: the system says: [Errno 28] No space left on device")
    assert sorted(path for path in tiny_disk.rglob("*") if path.is_file()) == before


def fill(folder):
    """Write to a disk until nothing more fits."""
    with contextlib.suppress(OSError), (folder / "filled").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))


def test_files_cut_short_are_not_complete(tmp_path):
    write_predictions(tmp_path / "clip.npz")
    write_safetensors(tmp_path / "a.safetensors")
    for path, complete in ((tmp_path / "clip.npz", is_complete_prediction), (tmp_path / "a.safetensors", is_cached)):
        assert complete(path)
        for size in (0, 10, 1000, path.stat().st_size - 1):
            short = path.with_name(f"short{path.suffix}")
            short.write_bytes(path.read_bytes()[:size])
            assert not complete(short)


def test_predictions_cut_short_are_made_again(tmp_path):
    path = save(tmp_path / "data.pkl", entries(2, t=4))
    command = ["eval", "predict", str(path), "--tracker", "static", "--out", str(tmp_path / "run")]
    main(command)
    whole = {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.npz")}
    first = tmp_path / "run" / min(whole)
    first.write_bytes(whole[first.name][:100])
    main(command)
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").glob("*.npz")} == whole


@pytest.mark.parametrize("form", ["movi", "tapvid"])
def test_simulated_files_cut_short_are_made_again(tmp_path, form):
    command = ["data", "simulate", "--clips", "1", "--size", "16", "--samples", "1", "--form", form]
    main([*command, "--out", str(tmp_path / "clips")])
    whole = {path: path.read_bytes() for path in (tmp_path / "clips").iterdir()}
    path = next(path for path in sorted(whole) if path.suffix != ".json")
    path.write_bytes(whole[path][: len(whole[path]) // 2])
    main([*command, "--out", str(tmp_path / "clips")])
    assert {path: path.read_bytes() for path in (tmp_path / "clips").iterdir()} == whole


def test_parts_of_the_paper_cut_short_are_made_again(tmp_path):
    part = PARTS[0]
    (tmp_path / "parts").mkdir()
    (tmp_path / "a.csv").write_text("1,2")
    about = {"name": part.name, "paper": "x", "title": "x", "files": ["a.csv"], "seconds": 1.0, "sizes": [3]}
    (tmp_path / "parts" / f"{part.name}.json").write_text(json.dumps(about))
    assert finished(tmp_path, part) is not None
    (tmp_path / "a.csv").write_text("1,")
    assert finished(tmp_path, part) is None


@pytest.mark.parametrize("same", [True, False])
def test_of_processes_with_different_settings_one_has_the_folder(tmp_path, same):
    """All at once: equal settings share a folder, of different ones the first is kept and the others are refused."""
    barrier = threading.Barrier(8)

    def pin(number):
        barrier.wait()
        try:
            pin_settings(tmp_path / "run.json", {"masks": 0 if same else number})
        except InputError:
            return "refused"
        return "pinned"

    with ThreadPoolExecutor(8) as pool:
        results = sorted(pool.map(pin, range(8)))
    assert results == (["pinned"] * 8 if same else ["pinned"] + ["refused"] * 7)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


HOLD = """
import sys
from pathlib import Path
from lpa_cwm.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "trains"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_trainings_of_one_folder_are_refused(tmp_path):
    path = tmp_path / "settings.json"
    pin_settings(path, {"a": 1})
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="Another process trains in"), exclusive_lock(path, "trains"):
            pass
        other.kill()
        other.wait()
        with exclusive_lock(path, "trains"):
            pass


@pytest.mark.parametrize("dies", [False, True])
def test_processes_share_pieces_and_finish_those_of_a_dead_one(tmp_path, dies):
    (tmp_path / "run.json").write_text("{}")

    def is_done(piece):
        return (tmp_path / str(piece)).exists()

    first, second = (share_pieces(tmp_path / "run.json", range(4), is_done) for _ in range(2))
    held, taken = next(first), []
    assert held == 0

    def work():
        for piece in second:
            taken.append(piece)
            (tmp_path / str(piece)).touch()

    if not dies:
        (tmp_path / "0").touch()
    worker = threading.Thread(target=work)
    worker.start()
    if dies:
        # The lock ends with the file that holds it, as with the process.
        first.close()
    worker.join(30)
    assert taken == ([1, 2, 3, 0] if dies and taken[0] else [0, 1, 2, 3] if dies else [1, 2, 3])
    assert list(first) == []
