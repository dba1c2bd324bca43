"""Input features of LPA: local crops, response maps, the frame pair and the statistics of the paper's Table A.1."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import HALF_PIXEL, HW, constant, crop_points, index_of, sample_bilinear, sample_crop
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
"""What each statistic of a candidate is (Table A.1); numbers are sides of windows around its endpoint, in pixels."""
STATISTICS = len(STATISTIC_NAMES)
SCALARS = (*STATISTIC_NAMES, *PATH_NAMES)
"""Scalar features of a candidate: the paper's statistics, and what is known of its path through time."""
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
    source = sample_crop(repeat(pair.source, "c h w -> n c h w", n=n), pair.xy, EXTENT, CROP)
    target = sample_crop(repeat(pair.target, "c h w -> b c h w", b=n * m), ends, EXTENT, CROP)
    response = response_crops(candidates.response, normal, ends)
    source = repeat(source, "n c i j -> (n m) c i j", m=m)
    stack = torch.cat((source, target, (target - source).abs(), response), dim=1)
    return rearrange(stack, "(n m) c i j -> n m c i j", n=n)


def response_crops(
    response: Responses, normal: Float[Tensor, "r q"], ends: Float[Tensor, "b 2"]
) -> Float[Tensor, "b 1 32 32"]:
    """`sample_crop` of the responses around the endpoints, from a tile of each that is just large enough."""
    reach = int(EXTENT // 2) + 2
    side = 2 * reach + 1
    corner = index_of(ends, response.hw) - reach
    column, row = response.pixels()
    column, row = (place - corner[response.candidate, axis, None] for axis, place in enumerate((column, row)))
    inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
    flat = (response.candidate[:, None] * side + row) * side + column
    # What lies outside goes to one place more; choosing what lies inside would make the host wait for a GPU.
    beyond = len(ends) * side * side
    tiles = normal.new_zeros(beyond + 1).index_put_((torch.where(inside, flat, beyond),), normal)
    tiles = tiles[:-1].view(len(ends), 1, side, side)
    points = crop_points(ends, EXTENT, CROP)
    # Outside the frame its border is repeated.
    limit = constant((response.hw[1], response.hw[0]), points.dtype, points.device)
    points = torch.minimum(points.clamp(min=HALF_PIXEL), limit - HALF_PIXEL) - corner[:, None]
    return rearrange(sample_bilinear(tiles, points), "b (i j) c -> b c i j", i=CROP)


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
    column, row = response.pixels()
    # Chebyshev distance of every pixel from its candidate's endpoint.
    distance = torch.maximum((column - end[segment, :1]).abs(), (row - end[segment, 1:]).abs())

    def total_within(side: int) -> Float[Tensor, "b"]:
        return segment_sum((magnitude * (distance <= side // 2)).sum(1), segment, n * m)

    mass = {side: total_within(side) for side in (7, 15, 31)}
    total = segment_sum(magnitude.sum(1), segment, n * m)
    second = segment_max((magnitude * (distance > 5)).amax(1), segment, n * m)
    mean, median = total / (height * width), lower_median(response, magnitude)
    at_end = total_within(1)
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
    column, row = response.pixels()
    flat = row * response.hw[1] + column
    dense = (2 * support > pixels).nonzero()[:, 0]
    for candidate in dense.split(MEDIANS_AT_ONCE) if len(dense) else ():
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
