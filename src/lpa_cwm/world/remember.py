"""A world model that does not look twice: another point or another adjudicator on the same frames asks little more."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from lpa_cwm.world.wrapped import Wrapped


@dataclass(frozen=True, slots=True)
class KnownScene:
    """A scene, and what identifies the frames it shows."""

    key: str
    own: Any


@dataclass(frozen=True)
class Remembering(Wrapped):
    """Answers as another world model does, and keeps its last scenes and factual predictions."""

    kept: int = 8
    _recent: OrderedDict[str, Any] = field(default_factory=OrderedDict, repr=False, compare=False)
    _lock: Any = field(default_factory=Lock, repr=False, compare=False)

    def observe(self, source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"]) -> KnownScene:
        """As the world does, once for each pair of frames."""
        key = digest(source, target)
        return KnownScene(key, self._recall(key, lambda: self.world.observe(source, target)))

    def imagine(self, scene: KnownScene, hidden: Bool[Tensor, "m p"]) -> Any:
        """As the world does, once for each scene and set of masks."""
        return self._recall(scene.key + digest(hidden), lambda: self.world.imagine(scene.own, hidden))

    def intervene(self, scene: KnownScene, factual: Any, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """As the world does."""
        return self.world.intervene(scene.own, factual, xy)

    def _recall(self, key: str, make: Callable[[], Any]) -> Any:
        """What is kept under a key, made if it is not; two callers at once may both make it."""
        with self._lock:
            known = self._recent.get(key)
        value = make() if known is None else known
        with self._lock:
            self._recent[key] = value
            self._recent.move_to_end(key)
            while len(self._recent) > self.kept:
                self._recent.popitem(last=False)
        return value


def digest(*tensors: Tensor) -> str:
    """The tensors' content in a few bytes."""
    whole = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        whole.update(tensor.cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
