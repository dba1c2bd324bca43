"""From weighted responses to an endpoint: aggregation, distribution, localization (Eq. 8-9)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.geometry import pixel_centers
from lpa_cwm.probe import argmax_xy, magnitude, unique_channels

NARROWEST = 0.5
"""Lower bound of the spread that sets a window's width: a window never collapses below 1.5 pixels."""


def aggregate(response: Float[Tensor, "n m 3 h w"], weights: Float[Tensor, "n m"]) -> Float[Tensor, "n 3 h w"]:
    """Weighted sum of signed responses."""
    total = einsum(unique_channels(response), weights, "n m c h w, n m -> n c h w")
    return total.expand(-1, response.shape[2], -1, -1)


def reduce(response: Float[Tensor, "n 3 h w"], how: Literal["mean", "sum"]) -> Float[Tensor, "n h w"]:
    """Localization map; the paper's mean over channels, or the official code's sum."""
    return magnitude(response) / (3 if how == "mean" else 1)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution over pixels, kept as unnormalized logarithms so that windows cannot underflow."""

    logits: Float[Tensor, "n h w"]

    def probability(self) -> Float[Tensor, "n h w"]:
        return self.logits.flatten(1).softmax(1).view_as(self.logits)

    def moments(self) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
        """Mean point and root-mean-square distance from it."""
        probability = self.probability()
        rows, columns = probability.sum(2), probability.sum(1)
        centers = pixel_centers((rows.shape[1], columns.shape[1]), rows.device).to(rows)
        across, down = centers[0, :, 0], centers[:, 0, 1]
        mean = torch.stack((columns @ across, rows @ down), dim=1)
        variance = (columns * (across - mean[:, :1]) ** 2).sum(1) + (rows * (down - mean[:, 1:]) ** 2).sum(1)
        return mean, variance.clamp(min=0).sqrt()

    def windowed(self) -> "Distribution":
        """One update: a Gaussian window around the mean, three spreads wide."""
        mean, spread = self.moments()
        width = 3 * spread.clamp(min=NARROWEST)
        centers = pixel_centers((self.logits.shape[1], self.logits.shape[2]), mean.device).to(mean)
        across = (centers[0, :, 0] - mean[:, :1]) ** 2
        down = (centers[:, 0, 1] - mean[:, 1:]) ** 2
        distance = down[:, :, None] + across[:, None, :]
        return Distribution(self.logits - distance / (2 * width[:, None, None] ** 2))

    def peak(self) -> Float[Tensor, "n 2"]:
        """The center of the most probable pixel."""
        return argmax_xy(self.logits)

    def subpixel_peak(self) -> Float[Tensor, "n 2"]:
        """The top of the parabolas through the most probable pixel and its neighbors, along x and along y."""
        height, width = self.logits.shape[1:]
        flat = self.logits.flatten(1)
        top = flat.argmax(1, keepdim=True)
        row, column = top // width, top % width

        def beyond(place: Int[Tensor, "n 1"], step: int, most: int) -> Float[Tensor, "n"]:
            """How far the parabola's top is from the middle pixel; nowhere at the border and on a plateau."""
            before, after = (flat.gather(1, (top + way).clamp(0, flat.shape[1] - 1)) for way in (-step, step))
            bend = before - 2 * flat.gather(1, top) + after
            shift = (before - after) / (2 * bend.clamp(max=-1e-12))
            return torch.where((place > 0) & (place < most - 1), shift, 0).clamp(-0.5, 0.5)[:, 0]

        return self.peak() + torch.stack((beyond(column, 1, width), beyond(row, width, height)), dim=1)

    def decode(self, subpixel: bool) -> Float[Tensor, "n 2"]:
        """The endpoint: a pixel's center, or refined between the pixels."""
        return self.subpixel_peak() if subpixel else self.peak()


def distribution(response: Float[Tensor, "n 3 h w"], config: TrackerConfig) -> Distribution:
    """Where an aggregated response says the point went."""
    return Distribution(config.sharpness * reduce(response, config.reduce))


def windowed_sequence(start: Distribution, windows: int) -> Iterator[Distribution]:
    """The distribution before and after each window."""
    yield start
    for _ in range(windows):
        start = start.windowed()
        yield start


def localize(response: Float[Tensor, "n 3 h w"], config: TrackerConfig) -> Float[Tensor, "n 2"]:
    """The endpoint of an aggregated response: its largest value after the Gaussian windows."""
    *_, last = windowed_sequence(distribution(response, config), config.windows)
    return last.decode(config.subpixel)
