"""What every world model that stands around another one has in common: it answers as that one does."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.config import PASSES


@dataclass(frozen=True)
class Wrapped:
    """The verbs of another world model; who inherits changes those that are his business."""

    world: Any

    @property
    def size(self) -> int:
        return self.world.size

    @property
    def patch(self) -> int:
        return self.world.patch

    @property
    def passes(self) -> int:
        return getattr(self.world, "passes", PASSES)

    def observe(self, source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"]) -> Any:
        """As the world does."""
        return self.world.observe(source, target)

    def imagine(self, scene: Any, hidden: Bool[Tensor, "m p"]) -> Any:
        """As the world does."""
        return self.world.imagine(scene, hidden)

    def intervene(self, scene: Any, factual: Any, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """As the world does."""
        return self.world.intervene(scene, factual, xy)
