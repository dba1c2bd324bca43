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

from lpa_cwm.adjudicate.analytic import Analytic
from lpa_cwm.adjudicate.evidence import STRENGTH, Evidence, gather
from lpa_cwm.errors import InputError
from lpa_cwm.files import data_files, written_aside
from lpa_cwm.geometry import View
from lpa_cwm.interfaces import WorldModel
from lpa_cwm.probe import Probe
from lpa_cwm.sampling import look
from lpa_cwm.sharding import Executor, Shard, in_this_process
from lpa_cwm.training.groups import Correspondence, Correspondences
from lpa_cwm.types import Candidates, Pair
from lpa_cwm.world.masks import random_masks, shared


@dataclass(frozen=True, slots=True)
class Groups:
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

    def at(self, rows: Int[Tensor, "k"]) -> "Groups":
        """Some of the groups."""
        per_group = [entry.name for entry in fields(self) if entry.name != "context"]
        return replace(self, **{name: getattr(self, name)[rows] for name in per_group})

    def inputs(self, rows: Int[Tensor, "b"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `Learned.scores` takes, for some groups."""
        source = repeat(self.source[rows], "g c i j -> g m c i j", m=self.peak.shape[1]).float()
        target = self.target[rows].float()
        local = torch.cat((source, target, (target - source).abs(), self.near[rows, :, None].float()), dim=2)
        context = self.context[self.pair[rows]].float()
        return local, self.response[rows, :, None].float(), context, self.statistics[rows]


@dataclass(frozen=True)
class Recorder:
    """Asks the frozen world model and keeps what an adjudicator would see."""

    world: WorldModel
    analytic: Analytic
    masks: int = 10
    batch: int = 16
    device: str = "cpu"

    @torch.inference_mode()
    def record(self, correspondence: Correspondence) -> Groups:
        """The groups of one frame pair."""
        hw = correspondence.source.shape[-2], correspondence.source.shape[-1]
        view = View.full(hw, self.world.size)
        source, target = look(correspondence.source, view), look(correspondence.target, view)
        source, target = source.to(self.device), target.to(self.device)
        xy, end = view.enter(correspondence.xy).to(self.device), view.enter(correspondence.end).to(self.device)
        patches = (self.world.size // self.world.patch) ** 2
        plan = shared(random_masks(self.masks, patches, "cache", *correspondence.identity), len(xy))
        scene = self.world.observe(source, target)
        probe = Probe(self.world, scene, plan, xy, self.batch)
        parts = []
        for rows, candidates in probe.candidates():
            pair = Pair(source, target, xy[rows])
            parts.append(self.keep(gather(pair, candidates), candidates, end[rows], self.analytic(pair, candidates)))
        return join(parts, one_pair=True)

    def keep(self, evidence: Evidence, candidates: Candidates, end: Tensor, analytic: Tensor) -> Groups:
        """Evidence without what can be computed again."""
        return Groups(
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


def join(parts: Sequence[Groups], one_pair: bool = False) -> Groups:
    """Groups one after the other; of one pair the context is kept once."""
    columns: dict[str, Tensor] = {
        entry.name: torch.cat([getattr(part, entry.name).cpu() for part in parts]) for entry in fields(Groups)
    }
    if one_pair:
        columns["context"] = parts[0].context.cpu()
        return Groups(**columns)
    starts = torch.tensor([0, *(len(part.context) for part in parts)]).cumsum(0)
    columns["pair"] = torch.cat([part.pair.cpu() + start for part, start in zip(parts, starts[:-1], strict=True)])
    return Groups(**columns)


@dataclass(frozen=True)
class Job:
    """The videos of a source as pieces of work; each worker makes the recorder itself, once."""

    source: Correspondences
    make_recorder: Callable[[], Recorder]

    def begin(self) -> Callable[[int], Groups | None]:
        """What records the video of a number; None if nothing moves in it."""
        recorder = self.make_recorder()

        def record(video: int) -> Groups | None:
            parts = [recorder.record(correspondence) for correspondence in self.source.of(video)]
            return join(parts) if parts else None

        return record


def cache(
    job: Job, out: Path, executor: Executor = in_this_process, shard: Shard | None = None
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


def write(path: Path, groups: Groups | None, video: str) -> None:
    """One file, written aside."""
    tensors = {entry.name: getattr(groups, entry.name).contiguous() for entry in fields(Groups)} if groups else {}
    # One entry: safetensors writes several in an order of its own, and equal caches shall be equal files.
    about = json.dumps({"video": video, "groups": len(groups) if groups else 0})
    with written_aside(path) as aside:
        save_file(tensors, aside, metadata={"about": about})


def opened(path: Path) -> Any:
    """A cache file for reading, or a sentence."""
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} is not a file of an evidence cache; remove it and run `lpa-cwm cache` again."
        ) from error


def size_of(path: Path) -> int:
    """Number of groups in a file."""
    with opened(path) as file:
        return json.loads(file.metadata()["about"])["groups"]


def read(*folders: Path) -> tuple[Groups, list[str]]:
    """All groups of one cache or several, and for each the video it comes from."""
    parts: list[Groups] = []
    videos: list[str] = []
    for path in (path for folder in folders for path in data_files(folder, "*.safetensors")):
        with opened(path) as file:
            about = json.loads(file.metadata()["about"])
            if about["groups"]:
                parts.append(Groups(**{entry.name: file.get_tensor(entry.name) for entry in fields(Groups)}))
                videos += [about["video"]] * len(parts[-1])
    if not parts:
        said = " or ".join(str(folder) for folder in folders)
        raise InputError(f"There is no evidence in {said}; make some with `lpa-cwm cache`.")
    return join(parts), videos
