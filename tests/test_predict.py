"""However a run is made - at once, in shards, interrupted and resumed - the files are the same to the byte."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from lpa_cwm.cli.main import main
from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation import predictions
from lpa_cwm.evaluation.manifest import manifest_of
from lpa_cwm.evaluation.predict import Job, predict
from lpa_cwm.evaluation.run import Run, load_run
from lpa_cwm.registry import fingerprint
from lpa_cwm.sharding import Shard
from lpa_cwm.types import Tracks
from tapvid_files import entries, entry, save


@dataclass
class Drifting:
    """Moves each point by its clip's mean brightness a frame; strength and visibility follow the frame."""

    step: float = 0.01
    calls: int = 0

    def track(self, clip, queries):
        self.calls += 1
        t = torch.arange(len(clip))
        after = t - queries.frame[:, None]
        drift = self.step * clip[0].float().mean()
        xy = queries.xy[:, None] + (after * drift)[..., None]
        hidden = after < 0
        strength = (1 / (1 + after.float())).masked_fill(hidden, torch.nan)
        return Tracks(xy.masked_fill(hidden[..., None], torch.nan), (strength > 0.2), strength)


def job_and_run(path, tracker, **selection):
    dataset = load_dataset(path, Selection(**selection))
    run = Run("drifting", {"step": tracker.step}, str(path), dataset.selection, manifest_of(dataset))
    return Job(dataset, lambda: tracker), run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.*") if not path.name.startswith(".")}


@pytest.fixture
def pickled(tmp_path):
    return save(tmp_path / "data.pkl", entries(7, t=8))


def test_one_file_per_video_holds_what_the_tracker_said(tmp_path, pickled):
    job, run = job_and_run(pickled, Drifting())
    assert predict(job, run, tmp_path / "run") == (7, 0)
    for index, name in enumerate(job.dataset.names):
        sample = job.dataset[index]
        tracks = Drifting().track(sample.clip, sample.queries)
        found = predictions.read(tmp_path / "run", name, len(sample.queries), len(sample.clip))
        assert np.array_equal(found.xy, tracks.xy.numpy(), equal_nan=True)
        assert np.array_equal(found.visible, tracks.visible.numpy())
        assert np.array_equal(found.score, tracks.strength.numpy(), equal_nan=True)
        assert found.seconds > 0
    assert load_run(tmp_path / "run").manifest == run.manifest


def test_what_is_there_is_not_made_again(tmp_path, pickled):
    tracker = Drifting()
    job, run = job_and_run(pickled, tracker)
    predict(job, run, tmp_path / "run")
    whole = contents(tmp_path / "run")
    (tmp_path / "run" / "set%2Fc2.npz").unlink()
    assert predict(job, run, tmp_path / "run") == (1, 6)
    assert tracker.calls == 8
    assert contents(tmp_path / "run") == whole


def test_shards_make_the_whole(tmp_path, pickled):
    job, run = job_and_run(pickled, Drifting())
    predict(job, run, tmp_path / "whole")
    made = [predict(job, run, tmp_path / "parts", shard=Shard(number, 3))[0] for number in (3, 1, 2)]
    assert made == [2, 3, 2]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/2/3"])
def test_bad_shards_are_named(text):
    with pytest.raises(InputError, match="expected i/n"):
        Shard.parse(text)


def test_another_configuration_is_refused_and_nothing_overwritten(tmp_path, pickled):
    job, run = job_and_run(pickled, Drifting())
    predict(job, run, tmp_path / "run", shard=Shard(1, 2))
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=r"settings.step was 0.01 and is 0.02"):
        predict(*job_and_run(pickled, Drifting(0.02)), tmp_path / "run")
    with pytest.raises(InputError, match="manifest was"):
        predict(*job_and_run(pickled, Drifting(), max_tracks=1), tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_files_that_are_not_the_runs_are_refused(tmp_path, pickled):
    job, run = job_and_run(pickled, Drifting())
    predict(job, run, tmp_path / "run", shard=Shard(1, 2))
    np.savez(tmp_path / "run" / "set%2Fb1.npz", xy=np.zeros((3, 8, 2)), visible=np.zeros((3, 8), bool))
    with pytest.raises(InputError, match=r"set%2Fb1.npz is not of this run's configuration"):
        predict(job, run, tmp_path / "run")


def test_a_method_that_cannot_be_made_claims_no_folder(tmp_path, pickled, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "predict", str(pickled), "--tracker", "nonsense", "--out", str(tmp_path / "run")])
    assert "no known method" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_damaged_run_file_is_named(tmp_path, pickled):
    job, run = job_and_run(pickled, Drifting())
    predict(job, run, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(InputError, match="does not describe a run"):
        predict(job, run, tmp_path / "run")


def test_strided_queries_are_tracked_both_ways(tmp_path, pickled):
    job, run = job_and_run(pickled, Drifting(), queries="strided")
    predict(job, run, tmp_path / "run")
    sample = job.dataset[0]
    found = predictions.read(tmp_path / "run", job.dataset.names[0], len(sample.queries), len(sample.clip))
    assert (sample.queries.frame > 0).any()
    for row, (start, at) in enumerate(zip(sample.queries.xy, sample.queries.frame.tolist(), strict=True)):
        for t in range(len(sample.clip)):
            shown = sample.clip[0 if t >= at else len(sample.clip) - 1]
            plain = start + 0.01 * shown.float().mean() * abs(t - at)
            assert np.allclose(found.xy[row, t], plain.numpy(), atol=1e-4)
            assert np.isclose(found.score[row, t], 1 / (1 + abs(t - at)))


SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_predict import Drifting, job_and_run
from lpa_cwm.evaluation.predict import predict
class Slow(Drifting):
    def track(self, clip, queries):
        time.sleep(0.15)
        return super().track(clip, queries)
print("ready", flush=True)
predict(*job_and_run(Path({data!r}), Slow()), Path({out!r}))
"""


def test_killed_runs_resume_to_the_same_bytes(tmp_path, pickled):
    predict(*job_and_run(pickled, Drifting()), tmp_path / "whole")
    code = SLOW.format(tests=str(Path(__file__).parent), data=str(pickled), out=str(tmp_path / "run"))
    rng = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.1, 0.7))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    predict(*job_and_run(pickled, Drifting()), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_the_command_predicts_and_resumes(tmp_path, pickled, capsys):
    command = ["eval", "predict", str(pickled), "--tracker", "static", "--out", str(tmp_path / "run"), "--json"]
    main([*command, "--shard", "1/2"])
    main(command)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["made"], one["present"], one["videos"]) for one in printed] == [(4, 0, 7), (3, 4, 7)]
    assert load_run(tmp_path / "run").method == "static"


def test_the_command_passes_the_numbers_of_the_method(tmp_path, capsys):
    path = save(tmp_path / "data.pkl", {"a": entry(n=1, t=2)})
    command = ["eval", "predict", str(path), "--out", str(tmp_path / "run"), "--world", "toy", "--masks", "3"]
    main(command)
    assert load_run(tmp_path / "run").settings["numbers"]["masks"] == 3
    with pytest.raises(SystemExit):
        main([*command[:-1], "4"])
    assert "settings.numbers.masks was 3 and is 4" in capsys.readouterr().err


def test_the_command_refuses_numbers_that_a_rival_does_not_have(tmp_path, pickled, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "predict", str(pickled), "--out", str(tmp_path / "run"), "--tracker", "static", "--masks", "3"])
    assert "static has no numbers to set" in capsys.readouterr().err


def test_the_command_refuses_bad_data_before_it_begins(tmp_path, capsys):
    path = save(tmp_path / "data.pkl", entries(2) | {"bad": entry() | {"points": np.zeros((3, 6, 2), int)}})
    with pytest.raises(SystemExit) as exit:
        main(["eval", "predict", str(path), "--tracker", "static", "--out", str(tmp_path / "run")])
    assert exit.value.code == 2
    assert "The points of the video bad" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_identity_knows_the_shipped_weights_it_uses_and_no_others():
    used = {
        "nothing": fingerprint("toy"),
        "world": fingerprint("compact"),
        "score": fingerprint("toy", "compact"),
        "both": fingerprint("compact", "compact"),
        "lpa": fingerprint("toy", method="lpa"),
    }
    assert len(set(used.values())) == len(used)
    assert fingerprint("compact") == fingerprint("compact-total", method="uniform")
    assert fingerprint("opt-cwm", "adm", "apa") == used["nothing"]


def test_an_identity_knows_what_is_made_of_the_weights(monkeypatch):
    before, without = fingerprint("compact"), fingerprint("toy")
    monkeypatch.setattr("lpa_cwm.worlds.layered.world.USE", "otherwise")
    assert fingerprint("compact") != before
    assert fingerprint("toy") == without
