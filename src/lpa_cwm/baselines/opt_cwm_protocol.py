"""Opt-CWM's own protocol, to the letter, for comparison with published numbers.

It differs from `tracker.CwmTracker` in how masks are drawn (one generator in call order, for every query and pass), in
rounding (queries and endpoints are whole pixels, crops have truncated sides and are cut from the previous crop), in
resizing (bilinear without antialiasing) and in decoding at the crop's own resolution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.baselines.pairwise import by_source
from lpa_cwm.baselines.start import begun
from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import distribution
from lpa_cwm.files import cache_dir
from lpa_cwm.geometry import Crop, center_of, index_of
from lpa_cwm.masks import HIDDEN_SHARE, hide, neighborhood
from lpa_cwm.probe import magnitude
from lpa_cwm.protocols import WorldModel
from lpa_cwm.sampling import unit_range
from lpa_cwm.types import Clip, Queries, Tracks
from lpa_cwm.worlds.opt_cwm.checkpoint import PUBLISHED, PUBLISHED_GENERATOR, load_folder

OFFICIAL = TrackerConfig(passes=4, windows=0, reduce="sum", mask_sharing="query", reevaluation="query", reveal="raster")
"""The published evaluation: ten masks, four zooms, nothing shared between queries."""
SEED = 12345
"""The published evaluation seeds its process with it."""


@dataclass(frozen=True, slots=True)
class Glance:
    """One query in one pass: the crops it looks at, its masks, and what came back at the crop's size."""

    views: tuple[Crop, Crop]
    hidden: Bool[Tensor, "m p"]
    response: Float[Tensor, "m 3 h w"]
    config: TrackerConfig

    @property
    def mean(self) -> Float[Tensor, "1 3 h w"]:
        """Signed mean over masks."""
        return self.response.mean(0, keepdim=True)

    @property
    def endpoint(self) -> Int[Tensor, "2"]:
        """(column, row) of the strongest pixel, in the frame."""
        view = self.views[1]
        column, row = index_of(distribution(self.mean, self.config).peak()[0], (view.height, view.width)).tolist()
        return torch.tensor([column + view.x, row + view.y])

    @property
    def strength(self) -> Float[Tensor, ""]:
        """Mean over masks of the largest magnitude."""
        return magnitude(self.response).amax((-2, -1)).mean()


@dataclass
class OfficialTracker:
    """Follows points as the official evaluation does; the world model is asked for one query at a time."""

    world: WorldModel
    config: TrackerConfig = OFFICIAL
    device: str = "cpu"
    seed: int = SEED

    @torch.inference_mode()
    def track(self, clip: Clip, queries: Queries) -> Tracks:
        """Every later frame straight from the query's; the generator is seeded anew for each clip."""
        tracks = begun(clip, queries)
        strength = torch.full_like(tracks.xy[..., 0], torch.nan)
        generator = torch.Generator().manual_seed(self.seed)
        for start, rows in by_source(queries):
            pixel = index_of(queries.xy[rows], clip.hw)
            source = unit_range(clip[start]).to(self.device)
            for target in range(start + 1, len(clip)):
                *_, last = self.follow(source, unit_range(clip[target]).to(self.device), pixel, generator)
                tracks.xy[rows, target] = center_of(torch.stack([glance.endpoint for glance in last]))
                strength[rows, target] = torch.stack([glance.strength for glance in last]).to(strength)
        visible = tracks.visible | (strength >= self.config.visibility_threshold)
        return Tracks(tracks.xy, visible, strength)

    def follow(
        self,
        source: Float[Tensor, "3 h w"],
        target: Float[Tensor, "3 h w"],
        pixel: Int[Tensor, "n 2"],
        generator: torch.Generator,
    ) -> Iterator[list[Glance]]:
        """All queries of a frame pair, pass by pass; `pixel` holds (column, row)."""
        height, width = source.shape[1:]
        side = min(height, width)
        whole = Crop.full((height, width), self.world.size)
        views = [(whole, whole) for _ in pixel]
        masks = self.draw(len(pixel), generator)
        passes = self.config.passes
        for index in range(passes + 1):
            glances = [self.glance(source, target, *one) for one in zip(views, masks, pixel, strict=True)]
            yield glances
            if index < passes:
                ends = [glance.endpoint for glance in glances]
                views = [
                    (closer(before, start, side), closer(after, end, side))
                    for (before, after), start, end in zip(views, pixel, ends, strict=True)
                ]
                drawn = self.draw(len(pixel), generator)
                masks = [
                    self.hide_end(mask, view, end) for mask, (_, view), end in zip(drawn, views, ends, strict=True)
                ]
                side = int(self.config.zoom * side)

    def draw(self, queries: int, generator: torch.Generator) -> list[Bool[Tensor, "m p"]]:
        """Random masks, queries outside, masks inside."""
        patches = (self.world.size // self.world.patch) ** 2
        limit = int(HIDDEN_SHARE * patches)
        return [
            torch.stack([torch.randperm(patches, generator=generator) < limit for _ in range(self.config.masks)])
            for _ in range(queries)
        ]

    def hide_end(self, masks: Bool[Tensor, "m p"], view: Crop, end: Int[Tensor, "2"]) -> Bool[Tensor, "m p"]:
        """Hide the patches around an endpoint."""
        around = neighborhood(center_of(shown_at(view, end))[None], self.world.size, self.world.patch)[0]
        return hide(masks, around, self.config.reveal)

    def glance(
        self,
        source: Float[Tensor, "3 h w"],
        target: Float[Tensor, "3 h w"],
        views: tuple[Crop, Crop],
        hidden: Bool[Tensor, "m p"],
        pixel: Int[Tensor, "2"],
    ) -> Glance:
        """Ask the world model about one query in one pair of crops."""
        before, after = views
        scene = self.world.observe(*(self.world.describe(shown(*one)) for one in ((source, before), (target, after))))
        factual = self.world.imagine(scene, hidden.to(source.device))
        response = self.world.intervene(scene, factual, center_of(shown_at(before, pixel))[None].to(source))[0]
        return Glance(views, hidden, resized(response, (after.height, after.width)), self.config)


def missing_official() -> str | None:
    """The published files have to be fetched once."""
    names = (PUBLISHED[512][0], PUBLISHED_GENERATOR)
    absent = [name for name in names if not (cache_dir() / "opt-cwm" / name).is_file()]
    return f"{absent[0]} has not been fetched yet: run `lpa-cwm fetch opt-cwm`." if absent else None


def load_official(**given: Any) -> OfficialTracker:
    """The tracker at the size of the published evaluation; settings are those of `OfficialTracker`."""
    return OfficialTracker(load_folder(cache_dir() / "opt-cwm", 512), **given)


def closer(view: Crop, pixel: Int[Tensor, "2"], side: int) -> Crop:
    """A square cut from a view around a pixel of the frame, shifted to stay inside the view."""
    corner = torch.tensor([view.x, view.y])
    inner = Crop.around(center_of(pixel - corner), side, (view.height, view.width), view.size)
    return Crop(inner.x + view.x, inner.y + view.y, side, side, view.size)


def shown_at(view: Crop, pixel: Int[Tensor, "2"]) -> Int[Tensor, "2"]:
    """Where a pixel of the frame is in the view; the fraction is cut off before the center is taken."""
    scale = torch.tensor([view.size / view.width, view.size / view.height])
    return ((pixel - torch.tensor([view.x, view.y])) * scale).long().clamp(0, view.size - 1)


def shown(frame: Float[Tensor, "3 h w"], view: Crop) -> Float[Tensor, "3 s s"]:
    """The part of a frame inside a view, at the view's size."""
    part = frame[:, view.y : view.y + view.height, view.x : view.x + view.width]
    return resized(part[None], (view.size, view.size))[0]


def resized(images: Float[Tensor, "b 3 h w"], hw: tuple[int, int]) -> Float[Tensor, "b 3 h2 w2"]:
    """Bilinear without antialiasing."""
    return F.interpolate(images, size=hw, mode="bilinear", align_corners=False)
