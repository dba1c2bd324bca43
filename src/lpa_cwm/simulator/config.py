"""Distributions of scenes; lengths are in scene units."""

from dataclasses import dataclass

from lpa_cwm.errors import InputError

Range = tuple[float, float]


@dataclass(frozen=True)
class SceneConfig:
    """Ranges from which a scene is sampled uniformly; the defaults are those of MOVi-F (Greff et al. 2022)."""

    name: str = "movi"
    resting: tuple[int, int] = (10, 20)
    """Number of bodies at rest when the clip begins."""
    tossed: tuple[int, int] = (1, 3)
    """Number of bodies thrown when the clip begins."""
    resting_within: float = 7.0
    """Half side of the square over which resting bodies are dropped."""
    tossed_within: float = 5.0
    tossed_height: Range = (1.0, 5.0)
    speed: float = 4.0
    """Maximum speed of a throw along x and y, added to `push`."""
    push: float = 1.0
    """Speed towards the center, per unit of distance."""
    spin: float = 0.0
    """Maximum angular velocity about each axis, in radians per second."""
    scale: Range = (0.75, 3.0)
    """Longest side of a body."""
    friction: float = 0.5
    bounce: float = 0.5
    """Coefficient of restitution."""
    shell: Range = (8.0, 12.0)
    """Minimum and maximum distance of the camera from the origin."""
    lowest: float = 0.6
    """Minimum height of the camera."""
    travel: Range = (0.0, 4.0)
    """Length of the straight camera path."""
    gaze: float = 0.0
    """Radius of the ball around the origin in which the point of gaze moves."""
    shake: float = 0.0
    """Amplitude of camera shake in radians."""
    outdoors: float = 0.6
    """Share of outdoor scenes; the others are in a room."""
    frames: int = 24
    fps: int = 12
    settling: float = 5.0
    """Seconds in which the resting bodies settle."""


SCENE_CONFIGS: dict[str, SceneConfig] = {
    "movi": SceneConfig(),
    "hard": SceneConfig(
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


def scene_config(name: str) -> SceneConfig:
    """The scene configuration of this name."""
    if name not in SCENE_CONFIGS:
        raise InputError(f"There is no scene configuration '{name}'; choose one of {', '.join(SCENE_CONFIGS)}.")
    return SCENE_CONFIGS[name]
