"""A world model from any predictor: perturb the source, predict again, subtract (Eq. 1, literally)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lpa_cwm.config import TrackerConfig
from lpa_cwm.files import bundled_weights
from lpa_cwm.io.checkpoints import load_weights

Network = TypeVar("Network", bound=nn.Module)
Frame = Float[Tensor, "3 h w"]
Predict = Callable[[Frame, Frame, Bool[Tensor, "m p"]], Float[Tensor, "m 3 h w"]]
"""Source, target and masks to the predicted target under each mask; visible patches are copied from the target."""
Perturb = Callable[[Frame, Float[Tensor, "2"]], Frame]
"""The source frame, perturbed around a point."""


@dataclass(frozen=True, slots=True)
class FactualPrediction:
    """The predicted target under each mask."""

    hidden: Bool[Tensor, "m p"]
    prediction: Float[Tensor, "m 3 h w"]


@dataclass(frozen=True)
class PerturbedPredictor:
    """The four methods of a world model, made from a predictor and a perturbation."""

    predict: Predict
    perturb: Perturb
    size: int = 256
    patch: int = 8
    defaults: TrackerConfig = field(default_factory=TrackerConfig)
    response_sigma: float = 2.0

    def describe(self, frame: Frame) -> Frame:
        """Nothing is shared between pairs."""
        return frame

    def observe(self, source: Frame, target: Frame) -> tuple[Frame, Frame]:
        """Nothing is shared between masks."""
        return source, target

    def imagine(self, scene: tuple[Frame, Frame], hidden: Bool[Tensor, "m p"]) -> FactualPrediction:
        """Predict from the source as it is."""
        return FactualPrediction(hidden, self.predict(*scene, hidden))

    def intervene(
        self, scene: tuple[Frame, Frame], factual: FactualPrediction, xy: Float[Tensor, "n 2"]
    ) -> Float[Tensor, "n m 3 h w"]:
        """Predict from the perturbed source, minus the factual prediction."""
        source, target = scene
        changed = (self.predict(self.perturb(source, point), target, factual.hidden) for point in xy)
        return torch.stack([prediction - factual.prediction for prediction in changed])


def load_network(network: Network, weights: Path | None, bundled: str, name: str) -> Network:
    """A network of this architecture with the weights of a file; of the bundled one if none is given."""
    path = bundled_weights(bundled) if weights is None else weights
    load_weights(network, path, f"a file of weights of the {name} world model", "give a file that is")
    return network.eval()


def total_effect(world: Any) -> PerturbedPredictor:
    """Eq. 1 literally for a world model that adds a bump: the perturbed source is described, matched and rendered."""

    def predict(source: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
        scene = world.observe(world.describe(source), world.describe(target))
        return world.predict(scene, world.imagine(scene, hidden))

    def perturb(source: Tensor, xy: Tensor) -> Tensor:
        return source + world.bump.image(xy[None], (source.shape[-2], source.shape[-1]))[0]

    return PerturbedPredictor(predict, perturb, world.size, world.patch, world.defaults, world.response_sigma)
