"""Work over Ray gives the files of a local run, to the byte."""

import json
import subprocess
import sys

import pytest

from tapvid_files import entries, save

pytest.importorskip("ray", reason="ray is not installed")

RAY = ("--executor", "ray", "--workers", "2")
FEW = {
    "eval predict": ("--adjudicator", "uniform", "--masks", "2", "--frames", "3", "--max-tracks", "2"),
    "data cache": ("--masks", "2", "--pairs", "1", "--queries", "2"),
}


def run(verb, path, out, *more):
    # In a process of its own: Ray leaves threads and open files behind, which the suite counts as errors.
    program = [sys.executable, "-m", "lpa_cwm.cli.main", *verb.split()]
    command = [*program, str(path), "--out", str(out), "--json", "--world", "toy"]
    result = subprocess.run([*command, *FEW[verb], *more], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("verb", FEW)
def test_two_workers_write_what_one_process_writes(verb, tmp_path):
    path = save(tmp_path / "data.pkl", entries(5))
    local, ray = run(verb, path, tmp_path / "local"), run(verb, path, tmp_path / "ray", *RAY)
    assert local.pop("out") != ray.pop("out")
    assert local == ray
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert len(contents(tmp_path / "ray")) == 6
