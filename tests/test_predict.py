"""However a run is made - at once, in shards, interrupted and resumed - the files are the same to the byte."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpa_cwm.cli.main import main
from lpa_cwm.cli.values import parse_shard
from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.predict import (
    EvaluationRun,
    Manifest,
    Method,
    PredictJob,
    load_run,
    manifest_of,
    predict,
    predict_methods,
    write_runs,
)
from lpa_cwm.geometry import rescale
from lpa_cwm.io.predictions import prediction_path, read_prediction
from lpa_cwm.jobs import Shard
from lpa_cwm.registry import WORLDS, fingerprint
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


def write_run(path, tracker, out, shard=None, **selection):
    """Predict with a tracker that is not in the tables of names."""
    dataset = load_dataset(path, Selection(**selection))
    run = EvaluationRun("drifting", {"step": tracker.step}, str(path), dataset.selection, manifest_of(dataset))
    job = PredictJob(dataset, lambda: lambda clip, queries: {str(out): tracker.track(clip, queries)})
    return write_runs(job, {out: run}, shard=shard)


def on_raster(xy, clip):
    """Points of a clip in pixels of the 256 x 256 raster, as prediction files have them."""
    return rescale(xy, clip.hw, (256, 256)).numpy()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.*") if not path.name.startswith(".")}


@pytest.fixture
def pickled(tmp_path):
    return save(tmp_path / "data.pkl", entries(7, t=8))


def test_one_file_per_video_holds_what_the_tracker_said(tmp_path, pickled):
    assert write_run(pickled, Drifting(), tmp_path / "run") == (7, 0, 7)
    dataset = load_dataset(pickled)
    for index, name in enumerate(dataset.names):
        sample = dataset[index]
        tracks = Drifting().track(sample.clip, sample.queries)
        path = prediction_path(tmp_path / "run", name)
        found = read_prediction(path, len(sample.queries), len(sample.clip))
        assert np.array_equal(found.xy, on_raster(tracks.xy, sample.clip), equal_nan=True)
        assert np.array_equal(found.visible, tracks.visible.numpy())
        assert np.array_equal(found.score, tracks.strength.numpy(), equal_nan=True)
        assert found.seconds > 0
    assert load_run(tmp_path / "run").manifest == manifest_of(dataset)


def test_what_is_there_is_not_made_again(tmp_path, pickled):
    tracker = Drifting()
    write_run(pickled, tracker, tmp_path / "run")
    whole = contents(tmp_path / "run")
    (tmp_path / "run" / "set%2Fc2.npz").unlink()
    assert write_run(pickled, tracker, tmp_path / "run") == (1, 6, 7)
    assert tracker.calls == 8
    assert contents(tmp_path / "run") == whole


def test_shards_make_the_whole(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "whole")
    made = [write_run(pickled, Drifting(), tmp_path / "parts", Shard(number, 3)).made for number in (3, 1, 2)]
    assert made == [2, 3, 2]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/2/3"])
def test_bad_shards_are_named(text):
    with pytest.raises(ValueError, match="expected I/N"):
        parse_shard(text)


def test_another_configuration_is_refused_and_nothing_overwritten(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "run", Shard(1, 2))
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=r"settings.step was 0.01 and is 0.02"):
        write_run(pickled, Drifting(0.02), tmp_path / "run")
    with pytest.raises(InputError, match=r"manifest.set/a0.tracks was 3 and is 1"):
        write_run(pickled, Drifting(), tmp_path / "run", max_tracks=1)
    assert contents(tmp_path / "run") == before


def test_files_that_are_not_the_runs_are_refused(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "run", Shard(1, 2))
    np.savez(tmp_path / "run" / "set%2Fb1.npz", xy=np.zeros((3, 8, 2)), visible=np.zeros((3, 8), bool))
    with pytest.raises(InputError, match=r"set%2Fb1.npz is not of this run's configuration"):
        write_run(pickled, Drifting(), tmp_path / "run")


def test_a_method_that_cannot_be_made_claims_no_folder(tmp_path, pickled, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "predict", str(pickled), "--tracker", "nonsense", "--out", str(tmp_path / "run")])
    assert "nonsense" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_damaged_run_file_is_named(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(InputError, match="is not the description of a run"):
        write_run(pickled, Drifting(), tmp_path / "run")


def test_strided_queries_are_tracked_both_ways(tmp_path, pickled):
    write_run(pickled, Drifting(), tmp_path / "run", queries="strided")
    dataset = load_dataset(pickled, Selection(queries="strided"))
    sample = dataset[0]
    path = prediction_path(tmp_path / "run", dataset.names[0])
    found = read_prediction(path, len(sample.queries), len(sample.clip))
    assert (sample.queries.frame > 0).any()
    for row, (start, at) in enumerate(zip(sample.queries.xy, sample.queries.frame.tolist(), strict=True)):
        for t in range(len(sample.clip)):
            shown = sample.clip[0 if t >= at else len(sample.clip) - 1]
            plain = start + 0.01 * shown.float().mean() * abs(t - at)
            assert np.allclose(found.xy[row, t], on_raster(plain, sample.clip), atol=1e-3)
            assert np.isclose(found.score[row, t], 1 / (1 + abs(t - at)))


SLOW = """
import os, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_predict import Drifting, write_run
class Slow(Drifting):
    def track(self, clip, queries):
        time.sleep(0.15)
        return super().track(clip, queries)
for begin in sys.stdin:
    run = os.fork()
    if run == 0:
        write_run(Path({data!r}), Slow(), Path({out!r}))
        os._exit(0)
    print(run, flush=True)
    os.waitpid(run, 0)
"""


def test_killed_runs_resume_to_the_same_bytes(tmp_path, pickled):
    """Runs are forked from a process that has imported everything, so that they are killed while they write."""
    write_run(pickled, Drifting(), tmp_path / "whole")
    code = SLOW.format(tests=str(Path(__file__).parent), data=str(pickled), out=str(tmp_path / "run"))
    rng = random.Random(0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        for _ in range(3):
            process.stdin.write("begin\n")
            process.stdin.flush()
            run = int(process.stdout.readline())
            time.sleep(rng.uniform(0.1, 0.7))
            with contextlib.suppress(ProcessLookupError):  # It was faster.
                os.kill(run, signal.SIGKILL)
    write_run(pickled, Drifting(), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_the_command_predicts_and_resumes(tmp_path, pickled, capsys):
    command = ["eval", "predict", str(pickled), "--tracker", "static", "--out", str(tmp_path / "run"), "--json"]
    main([*command, "--shard", "1/2"])
    main(command)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["made"], one["present"], one["videos"]) for one in printed] == [(4, 0, 7), (3, 4, 7)]
    assert load_run(tmp_path / "run").method == "static"


def test_bytes_depend_neither_on_shards_nor_on_the_hash_seed(tmp_path, capsys):
    data = save(tmp_path / "data.pkl", {name: entry(index, n=2, t=3) for index, name in enumerate("ba/c")})
    command = ["eval", "predict", str(data), "--world", "toy", "--adjudicator", "uniform", "--masks", "2", "--out"]
    main([*command, str(tmp_path / "whole")])
    parts = [*command, str(tmp_path / "parts"), "--shard"]
    program = [sys.executable, "-m", "lpa_cwm.cli.main", *parts, "2/2"]
    subprocess.run(program, check=True, env=os.environ | {"PYTHONHASHSEED": "7"}, stdout=subprocess.DEVNULL)
    main([*parts, "1/2"])
    assert len(contents(tmp_path / "whole")) == 5
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_the_command_passes_the_numbers_of_the_method(tmp_path, capsys):
    path = save(tmp_path / "data.pkl", {"a": entry(n=1, t=2)})
    command = ["eval", "predict", str(path), "--out", str(tmp_path / "run"), "--world", "toy", "--masks", "3"]
    main(command)
    assert load_run(tmp_path / "run").settings["config"]["masks"] == 3
    with pytest.raises(SystemExit):
        main([*command[:-1], "4"])
    assert "settings.config.masks was 3 and is 4" in capsys.readouterr().err


def test_the_command_refuses_numbers_that_a_rival_does_not_have(tmp_path, pickled, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "predict", str(pickled), "--out", str(tmp_path / "run"), "--tracker", "static", "--masks", "3"])
    assert "static does not take --masks" in capsys.readouterr().err


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
        "world": fingerprint("learned"),
        "score": fingerprint("toy", "compact"),
        "both": fingerprint("learned", "compact"),
        "lpa": fingerprint("toy", adjudicator="lpa"),
    }
    assert len(set(used.values())) == len(used)
    assert fingerprint("learned") == fingerprint("learned-total", adjudicator="uniform")
    assert fingerprint("opt-cwm", "adm", "apa") == used["nothing"]


def test_an_identity_knows_how_the_weights_are_used(monkeypatch):
    before, without = fingerprint("learned"), fingerprint("toy")
    monkeypatch.setitem(WORLDS, "learned", replace(WORLDS["learned"], version="otherwise"))
    assert fingerprint("learned") != before
    assert fingerprint("toy") == without


def test_of_two_claims_with_different_settings_one_is_refused(tmp_path):
    """Threads claim one folder at the same time: all winners have the same settings."""
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        barrier, won = threading.Barrier(4), []

        def claim(step, folder=folder, barrier=barrier, won=won):
            barrier.wait()
            with suppress(InputError):
                EvaluationRun("drifting", {"step": step}, "data.pkl", Selection(), Manifest({})).create(folder)
                won.append(step)

        threads = [threading.Thread(target=claim, args=(step,)) for step in (1, 1, 2, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won in ([1, 1], [2, 2])
        assert load_run(folder).settings == {"step": won[0]}


def test_predict_is_a_function_that_prints_nothing(tmp_path, pickled, capsys):
    assert predict(pickled, tmp_path / "run", "static", shard=Shard(1, 2)) == (4, 0, 7)
    counts = predict(pickled, tmp_path / "run", Method("static", label="still"))
    assert (counts.made, counts.present) == (3, 4)
    assert capsys.readouterr() == ("", "")


def test_a_world_model_is_loaded_once_for_all_methods(tmp_path, pickled, monkeypatch):
    loads = []
    entry = WORLDS["toy"]
    monkeypatch.setitem(WORLDS, "toy", replace(entry, load=lambda: loads.append(1) or entry.load()))
    dataset = load_dataset(pickled, Selection(frames=2, max_tracks=1))
    methods = {tmp_path / name: Method(name, "toy", settings={"masks": 2}) for name in ("uniform", "apa")}
    predict_methods(dataset, manifest_of(dataset), methods)
    assert len(loads) == 1
