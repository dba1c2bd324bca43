"""Other people's code in workers: contracts checked with stand-in checkouts, and what happens when it misbehaves."""

import argparse
import ast
import hashlib
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpa_cwm import InputError
from lpa_cwm.baselines import worker_script
from lpa_cwm.baselines.registry import BASELINES, get_baseline, settings_file
from lpa_cwm.baselines.worker import ExternalRepo, WorkerClient, WorkerTracker
from lpa_cwm.types import Clip, Queries

SEA_RAFT, GMRW, DODUO, COTRACKER3 = (BASELINES[name] for name in ("sea-raft", "gmrw", "doduo", "cotracker3"))
STAND_INS = Path(__file__).parent / "stand_ins"
START, STEP = np.array([16, 32]), np.array([8, -4])
"""Corner of the marker in the first frame, and its motion per frame, in x and y."""


def clip(frames=5, hw=(48, 80), hidden=(), blue=None):
    """A red square on black that moves differently in x and y; some frames lack it, some have a bluish corner."""
    video = torch.zeros(frames, 3, *hw, dtype=torch.uint8)
    for frame in set(range(frames)) - set(hidden):
        x, y = START + frame * STEP
        video[frame, 0, y : y + 8, x : x + 8] = 250
    for frame, value in (blue or {}).items():
        video[frame, 2, 0, 0] = value
    return Clip(video, "marker")


def queries():
    """The center of the marker's corner pixel, in the first frame and in the third."""
    xy = np.stack([START + frame * STEP + 0.5 for frame in (0, 2)]).astype(np.float32)
    return Queries(torch.from_numpy(xy), torch.tensor([0, 2]))


def expected(frames=5):
    tracks = np.stack([START + frame * STEP + 0.5 for frame in range(frames)])
    return np.stack([tracks, np.where(np.arange(frames)[:, None] < 2, np.nan, tracks)])


def checkpoint(method, path):
    """Random weights in the published container, except those that the stand-in's behavior hangs on."""
    conv = {"weight": torch.randn(64, 6, 7, 7), "bias": torch.randn(64)}
    content = {
        "sea_raft": {
            **{f"cnet.conv1.{name}": tensor for name, tensor in conv.items()},
            **{f"fnet.conv1.{name}": tensor[:, :3] if name == "weight" else tensor for name, tensor in conv.items()},
            "gain": torch.ones(1),
        },
        "gmrw": {"model": {"module.gain": torch.ones(1)}, "args": argparse.Namespace(temp=0), "epoch": 3},
        "doduo": {
            "state_dict": {
                "unimatch.gain": torch.ones(1),
                "dino.weight": torch.randn(2, 2),
                "dino.bias": torch.randn(2),
            },
            "cur_step": 7,
        },
        "cotracker3": {"weight": torch.zeros(2, 1), "bias": torch.randn(2)},
    }
    torch.save(content[method], path)
    return path


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Copies a stand-in checkout and writes its checkpoint; no settings from outside."""
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "cache"))

    def bring(method):
        checkout = tmp_path / method
        shutil.copytree(STAND_INS / method, checkout)
        weights = checkpoint(method, tmp_path / f"{method}.pth")
        return {"checkout": checkout, "checkpoint": weights, "device": "cpu", "limit": 60}

    return bring


def native(tracker):
    """The tracker at the size of the clip."""
    return replace(tracker, size=None)


def assert_follows(tracks, visible):
    np.testing.assert_allclose(tracks.xy.numpy(), expected(), atol=1e-3)
    assert tracks.visible.tolist() == visible


ALL_SEEN = [[True] * 5, [False, False, True, True, True]]


def test_sea_raft(place):
    # Coming back from the second frame misses by 7 px, from the fourth by 5: the limit is 6.
    video = clip(blue={1: 7, 3: 5})
    tracks = native(SEA_RAFT.load(**place("sea_raft"))).track(video, queries())
    assert_follows(tracks, [[True, False, True, True, True], [False, False, True, True, True]])
    assert tracks.strength is not None
    np.testing.assert_allclose(tracks.strength[0], [0, -7, 0, -5, 0], atol=1e-3)


def test_sea_raft_at_half_size_scales_its_flow_back(place):
    tracks = native(SEA_RAFT.load(**place("sea_raft"), config="spring-M")).track(clip(), queries())
    assert_follows(tracks, ALL_SEEN)


def test_a_checkpoint_that_lacks_tensors_is_refused(tmp_path):
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / "half.pth")
    where = worker_script.Setup("", str(tmp_path / "half.pth"), "cpu", {})
    with pytest.raises(ValueError, match=r"half\.pth lacks 1 tensors, first bias"):
        worker_script.load_tensors(torch.nn.Linear(2, 2), where)


def test_doduo(place):
    # Odd sides have to be filled up.
    assert_follows(native(DODUO.load(**place("doduo"))).track(clip(hw=(45, 77)), queries()), ALL_SEEN)


@pytest.mark.parametrize("upsample", [1, 2])
def test_gmrw(place, upsample):
    # The step back from the third frame misses by a cell, which is 4 px and more than the utility's 3.
    video = clip(blue={3: 255})
    tracks = GMRW.load(**place("gmrw"), upsample=upsample).track(video, queries())
    seen = [[True, True, False, False, True], [False, False, True, False, True]]
    if upsample == 2:  # A cell is 2 px then.
        seen = ALL_SEEN
    assert_follows(tracks, seen)


def test_cotracker3(place):
    tracks = COTRACKER3.load(**place("cotracker3")).track(clip(hidden=[3]), queries())
    assert tracks.visible.tolist() == [[True, True, True, False, True], [False, False, True, False, True]]
    truth = expected()
    truth[:, 3] = 0.5  # Without a marker the stand-in names the first pixel; such points are kept as they come.
    np.testing.assert_allclose(tracks.xy.numpy(), truth, atol=1e-4)


ECHO = """
import os
import numpy as np

open(os.path.join({folder!r}, "loads"), "a").write("x")


def load(place):
    def answer(question):
        frames, queries = len(question["video"]), question["queries"]
        {change}
        tracks = np.repeat(queries[:, None, 1:], frames, axis=1)
        return {{"tracks": tracks, "visible": np.ones(tracks.shape[:2], dtype=bool)}}

    return answer
"""


@pytest.fixture
def echo(tmp_path):
    """A worker that needs numpy only and answers that nothing moves, but for a change in its code."""

    def start(change="pass", **settings):
        (tmp_path / "echo.py").write_text(ECHO.format(folder=str(tmp_path), change=change))
        where = ExternalRepo(str(tmp_path / "echo"), tmp_path, tmp_path, device="cpu", **{"limit": 60.0, **settings})
        return WorkerTracker(WorkerClient(where))

    return start


def assert_still(tracks, frames=5):
    still = np.repeat(queries().xy.numpy()[:, None], frames, axis=1)
    still[1, :2] = np.nan
    np.testing.assert_array_equal(tracks.xy, still)
    assert tracks.visible.tolist() == [[True] * frames, [frame >= 2 for frame in range(frames)]]


def test_one_worker_serves_many_videos(echo, tmp_path):
    tracker = echo()
    for frames in (5, 3, 4):
        assert_still(tracker.track(clip(frames), queries()), frames)
    assert (tmp_path / "loads").read_text() == "x"


def test_nothing_is_asked_about_queries_in_the_last_frame(echo):
    asked = Queries(torch.tensor([[3.0, 4.0]]), torch.tensor([1]))
    tracks = echo(python="/no/such/python").track(clip(2), asked)
    assert tracks.xy[:, 1].tolist() == [[3.0, 4.0]]
    assert tracks.visible.tolist() == [[False, True]]


def test_a_talkative_worker_does_not_disturb(echo):
    noise = "import subprocess; print('x' * 100_000); subprocess.run(['echo', 'hello'])"
    assert_still(echo(noise).track(clip(), queries()))


def test_a_worker_that_crashes_is_quoted(echo):
    with pytest.raises(InputError, match=r"The worker of echo stopped .*RuntimeError: out of memory, say$"):
        echo("raise RuntimeError('out of memory, say')").track(clip(), queries())


def test_a_worker_is_started_again_after_a_failure(echo):
    once = "ok = os.path.exists(__file__ + '.ok'); open(__file__ + '.ok', 'w').close(); assert ok"
    tracker = echo(once)
    with pytest.raises(InputError, match="AssertionError"):
        tracker.track(clip(), queries())
    assert_still(tracker.track(clip(), queries()))


def test_a_worker_that_hangs_is_stopped(echo):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"gave no answer within 3 s and was stopped; its last words: waiting"):
        echo("import time; print('waiting', flush=True); time.sleep(600)", limit=3.0).track(clip(), queries())
    assert time.monotonic() - began < 60


@pytest.fixture
def interruptible():
    """Parallel test runners ignore the interrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_worker_too(echo, tmp_path):
    tracker = echo("import time; open(__file__ + '.pid', 'w').write(str(os.getpid())); time.sleep(600)")
    began = time.monotonic()
    alarm = threading.Thread(target=interrupt_when_there, args=(tmp_path / "echo.py.pid",))
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        tracker.track(clip(), queries())
    alarm.join()
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "echo.py.pid").read_text()), 0)


def interrupt_when_there(path):
    while not (path.exists() and path.read_text()):
        time.sleep(0.05)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_worker_that_asks_for_input_gets_none(echo):
    with pytest.raises(InputError, match="BdbQuit"):
        echo("import pdb; pdb.set_trace()").track(clip(), queries())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("frames -= 1", r"tracks of shape \(2, 4, 2\) where \(2, 5, 2\) was due"),
        ("queries = queries[:1]", r"tracks of shape \(1, 5, 2\) where \(2, 5, 2\) was due"),
        ("return {'tracks': np.zeros((2, 5, 2))}", r"visible of shape nothing where \(2, 5\) was due"),
    ],
)
def test_answers_of_the_wrong_shape_are_refused(echo, change, words):
    with pytest.raises(InputError, match=words):
        echo(change).track(clip(), queries())


def test_an_interpreter_that_cannot_run_is_said(echo):
    with pytest.raises(InputError, match="/no/such/python cannot be started"):
        echo(python="/no/such/python").track(clip(), queries())


def test_what_is_missing_is_said_in_turn(place, tmp_path, monkeypatch):
    assert str(COTRACKER3.missing()).startswith("cotracker3 needs its checkout: set LPA_CWM_COTRACKER3_CHECKOUT, or")
    monkeypatch.setenv("LPA_CWM_COTRACKER3_CHECKOUT", str(tmp_path))
    assert "needs its checkpoint" in str(COTRACKER3.missing())
    monkeypatch.setenv("LPA_CWM_COTRACKER3_CHECKPOINT", str(tmp_path / "none.pth"))
    assert "none.pth, does not exist" in str(COTRACKER3.missing())
    where = place("cotracker3")
    monkeypatch.setenv("LPA_CWM_COTRACKER3_CHECKPOINT", str(where["checkpoint"]))
    assert "it holds no hubconf.py" in str(COTRACKER3.missing())
    with pytest.raises(InputError, match=r"holds no hubconf\.py"):
        COTRACKER3.load()
    monkeypatch.setenv("LPA_CWM_COTRACKER3_CHECKOUT", str(where["checkout"]))
    assert COTRACKER3.missing() is None
    assert COTRACKER3.load().worker.repo.checkpoint == where["checkpoint"]


def write_settings(text):
    settings_file().parent.mkdir(exist_ok=True)
    settings_file().write_text(text)


def test_settings_come_from_a_file_and_what_is_given_wins(place):
    where = place("cotracker3")
    write_settings(f'[cotracker3]\ncheckout = "{where["checkout"]}"\ncheckpoint = "elsewhere"\nlimit = 60\n')
    assert "elsewhere, does not exist" in str(COTRACKER3.missing())
    chosen = COTRACKER3.load(checkpoint=where["checkpoint"], python=None).worker.repo
    assert (chosen.checkpoint, chosen.limit, chosen.python) == (where["checkpoint"], 60.0, sys.executable)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cotracker3\n", "is not TOML"),
        ('[cotracker3]\nchekpoint = "x"\n', "gives cotracker3 'chekpoint'; expected a table with checkout, checkpoint"),
        ("cotracker3 = 5\n", "expected a table"),
    ],
)
def test_bad_settings_files_are_said(place, text, words):
    write_settings(text)
    assert words in str(COTRACKER3.missing())
    with pytest.raises(InputError, match=words):
        COTRACKER3.load()


def test_unknown_settings_and_limits_are_refused(place):
    with pytest.raises(InputError, match="gmrw has no setting 'config'; it has checkout"):
        GMRW.load(config="x")
    where = place("cotracker3")
    for limit in ("soon", 0, -1, "nan"):
        with pytest.raises(InputError, match="is not a positive number of seconds"):
            COTRACKER3.load(**{**where, "limit": limit})


def test_predictions_are_known_by_their_weights_and_options(place):
    where = place("gmrw")
    content = hashlib.sha256(where["checkpoint"].read_bytes()).hexdigest()
    named = get_baseline(f"gmrw:{where['checkpoint']}")
    assert named.identity(upsample=4) == {"checkpoint": f"sha256:{content}", "upsample": "4"}
    assert named.identity(device="cuda") == {"checkpoint": f"sha256:{content}"}
    assert GMRW.identity() == {}


def test_workers_speak_old_python():
    """The script runs under the users' interpreters; one of the methods needs 3.8."""
    old = (3, 8)
    assert ast.parse(Path(worker_script.__file__).read_text(), feature_version=old).body
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case 1: pass", feature_version=old)
