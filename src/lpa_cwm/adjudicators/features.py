"""Input features of LPA: local crops, response maps, the frame pair and the statistics of the paper's Table A.1."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import HALF_PIXEL, HW, constant, index_of, sample_crop, to_continuous_index
from lpa_cwm.responses import Responses, segment_max, segment_sum
from lpa_cwm.types import PATH_NAMES, Candidates, Pair

STATISTIC_NAMES = (
    "displacement_y",
    "displacement_x",
    "peak",
    "mean",
    "std",
    "median",
    "peak_over_mean_7",
    "peak_over_mean_15",
    "peak_over_median",
    "peak_over_second_peak",
    "mass_7",
    "mass_15",
    "mass_31",
    "entropy",
    "frame_difference_7",
    "source_edges_7",
)
"""Statistics of a candidate (Table A.1); numbers are sides of windows around its endpoint, in pixels."""
STATISTICS = len(STATISTIC_NAMES)
SCALARS = (*STATISTIC_NAMES, *PATH_NAMES)
"""Scalar features of a candidate: the paper's statistics, and those of its path through time."""
STRENGTH = STATISTIC_NAMES.index("peak")
"""Index of the response magnitude at the endpoint."""
COMPRESSED = slice(STRENGTH, STATISTIC_NAMES.index("peak_over_second_peak") + 1)
"""Statistics that `compress` takes the logarithm of."""
EXTENT, CROP, MAP, CONTEXT = 64.0, 32, 32, 64
"""Pixels covered by a local crop; samples across crops, response maps and the frame pair."""
EPSILON = 1e-8
MEDIANS_AT_ONCE = 32
"""Candidates whose dense maps are sorted at a time."""
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True)
class CandidateFeatures:
    """The four inputs of LPA for n queries with m candidates each."""

    local: Float[Tensor, "n m 10 32 32"]
    response: Float[Tensor, "n m 1 32 32"]
    context: Float[Tensor, "6 64 64"]
    statistics: Float[Tensor, "n m s"]
    """`SCALARS` of each candidate."""


def extract(pair: Pair, candidates: Candidates) -> CandidateFeatures:
    """All features of a pair's candidates."""
    frames = torch.cat((pair.source, pair.target))[None]
    context = F.interpolate(frames, (CONTEXT, CONTEXT), mode="bilinear", align_corners=False)[0]
    # Each candidate's response is scaled to a maximum of one.
    scale = candidates.strength.flatten()[candidates.response.candidate, None]
    normal = candidates.magnitude / (scale + EPSILON)
    return CandidateFeatures(
        local=local_features(pair, candidates, normal),
        response=response_maps(candidates.response, normal),
        context=context,
        statistics=torch.cat((statistics(pair, candidates), path_evidence(pair, candidates)), dim=-1),
    )


def path_evidence(pair: Pair, candidates: Candidates) -> Float[Tensor, "n m 5"]:
    """`PATH_NAMES` of each candidate; a single pair counts as adjacent frames with a given point."""
    shape = candidates.strength.shape
    path = candidates.path
    if path is None:
        path = constant((0.0, 1.0, 1.0), candidates.strength.dtype, candidates.strength.device).expand(*shape, -1)
    last = pair.xy if candidates.last_xy is None else candidates.last_xy
    step = (candidates.peak - last[:, None]).norm(dim=-1).log1p()
    age = path[..., 0].amax(1) if candidates.age is None else candidates.age.log2()
    return torch.cat((path, torch.stack((step, age[:, None].expand(shape)), dim=-1)), dim=-1)


def local_features(pair: Pair, candidates: Candidates, normal: Float[Tensor, "r q"]) -> Float[Tensor, "n m 10 32 32"]:
    """Source around the query, target around the candidate's endpoint, their difference, and the response there."""
    n, m = candidates.peak.shape[:2]
    ends = rearrange(candidates.peak, "n m d -> (n m) d")
    source = sample_crop(pair.source.expand(n, -1, -1, -1), pair.xy, EXTENT, CROP)
    source = repeat(source, "n c i j -> (n m) c i j", m=m)
    target = shared_crops(pair.target, ends)
    response = response_crops(candidates.response, normal, ends)
    stack = torch.cat((source, target, (target - source).abs(), response), dim=1)
    return rearrange(stack, "(n m) c i j -> n m c i j", n=n)


def shared_crops(image: Float[Tensor, "c h w"], ends: Float[Tensor, "b 2"]) -> Float[Tensor, "b c 32 32"]:
    """`sample_crop`, computed once for all candidates with the same endpoint."""
    # x and y, 32 bits each, are compared as one number.
    place, which = ends.contiguous().view(torch.int64)[:, 0].unique(return_inverse=True)
    crops = sample_crop(image.expand(len(place), -1, -1, -1), place[:, None].view(ends.dtype), EXTENT, CROP)
    return crops[which]


def response_crops(
    response: Responses, normal: Float[Tensor, "r q"], ends: Float[Tensor, "b 2"]
) -> Float[Tensor, "b 1 32 32"]:
    """`sample_crop` of the responses around the endpoints, from a tile of whole blocks of each, line by line."""
    side, reach = response.side, int(EXTENT // 2) + 2
    count = (2 * reach + 1 + side - 2) // side + 1
    corner = (index_of(ends, response.hw) - reach).div(side, rounding_mode="floor")
    across = response.hw[1] // side
    block = torch.stack((response.patch % across, response.patch // across), dim=1) - corner[response.candidate]
    inside = ((block >= 0) & (block < count)).all(1, keepdim=True)
    line = ((response.candidate * count + block[:, 1]) * side)[:, None] + torch.arange(side, device=block.device)
    # Points outside go to one extra place: selecting those inside would make the host wait for a GPU.
    beyond = len(ends) * count * side * count
    tiles = normal.new_zeros(beyond + 1, side)
    tiles.index_copy_(0, torch.where(inside, line * count + block[:, :1], beyond).flatten(), normal.view(-1, side))
    lines = tiles[:-1].view(len(ends), count * side, count * side)
    return sample_lines(lines, crop_axes(ends, response.hw) - corner[..., None] * side)[:, None]


def crop_axes(ends: Float[Tensor, "b 2"], hw: HW) -> Float[Tensor, "b 2 32"]:
    """The x and the y of the points of `sample_crop`; outside the frame its border is repeated."""
    offsets = torch.linspace(-EXTENT / 2, EXTENT / 2, CROP, dtype=ends.dtype, device=ends.device)
    limit = constant((hw[1], hw[0]), ends.dtype, ends.device)
    return torch.minimum((ends[..., None] + offsets).clamp(min=HALF_PIXEL), (limit - HALF_PIXEL)[:, None])


def sample_lines(image: Float[Tensor, "b h w"], axes: Float[Tensor, "b 2 k"]) -> Float[Tensor, "b k k"]:
    """Bilinear values on a grid that is given by its x and y: first between lines, then along them."""
    place = to_continuous_index(axes)
    first = place.floor()
    (share_x, share_y), low = (place - first).unbind(1), first.long()
    # The last point may lie on the last pixel, beyond which nothing is read.
    high = torch.minimum(low + 1, constant((image.shape[2] - 1, image.shape[1] - 1), low.dtype, low.device)[:, None])
    start = (torch.arange(len(image), device=low.device) * image.shape[1])[:, None]
    before, after = (F.embedding(start + line[:, 1], image.flatten(0, 1)) for line in (low, high))
    lines = torch.lerp(before, after, share_y[..., None])
    before, after = (lines.gather(2, column[:, :1].expand(-1, lines.shape[1], -1)) for column in (low, high))
    return torch.lerp(before, after, share_x[:, None])


def response_maps(response: Responses, normal: Float[Tensor, "r q"]) -> Float[Tensor, "n m 1 32 32"]:
    """The responses resized to 32 x 32 by bilinear interpolation."""
    n, m = response.shape
    height, width = response.hw
    if height != width or height != MAP * response.side:
        dense = replace(response, blocks=normal.unflatten(1, (1, response.side, response.side))).dense()[:, :, :1]
        resized = F.interpolate(dense.flatten(0, 1), (MAP, MAP), mode="bilinear", align_corners=False)
        return resized.unflatten(0, (n, m))
    # Here every block becomes one pixel: the mean of the four pixels in its middle.
    half = response.side // 2
    value = normal.unflatten(1, (response.side, response.side))[:, half - 1 : half + 1, half - 1 : half + 1].mean(
        (1, 2)
    )
    maps = normal.new_zeros(n * m, MAP * MAP)
    maps[response.candidate, response.patch] = value
    return maps.view(n, m, 1, MAP, MAP)


def statistics(pair: Pair, candidates: Candidates) -> Float[Tensor, "n m s"]:
    """`STATISTIC_NAMES` of each candidate, before compression and standardization."""
    response, magnitude = candidates.response, candidates.magnitude
    (n, m), (height, width), segment = response.shape, response.hw, response.candidate
    end = rearrange(index_of(candidates.peak, response.hw), "n m d -> (n m) d")
    move = (candidates.peak - pair.xy[:, None]) / constant(
        (width, height), candidates.peak.dtype, candidates.peak.device
    )
    # Chebyshev distance of every pixel from its candidate's endpoint: the larger one of those of column and row.
    column, row = ((axis - end[segment, index, None]).abs() for index, axis in enumerate(response.pixels()))
    blocks = magnitude.unflatten(1, (response.side, response.side))
    reach = constant((0, 3, 7, 15), column.dtype, column.device)[:, None]
    beside, above = (axis[:, None] <= reach for axis in (column, row))
    within = ((above.float() @ blocks) * beside).sum(2)
    sums = magnitude.new_zeros(n * m, 5).index_add_(0, segment, torch.cat((within, magnitude.sum(1, True)), dim=1))
    at_end, mass, total = sums[:, 0], dict(zip((7, 15, 31), sums[:, 1:4].unbind(1), strict=True)), sums[:, 4]
    distant = (row > 5)[:, :, None] | (column > 5)[:, None]
    second = segment_max((blocks * distant).flatten(1).amax(1), segment, n * m)
    mean, median = total / (height * width), lower_median(response, magnitude)
    columns = [
        rearrange(move[..., 1], "n m -> (n m)"),
        rearrange(move[..., 0], "n m -> (n m)"),
        at_end,
        mean,
        deviation(response, magnitude, mean),
        median,
        at_end / (mass[7] / window_area(end, response.hw, 7) + EPSILON),
        at_end / (mass[15] / window_area(end, response.hw, 15) + EPSILON),
        at_end / (median + EPSILON),
        at_end / (second + EPSILON),
        mass[7] / (total + EPSILON),
        mass[15] / (total + EPSILON),
        mass[31] / (total + EPSILON),
        entropy(response, magnitude, total),
        local_mean((pair.target - pair.source).abs().mean(0), end, 7),
        local_mean(edges(pair.source), end, 7),
    ]
    return rearrange(torch.stack(columns, dim=-1), "(n m) d -> n m d", n=n)


def compress(statistics: Float[Tensor, "*b s"]) -> Float[Tensor, "*b s"]:
    """Signed logarithm of the statistics in `COMPRESSED`, whose values span many decades."""
    wide = statistics[..., COMPRESSED]
    logged = wide.sign() * wide.abs().log1p()
    return torch.cat((statistics[..., : COMPRESSED.start], logged, statistics[..., COMPRESSED.stop :]), dim=-1)


def window(
    field: Float[Tensor, "b h w"], end: Int[Tensor, "b 2"], side: int
) -> tuple[Float[Tensor, "b s s"], Bool[Tensor, "b s s"]]:
    """A square of pixels around each endpoint, and which of its pixels lie inside the image."""
    height, width = field.shape[1:]
    offsets = torch.arange(side, device=end.device) - side // 2
    columns, rows = end[:, :1] + offsets, end[:, 1:] + offsets
    valid = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    return field.flatten(1).gather(1, place.flatten(1)).view(place.shape), valid


def local_mean(image: Float[Tensor, "h w"], end: Int[Tensor, "b 2"], side: int) -> Float[Tensor, "b"]:
    """Mean over the existing pixels of a square."""
    square, valid = window(image.expand(len(end), *image.shape), end, side)
    return (square * valid).sum((1, 2)) / valid.sum((1, 2))


def window_area(end: Int[Tensor, "b 2"], hw: HW, side: int) -> Float[Tensor, "b"]:
    """Pixels of a square around each endpoint that lie in the frame."""
    limit = constant((hw[1] - 1, hw[0] - 1), end.dtype, end.device)
    low, high = (end - side // 2).clamp(min=0), torch.minimum(end + side // 2, limit)
    return (high - low + 1).prod(1).float()


def lower_median(response: Responses, magnitude: Float[Tensor, "r q"]) -> Float[Tensor, "b"]:
    """Median of the magnitudes over all pixels; of the two middle values the lower one."""
    (n, m), pixels, segment = response.shape, response.hw[0] * response.hw[1], response.candidate
    found = magnitude.new_zeros(n * m)
    # Where half of a map is exactly zero, there is nothing to sort.
    support = segment_sum((magnitude > 0).sum(1).float(), segment, n * m)
    dense = (2 * support > pixels).nonzero()[:, 0]
    if not len(dense):
        return found
    column, row = response.pixels()
    flat = (row[:, :, None] * response.hw[1] + column[:, None]).flatten(1)
    for candidate in dense.split(MEDIANS_AT_ONCE):
        place = torch.full((n * m,), -1, device=segment.device)
        place[candidate] = torch.arange(len(candidate), device=segment.device)
        rows = place[segment] >= 0
        maps = magnitude.new_zeros(len(candidate), pixels)
        maps[place[segment[rows], None], flat[rows]] = magnitude[rows]
        found[candidate] = maps.median(1).values
    return found


def deviation(response: Responses, magnitude: Float[Tensor, "r q"], mean: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Population standard deviation over all pixels."""
    segment, pixels = response.candidate, response.hw[0] * response.hw[1]
    count = segment_sum(torch.full_like(magnitude[:, 0], magnitude.shape[1]), segment, len(mean))
    squares = segment_sum((magnitude - mean[segment, None]).square().sum(1), segment, len(mean))
    # Pixels outside the blocks are zero.
    return ((squares + (pixels - count) * mean.square()) / pixels).sqrt()


def entropy(response: Responses, magnitude: Float[Tensor, "r q"], total: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Entropy of the response as a distribution over pixels, 1 when it is flat."""
    segment = response.candidate
    share = magnitude / (total[segment, None] + EPSILON)
    whole = segment_sum(torch.special.entr(share).sum(1), segment, len(total))
    return whole / math.log(response.hw[0] * response.hw[1])


def edges(image: Float[Tensor, "3 h w"]) -> Float[Tensor, "h w"]:
    """Gradient magnitude of the gray image by central differences, one-sided at the border."""
    gray = torch.einsum("c,chw->hw", constant(LUMA, image.dtype, image.device), image)
    down, across = torch.gradient(gray)
    return (down**2 + across**2).sqrt()
