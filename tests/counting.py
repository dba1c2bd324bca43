"""A world model that counts what it is asked."""

from dataclasses import dataclass, field

from lpa_cwm.worlds.wrapped import Wrapped


@dataclass(frozen=True)
class Counting(Wrapped):
    """Notes how many masks it was asked to imagine, call by call."""

    masks: list[int] = field(default_factory=list)

    def imagine(self, scene, hidden):
        self.masks.append(len(hidden))
        return super().imagine(scene, hidden)
