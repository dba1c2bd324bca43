"""The training loop of all networks: schedule, averaged weights, checkpoint, log; it resumes bit-exactly.

Several processes can train together, each with its own pairs; they average their gradients.
"""

import json
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, exclusive_lock, pin_settings
from lpa_cwm.io.safe_load import check_state_dict, load_plain
from lpa_cwm.jobs import progress
from lpa_cwm.validation import parse_json, read_text, reading, structure

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


CHECKPOINT, LOG, SETTINGS = "checkpoint.pt", "log.jsonl", "settings.json"
"""Files of a training's folder."""
CHECKPOINT_ERROR = "a checkpoint of this training", "remove it, or give another --out"
MAX_STEPS = 10**12
LogRecord = dict[str, int | float | str]
BatchT = TypeVar("BatchT")
NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class StepLoss:
    """What one step minimizes, and what the log shows of it."""

    loss: Tensor
    shown: dict[str, float]
    """Values by name; the log has the mean of each over the steps between two lines that have it."""


@dataclass(frozen=True)
class StopSchedule:
    """The last step, and the steps before it over which the rate falls to zero; may change when a run is resumed."""

    steps: int
    cooldown: int

    def factor(self, step: int) -> float:
        """Linear cooldown (warmup-stable-decay, Hu et al., 2024)."""
        return min(1.0, (self.steps - step) / max(self.cooldown, 1))


@dataclass
class TrainingLoop(Generic[NetworkT]):
    """Trains a network; batches and losses must be functions of the step, then a resumed training ends like any other.

    After every `save_every` steps, and after the last, a line is added to the log and the checkpoint is replaced.
    """

    network: NetworkT
    optimizer: torch.optim.Optimizer
    out: Path
    settings: dict[str, Any]
    """Settings that must be equal when a training is resumed."""
    steps: int
    save_every: int
    rate_factor: Callable[[int], float]
    """Learning rate of a step, relative to that of the optimizer."""
    max_norm: float
    """Gradients are scaled down to this norm (Pascanu et al., 2013)."""
    ema_rate: float | None = None
    """Smallest rate of the averaged weights; None keeps no average."""
    processes: Processes = field(default_factory=Processes)
    """Each has its own batches; all take the same steps, and the first one writes."""
    step: int = 0
    """Steps done."""
    cpu_seconds: float = 0.0
    """CPU time of these steps, of all processes."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further values for the checkpoint."""
    average: AveragedModel | None = field(init=False, default=None)
    """Exponential moving average of the weights."""
    scheduler: LambdaLR = field(init=False)

    def __post_init__(self) -> None:
        if self.ema_rate is not None:
            self.average = AveragedModel(self.network, multi_avg_fn=ema_update(self.ema_rate))
        self.scheduler = LambdaLR(self.optimizer, self.rate_factor)

    def run(
        self,
        batches: Callable[[int, int], Iterable[BatchT]],
        loss_of: Callable[[int, BatchT], StepLoss],
        evaluate: Callable[[], LogRecord] = dict,
    ) -> None:
        """Train to the last step, from the checkpoint if there is one.

        `batches(first, end)` gives the batches of these steps, `loss_of(step, batch)` the loss of one, and
        `evaluate()` further values for a line of the log.
        """
        pin_settings(self.out / SETTINGS, self.settings)
        # The first process holds the folder for all of them.
        with exclusive_lock(self.out / SETTINGS, "trains") if self.processes.is_first else nullcontext():
            self.restore()
            self._train(batches, loss_of, evaluate)

    def _train(
        self,
        batches: Callable[[int, int], Iterable[BatchT]],
        loss_of: Callable[[int, BatchT], StepLoss],
        evaluate: Callable[[], LogRecord],
    ) -> None:
        first = self.processes.is_first
        log = TrainingLog(self.out / LOG, self.step) if first else None
        shown: list[dict[str, float]] = []
        remaining = batches(self.step, self.steps)
        for batch in progress(remaining, self.steps - self.step, self.out.name, quiet=not first):
            rate = float(self.scheduler.get_last_lr()[0])
            shown.append(self.update(batch, loss_of))
            if self.step % self.save_every == 0 or self.step == self.steps:
                if log is not None:
                    log.write({"step": self.step, **mean_values(shown), "rate": rate, **evaluate()})
                    save_checkpoint(self.out / CHECKPOINT, self.state_dict())
                shown.clear()

    def update(self, batch: BatchT, loss_of: Callable[[int, BatchT], StepLoss]) -> dict[str, float]:
        """One step of the optimizer, the schedule and the average."""
        begin = time.process_time()
        result = loss_of(self.step, batch)
        self.optimizer.zero_grad()
        result.loss.backward()
        self.processes.average_gradients(self.network.parameters())
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.max_norm)
        # A gradient that overflows in one batch must not destroy the weights.
        if bool(norm.isfinite()):
            self.optimizer.step()
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        self.step += 1
        # All processes do the same work.
        self.cpu_seconds += (time.process_time() - begin) * self.processes.count
        return result.shown

    def restore(self) -> None:
        """Restore the checkpoint, if there is one."""
        state = load_checkpoint(self.out / CHECKPOINT)
        if state is None:
            return
        with reading(self.out / CHECKPOINT, *CHECKPOINT_ERROR):
            check_state_dict(state["network"], self.network, self.out / CHECKPOINT, CHECKPOINT_ERROR[0])
            for name, part in self.parts().items():
                part.load_state_dict(state[name])
        self.step, self.cpu_seconds, self.extra = state["step"], state["cpu_seconds"], state["extra"]
        # Anew, because the last step, and with it the rates of all later ones, may have changed.
        self.scheduler = LambdaLR(self.optimizer, self.rate_factor, last_epoch=self.step - 1)

    @property
    def averaged(self) -> NetworkT:
        """The network with averaged weights; the trained one if there is no average."""
        return self.network if self.average is None else cast(NetworkT, self.average.module)

    def parts(self) -> dict[str, Any]:
        """Everything with a state of its own."""
        parts = {"network": self.network, "optimizer": self.optimizer}
        return parts if self.average is None else {**parts, "average": self.average}

    def state_dict(self) -> dict[str, Any]:
        """Content of a checkpoint."""
        states = {name: part.state_dict() for name, part in self.parts().items()}
        return {**states, "step": self.step, "cpu_seconds": self.cpu_seconds, "extra": self.extra}


def ema_update(min_rate: float) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    """EMA step with warm-up (power 3/4, as in k-diffusion's `EMAWarmup`): rate max(min_rate, (n + 1)^-0.75)."""

    @torch.no_grad()
    def update(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int) -> None:
        rate = max(min_rate, 1 / (int(count) + 1) ** 0.75)
        for slow, fast in zip(averaged, current, strict=True):
            slow.lerp_(fast, rate)

    return update


def mean_values(records: Sequence[dict[str, float]]) -> LogRecord:
    """Mean of each value over the records that have it; NaN counts as absent."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            if not math.isnan(value):
                values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace a checkpoint; also after a crash there is the old one or the new one."""
    with atomic_write(path) as temporary:
        torch.save(state, temporary)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state in a checkpoint, or None if there is no file."""
    if not path.exists():
        return None
    with reading(path, *CHECKPOINT_ERROR):
        state = load_plain(path)
        kinds = {"network": dict, "optimizer": dict, "step": int, "cpu_seconds": float, "extra": dict}
        if any(type(state[name]) not in (kind, OrderedDict if kind is dict else kind) for name, kind in kinds.items()):
            raise TypeError("its entries are of other types")
        if not 0 <= state["step"] < MAX_STEPS or not state["cpu_seconds"] >= 0:
            raise ValueError(f"it is of step {state['step']}")
    return state


def save_weights(network: nn.Module, path: Path, dtype: torch.dtype | None = None) -> None:
    """Write the weights of a network as safetensors, in another precision if one is given."""
    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in network.state_dict().items()}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary)


class TrainingLog:
    """Appends JSON lines; a resumed training first removes the lines of the steps that it repeats."""

    def __init__(self, path: Path, step: int) -> None:
        """Keep the lines up to `step`."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in read_log(path) if int(record["step"]) <= step]
        with atomic_write(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def write(self, record: LogRecord) -> None:
        """Add a line; it must have a `step`."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def read_log(path: Path) -> list[LogRecord]:
    """All complete lines of a log; a line cut short by a crash is left out."""
    if not path.exists():
        return []
    complete = []
    with reading(path, "the log of a training", "remove it, or give another --out"):
        for line in read_text(path).splitlines():
            try:
                # The loss of a training that diverged is not a number.
                record = parse_json(line, finite=False)
            except json.JSONDecodeError:
                continue
            complete.append(structure(record, dict[str, int | float | str], "a line"))
            structure(record["step"], int, "step")
    return complete
