"""What `train lpa --autocast` gains: updates with and without it, in turn, in the same run.

python benchmarks/bfloat16.py [--device cuda]
"""

import time
from dataclasses import dataclass

import torch
import tyro

from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.training.feature_cache import CandidateSets
from lpa_cwm.training.lpa import Recipe, State, learn


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
        near=rand(count, m, 32, 32).half(),
        response=rand(count, m, 32, 32).half(),
        context=rand(count, 6, 64, 64).half(),
        pair=torch.arange(count),
        statistics=rand(count, m, 16),
        peak=peak,
        end=end,
        analytic=torch.full((count, m), 1 / m),
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
        recipes = {"float32": Recipe(), "bfloat16": Recipe(autocast=True)}
        groups = invented(Recipe().batch * self.updates)
        state = State.begin(LPA(sight=True).to(self.device).train(), 3e-4)
        spent = {name: [] for name in recipes}
        for rows in torch.arange(len(groups)).split(Recipe().batch):
            for name, recipe in recipes.items():
                begin = time.perf_counter()
                learn(state, groups, rows, recipe)
                spent[name].append(time.perf_counter() - begin)
        means = {name: sum(times[2:]) / len(times[2:]) for name, times in spent.items()}
        for name, mean in means.items():
            print(f"{name:9s} {mean:.3f} s an update")
        print(f"ratio {means['float32'] / means['bfloat16']:.2f}")


if __name__ == "__main__":
    tyro.cli(Bfloat16).run()
