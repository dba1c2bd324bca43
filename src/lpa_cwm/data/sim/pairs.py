"""Simulated clips as a source of training pairs."""

from dataclasses import dataclass, field

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from lpa_cwm.data.pairs import Example, draws
from lpa_cwm.data.sim.assets import Assets
from lpa_cwm.data.sim.clip import SimClip, simulate_clip
from lpa_cwm.data.sim.recipe import Recipe
from lpa_cwm.data.sim.render import Film


def channels_first(image: np.ndarray) -> Tensor:
    """As the models want it."""
    return rearrange(torch.from_numpy(image), "h w c -> c h w").contiguous()


@dataclass(frozen=True)
class SimulatedPairs:
    """Endless pairs of frames, some of them from the same clip, with exact flow and visibility."""

    recipe: Recipe
    assets: Assets
    seed: int = 0
    gaps: tuple[int, int] = (1, 8)
    """Fewest and most frames from source to target, forwards or backwards."""
    per_clip: int = 6
    """Pairs that share a clip, whose making is the larger part of their cost."""
    name: str = "simulated"
    _last: dict[tuple[int, int], SimClip] = field(default_factory=dict, repr=False, compare=False)

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number, at `size` x `size` pixels."""
        clip = self._clip(index // self.per_clip, size)
        rng = draws("simulated pair", self.recipe.name, self.assets.split, self.seed, index)
        gap = int(rng.integers(self.gaps[0], self.gaps[1] + 1))
        first = int(rng.integers(0, len(clip) - gap))
        source, target = (first, first + gap) if rng.random() < 0.5 else (first + gap, first)
        flow = clip.flow(source, target)
        return Example(
            source=channels_first(clip.picture(source)),
            target=channels_first(clip.picture(target)),
            flow=channels_first(flow.offset),
            visible=torch.from_numpy(flow.visible),
        )

    def _clip(self, number: int, size: int) -> SimClip:
        """The clip of this number; the last one is kept, because its pairs are asked for one after another."""
        if (number, size) not in self._last:
            self._last.clear()
            self._last[number, size] = simulate_clip((self.seed, number), self.recipe, self.assets, Film(size))
        return self._last[number, size]
