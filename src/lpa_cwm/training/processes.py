"""Data-parallel training: several processes, each with its own pairs, average their gradients."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpa_cwm.errors import InputError

TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others, which may be slow to start or share their cores."""


@runtime_checkable
class GradientReducer(Protocol):
    """A process group of torch."""

    def allreduce(self, tensors: list[Tensor], /) -> Any:
        """Begin to replace tensors by their sums over the processes; the result has `wait()`."""
        ...


@dataclass(frozen=True)
class Processes:
    """The processes that train together, as seen by one of them; by default it is alone."""

    rank: int = 0
    count: int = 1
    group: GradientReducer | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process writes log, checkpoint and weights."""
        return self.rank == 0

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over the processes."""
        if self.group is None:
            return
        # One message is faster than one per parameter. A parameter that this process did not use has gradient zero.
        every = list(parameters)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in every])
        self.group.allreduce([flat]).wait()
        parts = (flat / self.count).split([p.numel() for p in every])
        for parameter, part in zip(every, parts, strict=True):
            parameter.grad = part.view_as(parameter)


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes that `torchrun` started, by the variables that it sets; alone without them."""
    rank, count = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count)):
        raise InputError(
            f"RANK is {rank!r} and WORLD_SIZE is {count!r}; expected two numbers, the first below the second; start "
            "several processes with torchrun, one without these variables."
        )
    if int(count) == 1:
        yield Processes()
        return
    dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield Processes(int(rank), int(count), dist.group.WORLD)
    finally:
        dist.destroy_process_group()
