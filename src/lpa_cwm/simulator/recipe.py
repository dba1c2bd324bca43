"""What kinds of scene there are, in numbers; lengths are in the scene's units."""

from dataclasses import dataclass
from typing import Literal

from lpa_cwm.errors import InputError

RecipeName = Literal["movi", "hard"]
Range = tuple[float, float]


@dataclass(frozen=True)
class Recipe:
    """Ranges from which a scene is drawn uniformly; the defaults are MOVi-F's."""

    name: str = "movi"
    resting: tuple[int, int] = (10, 20)
    """Bodies that lie about when the clip begins."""
    tossed: tuple[int, int] = (1, 3)
    """Bodies thrown in as it begins."""
    resting_within: float = 7.0
    """They are dropped over the square from minus to plus this."""
    tossed_within: float = 5.0
    tossed_height: Range = (1.0, 5.0)
    speed: float = 4.0
    """Of the throw along x and y, from minus to plus this, on top of a push towards the middle."""
    push: float = 1.0
    """Towards the middle, per unit of distance from it."""
    spin: float = 0.0
    """Radians per second about each axis, from minus to plus this."""
    scale: Range = (0.75, 3.0)
    """Longest side of a body."""
    friction: float = 0.5
    bounce: float = 0.5
    """Speed after a collision over speed before it."""
    shell: Range = (8.0, 12.0)
    """The camera keeps between these distances of the origin."""
    lowest: float = 0.6
    """And at least this far above the ground."""
    travel: Range = (0.0, 4.0)
    """Way of the camera during the clip, on a straight line."""
    gaze: float = 0.0
    """The camera looks at a point that moves on a line inside a ball of this radius around the origin."""
    shake: float = 0.0
    """Radians by which an unsteady hand turns the camera."""
    outdoors: float = 0.6
    """Share of scenes under a sky; the others are in a room."""
    frames: int = 24
    fps: int = 12
    settling: float = 5.0
    """Seconds for the resting bodies to come to rest."""


RECIPES: dict[str, Recipe] = {
    "movi": Recipe(),
    "hard": Recipe(
        name="hard",
        resting=(2, 6),
        tossed=(3, 6),
        resting_within=4.0,
        tossed_within=4.0,
        speed=5.0,
        push=1.2,
        spin=5.0,
        scale=(1.5, 3.5),
        shell=(7.0, 11.0),
        travel=(2.0, 6.0),
        gaze=1.5,
        shake=0.03,
    ),
}


def recipe_named(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise InputError(f"There is no recipe '{name}'; choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]
