"""The feature cache: what LPA sees of candidates whose true endpoints are known, one safetensors file per video."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int, jaxtyped
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.adjudicators.features import SCALARS, STRENGTH, CandidateFeatures, extract
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files
from lpa_cwm.io.safe_load import open_safetensors
from lpa_cwm.jobs import Executor, Shard, execute, run_local
from lpa_cwm.probe import first_pass, observe_pair
from lpa_cwm.protocols import WorldModel
from lpa_cwm.training.pair_sampling import Correspondence, PairSampler
from lpa_cwm.types import Candidates
from lpa_cwm.validation import check_name, parse_json, reading, structure

FORMAT = {"format": 3, "statistics": list(SCALARS)}
"""Version of the files, and what their statistics are; raise the version when a tensor comes to mean something else."""
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


@runtime_checkable
class CacheJob(Protocol):
    """Pieces of work that make the files of a cache."""

    @property
    def videos(self) -> Sequence[str]:
        """Identities of the videos."""
        ...

    def setup(self) -> Callable[[int], CandidateSets | None]:
        """A function that records the video of a number; None if there is nothing to record."""
        ...


def fill_cache(
    job: CacheJob, out: Path, executor: Executor = run_local, shard: Shard | None = None
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
    """Whether a file is there with all its tensors; one that was cut short is made again."""
    try:
        with open_safetensors(path):
            return True
    except (OSError, ValueError, SafetensorError):
        return False


def write_sets(path: Path, sets: CandidateSets | None, video: str) -> None:
    """Write the file of one video."""
    tensors = {entry.name: getattr(sets, entry.name).contiguous() for entry in fields(CandidateSets)} if sets else {}
    # One entry: safetensors writes several in an order of its own, and equal caches shall be equal files.
    about = json.dumps({**FORMAT, "video": video, "sets": len(sets) if sets else 0})
    with atomic_write(path) as aside:
        save_file(tensors, aside, metadata={"about": about})


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
