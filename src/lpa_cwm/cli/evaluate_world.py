"""`lpa-cwm eval world`: the stages of world models on frame pairs with known motion, side by side."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional

from lpa_cwm.cli.options import DataOptions, JsonOption, SourceOptions
from lpa_cwm.cli.values import Count, FramePair, InPath, Name, Pixels

if TYPE_CHECKING:
    from lpa_cwm.evaluation.world_stages import EvaluationPair

UNSEEN = 100
"""Number of the first held-out pair that is evaluated; constants were chosen on pairs before it."""
PairsOf = Callable[[int], "Iterable[EvaluationPair]"]
"""The pairs of a set at a working size."""


@dataclass(frozen=True, kw_only=True)
class EvaluateWorld(JsonOption):
    """Evaluate world models by stage, side by side: matches, motions, candidates and endpoints.

    Without data, on generated held-out pairs.
    """

    EXAMPLE: ClassVar[str] = "lpa-cwm eval world tapvid_davis.pkl --frame-pairs 0:8 0:20"
    data: Annotated[tuple[InPath, ...], Positional] = ()
    """Folders of `lpa-cwm data pairs`, or annotated videos of TAP-Vid format."""
    worlds: tuple[Name, ...] = ("learned",)
    """World models, each NAME or NAME:WEIGHTS."""
    pairs: Count = 24
    """Generated pairs of each kind."""
    frame_pairs: tuple[FramePair, ...] = ((0, 8),)
    """Source and target frames of annotated videos."""
    min_motion: Pixels = 4.0
    """Annotated points that move less, in pixels of the 256 raster, are left out; 0 keeps all."""
    selection: DataOptions = field(default_factory=DataOptions)
    """The part of the annotated videos that is used."""
    sources: SourceOptions = field(default_factory=SourceOptions)
    """What pairs are generated from, without data."""

    def run(self) -> None:
        """Print a table with one column for each set and world model."""
        from lpa_cwm.evaluation.world_stages import evaluate_world, figures_table, open_world
        from lpa_cwm.jobs import progress

        worlds = {text: open_world(text) for text in self.worlds}
        sets = self.sets()
        columns: dict[str, dict[str, float]] = {}
        jobs = [(label, name) for label in sets for name in worlds]
        for label, name in progress(jobs, len(jobs), "evaluating"):
            columns[f"{label}, {name}"] = evaluate_world(worlds[name], sets[label](worlds[name].size))
        if self.json:
            known = {
                column: {name: value for name, value in figures.items() if not math.isnan(value)}
                for column, figures in columns.items()
            }
            print(json.dumps(known))
            return
        print(figures_table(columns))

    def sets(self) -> dict[str, PairsOf]:
        """What is evaluated, by name."""
        from lpa_cwm.datasets.tapvid import load_dataset
        from lpa_cwm.evaluation.world_stages import annotated_pairs, sharded_pairs
        from lpa_cwm.synth.pair_shards import PairShards, holds_shards

        if not self.data:
            return self.generated()
        found: dict[str, PairsOf] = {}
        for path in self.data:
            if holds_shards(path):
                shards = PairShards.of(path)
                for kind in shards.kinds():
                    found[f"{path.name} {kind}"] = lambda _, s=shards, k=kind: sharded_pairs(s, k, self.pairs)
                continue
            dataset = load_dataset(path, self.selection.selection())
            for frames in self.frame_pairs:
                label = f"{dataset.name} {frames[0]}:{frames[1]}"
                found[label] = lambda size, d=dataset, f=frames: annotated_pairs(d, [f], self.min_motion, size)
        return found

    def generated(self) -> dict[str, PairsOf]:
        """Held-out pairs of layered scenes, and of videos and simulated scenes if folders are given."""
        from lpa_cwm.evaluation.world_stages import generated_pairs
        from lpa_cwm.synth.layered import LayeredPairs
        from lpa_cwm.synth.pairs import PairSource

        sources: list[PairSource | None] = [
            LayeredPairs.of(self.sources.photos, "val"),
            self.sources.video_pairs("val"),
        ]
        if self.sources.assets is not None:
            sources += self.sources.simulated_pairs("val").values()
        indices = range(UNSEEN, UNSEEN + self.pairs)
        return {
            source.name: lambda size, s=source: generated_pairs(s, indices, size)
            for source in sources
            if source is not None
        }
