"""Prediction over Ray gives the files of a local run, to the byte."""

import json
import subprocess
import sys

import pytest

from tapvid_files import entries, save

pytest.importorskip("ray", reason="ray is not installed")


def predict(path, out, *more):
    # In a process of its own: Ray leaves threads and open files behind, which the suite counts as errors.
    command = [sys.executable, "-m", "lpa_cwm.cli", "predict", str(path), "--out", str(out), "--json"]
    options = ["--method", "uniform", "--world", "toy", "--masks", "2", "--frames", "3", "--max-tracks", "2"]
    result = subprocess.run([*command, *options, *more], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_two_workers_write_what_one_process_writes(tmp_path):
    path = save(tmp_path / "data.pkl", entries(5))
    assert predict(path, tmp_path / "local")["made"] == 5
    assert predict(path, tmp_path / "ray", "--executor", "ray", "--workers", "2")["made"] == 5
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert len(contents(tmp_path / "ray")) == 6
    assert len(list((tmp_path / "ray" / "seconds").iterdir())) == 5
