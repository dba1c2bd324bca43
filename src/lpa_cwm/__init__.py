"""Point motion from counterfactual world models.

>>> import lpa_cwm as lc
>>> from lpa_cwm.registry import bundled_clip
>>> lc.track(bundled_clip("toy"), [[60, 80]], "uniform", frame=22, world="toy", masks=2)
Tracks(1 track, 24 frames, visible 100%)

Names are imported on first use, so that `lpa_cwm.metrics` works with numpy alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpa_cwm import metrics as metrics
    from lpa_cwm.adjudicators.lpa import LPA as LPA
    from lpa_cwm.config import TrackerConfig as TrackerConfig
    from lpa_cwm.errors import InputError as InputError
    from lpa_cwm.io.video import read as read
    from lpa_cwm.io.video import write as write
    from lpa_cwm.protocols import Adjudicator as Adjudicator
    from lpa_cwm.protocols import WorldModel as WorldModel
    from lpa_cwm.registry import load as load
    from lpa_cwm.types import Clip as Clip
    from lpa_cwm.types import Grid as Grid
    from lpa_cwm.types import Queries as Queries
    from lpa_cwm.types import Tracks as Tracks
    from lpa_cwm.video_tracking import track as track
    from lpa_cwm.worlds.learned.world import LearnedWorld as LearnedWorld

    grid = Grid

__version__ = "0.1.0"

_HOMES = {
    "Adjudicator": "protocols",
    "Clip": "types",
    "Grid": "types",
    "InputError": "errors",
    "LPA": "adjudicators.lpa",
    "LearnedWorld": "worlds.learned.world",
    "TrackerConfig": "config",
    "Queries": "types",
    "Tracks": "types",
    "WorldModel": "protocols",
    "load": "registry",
    "metrics": "",
    "read": "io.video",
    "track": "video_tracking",
    "write": "io.video",
}
_ALIASES = {"grid": "Grid"}
"""`grid(8)` reads as a verb; the type is `Grid`."""


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module 'lpa_cwm' has no attribute {name!r}")
    if not _HOMES[name]:
        return importlib.import_module(f"lpa_cwm.{name}")
    return getattr(importlib.import_module(f"lpa_cwm.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_ALIASES, "__version__"])
