"""Prediction over a Ray cluster: one actor per device, videos handed out as actors become free."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lpa_cwm.errors import need
from lpa_cwm.experiments.predict import Job, follow
from lpa_cwm.metrics import Prediction


class Worker:
    """Holds one tracker and follows whatever video it is given."""

    def __init__(self, job: Job, threads: int) -> None:
        # Sums over another number of threads round differently: with the driver's, the bytes are those of a local run.
        torch.set_num_threads(threads)
        self.dataset = job.dataset
        self.tracker = job.make_tracker()

    def follow(self, index: int) -> tuple[int, Prediction]:
        """One video."""
        return index, follow(self.tracker, self.dataset[index], self.dataset.selection)


@dataclass(frozen=True)
class OverRay:
    """An executor on the cluster that `RAY_ADDRESS` names, or on a Ray of its own on this machine.

    Workers read the data set from the path that it was given by; all files are written by the caller.
    """

    device: str = "cpu"
    workers: int | None = None
    """By default one for each GPU of the cluster, or for each CPU if the device is none."""

    def __call__(self, job: Job, indices: list[int]) -> Iterator[tuple[int, Prediction]]:
        """Hand out videos until all are done; a worker that is lost is started again and its video repeated."""
        ray, pool = need("ray", extra="ray"), need("ray.util", extra="ray")
        mine = not ray.is_initialized()
        if mine:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        try:
            actors = self._actors(ray, job, len(indices))
            yield from pool.ActorPool(actors).map_unordered(lambda actor, index: actor.follow.remote(index), indices)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        finally:
            if mine:
                ray.shutdown()

    def _actors(self, ray: Any, job: Job, videos: int) -> list[Any]:
        """As many as there are devices, and never more than videos."""
        kind = "CPU" if self.device == "cpu" else "GPU"
        devices = int(ray.cluster_resources().get(kind, 1))
        options = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_restarts": -1, "max_task_retries": 3}
        make = ray.remote(Worker).options(**options)
        return [make.remote(job, torch.get_num_threads()) for _ in range(min(self.workers or devices, videos))]
