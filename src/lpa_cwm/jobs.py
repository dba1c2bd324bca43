"""Long jobs: numbered pieces shared by machines (`Shard`) and by local or Ray workers (`Executor`); a progress line.

Also threads that share the work of a frame (`in_threads`), and attributes that they compute once (`computed_once`).
"""

import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, overload, runtime_checkable

from lpa_cwm.errors import InputError, require
from lpa_cwm.files import share_pieces
from lpa_cwm.validation import reason

Item = TypeVar("Item")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Shard:
    """Every `count`-th piece, beginning with the `number`-th; numbers begin at 1."""

    number: int = 1
    count: int = 1

    def of(self, total: int) -> range:
        """The indices of its pieces."""
        return range(self.number - 1, total, self.count)


@runtime_checkable
class Job(Protocol[Result_co]):
    """Numbered pieces of work whose results depend neither on the worker nor on the order."""

    def setup(self) -> Callable[[int], Result_co]:
        """Load what all pieces need, once in each worker, and return the function that does one piece."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs pieces of a job and yields each result with its number, in any order."""

    def __call__(self, job: Job[Result], pieces: list[int], /) -> Iterator[tuple[int, Result]]: ...


def run_local(job: Job[Result], pieces: Iterable[int]) -> Iterator[tuple[int, Result]]:
    """One piece after the other in this process."""
    do = job.setup()
    for piece in pieces:
        yield piece, do(piece)


def execute(
    executor: "Executor", job: Job[Result], pieces: list[int], claims: Path, is_done: Callable[[int], bool]
) -> Iterator[tuple[int, Result]]:
    """Run the pieces of a job; local processes that work on the same folder share them by locks on the file `claims`.

    Pieces on Ray are handed out at once, so they cannot be shared with other processes.
    """
    if not pieces:
        return iter(())
    if executor is not run_local or not claims.exists():
        return executor(job, pieces)
    return run_local(job, share_pieces(claims, pieces, is_done))


class RayWorker:
    """An actor: sets the job up once, then does the pieces it is given."""

    def __init__(self, job: Job[Any], threads: int) -> None:
        import torch

        # Sums over another number of threads round differently: with the driver's number, results equal a local run's.
        torch.set_num_threads(threads)
        self.do_piece = job.setup()

    def do(self, piece: int) -> tuple[int, Any]:
        """One piece."""
        return piece, self.do_piece(piece)


@dataclass(frozen=True)
class RayExecutor:
    """Runs on the Ray cluster of `RAY_ADDRESS`, or on a new one on this machine; one actor per device.

    Workers read data from the paths of the job; the caller writes all files.
    """

    device: str = "cpu"
    workers: int | None = None
    """Number of actors; by default one per GPU of the cluster, or per CPU if the device is the CPU."""

    def __call__(self, job: Job[Result], pieces: list[int]) -> Iterator[tuple[int, Result]]:
        """Hand out pieces to free actors; a lost actor is restarted and its piece repeated.

        A piece that fails again and again is reported after all others are done.
        """
        ray = require("ray", extra="ray")
        mine = not ray.is_initialized()
        if mine:
            start_ray(ray)
        try:
            yield from run_on_actors(ray, self._actors(ray, job, len(pieces)), pieces)
        finally:
            if mine:
                with stdout_to_stderr():
                    ray.shutdown()

    def _actors(self, ray: Any, job: Job[Any], pieces: int) -> list[Any]:
        """One actor per device, at most one per piece."""
        import torch

        kind = "CPU" if self.device == "cpu" else "GPU"
        devices = int(ray.cluster_resources().get(kind, 1))
        options = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_restarts": -1, "max_task_retries": 3}
        make = ray.remote(RayWorker).options(**options)
        return [make.remote(job, torch.get_num_threads()) for _ in range(min(self.workers or devices, pieces))]


def start_ray(ray: Any) -> None:
    """Connect to the cluster of `RAY_ADDRESS`, or start one on this machine; failures are one sentence."""
    try:
        _check_address(os.environ.get("RAY_ADDRESS", ""))
        with stdout_to_stderr():
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    except Exception as error:
        raise InputError(
            f"Ray did not start ({reason(error)}); check RAY_ADDRESS and the cluster, or leave out --executor ray."
        ) from error


def _check_address(address: str) -> None:
    """Refuse a head node that does not answer; Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isascii() and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            pass


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what libraries print to standard error: standard output is for results."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def run_on_actors(ray: Any, actors: list[Any], pieces: list[int]) -> Iterator[tuple[int, Any]]:
    """Yield results as they come; raise what failed at the end."""
    waiting, free = deque(pieces), deque(actors)
    busy: dict[Any, tuple[Any, int]] = {}
    failed: dict[int, Exception] = {}
    while waiting or busy:
        while waiting and free:
            actor, piece = free.popleft(), waiting.popleft()
            busy[actor.do.remote(piece)] = actor, piece
        # Ray prints about processes that ended, from a thread of its own.
        with stdout_to_stderr():
            (ready,), _ = ray.wait(list(busy), num_returns=1)
        actor, piece = busy.pop(ready)
        free.append(actor)
        try:
            result = ray.get(ready)
        except ray.exceptions.RayError as error:
            failed[piece] = error
        else:
            yield result
    if failed:
        piece, error = min(failed.items())
        cause = getattr(error, "cause", None)
        why = reason(cause or error) if isinstance(cause, Exception) else "its process ended again and again"
        raise InputError(
            f"{len(failed)} of {len(pieces)} pieces failed on Ray, first number {piece} ({why}); the others are done: "
            "run the same command without --executor ray to see more."
        ) from error


def in_threads(do: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """The results of all items, in order.

    One thread does an item from its beginning to its end, so any number of workers gives the same bytes.
    """
    import torch

    if workers == 1 or len(items) < 2:
        return [do(item) for item in items]

    def do_alone(item: Item) -> Result:
        # Threads do not inherit this mode.
        with torch.inference_mode(inference):
            return do(item)

    inference = torch.is_inference_mode_enabled()
    with one_thread_each(), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(do_alone, items))


class computed_once(Generic[Result]):
    """An attribute that is computed when it is first read, like `functools.cached_property`.

    Before Python 3.12, `cached_property` holds one lock for all instances while it computes, and threads wait for it.
    """

    def __init__(self, compute: Callable[[Any], Result]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "computed_once[Result]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.compute(instance)
        return value


def threads_of(device: str) -> int:
    """Default number of threads: as many as torch uses on a CPU; one, which keeps a GPU busy."""
    import torch

    return torch.get_num_threads() if device == "cpu" else 1


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Within this block, threads started by Python compute by themselves: torch gives them no threads of its own."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def executor(name: Literal["local", "ray"], device: str, workers: int | None) -> Executor:
    """An executor by its name on the command line."""
    return RayExecutor(device, workers) if name == "ray" else run_local


def progress(items: Iterable[Item], total: int, label: str, quiet: bool = False) -> Iterator[Item]:
    """Iterate with a progress line on stderr (none when stderr is not a terminal or `quiet`)."""
    with progress_line(total, label, quiet) as set_done:
        for done, item in enumerate(items, 1):
            yield item
            set_done(done)


@contextmanager
def progress_line(total: int, label: str, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress line on stderr, and the function that sets how many items are done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)
    if quiet or not console.is_terminal:
        yield lambda done: None
        return
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
