"""Trackers and flow estimators in worker processes, with their own code, interpreter and license."""

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, NoReturn, cast

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.baselines import worker_script
from lpa_cwm.errors import InputError
from lpa_cwm.tracker import validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks

LAST_LINES = 4
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ExternalRepo:
    """An external repository and how to run it."""

    method: str
    """A method of `worker_script.py`, or the path of a script without its suffix."""
    checkout: Path
    checkpoint: Path
    python: str = sys.executable
    device: str = "auto"
    limit: float = 1800.0
    """Time limit for loading and for each answer, in seconds."""
    options: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Command line of the worker."""
        paths = ["--checkout", str(self.checkout.resolve()), "--checkpoint", str(self.checkpoint.resolve())]
        options = [part for key, value in self.options.items() for part in ("--option", f"{key}={value}")]
        return [self.python, worker_script.__file__, self.method, *paths, "--device", self.device, *options]


class WorkerProcess:
    """A running worker: process, pipes, captured standard error."""

    def __init__(self, repo: ExternalRepo) -> None:
        self.repo = repo
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        command = repo.command()
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True
            )
        except OSError as error:
            self.errors.close()
            raise InputError(f"{command[0]} cannot be started ({error}); give the Python to run it with.") from error
        self.end = weakref.finalize(self, end, self.process, self.errors)

    def request(self, question: Arrays | None) -> Arrays:
        """Send one question and wait for the answer, within the time limit."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            # A thread, because a full pipe or a silent worker would block without limit.
            answer = pool.submit(send_receive, self.process, question)
            try:
                found = answer.result(timeout=self.repo.limit)
            except TimeoutError:
                self.fail(f"gave no answer within {self.repo.limit:g} s and was stopped")
            except KeyboardInterrupt:
                # The worker runs in its own session and did not get the signal; the thread waits until it ends.
                kill(self.process)
                self.end()
                raise
        if found is None:
            self.fail("stopped without an answer")
        return found

    def fail(self, what: str) -> NoReturn:
        """Stop the process and report the end of its standard error."""
        kill(self.process)
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines()]
        words = " | ".join([line for line in lines if line][-LAST_LINES:]) or "nothing"
        self.end()
        raise InputError(f"The worker of {Path(self.repo.method).name} {what}; its last words: {words}")


def send_receive(process: subprocess.Popen[bytes], question: Arrays | None) -> Arrays | None:
    """Send a question, if any, and read one message; None if the worker has ended or the message is not valid."""
    try:
        if question is not None:
            worker_script.send(cast(BinaryIO, process.stdin), question)
        return worker_script.receive(cast(BinaryIO, process.stdout))
    except Exception:  # Any exception can come from unknown bytes.
        return None


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, unless the process ends by itself within half a second."""
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Close the pipes, which ends a healthy worker, and kill it otherwise."""
    for stream in (process.stdin, process.stdout, errors):
        assert stream is not None
        with suppress(BrokenPipeError):
            stream.close()
    kill(process)


class WorkerClient:
    """Starts a worker at the first question, and again after a failure."""

    def __init__(self, repo: ExternalRepo) -> None:
        self.repo = repo
        self.running: WorkerProcess | None = None

    def ask(self, question: Arrays, due: Mapping[str, tuple[int, ...]]) -> Arrays:
        """Ask one question; the arrays of the answer must have the given shapes."""
        running, self.running = self.running or self._start(), None
        answer = running.request(question)
        for name, shape in due.items():
            found = answer[name].shape if name in answer else "nothing"
            if found != shape:
                running.fail(f"answered with {name} of shape {found} where {shape} was due")
            if answer[name].dtype.kind not in "biuf":
                running.fail(f"answered with {name} of {answer[name].dtype} where numbers were due")
        self.running = running
        return answer

    def _start(self) -> WorkerProcess:
        running = WorkerProcess(self.repo)
        if running.request(None).get("protocol") != worker_script.PROTOCOL:
            running.fail("speaks another protocol")
        return running


@dataclass(frozen=True, slots=True)
class WorkerFlow:
    """A `flow_trackers.Flow` computed by a worker."""

    worker: WorkerClient

    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """Flow of the whole batch in one request."""
        question = {"before": channels_last(before), "after": channels_last(after)}
        answer = self.worker.ask(question, {"flow": (len(before), 2, *before.shape[-2:])})
        return torch.from_numpy(answer["flow"]).float().to(before.device)


@dataclass(frozen=True, slots=True)
class WorkerTracker:
    """A tracker computed by a worker, with the worker's own visibility."""

    worker: WorkerClient

    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Track a clip in one request; answers for frames up to the query are ignored."""
        queries = validate_queries(clip, queries)
        tracks = Tracks.at_queries(clip, queries)
        later = queries.frame[:, None] < torch.arange(len(clip), device=queries.frame.device)
        if not later.any():
            return tracks
        video = torch.stack([clip[frame] for frame in range(len(clip))])
        asked = torch.cat((queries.frame[:, None].to(queries.xy), queries.xy), dim=1)
        question = {"video": channels_last(video), "queries": asked.cpu().numpy().astype(np.float32)}
        answer = self.worker.ask(question, {"tracks": tuple(tracks.xy.shape), "visible": tuple(later.shape)})
        xy, visible = (torch.from_numpy(answer[name]).to(queries.xy.device) for name in ("tracks", "visible"))
        return Tracks(
            xy.to(tracks.xy.dtype).where(later[..., None], tracks.xy), visible.bool().where(later, tracks.visible)
        )


def channels_last(frames: UInt8[Tensor, "b 3 h w"]) -> np.ndarray:
    """Frames with channels last, as in the protocol."""
    return rearrange(frames, "b c h w -> b h w c").cpu().numpy()
