"""Simulated clips as a source of training pairs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.rng import numpy_rng
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.clip import SimClip, simulate_clip
from lpa_cwm.simulator.recipe import Recipe
from lpa_cwm.simulator.render import Film
from lpa_cwm.synth.pairs import Example

STEPS = 3


def channels_first(image: np.ndarray) -> Tensor:
    """As the models want it."""
    return rearrange(torch.from_numpy(image), "h w c -> c h w").contiguous()


@dataclass(frozen=True)
class SimulatedPairs:
    """Endless pairs of frames with exact flow and visibility.

    Making a scene and its frames is most of the cost, so each clip gives six pairs: three steps of a random walk
    through its frames, each there and back.
    """

    recipe: Recipe
    assets: Assets
    seed: int = 0
    gaps: tuple[int, int] = (1, 8)
    """Fewest and most frames from source to target, forwards or backwards."""
    name: str = "simulated"
    _last: dict[tuple[int, int], SimClip] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.gaps[0] <= self.gaps[1] <= self.recipe.frames // 2:
            raise InputError(
                f"The gaps are {self.gaps}; expected the fewest and the most frames from source to target, from 1 to "
                f"{self.recipe.frames // 2}, half the clip."
            )

    def __getstate__(self) -> dict[str, Any]:
        # Ray indices cannot be sent to another process, which can make them again.
        return {**self.__dict__, "_last": {}}

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number, at `size` x `size` pixels."""
        number, turn = divmod(index, 2 * STEPS)
        clip = self._clip(number, size)
        source, target = self._walk(number)[turn // 2 :][:2][:: -1 if turn % 2 else 1]
        flow = clip.flow(source, target)
        return Example(
            source=channels_first(clip.picture(source)),
            target=channels_first(clip.picture(target)),
            flow=channels_first(flow.offset),
            visible=torch.from_numpy(flow.visible),
        )

    def _walk(self, number: int) -> list[int]:
        """The frames of a clip that are shown, each a gap away from the one before."""
        rng = numpy_rng("simulated pairs", self.recipe.name, self.assets.split, self.seed, number)
        last = self.recipe.frames - 1
        frames = [int(rng.integers(last + 1))]
        for gap in rng.integers(self.gaps[0], self.gaps[1] + 1, STEPS).tolist():
            reached = [frame for frame in (frames[-1] - gap, frames[-1] + gap) if 0 <= frame <= last]
            frames.append(reached[int(rng.integers(len(reached)))])
        return frames

    def _clip(self, number: int, size: int) -> SimClip:
        """The clip of this number; the last one is kept, because its pairs are asked for one after another."""
        if (number, size) not in self._last:
            self._last.clear()
            self._last[number, size] = simulate_clip((self.seed, number), self.recipe, self.assets, Film(size))
        return self._last[number, size]
