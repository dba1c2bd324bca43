"""Input features of LPA: local crops, response maps, the frame pair and the statistics of the paper's Table A.1."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.geometry import index_of
from lpa_cwm.probe import magnitude
from lpa_cwm.sampling import crop
from lpa_cwm.types import Candidates, Pair

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
STRENGTH = STATISTIC_NAMES.index("peak")
"""Index of the response magnitude at the endpoint."""
COMPRESSED = slice(STRENGTH, STATISTIC_NAMES.index("peak_over_second_peak") + 1)
"""Statistics that `compress` takes the logarithm of."""
EXTENT, CROP, MAP, CONTEXT = 64.0, 32, 32, 64
"""Pixels covered by a local crop; samples across crops, response maps and the frame pair."""
EPSILON = 1e-8
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True)
class CandidateFeatures:
    """The four inputs of LPA for n queries with m candidates each."""

    local: Float[Tensor, "n m 10 32 32"]
    response: Float[Tensor, "n m 1 32 32"]
    context: Float[Tensor, "6 64 64"]
    statistics: Float[Tensor, "n m s"]


def extract(pair: Pair, candidates: Candidates) -> CandidateFeatures:
    """Features of all candidates of a pair."""
    strength = magnitude(candidates.response)
    top = strength.amax((-2, -1), keepdim=True)
    normal = strength / (top + EPSILON)
    small = F.interpolate(rearrange(normal, "n m h w -> (n m) 1 h w"), (MAP, MAP), mode="bilinear", align_corners=False)
    frames = torch.cat((pair.source, pair.target))[None]
    context = F.interpolate(frames, (CONTEXT, CONTEXT), mode="bilinear", align_corners=False)[0]
    return CandidateFeatures(
        local=local_features(pair, candidates.peak, normal),
        response=rearrange(small, "(n m) 1 h w -> n m 1 h w", n=len(normal)),
        context=context,
        statistics=statistics(pair, candidates.peak, strength),
    )


def local_features(
    pair: Pair, peak: Float[Tensor, "n m 2"], normal: Float[Tensor, "n m h w"]
) -> Float[Tensor, "n m 10 32 32"]:
    """Source around the query, target around the candidate's endpoint, their difference, and the response there."""
    n, m = peak.shape[:2]
    ends = rearrange(peak, "n m d -> (n m) d")
    source = crop(repeat(pair.source, "c h w -> n c h w", n=n), pair.xy, EXTENT, CROP)
    target = crop(repeat(pair.target, "c h w -> b c h w", b=n * m), ends, EXTENT, CROP)
    response = crop(rearrange(normal, "n m h w -> (n m) 1 h w"), ends, EXTENT, CROP)
    source = repeat(source, "n c i j -> (n m) c i j", m=m)
    stack = torch.cat((source, target, (target - source).abs(), response), dim=1)
    return rearrange(stack, "(n m) c i j -> n m c i j", n=n)


def statistics(pair: Pair, peak: Float[Tensor, "n m 2"], strength: Float[Tensor, "n m h w"]) -> Float[Tensor, "n m s"]:
    """`STATISTIC_NAMES` of each candidate, before compression and standardization."""
    height, width = strength.shape[2:]
    field = rearrange(strength, "n m h w -> (n m) h w")
    end = rearrange(index_of(peak, (height, width)), "n m d -> (n m) d")
    move = (peak - pair.xy[:, None]) / peak.new_tensor([width, height])
    flat = field.flatten(1)
    total = flat.sum(1)
    mean = flat.mean(1)
    median = lower_median(flat)
    square, valid = window(field, end, 31)
    at_end = square[:, 15, 15]
    mass = {side: central(square * valid, side).sum((1, 2)) for side in (7, 15, 31)}
    pixels = {side: central(valid, side).sum((1, 2)) for side in (7, 15)}
    columns = [
        rearrange(move[..., 1], "n m -> (n m)"),
        rearrange(move[..., 0], "n m -> (n m)"),
        at_end,
        mean,
        deviation(flat, mean),
        median,
        at_end / (mass[7] / pixels[7] + EPSILON),
        at_end / (mass[15] / pixels[15] + EPSILON),
        at_end / (median + EPSILON),
        at_end / (second_peak(field, end, 11) + EPSILON),
        mass[7] / (total + EPSILON),
        mass[15] / (total + EPSILON),
        mass[31] / (total + EPSILON),
        entropy(flat, total),
        local_mean((pair.target - pair.source).abs().mean(0), end, 7),
        local_mean(edges(pair.source), end, 7),
    ]
    return rearrange(torch.stack(columns, dim=-1), "(n m) d -> n m d", n=len(strength))


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


def central(square: Tensor, side: int) -> Tensor:
    """The central square of a window."""
    cut = (square.shape[-1] - side) // 2
    return square[..., cut : square.shape[-2] - cut, cut : square.shape[-1] - cut]


def local_mean(image: Float[Tensor, "h w"], end: Int[Tensor, "b 2"], side: int) -> Float[Tensor, "b"]:
    """Mean over the existing pixels of a square."""
    square, valid = window(image.expand(len(end), *image.shape), end, side)
    return (square * valid).sum((1, 2)) / valid.sum((1, 2))


def second_peak(field: Float[Tensor, "b h w"], end: Int[Tensor, "b 2"], side: int) -> Float[Tensor, "b"]:
    """The strongest response outside the square around the endpoint."""
    height, width = field.shape[1:]
    near_x = (torch.arange(width, device=end.device) - end[:, :1]).abs() <= side // 2
    near_y = (torch.arange(height, device=end.device) - end[:, 1:]).abs() <= side // 2
    # Rows off the square count whole; its own few rows only beside it. This avoids masking every pixel.
    whole = torch.where(near_y, 0, field.amax(2)).amax(1)
    rows = (end[:, 1:] + torch.arange(side, device=end.device) - side // 2).clamp(0, height - 1)
    strips = field.gather(1, repeat(rows, "b s -> b s w", w=width))
    beside = strips.masked_fill(near_x[:, None], 0).amax((1, 2))
    return torch.maximum(whole, beside)


def lower_median(flat: Float[Tensor, "b p"]) -> Float[Tensor, "b"]:
    """Lower median of magnitudes (the mean of both middle values would double the cost)."""
    found = flat.new_zeros(len(flat))
    # Where half of a map is exactly zero, as world models that warp pixels leave it, there is nothing to sort.
    dense = 2 * (flat == 0).sum(1) < flat.shape[1]
    found[dense] = flat[dense].median(1).values
    return found


def deviation(flat: Float[Tensor, "b p"], mean: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Population standard deviation, in two passes: half the time of torch's own one."""
    return torch.linalg.vector_norm(flat - mean[:, None], dim=1) / math.sqrt(flat.shape[1])


def entropy(flat: Float[Tensor, "b p"], total: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Entropy of the response as a distribution over pixels, 1 when it is flat."""
    share = flat / (total[:, None] + EPSILON)
    return torch.special.entr(share).sum(1) / math.log(flat.shape[1])


def edges(image: Float[Tensor, "3 h w"]) -> Float[Tensor, "h w"]:
    """Gradient magnitude of the gray image by central differences, one-sided at the border."""
    gray = torch.einsum("c,chw->hw", image.new_tensor(LUMA), image)
    down, across = torch.gradient(gray)
    return (down**2 + across**2).sqrt()
