"""The four interfaces: whatever has these verbs can take part."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.types import Candidates, Clip, Pair, Queries, Sample, Tracks


@runtime_checkable
class WorldModel(Protocol):
    """Predicts a target frame from the source and the patches of the target it may see.

    Three verbs, one per level of sharing. Frames are RGB in [0, 1] of `size` x `size` pixels; `hidden` is over the
    `(size / patch)` squared patches in raster order; points are in pixels of the source. A world model that has a
    number `passes` says how many re-evaluations it gains from; without it there is one, as in the paper.
    """

    @property
    def size(self) -> int: ...

    @property
    def patch(self) -> int: ...

    def observe(self, source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"]) -> Any:
        """Once per frame pair: the scene."""
        ...

    def imagine(self, scene: Any, hidden: Bool[Tensor, "m p"]) -> Any:
        """Once per pair and mask: the factual predictions, shared by all queries."""
        ...

    def intervene(self, scene: Any, factual: Any, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """Per query and mask: perturbed minus factual prediction, zero on visible patches (Eq. 1)."""
        ...


@runtime_checkable
class Adjudicator(Protocol):
    """Says how far each candidate is to be believed, by numbers that are not negative.

    Their proportions are the weights that place the point. Their sum multiplies the strength by which the point counts
    as seen: one, unless the adjudicator has a reason to say that it is hidden, or seen in spite of weak responses.
    """

    def __call__(self, pair: Pair, candidates: Candidates) -> Float[Tensor, "n m"]: ...


@runtime_checkable
class ScoreField(Protocol):
    """The gradient of the log-density of images at frames in [-1, 1]; what APA asks."""

    def __call__(self, frames: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]: ...


@runtime_checkable
class Tracker(Protocol):
    """Follows points through a clip."""

    def track(self, clip: Clip, queries: Queries) -> Tracks: ...


@runtime_checkable
class Dataset(Protocol):
    """A finite, ordered collection of annotated videos, read one at a time."""

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sample: ...
