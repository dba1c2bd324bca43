"""Clips that need no file from the user."""

from pathlib import Path

from lpa_cwm.io.video import read
from lpa_cwm.types import Clip
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

DEMO_CLIP = Path(__file__).parent / "clips" / "bodies.mp4"
"""The first sixteen frames of a clip of the simulator's `movi` recipe with invented shapes and pictures."""

GALLERY = {"bodies": DEMO_CLIP} | {name: DEMO_CLIP.with_name(f"{name}.mp4") for name in ("tiles", "ball")}
"""Clips of the page; all three are made by the simulator from procedural shapes and pictures."""


def bundled_clip(world: str) -> Clip:
    """A clip to try things on; the toy world understands only its own."""
    if world == "toy":
        motion = ToyMotion(shift=(0.006, -0.004), turn=0.012, zoom=1.004, disc=(0.68, 0.42, 0.1))
        return toy_clip(motion, 24, name="toy")
    return read(DEMO_CLIP)
