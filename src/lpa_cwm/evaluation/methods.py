"""A method under evaluation: an adjudicator on a world model, or a baseline, with all settings of its predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lpa_cwm import registry
from lpa_cwm.baselines.pairwise import working_size
from lpa_cwm.baselines.registry import get_baseline
from lpa_cwm.config import ADJUDICATORS, WORLD, TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import rescale
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import WorldModel
from lpa_cwm.tracker import track_many
from lpa_cwm.types import Clip, Queries, Tracks

TrackAll = Callable[[Clip, Queries], dict[str, Tracks]]
"""Tracks one clip with several methods; results by their keys."""


@dataclass(frozen=True)
class Method:
    """One row of a table."""

    name: str
    """An adjudicator or a baseline."""
    world: str = WORLD
    score_model: str = "compact"
    weights: Path | None = None
    """LPA weights other than the bundled ones."""
    device: str = "cpu"
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the tracker's configuration that differ from the world model's defaults."""
    label: str = ""
    """Name of the row; the method's name if empty."""

    def __post_init__(self) -> None:
        if self.settings and not self.ours:
            names = ", ".join("--" + name.replace("_", "-") for name in self.settings)
            raise InputError(f"{self.name} does not take {names}; leave out what only uniform, apa and lpa have.")

    @property
    def ours(self) -> bool:
        """Whether it is an adjudicator on a world model."""
        return self.name in ADJUDICATORS

    @property
    def row(self) -> str:
        """Name of the row in tables, and of the run's folder."""
        return self.label or self.name

    def config(self, world: WorldModel) -> TrackerConfig:
        """Settings of the tracker."""
        return replace(world.defaults, **self.settings)

    def identity(self, world: WorldModel | None) -> dict[str, Any]:
        """Everything that determines the predictions; weights by a hash of their content."""
        if world is None:
            return get_baseline(self.name).identity()
        score_model = self.score_model if self.name == "apa" else ""
        return {
            "world": self.world,
            **({"score_model": score_model} if score_model else {}),
            "config": asdict(self.config(world)),
            "weights": registry.fingerprint_of([self.weights]) if self.weights else None,
            "bundled_weights": registry.fingerprint(self.world, score_model, "" if self.weights else self.name),
        }


def make_tracker(methods: Sequence[tuple[str, Method]], worlds: Mapping[str, WorldModel]) -> TrackAll:
    """One function that tracks with all methods; methods with the same world model and settings share candidates."""
    groups: dict[Any, list[tuple[str, Method]]] = {}
    for key, method in methods:
        shared = (method.world, method.device, tuple(sorted(method.settings.items()))) if method.ours else key
        groups.setdefault(shared, []).append((key, method))
    trackers = [
        _cwm(group, worlds[group[0][1].world]) if group[0][1].ours else _baseline(*group[0])
        for group in groups.values()
    ]
    return lambda clip, queries: {key: tracks for track in trackers for key, tracks in track(clip, queries).items()}


def _cwm(methods: Sequence[tuple[str, Method]], world: WorldModel) -> TrackAll:
    """Adjudicators on one world model."""
    first = methods[0][1]
    adjudicators = {
        key: registry.load_adjudicator(one.name, one.score_model, one.weights, one.device) for key, one in methods
    }
    config = first.config(world)

    def track(clip: Clip, queries: Queries) -> dict[str, Tracks]:
        return track_many(world, adjudicators, clip, queries, config=config, device=first.device)

    return track


def _baseline(key: str, method: Method) -> TrackAll:
    """A baseline, evaluated as in TAP-Vid: on frames of 256 x 256 pixels."""
    tracker = get_baseline(method.name).load(device=method.device)

    def track(clip: Clip, queries: Queries) -> dict[str, Tracks]:
        resized, asked = working_size(clip, queries, SIZE, kept=len(clip))
        tracks = tracker.track(resized, asked)
        return {key: replace(tracks, xy=rescale(tracks.xy, resized.hw, clip.hw))}

    return track
