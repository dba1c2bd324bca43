"""What LPA sees, written once: a safetensors file per video, never the raw responses."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.adjudicators.features import STRENGTH, CandidateFeatures, extract
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, data_files
from lpa_cwm.probe import first_pass, observe_pair
from lpa_cwm.protocols import WorldModel
from lpa_cwm.sharding import Executor, Shard, run_local
from lpa_cwm.training.pair_sampling import Correspondence, Correspondences
from lpa_cwm.types import Candidates


@dataclass(frozen=True, slots=True)
class CandidateSets:
    """Complete candidate sets with their evidence; images in half precision, the frame pair kept once per pair."""

    source: Float[Tensor, "g 3 32 32"]
    target: Float[Tensor, "g m 3 32 32"]
    near: Float[Tensor, "g m 32 32"]
    """Response around the candidate's endpoint."""
    response: Float[Tensor, "g m 32 32"]
    context: Float[Tensor, "p 6 64 64"]
    pair: Int[Tensor, "g"]
    """Which frame pair a group belongs to."""
    statistics: Float[Tensor, "g m 16"]
    peak: Float[Tensor, "g m 2"]
    end: Float[Tensor, "g 2"]
    """NaN where the point is hidden."""
    analytic: Float[Tensor, "g m"]
    """APA's weights for the same candidates."""

    def __len__(self) -> int:
        return len(self.end)

    @property
    def seen(self) -> Int[Tensor, "k"]:
        """Groups whose point is visible in the target, so that its endpoint is known."""
        return self.end.isfinite().all(1).nonzero()[:, 0]

    @property
    def errors(self) -> Float[Tensor, "g m"]:
        """How far each candidate's endpoint is from the truth, in pixels; NaN where the point is hidden."""
        return (self.peak - self.end[:, None]).norm(dim=-1)

    @property
    def least(self) -> Float[Tensor, "g"]:
        """Error in pixels of each group's best candidate; NaN where the point is hidden."""
        return self.errors.amin(1)

    @property
    def strength(self) -> Float[Tensor, "g m"]:
        """Response of each candidate at its endpoint, which is its strongest."""
        return self.statistics[..., STRENGTH]

    def at(self, rows: Int[Tensor, "k"]) -> "CandidateSets":
        """Some of the groups."""
        per_group = [entry.name for entry in fields(self) if entry.name != "context"]
        return replace(self, **{name: getattr(self, name)[rows] for name in per_group})

    def inputs(self, rows: Int[Tensor, "b"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `LPA.logits` takes, for some groups."""
        source = repeat(self.source[rows], "g c i j -> g m c i j", m=self.peak.shape[1]).float()
        target = self.target[rows].float()
        local = torch.cat((source, target, (target - source).abs(), self.near[rows, :, None].float()), dim=2)
        context = self.context[self.pair[rows]].float()
        return local, self.response[rows, :, None].float(), context, self.statistics[rows]


@dataclass(frozen=True)
class FeatureRecorder:
    """Asks the frozen world model and keeps what an adjudicator would see."""

    world: WorldModel
    analytic: APA
    masks: int = 10
    batch: int = 16
    device: str = "cpu"

    @torch.inference_mode()
    def record(self, correspondence: Correspondence) -> CandidateSets:
        """The groups of one frame pair."""
        frames, identity = (correspondence.source, correspondence.target), ("clip", *correspondence.identity)
        config = replace(self.world.defaults, masks=self.masks, batch=self.batch)
        observed = observe_pair(self.world, *frames, identity, config, self.device)
        end = observed.crop.to_crop(correspondence.end).to(self.device)
        parts = []
        for rows, pair, candidates in first_pass(observed, correspondence.xy.to(self.device)):
            analytic = self.analytic(pair, candidates).weights
            parts.append(self.pack(extract(pair, candidates), candidates, end[rows], analytic))
        return join(parts, one_pair=True)

    def pack(self, evidence: CandidateFeatures, candidates: Candidates, end: Tensor, analytic: Tensor) -> CandidateSets:
        """Evidence without what can be computed again."""
        return CandidateSets(
            source=evidence.local[:, 0, :3].half(),
            target=evidence.local[:, :, 3:6].half(),
            near=evidence.local[:, :, 9].half(),
            response=rearrange(evidence.response, "n m 1 h w -> n m h w").half(),
            context=evidence.context[None].half(),
            pair=torch.zeros(len(end), dtype=torch.long),
            statistics=evidence.statistics,
            peak=candidates.peak,
            end=end,
            analytic=analytic,
        )


def join(parts: Sequence[CandidateSets], one_pair: bool = False) -> CandidateSets:
    """Groups one after the other; of one pair the context is kept once."""
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
class Job:
    """The videos of a source as pieces of work; each worker makes the recorder itself, once."""

    source: Correspondences
    make_recorder: Callable[[], FeatureRecorder]

    def setup(self) -> Callable[[int], CandidateSets | None]:
        """What records the video of a number; None if nothing moves in it."""
        recorder = self.make_recorder()

        def record(video: int) -> CandidateSets | None:
            parts = [recorder.record(correspondence) for correspondence in self.source.of(video)]
            return join(parts) if parts else None

        return record


def cache(
    job: Job, out: Path, executor: Executor = run_local, shard: Shard | None = None
) -> Iterator[tuple[Path, int]]:
    """Write the videos of a shard that are not there yet; yields each video's file and number of groups."""
    videos = job.source.videos
    mine = (shard or Shard()).of(len(videos))
    paths = {video: out / f"{video:06d}.safetensors" for video in mine}
    todo = [video for video in mine if not paths[video].exists()]
    for video in sorted(set(mine).difference(todo)):
        yield paths[video], size_of(paths[video])
    for video, groups in executor(job, todo) if todo else ():
        # A video in which nothing moves is remembered as an empty file, so that it is not tried again.
        write(paths[video], groups, videos[video])
        yield paths[video], len(groups) if groups else 0


def write(path: Path, groups: CandidateSets | None, video: str) -> None:
    """One file, written aside."""
    tensors = (
        {entry.name: getattr(groups, entry.name).contiguous() for entry in fields(CandidateSets)} if groups else {}
    )
    # One entry: safetensors writes several in an order of its own, and equal caches shall be equal files.
    about = json.dumps({"video": video, "groups": len(groups) if groups else 0})
    with atomic_write(path) as aside:
        save_file(tensors, aside, metadata={"about": about})


def opened(path: Path) -> Any:
    """A cache file for reading, or a sentence."""
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} is not a file of an evidence cache; remove it and run `lpa-cwm data cache` again."
        ) from error


def size_of(path: Path) -> int:
    """Number of groups in a file."""
    with opened(path) as file:
        return json.loads(file.metadata()["about"])["groups"]


def read(*folders: Path) -> tuple[CandidateSets, list[str]]:
    """All groups of one cache or several, and for each the video it comes from."""
    parts: list[CandidateSets] = []
    videos: list[str] = []
    for path in (path for folder in folders for path in data_files(folder, "*.safetensors")):
        with opened(path) as file:
            about = json.loads(file.metadata()["about"])
            if about["groups"]:
                parts.append(
                    CandidateSets(**{entry.name: file.get_tensor(entry.name) for entry in fields(CandidateSets)})
                )
                videos += [about["video"]] * len(parts[-1])
    if not parts:
        said = " or ".join(str(folder) for folder in folders)
        raise InputError(f"There is no evidence in {said}; make some with `lpa-cwm data cache`.")
    return join(parts), videos
