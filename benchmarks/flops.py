"""Where the time of a frame goes: processor seconds, operators and FLOPs of its parts, and what a GPU needs for them.

python benchmarks/flops.py [clip.mp4] [--points 64] [--frames 7]

The last frame is measured; before it, everything is in use that the settings ask for: three source frames and native
crops. A part's figures do not contain those of the parts that it calls. FLOPs are those of matrix products,
convolutions and attention (`torch.utils.flop_counter`, a multiplication with an addition is two). An operator is one
call of torch's that is not a view: about one kernel on a GPU. The times for GPUs are arithmetic from their data sheets.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from tyro.conf import Positional

import lpa_cwm as lc
from lpa_cwm import online, pair_tracking, probe
from lpa_cwm.adjudicators import lpa
from lpa_cwm.online import OnlineTracker
from lpa_cwm.registry import bundled_clip
from lpa_cwm.rng import generator
from lpa_cwm.tracker import CwmTracker

REST = "the rest"
GPUS = (
    # Name, dense TFLOP/s in float32 and in bfloat16 with sums in float32 (data sheets of the makers).
    ("RTX 4090", 82.6, 165.2),
    ("H100 SXM", 66.9, 989.4),
)
SHARE_OF_PEAK = 0.3
"""Assumed: small convolutions and attention reach about this share of a GPU's peak."""
PER_OPERATOR = 8e-6
"""Assumed seconds in which Python and torch start one operator; the GPU waits if its kernel is shorter."""


class OperatorCounter(TorchDispatchMode):
    """Counts calls that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@dataclass
class Parts:
    """Adds up a measure of named functions, each without those that it calls."""

    totals: dict[str, float] = field(default_factory=dict)
    within: list[float] = field(default_factory=lambda: [0.0])
    """For each function that is running, what its inner functions took."""
    measure: Callable[[], float] = time.process_time
    """Grows; its differences are added."""

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, measured under a name."""

        def call(*given: Any, **named: Any) -> Any:
            begin = self.measure()
            self.within.append(0.0)
            result = function(*given, **named)
            spent, inner = self.measure() - begin, self.within.pop()
            self.within[-1] += spent
            self.totals[name] = self.totals.get(name, 0.0) + spent - inner
            return result

        return call


PLACES = (
    ("resize frame", probe, "crop_resize"),
    ("candidates: peaks", probe.Candidates, "of"),
    ("LPA: features", lpa, "extract"),
    ("decode endpoints", online, "decode_candidates"),
    ("decode endpoints", pair_tracking, "decode_candidates"),
)
"""Functions of modules that are measured."""
VERBS = {
    "describe": "describe frame",
    "observe_shown": "match patches",
    "imagine_near": "infer motions under masks",
    "intervene": "carry the bump",
    "describe_crops": "native crops: describe",
    "respond": "native crops: match, infer, carry",
}
"""Methods of the world model that are measured."""


@dataclass(frozen=True)
class Flops:
    """Measure the parts of one frame."""

    clip: Annotated[Path | None, Positional] = None
    points: int = 64
    frames: int = 7

    def run(self) -> None:
        torch.set_num_threads(1)
        seconds = self.measured(time.process_time)
        operators = OperatorCounter()
        with operators:
            operators_of = self.measured(lambda: operators.count)
        flops = FlopCounterMode(display=False)
        with flops:
            flops_of = self.measured(flops.get_total_flops)
        print(f"one frame, {self.points} points, one thread\n")
        print("| part | CPU s | share | operators | GFLOP |\n|---|---|---|---|---|")
        total = sum(seconds.values())
        for name in sorted(seconds, key=seconds.__getitem__, reverse=True):
            cells = f"{seconds[name]:.3f} | {seconds[name] / total:.0%} | {operators_of[name]:,.0f}"
            print(f"| {name} | {cells} | {flops_of[name] / 1e9:.2f} |")
        whole = sum(flops_of.values())
        print(f"| **all** | {total:.3f} | 100% | {sum(operators_of.values()):,.0f} | {whole / 1e9:.2f} |\n")
        self.show_gpus(whole, sum(operators_of.values()))

    def show_gpus(self, flops: float, operators: float) -> None:
        """Arithmetic: what the products and what the starts of operators take."""
        print("arithmetic, not measured; ms per frame\n")
        print("| GPU | products, float32 | products, bfloat16 | starting operators |\n|---|---|---|---|")
        for name, single, half in GPUS:
            times = (flops / (SHARE_OF_PEAK * peak * 1e12) * 1e3 for peak in (single, half))
            cells = " | ".join(f"{value:.2f}" for value in times)
            print(f"| {name} | {cells} | {operators * PER_OPERATOR * 1e3:.0f} |")

    def measured(self, measure: Callable[[], float]) -> dict[str, float]:
        """A measure of every part of the last frame."""
        parts = Parts(measure=measure)
        clip = lc.read(self.clip) if self.clip else bundled_clip("learned")
        tracker = lc.load("lpa", workers=1)
        assert isinstance(tracker, CwmTracker)
        following = tracker.online(clip.name)
        plain: Any = OnlineTracker.step
        step = parts.wrapped(REST, plain.__wrapped__)
        # Inference mode hides the operators within composite ones from the counters.
        with torch.no_grad(), replaced(parts, tracker):
            step(following, clip[0])
            height, width = clip.hw
            for unit in torch.rand(self.points, 2, generator=generator("flops", self.points)):
                following.add(unit * torch.tensor([width - 1.0, height - 1.0]))
            for index in range(1, self.frames):
                parts.totals.clear()
                step(following, clip[index])
        return parts.totals


class replaced:
    """Within this block the parts of a tracker are measured."""

    def __init__(self, parts: Parts, tracker: CwmTracker) -> None:
        self.parts, self.before = parts, [(owner, name, vars(owner)[name]) for _, owner, name in PLACES]
        for verb, name in VERBS.items():
            setattr(tracker.world, verb, parts.wrapped(name, getattr(tracker.world, verb)))
        network: Any = tracker.adjudicator
        network.predict = parts.wrapped("LPA: network", network.predict)

    def __enter__(self) -> None:
        for name, owner, attribute in PLACES:
            found = self.parts.wrapped(name, getattr(owner, attribute))
            setattr(owner, attribute, staticmethod(found) if isinstance(owner, type) else found)

    def __exit__(self, *_: object) -> None:
        for owner, attribute, value in self.before:
            setattr(owner, attribute, value)


if __name__ == "__main__":
    tyro.cli(Flops).run()
