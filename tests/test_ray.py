"""Work over Ray gives the files of a local run, to the byte."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lpa_cwm.cli.main import main
from lpa_cwm.errors import InputError
from lpa_cwm.jobs import run_on_actors
from tapvid_files import entries, save

pytest.importorskip("ray", reason="ray is not installed")

RAY = ("--executor", "ray", "--workers", "2")
FEW = {
    "eval predict": ("--adjudicator", "uniform", "--masks", "2", "--frames", "3", "--max-tracks", "2"),
    "data cache": ("--masks", "2", "--pairs", "1", "--queries", "2"),
}


def command(verb, path, out):
    return [*verb.split(), str(path), "--out", str(out), "--json", "--world", "toy", *FEW[verb]]


def run_over_ray(arguments):
    # In a process of its own: Ray leaves threads and open files behind, which the suite counts as errors.
    program = [sys.executable, "-m", "lpa_cwm.cli.main"]
    result = subprocess.run([*program, *arguments, *RAY], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# Ray starts a dozen processes, which takes longer than many other tests together.
@pytest.mark.slow
@pytest.mark.parametrize("verb", FEW)
def test_two_workers_write_what_one_process_writes(verb, tmp_path, capsys):
    path = save(tmp_path / "data.pkl", entries(5))
    main(command(verb, path, tmp_path / "local"))
    local = json.loads(capsys.readouterr().out.splitlines()[-1])
    ray = run_over_ray(command(verb, path, tmp_path / "ray"))
    assert local.pop("out") != ray.pop("out")
    assert local == ray
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert len(contents(tmp_path / "ray")) == 6


FAULTY = """
import os, sys
from lpa_cwm.errors import InputError
from lpa_cwm.jobs import RayExecutor

class Faulty:
    def setup(self):
        return self.do
    def do(self, piece):
        if piece == 1:
            os._exit(11)
        if piece == 2:
            raise ValueError("two")
        return piece

done = []
try:
    for piece, _ in RayExecutor(workers=2)(Faulty(), list(range(5))):
        done.append(piece)
except InputError as error:
    print(sorted(done), error)
"""


@pytest.mark.slow
def test_pieces_that_always_crash_fail_alone_and_the_others_are_done():
    result = subprocess.run([sys.executable, "-c", FAULTY], capture_output=True, text=True)
    assert result.stdout.startswith("[0, 3, 4] 2 of 5 pieces failed on Ray, first number 1"), result.stderr


def test_a_cluster_that_does_not_answer_is_one_sentence(tmp_path):
    path = save(tmp_path / "data.pkl", entries(1))
    program = [sys.executable, "-m", "lpa_cwm.cli.main", "eval", "predict", str(path), "--tracker", "static"]
    result = subprocess.run(
        [*program, "--out", str(tmp_path / "run"), "--executor", "ray", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:9"},
    )
    assert result.returncode == 2
    assert "Ray did not start" in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


class FakeRay:
    """What `run_on_actors` uses of Ray, without processes."""

    class exceptions:
        class RayError(Exception):
            cause: Exception | None = None

    def wait(self, references, num_returns):
        return references[:1], references[1:]

    def get(self, reference):
        if reference.failure:
            raise reference.failure
        return reference.piece, reference.piece * 10


class FakeActor:
    def __init__(self, failures):
        self.do = SimpleNamespace(remote=lambda piece: Reference(piece, failures.get(piece)))


class Reference:
    def __init__(self, piece, failure):
        self.piece, self.failure = piece, failure


def test_every_piece_is_handed_out_and_failures_come_last():
    died, refused = FakeRay.exceptions.RayError("lost"), FakeRay.exceptions.RayError("task")
    refused.cause = ValueError("no such video")
    assert dict(run_on_actors(FakeRay(), [FakeActor({}) for _ in range(2)], list(range(5)))) == {
        piece: 10 * piece for piece in range(5)
    }
    for failures, said in (
        ({1: died}, "1 of 5 pieces failed on Ray, first number 1 .its process ended"),
        ({3: refused, 4: died}, "2 of 5 pieces failed on Ray, first number 3 .no such video"),
    ):
        found = run_on_actors(FakeRay(), [FakeActor(failures) for _ in range(2)], list(range(5)))
        done = {next(found)[0] for _ in range(5 - len(failures))}
        assert done == set(range(5)) - set(failures)
        with pytest.raises(InputError, match=said):
            next(found)
