"""Trackers and flow estimators that run as a process of their own: somebody else's code, interpreter and license."""

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
from zipfile import BadZipFile

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.baselines.start import begun
from lpa_cwm.baselines.workers import serve
from lpa_cwm.errors import InputError
from lpa_cwm.types import Clip, Queries, Tracks

LAST_LINES = 4
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Checkout:
    """Where somebody else's code is and how to run it."""

    method: str
    """Name of a script in `workers`, or the whole path of one without its suffix."""
    checkout: Path
    checkpoint: Path
    python: str = sys.executable
    device: str = "auto"
    limit: float = 1800.0
    """Seconds that loading, or one answer, may take."""
    options: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """What starts the worker."""
        paths = ["--checkout", str(self.checkout.resolve()), "--checkpoint", str(self.checkpoint.resolve())]
        options = [part for key, value in self.options.items() for part in ("--option", f"{key}={value}")]
        return [self.python, serve.__file__, self.method, *paths, "--device", self.device, *options]


class Running:
    """One process, its pipes and what it says on its standard error."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        command = checkout.command()
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True
            )
        except OSError as error:
            self.errors.close()
            raise InputError(f"{command[0]} cannot be started ({error}); give the Python to run it with.") from error
        self.end = weakref.finalize(self, end, self.process, self.errors)

    def exchange(self, question: Arrays | None) -> Arrays:
        """Talk in a thread of its own, so that neither a full pipe nor a silent worker can hold us up for ever."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            answer = pool.submit(talk, self.process, question)
            try:
                found = answer.result(timeout=self.checkout.limit)
            except TimeoutError:
                self.fail(f"gave no answer within {self.checkout.limit:g} s and was stopped")
            except KeyboardInterrupt:
                # The worker has a session of its own and did not hear it; without its end the thread would wait on.
                kill(self.process)
                self.end()
                raise
        if found is None:
            self.fail("stopped without an answer")
        return found

    def fail(self, what: str) -> NoReturn:
        """Stop the process and report its last words."""
        kill(self.process)
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines()]
        words = " | ".join([line for line in lines if line][-LAST_LINES:]) or "nothing"
        self.end()
        raise InputError(f"The worker of {Path(self.checkout.method).name} {what}; its last words: {words}")


def talk(process: subprocess.Popen[bytes], question: Arrays | None) -> Arrays | None:
    """Send a question, if any, and read one message; None when the worker has gone or talks nonsense."""
    try:
        if question is not None:
            serve.send(cast(BinaryIO, process.stdin), question)
        return serve.receive(cast(BinaryIO, process.stdout))
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, BadZipFile):
        return None


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it has started, unless it has ended by itself a moment ago."""
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Close the pipes, upon which a worker in good health goes by itself, and see that it does."""
    for stream in (process.stdin, process.stdout, errors):
        assert stream is not None
        with suppress(BrokenPipeError):
            stream.close()
    kill(process)


class Worker:
    """A worker that is started by the first question, and again by the first after it has failed."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.running: Running | None = None

    def ask(self, question: Arrays, due: Mapping[str, tuple[int, ...]]) -> Arrays:
        """One question, one answer, whose arrays must have the shapes that are due."""
        running, self.running = self.running or self._start(), None
        answer = running.exchange(question)
        for name, shape in due.items():
            found = answer[name].shape if name in answer else "nothing"
            if found != shape:
                running.fail(f"answered with {name} of shape {found} where {shape} was due")
        self.running = running
        return answer

    def _start(self) -> Running:
        running = Running(self.checkout)
        if running.exchange(None).get("protocol") != serve.PROTOCOL:
            running.fail("speaks another protocol")
        return running


@dataclass(frozen=True, slots=True)
class WorkerFlow:
    """A `pairwise.Flow` whose pairs are computed by a worker."""

    worker: Worker

    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """Ask for the whole batch."""
        question = {"before": picture(before), "after": picture(after)}
        answer = self.worker.ask(question, {"flow": (len(before), 2, *before.shape[-2:])})
        return torch.from_numpy(answer["flow"]).float().to(before.device)


@dataclass(frozen=True, slots=True)
class WorkerTracker:
    """A tracker whose whole videos are computed by a worker; its visibility is taken as it is."""

    worker: Worker

    def track(self, clip: Clip, queries: Queries) -> Tracks:
        """Ask once per clip; what is said about frames up to the query is not used."""
        tracks = begun(clip, queries)
        later = queries.frame[:, None] < torch.arange(len(clip), device=queries.frame.device)
        if not later.any():
            return tracks
        video = torch.stack([clip[frame] for frame in range(len(clip))])
        asked = torch.cat((queries.frame[:, None].to(queries.xy), queries.xy), dim=1)
        question = {"video": picture(video), "queries": asked.cpu().numpy().astype(np.float32)}
        answer = self.worker.ask(question, {"tracks": tuple(tracks.xy.shape), "visible": tuple(later.shape)})
        xy, visible = (torch.from_numpy(answer[name]).to(queries.xy.device) for name in ("tracks", "visible"))
        return Tracks(
            xy.to(tracks.xy.dtype).where(later[..., None], tracks.xy), visible.bool().where(later, tracks.visible)
        )


def picture(frames: UInt8[Tensor, "b 3 h w"]) -> np.ndarray:
    """Frames with channels last, as the protocol has them."""
    return rearrange(frames, "b c h w -> b h w c").cpu().numpy()
