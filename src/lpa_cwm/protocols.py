"""Protocols of the exchangeable parts, and `PerturbedPredictor`, a world model from any predictor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.config import Selection, TrackerConfig
from lpa_cwm.responses import Responses
from lpa_cwm.types import Candidates, Clip, Judgement, Pair, Queries, Sample, Tracks


@runtime_checkable
class WorldModel(Protocol):
    """Predicts a target frame from a source frame and the visible patches of the target.

    Four methods, one per level of sharing. Frames are RGB in [0, 1] of `size` x `size` pixels; `hidden` is over the
    `(size / patch)` squared patches in raster order; points are in pixels of the source.
    """

    @property
    def size(self) -> int: ...

    @property
    def patch(self) -> int: ...

    @property
    def defaults(self) -> TrackerConfig:
        """Settings that suit this world model; any of them can be overridden."""
        ...

    @property
    def response_sigma(self) -> float:
        """Standard deviation of a response in pixels, about that of the perturbation; the training of LPA needs it."""
        ...

    def describe(self, frame: Float[Tensor, "3 h w"]) -> Any:
        """Once per frame: what does not depend on the other frame of a pair.

        Args:
            frame: A frame.
        """
        ...

    def observe(self, source: Any, target: Any) -> Any:
        """Once per pair of described frames: the scene.

        Args:
            source: The described source frame.
            target: The described target frame.
        """
        ...

    def imagine(self, scene: Any, hidden: Bool[Tensor, "m p"]) -> Any:
        """Once per pair and mask: the factual predictions, shared by all queries.

        Args:
            scene: What `observe` returned.
            hidden: For each mask, the patches of the target that are hidden.
        """
        ...

    def intervene(self, scene: Any, factual: Any, xy: Float[Tensor, "n 2"]) -> Responses | Float[Tensor, "n m 3 h w"]:
        """Per query and mask: perturbed minus factual prediction, zero on visible patches (Eq. 1); sparse or dense.

        Args:
            scene: What `observe` returned.
            factual: What `imagine` returned.
            xy: Points of the source that are perturbed, one at a time.
        """
        ...


@runtime_checkable
class CropWorldModel(WorldModel, Protocol):
    """A world model that also answers in many small crops at once, which re-evaluation at native resolution needs."""

    def describe_crops(self, crops: Float[Tensor, "n 3 s s"], context: bool = True) -> Sequence[Any]:
        """Descriptions of single crops, one value for each; without context they can only be targets."""
        ...

    def respond(
        self,
        source: Sequence[Any],
        target: Sequence[Any],
        xy: Float[Tensor, "n 2"],
        near: Float[Tensor, "n 2"],
        hidden: Bool[Tensor, "m p"],
    ) -> Responses:
        """Responses of n points, each in its own pair of described crops, under the same m masks.

        A point at `xy` in its source crop is searched around the position `near` in its target crop.
        """
        ...


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
    """A world model from any predictor: perturb the source, predict again, subtract (Eq. 1, literally).

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


@runtime_checkable
class PartialWorldModel(WorldModel, Protocol):
    """A world model that can restrict its work to the given masks and points."""

    def observe_shown(self, source: Any, target: Any, hidden: Bool[Tensor, "m p"]) -> Any:
        """`observe` for a scene that is imagined under these masks or some of them only."""
        ...

    def imagine_near(self, scene: Any, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"]) -> Any:
        """`imagine` for a scene in which only these points of the source are perturbed."""
        ...


@runtime_checkable
class Adjudicator(Protocol):
    """Weights the M candidates of each query (Eq. 3-5); may also judge whether the point is visible."""

    def __call__(self, pair: Pair, candidates: Candidates) -> Judgement: ...


@runtime_checkable
class ScoreModel(Protocol):
    """The gradient of the log-density of images at frames in [-1, 1]; APA evaluates it at the source frame."""

    def __call__(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]: ...


@runtime_checkable
class Tracker(Protocol):
    """Tracks points through a clip.

    Examples:
        >>> from lpa_cwm import load
        >>> isinstance(load("static"), Tracker)
        True
    """

    def track(self, clip: Clip, queries: Queries) -> Tracks:
        """Tracks in the clip's own pixels, from each query on.

        Args:
            clip: The video.
            queries: The points.
        """
        ...


@runtime_checkable
class Dataset(Protocol):
    """A finite, ordered collection of annotated videos, read one at a time, at their own size.

    `predict`, `score` and `report` accept any object with these methods.
    """

    @property
    def name(self) -> str: ...

    @property
    def names(self) -> Sequence[str]:
        """Unique names of the videos, in order; prediction files are named after them."""
        ...

    @property
    def path(self) -> Path:
        """The file or folder that runs record, so that scoring and reports can open the data set again."""
        ...

    @property
    def selection(self) -> Selection:
        """The selected part; `selection.queries` decides whether tracking also runs backward."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sample: ...

    def fingerprint(self, index: int) -> str:
        """Hash of the frames of one video; runs on other frames have other manifests.

        Args:
            index: Number of the video.
        """
        ...
