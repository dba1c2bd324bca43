"""Opt-CWM's own evaluation protocol (Stojanov et al. 2025, arXiv:2503.19953), for comparison with published numbers.

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

from lpa_cwm.baselines.flow_trackers import by_source, keep_partial
from lpa_cwm.config import TrackerConfig
from lpa_cwm.files import cache_dir
from lpa_cwm.geometry import Crop, center_of, index_of, unit_range
from lpa_cwm.masks import HIDDEN_SHARE, hide, neighborhood
from lpa_cwm.protocols import WorldModel
from lpa_cwm.responses import argmax_xy, dense_magnitude, to_dense
from lpa_cwm.tracker import validate_queries
from lpa_cwm.types import Clip, Grid, Queries, Tracks
from lpa_cwm.worlds.opt_cwm import PUBLISHED, PUBLISHED_GENERATOR, load_folder

OFFICIAL = TrackerConfig(passes=4, windows=0, reduce="sum", mask_sharing="query", reevaluation="query", reveal="raster")
"""The published evaluation: ten masks, four zooms, nothing shared between queries."""
SEED = 12345
"""Seed of the published evaluation."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """One query in one pass: its two crops, its masks, and the responses at the size of the crop."""

    crops: tuple[Crop, Crop]
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
        crop = self.crops[1]
        column, row = index_of(argmax_xy(dense_magnitude(self.mean))[0], (crop.height, crop.width)).tolist()
        return torch.tensor([column + crop.x, row + crop.y])

    @property
    def strength(self) -> Float[Tensor, ""]:
        """Mean over masks of the largest magnitude."""
        return dense_magnitude(self.response).amax((-2, -1)).mean()


@dataclass
class OfficialTracker:
    """Tracks points as the official evaluation does, one query at a time."""

    world: WorldModel
    config: TrackerConfig = OFFICIAL
    device: str = "cpu"
    seed: int = SEED

    @torch.inference_mode()
    def track(self, clip: Clip, queries: Queries | Grid) -> Tracks:
        """Track directly from the frame of the query; the generator is seeded for each clip."""
        queries = validate_queries(clip, queries)
        tracks = Tracks.at_queries(clip, queries)
        strength = torch.full_like(tracks.xy[..., 0], torch.nan)
        generator = torch.Generator().manual_seed(self.seed)

        def found() -> Tracks:
            return Tracks(tracks.xy, tracks.visible | (strength >= self.config.visibility_threshold), strength)

        with keep_partial(found):
            for start, rows in by_source(queries):
                pixel = index_of(queries.xy[rows], clip.hw)
                source = unit_range(clip[start]).to(self.device)
                for target in range(start + 1, len(clip)):
                    *_, last = self.passes(source, unit_range(clip[target]).to(self.device), pixel, generator)
                    tracks.xy[rows, target] = center_of(torch.stack([result.endpoint for result in last]))
                    strength[rows, target] = torch.stack([result.strength for result in last]).to(strength)
        return found()

    def passes(
        self,
        source: Float[Tensor, "3 h w"],
        target: Float[Tensor, "3 h w"],
        pixel: Int[Tensor, "n 2"],
        generator: torch.Generator,
    ) -> Iterator[list[PassResult]]:
        """Yield the results of all queries of a frame pair, pass by pass; `pixel` holds (column, row)."""
        height, width = source.shape[1:]
        side = min(height, width)
        whole = Crop.full((height, width), self.world.size)
        crops = [(whole, whole) for _ in pixel]
        masks = self.draw(len(pixel), generator)
        last = self.config.passes
        for index in range(last + 1):
            results = [self.ask(source, target, *one) for one in zip(crops, masks, pixel, strict=True)]
            yield results
            if index < last:
                ends = [result.endpoint for result in results]
                crops = [
                    (zoom_crop(before, start, side), zoom_crop(after, end, side))
                    for (before, after), start, end in zip(crops, pixel, ends, strict=True)
                ]
                drawn = self.draw(len(pixel), generator)
                masks = [
                    self.hide_end(mask, crop, end) for mask, (_, crop), end in zip(drawn, crops, ends, strict=True)
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

    def hide_end(self, masks: Bool[Tensor, "m p"], crop: Crop, end: Int[Tensor, "2"]) -> Bool[Tensor, "m p"]:
        """Hide the patches around an endpoint."""
        around = neighborhood(center_of(to_crop_pixel(crop, end))[None], self.world.size, self.world.patch)[0]
        return hide(masks, around, self.config.reveal)

    def ask(
        self,
        source: Float[Tensor, "3 h w"],
        target: Float[Tensor, "3 h w"],
        crops: tuple[Crop, Crop],
        hidden: Bool[Tensor, "m p"],
        pixel: Int[Tensor, "2"],
    ) -> PassResult:
        """Responses of the world model to one query in one pair of crops."""
        before, after = crops
        scene = self.world.observe(
            *(self.world.describe(crop_bilinear(*one)) for one in ((source, before), (target, after)))
        )
        factual = self.world.imagine(scene, hidden.to(source.device))
        points = center_of(to_crop_pixel(before, pixel))[None].to(source)
        response = to_dense(self.world.intervene(scene, factual, points))[0]
        return PassResult(crops, hidden, resize_bilinear(response, (after.height, after.width)), self.config)


def missing_official() -> str | None:
    """Say which published file has not been fetched."""
    names = (PUBLISHED[512][0], PUBLISHED_GENERATOR)
    absent = [name for name in names if not (cache_dir() / "opt-cwm" / name).is_file()]
    return f"{absent[0]} has not been fetched yet: run `lpa-cwm data fetch opt-cwm`." if absent else None


def load_official(**given: Any) -> OfficialTracker:
    """The tracker at the size of the published evaluation; settings are those of `OfficialTracker`."""
    return OfficialTracker(load_folder(cache_dir() / "opt-cwm", 512), **given)


def zoom_crop(crop: Crop, pixel: Int[Tensor, "2"], side: int) -> Crop:
    """A smaller square inside a crop, around a pixel of the frame."""
    corner = torch.tensor([crop.x, crop.y])
    inner = Crop.around(center_of(pixel - corner), side, (crop.height, crop.width), crop.size)
    return Crop(inner.x + crop.x, inner.y + crop.y, side, side, crop.size)


def to_crop_pixel(crop: Crop, pixel: Int[Tensor, "2"]) -> Int[Tensor, "2"]:
    """Pixel of the crop that shows a pixel of the frame; fractions are truncated."""
    scale = torch.tensor([crop.size / crop.width, crop.size / crop.height])
    return ((pixel - torch.tensor([crop.x, crop.y])) * scale).long().clamp(0, crop.size - 1)


def crop_bilinear(frame: Float[Tensor, "3 h w"], crop: Crop) -> Float[Tensor, "3 s s"]:
    """The part of a frame inside a crop, at the size of the crop."""
    part = frame[:, crop.y : crop.y + crop.height, crop.x : crop.x + crop.width]
    return resize_bilinear(part[None], (crop.size, crop.size))[0]


def resize_bilinear(images: Float[Tensor, "b 3 h w"], hw: tuple[int, int]) -> Float[Tensor, "b 3 h2 w2"]:
    """Bilinear without antialiasing."""
    return F.interpolate(images, size=hw, mode="bilinear", align_corners=False)
