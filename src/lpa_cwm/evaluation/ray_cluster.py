"""Work over a Ray cluster: one actor per device, pieces handed out as actors become free."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lpa_cwm.errors import need
from lpa_cwm.sharding import Executor, Result, Work, in_this_process


class Worker:
    """Prepares once, then does whatever piece it is given."""

    def __init__(self, work: Work[Any], threads: int) -> None:
        # Sums over another number of threads round differently: with the driver's, the bytes are those of a local run.
        torch.set_num_threads(threads)
        self.do_piece = work.begin()

    def do(self, piece: int) -> tuple[int, Any]:
        """One piece."""
        return piece, self.do_piece(piece)


@dataclass(frozen=True)
class OverRay:
    """An executor on the cluster that `RAY_ADDRESS` names, or on a Ray of its own on this machine.

    Workers read data from the paths that it was given by; all files are written by the caller.
    """

    device: str = "cpu"
    workers: int | None = None
    """By default one for each GPU of the cluster, or for each CPU if the device is none."""

    def __call__(self, work: Work[Result], pieces: list[int]) -> Iterator[tuple[int, Result]]:
        """Hand out pieces until all are done; a worker that is lost is started again and its piece repeated."""
        ray, pool = need("ray", extra="ray"), need("ray.util", extra="ray")
        mine = not ray.is_initialized()
        if mine:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        try:
            actors = self._actors(ray, work, len(pieces))
            yield from pool.ActorPool(actors).map_unordered(lambda actor, piece: actor.do.remote(piece), pieces)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        finally:
            if mine:
                ray.shutdown()

    def _actors(self, ray: Any, work: Work[Any], pieces: int) -> list[Any]:
        """As many as there are devices, and never more than pieces."""
        kind = "CPU" if self.device == "cpu" else "GPU"
        devices = int(ray.cluster_resources().get(kind, 1))
        options = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_restarts": -1, "max_task_retries": 3}
        make = ray.remote(Worker).options(**options)
        return [make.remote(work, torch.get_num_threads()) for _ in range(min(self.workers or devices, pieces))]


def executor(name: Literal["local", "ray"], device: str, workers: int | None) -> Executor:
    """The executor of this name, as the command line has it."""
    return OverRay(device, workers) if name == "ray" else in_this_process
