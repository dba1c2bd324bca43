"""A world model from any predictor: perturb the source, predict again, subtract (Eq. 1, literally)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.config import TrackerConfig

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
    """The four methods of a world model, made from a predictor and a perturbation.

    Examples:
        >>> def predict(source, target, hidden):
        ...     return source.expand(len(hidden), -1, -1, -1)
        >>> def perturb(source, point):
        ...     changed = source.clone()
        ...     changed[:, int(point[1]), int(point[0])] += 0.5
        ...     return changed
        >>> world = PerturbedPredictor(predict, perturb, size=32)
        >>> scene = world.observe(torch.zeros(3, 32, 32), torch.zeros(3, 32, 32))
        >>> factual = world.imagine(scene, torch.ones(2, 16, dtype=torch.bool))
        >>> float(world.intervene(scene, factual, torch.tensor([[9.5, 5.5]]))[0, 0, 0, 5, 9])
        0.5
    """

    predict: Predict
    """Source, target and masks to the predicted target under each mask."""
    perturb: Perturb
    """Perturbs the source around a point."""
    size: int = 256
    """Side of the frames that `predict` takes, in pixels."""
    patch: int = 8
    """Side of a patch."""
    defaults: TrackerConfig = field(default_factory=TrackerConfig)
    """Settings that suit the predictor."""
    response_sigma: float = 2.0
    """Standard deviation of a response in pixels."""

    def describe(self, frame: Frame) -> Frame:
        """Nothing is shared between pairs.

        Args:
            frame: A frame.
        """
        return frame

    def observe(self, source: Frame, target: Frame) -> tuple[Frame, Frame]:
        """Nothing is shared between masks.

        Args:
            source: The source frame.
            target: The target frame.
        """
        return source, target

    def imagine(self, scene: tuple[Frame, Frame], hidden: Bool[Tensor, "m p"]) -> FactualPrediction:
        """Predict from the source as it is.

        Args:
            scene: Both frames.
            hidden: For each mask, the patches of the target that are hidden.
        """
        return FactualPrediction(hidden, self.predict(*scene, hidden))

    def intervene(
        self, scene: tuple[Frame, Frame], factual: FactualPrediction, xy: Float[Tensor, "n 2"]
    ) -> Float[Tensor, "n m 3 h w"]:
        """Predict from the perturbed source, minus the factual prediction.

        Args:
            scene: Both frames.
            factual: What `imagine` returned.
            xy: Points of the source that are perturbed, one at a time.
        """
        source, target = scene
        changed = (self.predict(self.perturb(source, point), target, factual.hidden) for point in xy)
        return torch.stack([prediction - factual.prediction for prediction in changed])
