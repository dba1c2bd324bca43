"""The compact world model behind the three verbs; its weights ship in the package."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lpa_cwm.config import COMPACT_PASSES
from lpa_cwm.errors import InputError
from lpa_cwm.files import packaged_weights
from lpa_cwm.world.compact.bump import Bump, appearance
from lpa_cwm.world.compact.match import Looks, match
from lpa_cwm.world.compact.network import Network, View, pixels_of
from lpa_cwm.world.compact.patches import PATCH
from lpa_cwm.world.compact.propagate import Motions
from lpa_cwm.world.compact.render import Drawing, draw
from lpa_cwm.world.remember import digest

FILE = "world-compact.safetensors"
USE = "heavy-tailed motion"
"""To be renamed whenever the same weights come to give other answers: results are kept apart by it."""
Intervention = Literal["content", "total"]


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known of two frames before a mask is chosen."""

    target: Float[Tensor, "1 3 h w"]
    view: View
    looks: Looks


@dataclass(frozen=True, slots=True)
class Factual:
    """How the target is drawn under each mask."""

    hidden: Bool[Tensor, "m p"]
    drawing: Drawing


@dataclass
class CompactWorld:
    """Predicts by matching, propagating and warping; a perturbation acts on appearance alone, or on everything."""

    network: Network
    intervention: Intervention = "content"
    """`content` holds the inferred motion and weights at their factual values; `total` infers everything again."""
    bump: Bump = field(default_factory=Bump)
    size: int = 256
    patch: int = PATCH
    passes: int = COMPACT_PASSES
    """Re-evaluations unless a method says otherwise."""
    _last: tuple[str, View] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, weights: Path | None = None, intervention: Intervention = "content") -> "CompactWorld":
        """The world model of a weight file; of the one in the package if none is given."""
        path = packaged_weights(FILE) if weights is None else weights
        network = Network()
        try:
            network.load_state_dict({name: value.float() for name, value in load_file(path).items()})
        except (OSError, SafetensorError, RuntimeError) as error:
            raise InputError(f"{path} holds no weights of the compact world model; give a file that does.") from error
        return cls(network.eval(), intervention)

    @torch.no_grad()
    def observe(self, source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"]) -> Scene:
        """Describe the source, and find where each target patch by itself may come from."""
        view = self.view(source)
        patches = torch.arange((target.shape[-2] // PATCH) * (target.shape[-1] // PATCH), device=target.device)
        looks = match(view.ground, target[None], patches[None], self.network.shape.hypotheses)
        return Scene(target[None], view, looks)

    @torch.no_grad()
    def view(self, source: Float[Tensor, "3 h w"]) -> View:
        """The source as the network sees it; the last one is kept, for a tracker asks about one frame many times."""
        self.network.to(source.device)
        key = f"{source.device} {digest(source)}"
        last = self._last
        if last is None or last[0] != key:
            self._last = last = key, self.network.look(source[None])
        return last[1]

    @torch.no_grad()
    def imagine(self, scene: Scene, hidden: Bool[Tensor, "m p"]) -> Factual:
        """Infer the drawing under each mask from the visible patches alone."""
        drawings = []
        for mask in hidden:
            visible = (~mask).nonzero()[:, 0][None]
            drawings.append(self.network.infer(scene.view, scene.looks.at(visible), scene.target, visible))
        return Factual(hidden, stacked(drawings))

    @torch.no_grad()
    def predict(self, scene: Scene, factual: Factual) -> Float[Tensor, "m 3 h w"]:
        """The predicted target under each mask; visible patches are those of the target itself."""
        source = scene.view.source.expand(len(factual.hidden), -1, -1, -1)
        drawn = draw(source, factual.drawing)
        return torch.where(self.hidden_pixels(factual), drawn, scene.target)

    @torch.no_grad()
    def intervene(self, scene: Scene, factual: Factual, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """What the bump at each point changes in the prediction."""
        if self.intervention == "content":
            change = appearance(self.bump, factual.drawing, factual.hidden, xy)
            return change[:, :, None].expand(-1, -1, 3, -1, -1)
        before = self.predict(scene, factual)
        bumps = self.bump.image(xy, factual.drawing.hw)
        changes = []
        for bump in bumps:
            other = self.observe(scene.view.source[0] + bump, scene.target[0])
            changes.append(self.predict(other, self.imagine(other, factual.hidden)) - before)
        return torch.stack(changes)

    def hidden_pixels(self, factual: Factual) -> Bool[Tensor, "m 1 h w"]:
        """The masks at full resolution."""
        return pixels_of(factual.hidden, factual.drawing.hw)[:, None]


def stacked(drawings: list[Drawing]) -> Drawing:
    """Several drawings as one batch."""
    motions = [drawing.motions for drawing in drawings]
    together = {part.name: torch.cat([getattr(one, part.name) for one in motions]) for part in fields(Motions)}
    return Drawing(
        motions=Motions(**together),
        weight=torch.cat([drawing.weight for drawing in drawings]),
        invention=torch.cat([drawing.invention for drawing in drawings]),
    )
