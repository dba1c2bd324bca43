"""`lpa-cwm data ...`: make, prepare, fetch and list data and published weights."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import Positional

from lpa_cwm.cli.options import (
    JsonOption,
    PresetOption,
    ScoreModelOption,
    ShardOption,
    SourceOptions,
    SplitOption,
    WorkerOptions,
    WorldOption,
    without_none,
)
from lpa_cwm.cli.values import Count, Gaps, InPath, Natural, OutFolder, Seed, integer, one_of, out_file

if TYPE_CHECKING:
    from lpa_cwm.training.feature_cache import CacheSettings

PUBLISHED_WEIGHTS = ("raft", "raft-things", "opt-cwm", "adm")
"""Names of `datasets.download.DOWNLOADS`, which help must not import."""


@dataclass(frozen=True, kw_only=True)
class ClipOptions(ShardOption, SplitOption):
    """Options of commands that make annotated clips."""

    out: OutFolder
    """Folder of the files; existing files are kept, so the same command resumes after a stop."""
    clips: Annotated[int, integer(1, 10_000_000)] = 16
    """Number of clips in all."""
    per_file: Count = 16
    """Clips in each file."""
    seed: Seed = 0
    """Random seed; clip i does not depend on the file or the worker that holds it."""
    tracks: Count = 256
    """Tracks per clip, in pickles of TAP-Vid's format."""


@dataclass(frozen=True, kw_only=True)
class Simulate(ClipOptions):
    """Simulate clips of colliding bodies with exact motion: records like MOVi-F's, or a benchmark like TAP-Vid's."""

    EXAMPLE: ClassVar[str] = "lpa-cwm data simulate --out data/val --form tapvid --split val --clips 40"
    form: Literal["movi", "tapvid"] = "movi"
    """TFRecord files in MOVi-F's format, or pickles of tracks in TAP-Vid's."""
    recipe: Literal["movi", "hard", "mixed"] = "movi"
    """Statistics of MOVi-F; fewer, larger, faster bodies and a livelier camera; or both in turn."""
    size: Annotated[int, integer(16, 2048)] = 256
    """Pixels of a side of the frames."""
    assets: InPath | None = None
    """Folder with objects/*.npz, textures/*.jpg and textures/panoramas/*.jpg; all assets are procedural without it."""
    samples: Annotated[int, integer(1, 16)] = 2
    """Rays along each side of a pixel at edges (antialiasing)."""

    def run(self) -> None:
        """Write the files and print their paths."""
        from lpa_cwm.simulator.assets import Assets
        from lpa_cwm.simulator.clip import ClipSeries, write_series
        from lpa_cwm.simulator.render import RenderSettings

        assets = Assets.of(self.assets, self.split)
        render = RenderSettings(self.size, self.samples)
        series = ClipSeries(assets, render, self.recipe, self.seed, self.clips, self.per_file)
        for path in write_series(series, self.out, self.form, self.shard, self.tracks):
            print(path)


@dataclass(frozen=True, kw_only=True)
class Annotate(ClipOptions, SourceOptions):
    """Annotate videos without labels: tracks that pass a forward-backward check, and pasted occluders.

    LPA and the confidence can be trained on the result, pickles of TAP-Vid's format. Needs the extra `flow`.
    """

    EXAMPLE: ClassVar[str] = "lpa-cwm data annotate --natural videos --photos photos --clips 100 --out data/annotated"

    def run(self) -> None:
        """Write the files and print their paths."""
        import torch

        from lpa_cwm.synth.video_flow import write_annotated

        torch.set_num_threads(1)
        source = self.folders().video_tracks(self.split, self.tracks, self.seed)
        for path in write_annotated(source, self.out, self.clips, self.per_file, self.shard):
            print(path)


@dataclass(frozen=True, kw_only=True)
class Pairs(ShardOption, SplitOption, SourceOptions):
    """Make frame pairs with backward flow, on which the learned world model is trained; run again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm data pairs --kind layered --photos photos --pairs 3000 --out pairs/layered"
    out: OutFolder
    """Folder of the shards; those that exist are kept, so the same command resumes after a stop."""
    kind: Literal["layered", "simulated", "video"] = "layered"
    """Layered scenes of photographs and video frames; simulated scenes of the recipes hard and movi; or videos
    (--natural) with optical flow that passes a forward-backward check, which needs the extra `flow`."""
    pairs: Annotated[int, integer(1, 10_000_000)] = 3000
    """Pairs in all, in shards of 100; two thirds have larger motion."""

    def run(self) -> None:
        """Write the shards and print their paths."""
        import torch

        from lpa_cwm.jobs import progress
        from lpa_cwm.synth.pair_shards import SHARD_PAIRS
        from lpa_cwm.training.flow_pairs import make_pairs

        # Pairs are small: more threads would slow each other down.
        torch.set_num_threads(1)
        paths = make_pairs(self.folders(), self.out, self.kind, self.split, self.pairs, self.shard)
        count = len(self.shard.of(-(-self.pairs // SHARD_PAIRS)))
        for path in progress(paths, count, "shards of pairs"):
            print(path)


@dataclass(frozen=True, kw_only=True)
class Cache(JsonOption, PresetOption, ScoreModelOption):
    """Cache the candidates of annotated tracks, on which LPA is trained; run again to resume."""

    EXAMPLE: ClassVar[str] = "lpa-cwm data cache data/train --out cache/train --hidden 6"
    dataset: Annotated[InPath, Positional]
    """Annotated videos of TAP-Vid format, or a folder of MOVi-F records; `lpa-cwm data simulate` writes both."""
    out: OutFolder
    """Folder of the cache: one file per video."""
    masks: Annotated[int, integer(1, 256)] | None = None
    """Candidates per query (M); by default as many as in the preset."""
    pairs: Count = 4
    """Frame pairs per video."""
    queries: Natural = 8
    """Maximum number of queries per pair."""
    hidden: Natural | None = None
    """Maximum number of further queries per pair that are hidden in the target frame, 0 unless given; annotated videos
    only."""
    gaps: Gaps | None = None
    """Minimum and maximum number of frames between source and target; 1 to 12 unless given, adjacent frames with
    --preset paper. Records give adjacent frames only."""
    rollouts: Literal["none", "uniform", "lpa"] = "none"
    """Record whole tracks instead of pairs: all candidate sets that a tracker with this adjudicator weighs in a clip.
    Annotated videos only."""
    model: WorldOption = field(default_factory=WorldOption)
    """World model, adjudicator and device."""
    parallel: WorkerOptions = field(default_factory=WorkerOptions)
    """Sharding and workers."""

    def run(self) -> None:
        """Fill the cache."""
        from lpa_cwm.jobs import executor
        from lpa_cwm.training.feature_cache import cache_features

        settings = self.settings()
        device, parallel = self.model.on(), self.parallel
        workers = executor(parallel.executor, device, parallel.workers)
        done = cache_features(self.dataset, self.out, settings, device=device, executor=workers, shard=parallel.shard)
        if self.json:
            about = {"out": str(self.out), "groups": done.sets, "videos": done.videos, "bytes": done.bytes}
            print(json.dumps(about))
            return
        print(f"{done.sets} groups of {done.videos} videos, {done.bytes / max(1, done.sets) / 1e6:.2f} MB a group")
        if done.filtered:
            print(f"pixels of their frame pairs:\n{done.filtered}")
        print(self.out)

    def settings(self) -> "CacheSettings":
        """The preset's settings, overridden by the options that were given."""
        from lpa_cwm.training.feature_cache import CacheSettings

        return CacheSettings.of_preset(
            self.preset,
            world=self.model.world,
            score_model=self.score_model,
            pairs=self.pairs,
            queries=self.queries,
            rollouts=self.rollouts,
            **without_none({"masks": self.masks, "gaps": self.gaps, "hidden": self.hidden}),
        )


@dataclass(frozen=True, kw_only=True)
class Fetch(JsonOption):
    """Download published weights, check their hashes and keep them; nothing is downloaded unless you ask for it."""

    EXAMPLE: ClassVar[str] = "lpa-cwm data fetch raft"
    names: Annotated[tuple[Annotated[str, one_of("download", PUBLISHED_WEIGHTS)], ...], Positional] = ()
    """What to fetch; `lpa-cwm data list` says what there is."""

    def run(self) -> None:
        """Fetch one after the other and print where the files are."""
        from lpa_cwm.datasets.download import DOWNLOADS
        from lpa_cwm.errors import InputError

        if not self.names:
            raise InputError(f"No name was given; choose among {', '.join(DOWNLOADS)}.")
        paths = [str(path) for name in self.names for path in DOWNLOADS[name].fetch()]
        print(json.dumps({"written": paths}) if self.json else "\n".join(paths))


@dataclass(frozen=True, kw_only=True)
class ListData(JsonOption):
    """List the published weights that can be fetched, with their licenses."""

    EXAMPLE: ClassVar[str] = "lpa-cwm data list"

    def run(self) -> None:
        """Print a line for each."""
        from lpa_cwm.datasets.download import DOWNLOADS

        offered = [{"name": one.name, "what": one.what, "license": one.license} for one in DOWNLOADS.values()]
        lines = [f"{one['name']:8}  {one['what']}. License: {one['license']}." for one in offered]
        print(json.dumps(offered) if self.json else "\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Convert Opt-CWM's published predictor and generator to one file that loads faster and runs no code."""

    EXAMPLE: ClassVar[str] = "lpa-cwm data convert --size 256"
    size: Literal[256, 512] = 256
    """Side in pixels of the frames the predictor sees."""
    folder: InPath | None = None
    """Where the published files are; by default where `lpa-cwm data fetch opt-cwm` puts them."""
    out: Annotated[Path, out_file(".safetensors")] | None = None
    """File to write; by default in the folder of the published ones, where it is then used instead of them."""

    def run(self) -> None:
        """Convert, and say what was left out."""
        from lpa_cwm.worlds.opt_cwm import convert

        path, unused = convert(self.size, self.folder, self.out)
        print(f"not used: {unused}")
        print(path)
