"""Cost of Opt-CWM at its published size with random weights: the official arithmetic against ours.

python benchmarks/opt_cwm.py flops            # counted, seconds: nothing is computed
python benchmarks/opt_cwm.py time             # one query through one mask, about a minute on two idle cores
python benchmarks/opt_cwm.py memory           # 32 queries, ten masks, a few minutes
"""

import resource
import time
from dataclasses import fields
from typing import Literal

import torch
import tyro
from opt_cwm_reference import predict, respond
from torch.utils.flop_counter import FlopCounterMode

from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.config import TrackerConfig
from lpa_cwm.masks import random_masks
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.types import Clip
from lpa_cwm.worlds.opt_cwm import OptCwm
from lpa_cwm.worlds.opt_cwm_networks import Architecture, PerturbationGenerator, Predictor, TokenLayout

SIZE, PATCHES, MASKS = 256, 1024, 10


class Weightless(Predictor):
    """Shapes without numbers: each step runs on the meta device, where it is counted, and answers with noise."""

    def __init__(self):
        with torch.device("meta"):
            super().__init__(Architecture())

    def _apply(self, fn, recurse=True):
        return self  # stays on the meta device

    def embed(self, frame, place):
        return torch.zeros_like(super().embed(frame.to("meta"), place), device="cpu")

    def embed_change(self, change):
        return torch.zeros_like(super().embed_change(change.to("meta")), device="cpu")

    def encode(self, source, target, layout):
        states = super().encode(source.to("meta"), target.to("meta"), weightless(layout))
        return torch.zeros_like(states, device="cpu")

    def decode(self, states, layout):
        return torch.rand_like(super().decode(states.to("meta"), weightless(layout)), device="cpu")

    def pixels(self, tokens):
        return self.head(tokens)


def weightless(layout):
    return TokenLayout(*(getattr(layout, field.name).to("meta") for field in fields(layout)))


def track_noise(world, config, queries):
    """Track random points between two random frames."""
    clip = Clip(torch.randint(256, (2, 3, SIZE, SIZE), dtype=torch.uint8), "benchmark")
    tracker = CwmTracker(world, uniform, config)
    tracker.track_pair(tracker.observe(clip, 0, 1), torch.rand(queries, 2) * SIZE)


def flops_of(world, config, queries):
    """Per (query, target), of the whole method with one re-evaluation."""
    with FlopCounterMode(display=False) as counter:
        track_noise(world, config, queries)
    return counter.get_total_flops() / queries


def flops_of_reference():
    """Factual and counterfactual prediction for each mask of each pass; queries share nothing."""
    frame = torch.empty(1, 3, SIZE, SIZE, device="meta")
    hidden = torch.empty(1, PATCHES, dtype=torch.bool, device="meta")
    with FlopCounterMode(display=False) as counter:
        predict(Weightless(), frame, frame, hidden)
    return counter.get_total_flops() * 2 * MASKS * 2


@torch.no_grad()
def flops():
    torch.manual_seed(0)
    reference = flops_of_reference()
    world = OptCwm(Weightless(), PerturbationGenerator(), batch=64)
    print(f"TFLOP per (query, target), M = {MASKS}, R = 1, 256 px; the reference needs {reference / 1e12:.2f}")
    print(f"{'re-evaluation masks':22}{'1 query':>16}{'32 queries':>18}")
    for mode in ("query", "joint"):
        config = TrackerConfig(masks=MASKS, reevaluation=mode, batch=32)
        costs = [flops_of(world, config, queries) for queries in (1, 32)]
        print(f"{mode:22}" + "".join(f"{cost / 1e12:10.2f} ({reference / cost:4.2f}x)" for cost in costs))


def random_world():
    torch.manual_seed(0)
    world = OptCwm(Predictor(Architecture()), PerturbationGenerator()).eval().requires_grad_(False)
    # The default initialization responds too weakly for a comparison to mean much.
    for parameter in world.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.04)
    return world


@torch.no_grad()
def times(repeats=2):
    world = random_world()
    source, target = torch.rand(2, 3, SIZE, SIZE)
    hidden = random_masks(1, PATCHES, "benchmark")
    xy = torch.tensor([[130.0, 77.0]])

    def ours():
        scene = world.observe(world.describe(source), world.describe(target))
        return world.intervene(scene, world.imagine(scene, hidden), xy)[0, 0]

    def official():
        return respond(world, source, target, hidden[0], xy[0])

    seconds, answers = {official: [], ours: []}, {}
    for _ in range(repeats):
        for way in seconds:
            begun = time.process_time()
            answers[way] = way()
            seconds[way].append(time.process_time() - begun)
    slow, fast = min(seconds[official]), min(seconds[ours])
    print(f"one query through one mask, {torch.get_num_threads()} threads, seconds of processor time:")
    print(f"official {slow:.1f}, ours {fast:.1f}, ratio {slow / fast:.2f}")
    difference = (answers[ours] - answers[official]).abs().max()
    print(f"largest response {answers[official].abs().max():.3f}, largest difference {difference:.1e}")


@torch.no_grad()
def memory(queries=32):
    """All weights are in memory and one block of each transformer runs, because all blocks use the same memory."""
    world = random_world()
    held = world.predictor.encoder.blocks, world.predictor.decoder.blocks
    world.predictor.encoder.blocks, world.predictor.decoder.blocks = held[0][:1], held[1][:1]
    track_noise(world, TrackerConfig(passes=0), queries)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{queries} queries, {MASKS} masks, {world.batch} predictions at a time: peak {peak:.2f} GiB")


def main(what: Literal["flops", "time", "memory"], /) -> None:
    """Print FLOPs, times or memory."""
    {"flops": flops, "time": times, "memory": memory}[what]()


if __name__ == "__main__":
    tyro.cli(main)
