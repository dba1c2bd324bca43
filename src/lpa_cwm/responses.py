"""Block-sparse responses: a few patch blocks per query and mask, zero everywhere else.

A world model that moves pixels answers a small perturbation in a handful of its patches. Everything after the world
model (peaks, statistics, crops, aggregation, decoding) works on these blocks, so its cost is that of the support.
A dense response is the special case in which every patch is a block.
"""

from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import HW, center_of_flat

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Responses:
    """Signed responses (Eq. 1) of n queries under m masks; rows are unique and sorted by query, mask and patch.

    Examples:
        >>> image = torch.zeros(1, 1, 3, 16, 16)
        >>> image[..., 5, 9] = 0.5
        >>> responses = Responses.from_dense(image, patch=8)
        >>> responses.peaks(responses.magnitude())[0].tolist()
        [[[9.5, 5.5]]]
    """

    blocks: Float[Tensor, "r c s s"]
    """Values of a block; one channel stands for three equal ones (a gray perturbation)."""
    query: Int[Tensor, "r"]
    """Query of each block."""
    mask: Int[Tensor, "r"]
    """Mask of each block."""
    patch: Int[Tensor, "r"]
    """Raster index of the block's patch."""
    shape: tuple[int, int]
    """Numbers of queries and masks (n, m)."""
    hw: HW
    """Height and width of the frames."""

    @classmethod
    def from_dense(cls, response: Float[Tensor, "n m 3 h w"], patch: int) -> "Responses":
        """Every patch of a dense response as a block.

        Args:
            response: Responses at every pixel.
            patch: Side of a block, in pixels.
        """
        n, m, _, height, width = response.shape
        once = response[:, :, :1] if response.stride(2) == 0 else response
        blocks = rearrange(once, "n m c (i a) (j b) -> (n m i j) c a b", a=patch, b=patch)
        index = torch.arange(len(blocks), device=response.device)
        patches = (height // patch) * (width // patch)
        mask = index // patches % m
        return cls(blocks, index // (patches * m), mask, index % patches, (n, m), (height, width))

    def dense(self) -> Float[Tensor, "n m 3 h w"]:
        """All pixels; for tests, figures and world models that need them."""
        (n, m), (height, width), side = self.shape, self.hw, self.side
        rows, columns = height // side, width // side
        channels = self.blocks.shape[1]
        whole = self.blocks.new_zeros(n * m * rows * columns, channels, side, side)
        whole[self.candidate * (rows * columns) + self.patch] = self.blocks
        image = rearrange(whole, "(n m i j) c a b -> n m c (i a) (j b)", n=n, m=m, i=rows)
        return image.expand(-1, -1, CHANNELS, -1, -1)

    @property
    def side(self) -> int:
        """Pixels along one side of a block."""
        return self.blocks.shape[-1]

    @property
    def candidate(self) -> Int[Tensor, "r"]:
        """Which of the n * m candidates a row belongs to."""
        return self.query * self.shape[1] + self.mask

    def magnitude(self) -> Float[Tensor, "r q"]:
        """L1 norm over the channels, per pixel of a block."""
        return self.blocks.abs().sum(1).flatten(1) * (CHANNELS / self.blocks.shape[1])

    def pixels(self) -> tuple[Int[Tensor, "r s"], Int[Tensor, "r s"]]:
        """Columns and rows of the frame that every block covers."""
        side, columns = self.side, self.hw[1] // self.side
        within = torch.arange(side, device=self.patch.device)
        return (self.patch % columns * side)[:, None] + within, (self.patch // columns * side)[:, None] + within

    def peaks(self, magnitude: Float[Tensor, "r q"]) -> tuple[Float[Tensor, "n m 2"], Float[Tensor, "n m"]]:
        """The pixel center of the largest magnitude of each candidate (Eq. 2), and that magnitude.

        Among equal values the first pixel in raster order counts, so that a response of zero peaks at pixel 0.

        Args:
            magnitude: What `magnitude` returned.
        """
        total = self.shape[0] * self.shape[1]
        best, flat = block_maxima(magnitude, *self.pixels(), self.hw[1])
        height = segment_max(best, self.candidate, total)
        beyond = self.hw[0] * self.hw[1]
        first = torch.where(best == height[self.candidate], flat, beyond)
        place = torch.full((total,), beyond, device=first.device)
        place = place.scatter_reduce(0, self.candidate, first, "amin").where(height > 0, 0)
        return center_of_flat(place, self.hw[1]).view(*self.shape, 2), height.view(self.shape)

    def aggregate(self, weights: Float[Tensor, "n m"]) -> "Responses":
        """Weighted sum over the masks (Eq. 8): responses of one mask.

        Args:
            weights: Weight of each candidate.
        """
        patches = (self.hw[0] // self.side) * (self.hw[1] // self.side)
        key, place = torch.unique(self.query * patches + self.patch, return_inverse=True)
        blocks = self.blocks.new_zeros(len(key), *self.blocks.shape[1:])
        blocks.index_add_(0, place, self.blocks * weights[self.query, self.mask][:, None, None, None])
        return Responses(blocks, key // patches, torch.zeros_like(key), key % patches, (self.shape[0], 1), self.hw)

    def mean_where_hidden(self, hidden: Bool[Tensor, "m p"]) -> "Responses":
        """For each patch the mean over the masks that hide it, which alone can respond there: responses of one mask.

        Args:
            hidden: The masks, the same for all queries; every patch must be hidden in at least one.
        """
        share = 1 / hidden.sum(0).clamp(min=1)
        scaled = replace(self, blocks=self.blocks * share[self.patch][:, None, None, None])
        return scaled.aggregate(torch.ones(self.shape, device=share.device))

    def of_queries(self, rows: Int[Tensor, "k"]) -> "Responses":
        """The responses of some queries alone.

        Args:
            rows: Their numbers, in increasing order.
        """
        place = torch.full((self.shape[0],), -1, device=rows.device).index_copy(
            0, rows, torch.arange(len(rows), device=rows.device)
        )
        query = place[self.query]
        (kept,) = (query >= 0).nonzero(as_tuple=True)
        shape = (len(rows), self.shape[1])
        return Responses(self.blocks[kept], query[kept], self.mask[kept], self.patch[kept], shape, self.hw)

    def with_queries(self, query: Int[Tensor, "n"], count: int) -> "Responses":
        """The same responses as those of other queries, given by number among `count`.

        Args:
            query: For each query its new number.
            count: Number of queries afterwards.
        """
        return replace(self, query=query.to(self.query.device)[self.query], shape=(count, self.shape[1]))


def block_maxima(
    values: Float[Tensor, "r q"], column: Int[Tensor, "r s"], row: Int[Tensor, "r s"], width: int
) -> tuple[Float[Tensor, "r"], Int[Tensor, "r"]]:
    """The largest value of every block, and the raster position of the first pixel that has it."""
    best, place = values.max(1)
    across, down = place[:, None] % column.shape[1], place[:, None] // column.shape[1]
    return best, (row.gather(1, down) * width + column.gather(1, across))[:, 0]


def concatenate(parts: list[Responses]) -> Responses:
    """Responses of different queries as one; each query's rows must all be in one part."""
    first = parts[0]
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("blocks", "query", "mask", "patch")}
    order = joined["query"].argsort(stable=True)
    return replace(first, **{name: value[order] for name, value in joined.items()})


def join_masks(parts: list[Responses]) -> tuple[Responses, Int[Tensor, "r"]]:
    """Responses of the same queries under the masks of all parts, and the order in which their rows were put."""
    counts = [part.shape[1] for part in parts]
    offsets = [sum(counts[:index]) for index in range(len(parts))]
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("blocks", "query", "patch")}
    joined["mask"] = torch.cat([part.mask + offset for part, offset in zip(parts, offsets, strict=True)])
    order = joined["query"].argsort(stable=True)
    rows = {name: value[order] for name, value in joined.items()}
    return replace(parts[0], **rows, shape=(parts[0].shape[0], sum(counts))), order


def to_dense(response: Responses | Float[Tensor, "n m 3 h w"]) -> Float[Tensor, "n m 3 h w"]:
    """All pixels of what a world model returned."""
    return response.dense() if isinstance(response, Responses) else response


def dense_magnitude(response: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b h w"]:
    """L1 norm over the channels."""
    return response.abs().sum(-3)


def argmax_xy(image: Float[Tensor, "*b h w"]) -> Float[Tensor, "*b 2"]:
    """The center of the pixel with the largest value; the first in raster order among equals."""
    return center_of_flat(image.flatten(-2).argmax(-1), image.shape[-1])


def segment_sum(values: Float[Tensor, "r"], segment: Int[Tensor, "r"], count: int) -> Float[Tensor, "count"]:
    """Sum of the values of each segment."""
    return values.new_zeros(count).index_add_(0, segment, values)


def segment_max(values: Float[Tensor, "r"], segment: Int[Tensor, "r"], count: int) -> Float[Tensor, "count"]:
    """Largest value of each segment; zero where there is none above it."""
    return values.new_zeros(count).scatter_reduce(0, segment, values, "amax")
