"""Parts of a source of pairs: small squares of its scenes, and the share of one process among several."""

from dataclasses import dataclass

from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.pairs import Example, PairSource


@dataclass(frozen=True)
class Crops:
    """The pairs of another source, each made at a random larger size and cut at the same place in both frames.

    The network so trains on few pixels, at the scale in which it will be used.
    """

    pairs: PairSource
    scenes: tuple[int, int] = (160, 288)
    """Bounds of the side of a whole scene, in pixels; a scene is never smaller than its crop."""

    @property
    def name(self) -> str:
        """Source and sizes."""
        return f"{self.pairs.name} of {self.scenes[0]}-{self.scenes[1]}"

    def pair(self, index: int, size: int) -> Example:
        """The crop of this number; what moves out of it counts as not visible."""
        rng = numpy_rng("crop", self.name, index)
        whole = max(size, int(rng.integers(self.scenes[0], self.scenes[1] + 1)))
        x, y = (int(at) for at in rng.integers(0, whole - size + 1, 2))
        scene = self.pairs.pair(index, whole)
        part = (..., slice(y, y + size), slice(x, x + size))
        return Example(scene.source[part], scene.target[part])


@dataclass(frozen=True)
class Share:
    """Every so many-th batch of another source, for one of several processes that train together."""

    pairs: PairSource
    batch: int
    worker: int
    workers: int

    @property
    def name(self) -> str:
        """That of the whole."""
        return self.pairs.name

    def pair(self, index: int, size: int) -> Example:
        """The pair of this number within the share."""
        step, place = divmod(index, self.batch)
        return self.pairs.pair((step * self.workers + self.worker) * self.batch + place, size)
