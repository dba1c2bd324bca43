"""From weighted responses to an endpoint: distribution, Gaussian windows, maximum (Eq. 8-9)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.geometry import HW, center_of, constant, pixel_centers
from lpa_cwm.jobs import computed_once
from lpa_cwm.responses import CHANNELS, Responses, block_maxima, segment_max

MIN_SPREAD = 0.5
"""Lower bound of the spread that sets a window's width: a window never collapses below 1.5 pixels."""
CROSS = ((0, 0), (-1, 0), (0, -1), (1, 0), (0, 1))
"""A pixel, the pixels before it along x and along y, and those after it."""


@dataclass(frozen=True)
class Distribution:
    """A distribution over the pixels of each query, proportional to exp(value + window).

    `value` is zero outside the blocks of the response. `window`, the logarithm of the Gaussian windows, is a function
    of x plus a function of y. So sums over all pixels are products of sums over the axes, corrected at the blocks.
    """

    value: Float[Tensor, "r q"]
    query: Int[Tensor, "r"]
    column: Int[Tensor, "r s"]
    row: Int[Tensor, "r s"]
    window_x: Float[Tensor, "n w"]
    window_y: Float[Tensor, "n h"]

    @property
    def hw(self) -> HW:
        return self.window_y.shape[1], self.window_x.shape[1]

    def window(self) -> Float[Tensor, "r q"]:
        """Log-window at the pixels of the blocks."""
        query = self.query[:, None]
        x, y = self.window_x[query, self.column], self.window_y[query, self.row]
        return (y[:, :, None] + x[:, None]).flatten(1)

    def marginals(self) -> tuple[Float[Tensor, "n w"], Float[Tensor, "n h"]]:
        """Probability of each column and of each row."""
        window = self.window()
        top = segment_max((self.value + window).amax(1), self.query, len(self.window_x)).clamp(min=0)
        # Windows are at most 1, so exp(-top) scales everything into range.
        across, down = self.window_x.exp(), self.window_y.exp()
        scale = (-top).exp()[:, None]
        window = window - top[self.query, None]
        extra = ((self.value + window).exp() - window.exp()).unflatten(1, (self.row.shape[1], -1))
        columns, rows = scale * across * down.sum(1, keepdim=True), scale * down * across.sum(1, keepdim=True)
        for marginal, place, axis in ((columns, self.column, 1), (rows, self.row, 2)):
            flat = self.query[:, None] * marginal.shape[1] + place
            marginal.view(-1).index_add_(0, flat.flatten(), extra.sum(axis).flatten())
        return columns / columns.sum(1, keepdim=True), rows / rows.sum(1, keepdim=True)

    def moments(self) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
        """Mean point and root-mean-square distance from it."""
        return self._moments

    @computed_once
    def _moments(self) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
        columns, rows = self.marginals()
        across, down = axes(self.hw, columns)
        mean = torch.stack((columns @ across, rows @ down), dim=1)
        variance = (columns * (across - mean[:, :1]) ** 2).sum(1) + (rows * (down - mean[:, 1:]) ** 2).sum(1)
        return mean, variance.clamp(min=0).sqrt()

    def windowed(self) -> "Distribution":
        """One update: a Gaussian window around the mean, three spreads wide."""
        mean, spread = self.moments()
        precision = 1 / (2 * (3 * spread.clamp(min=MIN_SPREAD)) ** 2)[:, None]
        across, down = axes(self.hw, mean)
        window_x = self.window_x - precision * (across - mean[:, :1]) ** 2
        window_y = self.window_y - precision * (down - mean[:, 1:]) ** 2
        return replace(self, window_x=window_x, window_y=window_y)

    def argmax(self) -> Int[Tensor, "n 2"]:
        """(column, row) of the most probable pixel; the first in raster order among equals."""
        n, (height, width) = len(self.window_x), self.hw
        highest, flat = block_maxima(self.value + self.window(), self.column, self.row, width)
        lowest = torch.finfo(highest.dtype).min
        best = highest.new_full((n,), lowest).scatter_reduce(0, self.query, highest, "amax")
        first = torch.where(highest == best[self.query], flat, height * width)
        place = torch.full((n,), height * width, device=flat.device).scatter_reduce(0, self.query, first, "amin")
        # Outside the blocks the largest value is where both windows are largest.
        column, row = self.window_x.argmax(1), self.window_y.argmax(1)
        outside = self.window_x.amax(1) + self.window_y.amax(1)
        wins = (outside > best) | ((outside == best) & (row * width + column < place))
        place = torch.where(wins, row * width + column, place)
        return torch.stack((place % width, place // width), dim=1)

    def at(self, pixel: Int[Tensor, "n k 2"]) -> Float[Tensor, "n k"]:
        """Logits at some pixels of each query."""
        offset = pixel[self.query] - torch.stack((self.column[:, 0], self.row[:, 0]), dim=1)[:, None]
        side = self.column.shape[1]
        here = ((offset >= 0) & (offset < side)).all(-1)
        x, y = offset.clamp(0, side - 1).unbind(-1)
        value = self.value.gather(1, y * side + x) * here
        total = self.value.new_zeros(pixel.shape[:2]).index_add_(0, self.query, value)
        return total + self.window_x.gather(1, pixel[..., 0]) + self.window_y.gather(1, pixel[..., 1])

    def peak(self) -> Float[Tensor, "n 2"]:
        """The center of the most probable pixel."""
        return center_of(self.argmax())

    def subpixel_peak(self) -> Float[Tensor, "n 2"]:
        """The top of the parabolas through the most probable pixel and its neighbors, along x and along y."""
        top = self.argmax()
        limit = constant((self.hw[1] - 1, self.hw[0] - 1), top.dtype, top.device)
        cross = top[:, None] + constant(CROSS, top.dtype, top.device)
        neighbors = torch.minimum(cross.clamp(min=0), limit)
        middle, before, after = self.at(neighbors).split((1, 2, 2), dim=1)
        bend = before - 2 * middle + after
        shift = (before - after) / (2 * bend.clamp(max=-1e-12))
        # No refinement at the border or on a plateau.
        interior = (top > 0) & (top < limit)
        return center_of(top) + torch.where(interior, shift, 0).clamp(-0.5, 0.5)

    def decode(self, subpixel: bool) -> Float[Tensor, "n 2"]:
        """The endpoint: a pixel's center, or refined between the pixels."""
        return self.subpixel_peak() if subpixel else self.peak()

    def probability(self) -> Float[Tensor, "n h w"]:
        """All pixels; for figures and tests."""
        logits = self.window_y[:, :, None] + self.window_x[:, None, :]
        blocks = self.value.unflatten(1, (self.row.shape[1], -1))
        logits[self.query[:, None, None], self.row[:, :, None], self.column[:, None]] += blocks
        return logits.flatten(1).softmax(1).view_as(logits)


def axes(hw: HW, like: Tensor) -> tuple[Float[Tensor, "w"], Float[Tensor, "h"]]:
    """x of the columns' and y of the rows' pixel centers."""
    x, y = pixel_centers((1, hw[1]), like.device)[0, :, 0], pixel_centers((hw[0], 1), like.device)[:, 0, 1]
    return x.to(like), y.to(like)


def distribution(response: Responses, config: TrackerConfig) -> Distribution:
    """Where aggregated responses say that the points went; the paper's channel mean, or the official code's sum."""
    value = response.magnitude() / (CHANNELS if config.reduce == "mean" else 1)
    column, row = response.pixels()
    (height, width), n = response.hw, response.shape[0]
    flat = value.new_zeros(n, width), value.new_zeros(n, height)
    return Distribution(config.sharpness * value, response.query, column, row, *flat)


def windowed_sequence(start: Distribution, windows: int) -> Iterator[Distribution]:
    """The distribution before and after each window."""
    yield start
    for _ in range(windows):
        start = start.windowed()
        yield start


def localize(response: Responses, config: TrackerConfig) -> Float[Tensor, "n 2"]:
    """The endpoint of aggregated responses: the largest probability after the Gaussian windows."""
    *_, last = windowed_sequence(distribution(response, config), config.windows)
    return last.decode(config.subpixel)
