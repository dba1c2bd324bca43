"""Clips that need no file from the user."""

from lpa_cwm.types import Clip
from lpa_cwm.world.toy import ToyMotion, toy_clip


def bundled_clip(world: str) -> Clip:
    """A clip to try things on; the toy world has one of its own."""
    return toy_clip(ToyMotion(shift=(0.006, -0.004), turn=0.012, zoom=1.004, disc=(0.68, 0.42, 0.1)), 24, name="toy")
