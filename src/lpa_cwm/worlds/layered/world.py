"""The compact world model behind the three verbs; its weights ship in the package."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.files import bundled_weights
from lpa_cwm.worlds.layered.densify import Motions
from lpa_cwm.worlds.layered.intervention import GaussianBump, appearance
from lpa_cwm.worlds.layered.network import Network, SourceEncoding, pixels_of
from lpa_cwm.worlds.layered.patches import PATCH
from lpa_cwm.worlds.layered.refine import Looks, match
from lpa_cwm.worlds.layered.render import Drawing, draw
from lpa_cwm.worlds.perturbed import PerturbedPredictor

FILE = "world-compact.safetensors"
DEFAULTS = TrackerConfig(passes=0)
"""A re-evaluation does not improve this world model (`benchmarks/passes.py`)."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known of two frames before a mask is chosen."""

    target: Float[Tensor, "1 3 h w"]
    source: SourceEncoding
    looks: Looks


@dataclass(frozen=True, slots=True)
class Factual:
    """The warp mixture under each mask."""

    hidden: Bool[Tensor, "m p"]
    drawing: Drawing


@dataclass
class DescribedFrame:
    """A frame; it is encoded when it first serves as a source."""

    network: Network
    frame: Float[Tensor, "3 h w"]

    @cached_property
    def encoding(self) -> SourceEncoding:
        return self.network.look(self.frame[None])


@dataclass
class LayeredMotionWorld:
    """Predicts by matching, propagating and warping; a perturbation is carried along by the inferred motion."""

    network: Network
    bump: GaussianBump = field(default_factory=GaussianBump)
    size: int = 256
    patch: int = PATCH
    defaults: TrackerConfig = DEFAULTS

    @classmethod
    def load(cls, weights: Path | None = None) -> "LayeredMotionWorld":
        """The world model of a weight file; the bundled one if none is given."""
        path = bundled_weights(FILE) if weights is None else weights
        network = Network()
        try:
            network.load_state_dict({name: value.float() for name, value in load_file(path).items()})
        except (OSError, SafetensorError, RuntimeError) as error:
            raise InputError(f"{path} holds no weights of the compact world model; give a file that does.") from error
        return cls(network.eval())

    def describe(self, frame: Float[Tensor, "3 h w"]) -> DescribedFrame:
        """Prepare a frame as source or target."""
        self.network.to(frame.device)
        return DescribedFrame(self.network, frame)

    @torch.no_grad()
    def observe(self, source: DescribedFrame, target: DescribedFrame) -> Scene:
        """Match every target patch by itself to the source."""
        encoding, frame = source.encoding, target.frame[None]
        patches = torch.arange((frame.shape[-2] // PATCH) * (frame.shape[-1] // PATCH), device=frame.device)
        looks = match(encoding.ground, frame, patches[None], self.network.shape.hypotheses)
        return Scene(frame, encoding, looks)

    @torch.no_grad()
    def imagine(self, scene: Scene, hidden: Bool[Tensor, "m p"]) -> Factual:
        """Infer the warp mixture under each mask from the visible patches alone."""
        drawings = []
        for mask in hidden:
            visible = (~mask).nonzero()[:, 0][None]
            drawings.append(self.network.infer(scene.source, scene.looks.at(visible), scene.target, visible))
        return Factual(hidden, stacked(drawings))

    @torch.no_grad()
    def predict(self, scene: Scene, factual: Factual) -> Float[Tensor, "m 3 h w"]:
        """The predicted target under each mask; visible patches are those of the target itself."""
        source = scene.source.source.expand(len(factual.hidden), -1, -1, -1)
        drawn = draw(source, factual.drawing)
        return torch.where(pixels_of(factual.hidden, factual.drawing.hw)[:, None], drawn, scene.target)

    @torch.no_grad()
    def intervene(self, scene: Scene, factual: Factual, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """The bump at each point, carried by the factual warps and mixture weights (controlled direct effect)."""
        change = appearance(self.bump, factual.drawing, factual.hidden, xy)
        return change[:, :, None].expand(-1, -1, 3, -1, -1)

    def total_effect(self) -> PerturbedPredictor:
        """The same network with Eq. 1 literally: the perturbed source is encoded, matched and rendered again."""

        def predict(source: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
            scene = self.observe(self.describe(source), self.describe(target))
            return self.predict(scene, self.imagine(scene, hidden))

        def perturb(source: Tensor, xy: Tensor) -> Tensor:
            return source + self.bump.image(xy[None], (source.shape[-2], source.shape[-1]))[0]

        return PerturbedPredictor(predict, perturb, self.size, self.patch, self.defaults)


def stacked(drawings: list[Drawing]) -> Drawing:
    """Several drawings as one batch."""
    motions = [drawing.motions for drawing in drawings]
    together = {part.name: torch.cat([getattr(one, part.name) for one in motions]) for part in fields(Motions)}
    return Drawing(
        motions=Motions(**together),
        weight=torch.cat([drawing.weight for drawing in drawings]),
        invention=torch.cat([drawing.invention for drawing in drawings]),
    )
