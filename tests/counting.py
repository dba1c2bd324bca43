"""A world model that counts the masks it is asked to predict under."""

from dataclasses import dataclass, field

from lpa_cwm.worlds.toy import ToyWorld


@dataclass(frozen=True)
class CountingWorld(ToyWorld):
    """Records the number of masks of each `imagine` call."""

    masks: list[int] = field(default_factory=list)

    def imagine(self, scene, hidden):
        self.masks.append(len(hidden))
        return super().imagine(scene, hidden)
