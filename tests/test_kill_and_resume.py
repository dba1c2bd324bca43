"""Commands that are killed at any moment and run again end with the same bytes as commands that were left alone."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tapvid_files import entries, save

PREDICT = "eval predict {data} --world toy --adjudicator uniform --masks 2 --out {out}"
COMMANDS = {
    "predict": PREDICT,
    "compare": "eval compare {data} --world toy --methods uniform static --masks 2 --out {out}",
    "cache": "data cache {data} --world toy --masks 2 --pairs 1 --queries 2 --out {out}",
    "train score": "train score --photos {photos} --steps 12 --batch 1 --crop 16 --save-every 2 --out {out}",
    "simulate": "data simulate --clips 4 --per-file 1 --form tapvid --size 32 --out {out}",
    "predict with Ray": PREDICT + " --executor ray --workers 2",
}
KILLS = 9
"""Of each command; more than 50 in all."""


def start(command, **places):
    words = command.format(**places).split()
    return subprocess.Popen(
        [sys.executable, "-m", "lpa_cwm.cli.main", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def outputs(folder):
    """Bytes of all results; times, reports with times, logs and settings files aside."""
    kinds = (".npz", ".safetensors", ".pkl")
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.suffix in kinds}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_commands_resume_to_the_same_bytes(tmp_path, name):
    if "Ray" in name:
        pytest.importorskip("ray")
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"photo_{number:02}.png")
    places = {"data": save(tmp_path / "data.pkl", entries(6, t=5)), "photos": photos}
    begin = time.monotonic()
    whole = start(COMMANDS[name], out=tmp_path / "whole", **places)
    assert whole.wait() == 0, whole.stderr.read()
    seconds = time.monotonic() - begin
    rng = random.Random(name)
    for _ in range(KILLS):
        run = start(COMMANDS[name], out=tmp_path / "killed", **places)
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        run.kill()
        run.communicate()
    last = start(COMMANDS[name], out=tmp_path / "killed", **places)
    assert last.wait() == 0, last.stderr.read()
    assert outputs(tmp_path / "whole")
    assert outputs(tmp_path / "killed") == outputs(tmp_path / "whole")
