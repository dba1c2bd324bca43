"""Gain of `train lpa --autocast`: updates with and without it, in turn, in the same run.

python benchmarks/bfloat16.py [--device cuda]
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lpa_cwm.adjudicators.features import STATISTICS
from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.training.feature_cache import CandidateSets
from lpa_cwm.training.loop import StepLoss
from lpa_cwm.training.lpa import LpaTraining, make_loop, step_loss


def invented(count, m=10):
    """Sets of the size of real ones, a quarter of them of hidden points."""
    draw = torch.Generator().manual_seed(0)

    def rand(*shape):
        return torch.rand(*shape, generator=draw)

    end = rand(count, 2) * 256
    peak = end[:, None] + rand(count, m, 2) * 20
    end[::4] = torch.nan
    return CandidateSets(
        source=rand(count, 3, 32, 32).half(),
        target=rand(count, m, 3, 32, 32).half(),
        local_response=rand(count, m, 32, 32).half(),
        response=rand(count, m, 32, 32).half(),
        context=rand(count, 6, 64, 64).half(),
        pair=torch.arange(count),
        statistics=rand(count, m, STATISTICS),
        peak=peak,
        end=end,
        apa_weights=torch.full((count, m), 1 / m),
        response_sigma=torch.full((count,), 2.0),
    )


@dataclass(frozen=True)
class Bfloat16:
    """Time updates of LPA on invented sets."""

    updates: int = 12
    """Of each kind; the first two are not counted."""
    device: str = "cpu"
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        trainings = {"float32": LpaTraining(), "bfloat16": LpaTraining(autocast=True)}
        sets = invented(LpaTraining().batch * self.updates)
        network = LPA(visibility_head=True).to(self.device).train()
        loop = make_loop(network, Path("unused"), LpaTraining(), sets)
        spent = {name: [] for name in trainings}
        for rows in torch.arange(len(sets)).split(LpaTraining().batch):
            for name, training in trainings.items():

                def loss_of(step, rows, training=training):
                    return StepLoss(step_loss(network, sets, rows, step, training), {})

                begin = time.perf_counter()
                loop.update(rows, loss_of)
                spent[name].append(time.perf_counter() - begin)
        means = {name: sum(times[2:]) / len(times[2:]) for name, times in spent.items()}
        for name, mean in means.items():
            print(f"{name:9s} {mean:.3f} s an update")
        print(f"ratio {means['float32'] / means['bfloat16']:.2f}")


if __name__ == "__main__":
    tyro.cli(Bfloat16).run()
