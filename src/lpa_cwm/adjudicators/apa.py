"""Adjudicators without training: Uniform, and APA's weights from the normalized spatiotemporal gradient (Eq. 3-4)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.geometry import index_of
from lpa_cwm.protocols import ScoreModel
from lpa_cwm.types import Candidates, Judgement, Pair


def uniform(pair: Pair, candidates: Candidates) -> Judgement:
    """The same weight for each of the M candidates."""
    return Judgement.of(torch.full_like(candidates.peak[..., 0], 1 / candidates.peak.shape[1]))


SIZE = 224
"""Side in pixels of the frames at which the score is evaluated."""


class APA:
    """Weights candidates by how well the image score explains the observed change near their peaks; untrained."""

    def __init__(
        self,
        score: ScoreModel,
        radius: int = 6,
        stabilizer: float = 1e-6,
        low: float = 1e-3,
        high: float = 1e3,
    ) -> None:
        """`low` and `high` bound a candidate's mean gradient over a disc of `radius` pixels around its peak."""
        self.score = score
        self.offsets = disc(radius)
        self.stabilizer = stabilizer
        self.low, self.high = low, high

    def __call__(self, pair: Pair, candidates: Candidates) -> Judgement:
        gradient = self.gradient(pair)[None, None]
        aligned = F.interpolate(gradient, candidates.response.hw, mode="bilinear", align_corners=False)[0, 0]
        means = mean_around(aligned, candidates.peak.cpu(), self.offsets).clamp(self.low, self.high)
        weights = (means / means.sum(dim=-1, keepdim=True)).to(candidates.peak)
        return Judgement(weights, torch.ones_like(weights[:, 0]))

    def gradient(self, pair: Pair) -> Float[Tensor, "s s"]:
        """The map P of Eq. 3 on the score's grid."""
        # The inner product cancels and P spans eight decades: float64, and on the CPU because not every device has it.
        score = self.score_of(pair).cpu().double()
        change = (to_score_frame(pair.target) - to_score_frame(pair.source)).cpu().double()
        return score.norm(dim=0) / ((score * change).sum(dim=0).abs() + self.stabilizer)

    @torch.no_grad()
    def score_of(self, pair: Pair) -> Float[Tensor, "3 s s"]:
        """The score of the source, computed once for all targets and queries."""
        if self not in pair.derived:
            pair.derived[self] = self.score(to_score_frame(pair.source)[None])[0]
        return pair.derived[self]


def to_score_frame(frame: Float[Tensor, "3 h w"]) -> Float[Tensor, "3 s s"]:
    """From [0, 1] at working size to [-1, 1] at the score's, by antialiased bilinear interpolation."""
    resized = F.interpolate(frame[None], size=(SIZE, SIZE), mode="bilinear", antialias=True, align_corners=False)
    return 2 * resized[0] - 1


def disc(radius: int) -> Int[Tensor, "k 2"]:
    """Offsets (column, row) within the Euclidean distance `radius`."""
    reach = torch.arange(-radius, radius + 1)
    offsets = torch.cartesian_prod(reach, reach)
    return offsets[(offsets**2).sum(dim=-1) <= radius**2]


def mean_around(
    image: Float[Tensor, "h w"], xy: Float[Tensor, "*b 2"], offsets: Int[Tensor, "k 2"]
) -> Float[Tensor, "*b"]:
    """Mean of the image over the offsets around the pixel of each point; pixels outside the image do not count."""
    height, width = image.shape
    column, row = (index_of(xy, (height, width)).unsqueeze(-2) + offsets).unbind(dim=-1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    values = image[row.clamp(0, height - 1), column.clamp(0, width - 1)]
    return (values * inside).sum(dim=-1) / inside.sum(dim=-1)
