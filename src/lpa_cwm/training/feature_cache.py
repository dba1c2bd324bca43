"""The feature cache: what LPA sees of candidates whose true endpoints are known, one safetensors file per video.

`cache_features` fills it from a data set, as `lpa-cwm data cache` does: from frame pairs, or from rollouts. In a
rollout the tracker runs over annotated clips, and what it adjudicates is recorded. The sources of later frames are the
tracker's own estimates with their real drift, not the truth (as in DAgger, Ross et al., 2011), so that LPA learns from
the sets it will meet.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int, jaxtyped
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.adjudicators.features import SCALARS, STRENGTH, CandidateFeatures, extract
from lpa_cwm.config import PRESETS, WORLD, PresetName, TrackerConfig
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files, pin_settings
from lpa_cwm.geometry import rescale
from lpa_cwm.io.safe_load import open_safetensors
from lpa_cwm.jobs import Executor, Shard, execute, progress, run_local
from lpa_cwm.online import SINGLE, OnlineTracker
from lpa_cwm.probe import first_pass, observe_pair
from lpa_cwm.protocols import Adjudicator, Dataset, WorldModel
from lpa_cwm.registry import fingerprint, load_adjudicator, load_score_model, load_world
from lpa_cwm.rng import generator
from lpa_cwm.training.pair_sampling import Correspondence, FlowPairSampler, PairSampler, sample_rows, training_pairs
from lpa_cwm.types import Candidates, Pair, Queries, Sample
from lpa_cwm.validation import check_name, parse_json, reading, structure

FORMAT = {"format": 3, "statistics": list(SCALARS)}
"""Version of the files, and what their statistics are; raise the version when the meaning of a tensor changes."""
CLAIMS = "cache.json"
"""File of a cache by which processes that fill it together claim videos."""
CACHE_ERROR = "a file of a feature cache", "remove it and run `lpa-cwm data cache` again"


@dataclass(frozen=True, slots=True)
class CandidateSets:
    """The M candidates of each query with their features; images in half precision, context once per frame pair."""

    source: Float[Tensor, "g 3 32 32"]
    target: Float[Tensor, "g m 3 32 32"]
    local_response: Float[Tensor, "g m 32 32"]
    """Response around the candidate's endpoint."""
    response: Float[Tensor, "g m 32 32"]
    context: Float[Tensor, "p 6 64 64"]
    pair: Int[Tensor, "g"]
    """Row of `context` that belongs to a set."""
    statistics: Float[Tensor, "g m s"]
    peak: Float[Tensor, "g m 2"]
    end: Float[Tensor, "g 2"]
    """True endpoint; NaN where the point is occluded."""
    apa_weights: Float[Tensor, "g m"]
    """APA's weights of the same candidates."""
    response_sigma: Float[Tensor, "g"]
    """Standard deviation of the world model's responses, in pixels."""

    def __len__(self) -> int:
        return len(self.end)

    @property
    def visible_rows(self) -> Int[Tensor, "k"]:
        """Sets whose point is visible in the target, so that its endpoint is known."""
        return self.end.isfinite().all(1).nonzero()[:, 0]

    @property
    def errors(self) -> Float[Tensor, "g m"]:
        """Distance of each candidate's endpoint from the truth, in pixels; NaN where the point is occluded."""
        return (self.peak - self.end[:, None]).norm(dim=-1)

    @property
    def min_error(self) -> Float[Tensor, "g"]:
        """Error in pixels of each set's best candidate; NaN where the point is occluded."""
        return self.errors.amin(1)

    @property
    def strength(self) -> Float[Tensor, "g m"]:
        """Response magnitude of each candidate at its endpoint, which is its maximum."""
        return self.statistics[..., STRENGTH]

    def select(self, rows: Int[Tensor, "k"]) -> "CandidateSets":
        """The given rows."""
        per_set = [entry.name for entry in fields(self) if entry.name != "context"]
        return replace(self, **{name: getattr(self, name)[rows] for name in per_set})

    def inputs(self, rows: Int[Tensor, "b"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs of `LPA.logits` for the given rows."""
        source = repeat(self.source[rows], "g c i j -> g m c i j", m=self.peak.shape[1]).float()
        target = self.target[rows].float()
        local = torch.cat((source, target, (target - source).abs(), self.local_response[rows, :, None].float()), dim=2)
        context = self.context[self.pair[rows]].float()
        return local, self.response[rows, :, None].float(), context, self.statistics[rows]


@dataclass(frozen=True)
class FeatureRecorder:
    """Computes the candidates of the tracker's first pass and keeps their features."""

    world: WorldModel
    apa: APA
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the tracker's configuration that differ from the world model's defaults."""
    batch: int = 16
    device: str = "cpu"

    @torch.inference_mode()
    def record(self, correspondence: Correspondence) -> CandidateSets:
        """The candidate sets of one frame pair."""
        frames, identity = (correspondence.source, correspondence.target), ("clip", *correspondence.identity)
        config = self.world.defaults.changed({**self.settings, "batch": self.batch})
        observed = observe_pair(self.world, *frames, identity, config, self.device)
        end = observed.crop.to_crop(correspondence.end).to(self.device)
        parts = []
        _, first, last = correspondence.identity
        for rows, pair, found in first_pass(observed, correspondence.xy.to(self.device)):
            candidates = found.by_path(last - first)
            apa_weights = self.apa(pair, candidates).weights
            parts.append(self.pack(extract(pair, candidates), candidates, end[rows], apa_weights))
        return concatenate_sets(parts, one_pair=True)

    def pack(
        self, features: CandidateFeatures, candidates: Candidates, end: Tensor, apa_weights: Tensor
    ) -> CandidateSets:
        """Features without what `CandidateSets.inputs` computes again."""
        return CandidateSets(
            source=features.local[:, 0, :3].half(),
            target=features.local[:, :, 3:6].half(),
            local_response=features.local[:, :, 9].half(),
            response=rearrange(features.response, "n m 1 h w -> n m h w").half(),
            context=features.context[None].half(),
            pair=torch.zeros(len(end), dtype=torch.long),
            statistics=features.statistics,
            peak=candidates.peak,
            end=end,
            apa_weights=apa_weights,
            response_sigma=torch.full((len(end),), self.world.response_sigma),
        )


def concatenate_sets(parts: Sequence[CandidateSets], one_pair: bool = False) -> CandidateSets:
    """Join candidate sets; those of one frame pair keep one context."""
    columns: dict[str, Tensor] = {
        entry.name: torch.cat([getattr(part, entry.name).cpu() for part in parts]) for entry in fields(CandidateSets)
    }
    if one_pair:
        columns["context"] = parts[0].context.cpu()
        return CandidateSets(**columns)
    starts = torch.tensor([0, *(len(part.context) for part in parts)]).cumsum(0)
    columns["pair"] = torch.cat([part.pair.cpu() + start for part, start in zip(parts, starts[:-1], strict=True)])
    return CandidateSets(**columns)


@dataclass(frozen=True)
class RecordingJob:
    """The videos of a source as pieces of work; each worker makes its own recorder, once."""

    source: PairSampler
    make_recorder: Callable[[], FeatureRecorder]

    @property
    def videos(self) -> Sequence[str]:
        """Identities of the videos."""
        return self.source.videos

    def setup(self) -> Callable[[int], CandidateSets | None]:
        """A function that records the video of a number; None if nothing moves in it."""
        recorder = self.make_recorder()

        def record(video: int) -> CandidateSets | None:
            parts = [recorder.record(correspondence) for correspondence in self.source.pairs_of(video)]
            return concatenate_sets(parts) if parts else None

        return record


@dataclass(frozen=True)
class RolloutRecorder:
    """Tracks points through a clip and keeps the features of complete candidate sets, those with all gaps."""

    recorder: FeatureRecorder
    adjudicator: Adjudicator
    config: TrackerConfig
    queries: int = 8
    """Maximum number of points per clip; if possible, half of them become hidden on the way."""
    stride: int = 3
    """Frames between recorded target frames."""

    @torch.inference_mode()
    def record(self, sample: Sample, video: str) -> CandidateSets | None:
        """The candidate sets of one clip; None if no point is visible in its first frame or no set is complete."""
        rows = self.choose(sample, video)
        if not len(rows):
            return None
        world, device = self.recorder.world, self.recorder.device
        truth = rescale(sample.truth.xy[rows], sample.clip.hw, (world.size, world.size))
        truth = truth.where(sample.truth.visible[rows, :, None], torch.nan)
        complete = self.config.masks + self.config.gap_masks * len(self.config.gaps)
        parts: list[CandidateSets] = []

        def keep(tracks: Int[Tensor, "k"], pair: Pair, candidates: Candidates) -> None:
            late = online.time - max(self.config.gaps, default=0)
            if candidates.strength.shape[1] == complete and late > 0 and (late - 1) % self.stride == 0:
                weights = self.recorder.apa(pair, candidates).weights
                end = truth[tracks, online.time].to(device)
                parts.append(self.recorder.pack(extract(pair, candidates), candidates, end, weights))

        online = OnlineTracker(world, {SINGLE: self.adjudicator}, self.config, device, video, on_candidates=keep)
        online.add_queries(Queries(sample.truth.xy[rows, 0], torch.zeros(len(rows), dtype=torch.long)))
        for frame in range(len(sample.clip)):
            online.step(sample.clip[frame])
        return concatenate_sets(parts) if parts else None

    def choose(self, sample: Sample, video: str) -> Int[Tensor, "k"]:
        """Keyed points of the first frame, as many as possible of each kind."""
        draw = generator("rollout", video)
        seen = sample.truth.visible[:, 0]
        lost = seen & ~sample.truth.visible.all(1)
        some = sample_rows(lost, self.queries // 2, draw)
        return torch.cat((some, sample_rows(seen & ~lost, self.queries - len(some), draw)))


@dataclass(frozen=True)
class RolloutJob:
    """The clips of a data set as pieces of work; each worker makes its own recorder, once."""

    dataset: Dataset
    make_recorder: Callable[[], RolloutRecorder]

    @property
    def videos(self) -> Sequence[str]:
        """Identities of the clips."""
        return self.dataset.names

    def setup(self) -> Callable[[int], CandidateSets | None]:
        """A function that records the clip of a number."""
        recorder = self.make_recorder()
        return lambda video: recorder.record(self.dataset[video], self.videos[video])


def rollout_job(path: Path, make_recorder: Callable[[], FeatureRecorder], adjudicator: str, queries: int) -> RolloutJob:
    """Rollouts over the annotated clips of a file or folder, by the world model's own tracker settings."""

    def make() -> RolloutRecorder:
        recorder = make_recorder()
        config = recorder.world.defaults.changed(recorder.settings)
        if not config.gaps:
            raise InputError(
                "Rollouts need a tracker with gaps, but this world model's default is direct tracking; "
                "use another world model, or cache frame pairs without --rollouts."
            )
        return RolloutRecorder(recorder, load_adjudicator(adjudicator), config, queries)

    return RolloutJob(load_dataset(path), make)


def fill_cache(
    job: RecordingJob | RolloutJob, out: Path, executor: Executor = run_local, shard: Shard | None = None
) -> Iterator[tuple[Path, int]]:
    """Write the videos of a shard that are missing; yields each video's file and number of candidate sets."""
    videos = job.videos
    mine = (shard or Shard()).of(len(videos))
    paths = {video: out / f"{video:06d}.safetensors" for video in mine}
    todo = [video for video in mine if not is_complete(paths[video])]
    for video in sorted(set(mine).difference(todo)):
        yield paths[video], count_sets(paths[video])
    made = set()
    for video, sets in execute(executor, job, todo, out / CLAIMS, lambda video: is_complete(paths[video])):
        # A video in which nothing moves becomes an empty file, so that it is not tried again.
        write_sets(paths[video], sets, videos[video])
        made.add(video)
        yield paths[video], len(sets) if sets else 0
    for video in sorted(set(todo) - made):
        # Another process made it meanwhile.
        yield paths[video], count_sets(paths[video])


def is_complete(path: Path) -> bool:
    """Whether a file exists with all its tensors; a truncated one is made again."""
    try:
        with open_safetensors(path):
            return True
    except (OSError, ValueError, SafetensorError):
        return False


def write_sets(path: Path, sets: CandidateSets | None, video: str) -> None:
    """Write the file of one video."""
    tensors = {entry.name: getattr(sets, entry.name).contiguous() for entry in fields(CandidateSets)} if sets else {}
    # One entry: safetensors writes several in an order of its own, and equal caches must give equal files.
    about = json.dumps({**FORMAT, "video": video, "sets": len(sets) if sets else 0})
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata={"about": about})


@contextmanager
def open_video(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A file of a cache for reading, and its description; a file of other features is refused."""
    with reading(path, *CACHE_ERROR), open_safetensors(path) as file:
        about = structure(parse_json((file.metadata() or {})["about"]), dict[str, Any])
        if any(about.get(name) != value for name, value in FORMAT.items()):
            raise InputError(
                f"{path} holds other features than this version of LPA uses (format {about.get('format', 1)}, "
                f"expected {FORMAT['format']} with {len(SCALARS)} statistics); "
                "run `lpa-cwm data cache` again with another --out."
            )
        check_name(structure(about["video"], str, "video"), f"The video of {path}")
        if structure(about["sets"], int, "sets") < 0:
            raise ValueError(f"it has {about['sets']} sets")
        yield file, about


def count_sets(path: Path) -> int:
    """Number of candidate sets in a file."""
    with open_video(path) as (_, about):
        return about["sets"]


def read_video(path: Path) -> tuple[CandidateSets | None, str]:
    """The candidate sets of one video, None if it has none, and its name."""
    with open_video(path) as (file, about):
        if not about["sets"]:
            return None, about["video"]
        sets = CandidateSets(**{entry.name: file.get_tensor(entry.name) for entry in fields(CandidateSets)})
        if len(sets) != about["sets"]:
            raise ValueError(f"it has {len(sets)} sets instead of {about['sets']}")
        check_sets(sets)
        return sets, about["video"]


def check_sets(sets: CandidateSets) -> None:
    """Refuse tensors whose shapes do not agree with their annotations and each other, and impossible numbers."""
    with jaxtyped("context"):
        for entry in fields(CandidateSets):
            tensor = getattr(sets, entry.name)
            # Each check binds the names of the dimensions for those after it.
            if not isinstance(tensor, cast(type, entry.type)):
                raise ValueError(f"`{entry.name}` is {list(tensor.shape)} of {tensor.dtype}, expected {entry.type}")
            if entry.name != "end" and not tensor.isfinite().all():
                raise ValueError(f"`{entry.name}` has numbers that are not finite")
    if not sets.peak.shape[1] or sets.pair.min() < 0 or sets.pair.max() >= len(sets.context):
        raise ValueError("it has no candidates, or refers to contexts that it does not hold")


def read_cache(*folders: Path) -> tuple[CandidateSets, list[str]]:
    """All candidate sets of one or several caches, and the video of each set."""
    if not folders:
        raise InputError("No feature cache was given; give at least one folder that `lpa-cwm data cache` filled.")
    parts: list[CandidateSets] = []
    videos: list[str] = []
    for path in (path for folder in folders for path in data_files(folder, "*.safetensors")):
        sets, video = read_video(path)
        if sets is not None:
            if parts and sets.peak.shape[1] != parts[0].peak.shape[1]:
                counts = f"{sets.peak.shape[1]} candidates per query and others {parts[0].peak.shape[1]}"
                raise InputError(f"{path} has {counts}; give caches that were made with the same --masks.")
            parts.append(sets)
            videos += [video] * len(sets)
    if not parts:
        given = " or ".join(str(folder) for folder in folders)
        raise InputError(f"There are no candidate sets in {given}; fill a folder with `lpa-cwm data cache`.")
    return concatenate_sets(parts), videos


@dataclass(frozen=True)
class CacheSettings:
    """What the files of a cache depend on, apart from the data set."""

    world: str = WORLD
    score_model: str = "compact"
    """Score model of the APA weights that are stored with the features."""
    masks: int = 10
    """Candidates per query."""
    pairs: int = 4
    """Frame pairs per video."""
    queries: int = 8
    """Maximum number of queries per pair."""
    hidden: int = 0
    """Maximum number of further queries per pair that are hidden in the target frame; annotated videos only."""
    gaps: tuple[int, int] = (1, 12)
    """Minimum and maximum number of frames between source and target; records give adjacent frames only."""
    rollouts: Literal["none", "uniform", "lpa"] = "none"
    """Record the sets that a tracker with this adjudicator meets on its way through a clip, instead of frame pairs."""
    preset: PresetName = "default"
    """Preset of the tracker's other settings."""

    @classmethod
    def of_preset(cls, preset: PresetName, **given: Any) -> "CacheSettings":
        """The preset's settings, overridden by those that are given."""
        return cls(preset=preset, **(PRESETS[preset].cache | given))

    def identity(self, dataset: Path) -> dict[str, Any]:
        """The description in `cache.json`; a folder holds one kind of cache."""
        names = {"dataset": dataset.name, "world": self.world, "score": self.score_model}
        weights = {"shipped_weights": fingerprint(self.world, self.score_model)}
        numbers: dict[str, Any] = {name: getattr(self, name) for name in ("masks", "pairs", "queries", "hidden")}
        numbers["gaps"] = list(self.gaps)
        # Left out by default: the folder may have been begun without them.
        numbers |= {} if self.preset == "default" else {"preset": self.preset}
        numbers |= {} if self.rollouts == "none" else {"rollouts": self.rollouts}
        return names | weights | numbers | FORMAT

    def recorder(self, device: str = "cpu") -> FeatureRecorder:
        """The recorder of a worker."""
        apa = APA(load_score_model(self.score_model, device))
        settings = {**PRESETS[self.preset].tracker, "masks": self.masks}
        return FeatureRecorder(load_world(self.world), apa, settings, device=device)


@dataclass(frozen=True)
class CacheSummary:
    """What a cache, or its shard, holds."""

    sets: int
    videos: int
    bytes: int
    filtered: str = ""
    """For records: the pixels that each filter of the correspondences took away, as a table."""


def cache_features(
    dataset: Path,
    out: Path,
    settings: CacheSettings | None = None,
    *,
    device: str = "cpu",
    executor: Executor = run_local,
    shard: Shard | None = None,
) -> CacheSummary:
    """Cache the candidates of annotated tracks or of records with flow; run again to resume."""
    settings = settings or CacheSettings()
    recorder, source = partial(settings.recorder, device), None
    if settings.rollouts == "none":
        source = training_pairs(dataset, settings.pairs, settings.queries, settings.gaps, settings.hidden)
        job = RecordingJob(source, recorder)
    else:
        job = rollout_job(dataset, recorder, settings.rollouts, settings.queries)
    videos = (shard or Shard()).of(len(job.videos))
    pin_settings(out / CLAIMS, settings.identity(dataset))
    counts = dict(progress(fill_cache(job, out, executor, shard), len(videos), "candidates"))
    filtered = str(source.filter_counts(videos)) if isinstance(source, FlowPairSampler) else ""
    return CacheSummary(sum(counts.values()), len(videos), sum(path.stat().st_size for path in counts), filtered)
