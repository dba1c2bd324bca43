"""Affine motions from matches: dominant motions of the frame and local similarities, both by sampling and consensus.

`dominant_motions` is sequential RANSAC (Fischler & Bolles 1981) with the truncated quadratic score of MSAC (Torr &
Zisserman 2000) and least-squares refits (LO-RANSAC, Chum et al. 2003). Two matches make a minimal sample, a similarity.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lpa_cwm.rng import generator
from lpa_cwm.worlds.layered.matching import PATCH, Hypotheses, PatchMatches, refine_matches

DOMINANT_MOTIONS = 4
MINIMAL_SAMPLES = 4096
"""Pairs of coarse matches that are drawn."""
PROPOSALS = 1536
"""Plausible pairs that are scored."""
RANK_POWER = 3.0
"""Exponent of the uniform variate that draws ranks: textured patches and good matches are drawn more often."""
MIN_BASELINE = 24.0
"""Least distance in pixels of the two patches of a sample: nearer pairs determine the linear part badly."""
MAX_SAMPLE_GRADIENT = 1.3
"""Largest change of the offset per pixel of a sample: a rotation by 81 degrees at constant scale."""
INLIER_RADIUS = 4.0
"""Residual in pixels at which a coarse match is no inlier."""
STATIC_RADIUS = 1.5
"""Patches whose best match moves by fewer pixels than this need no dominant motion."""
MIN_INLIERS = 5.0
"""Total inlier weight below which a motion is chance."""
TEXTURE_VARIANCE = 3e-4
"""Variance of the gray values at which a patch has half a vote."""
REFITS = 3
REFIT_RIDGE = 1e-2
"""Ridge penalty on the change of the linear part in a refit."""
LENGTH_UNIT = 64.0
"""Pixels per unit of length in least-squares problems, which keeps their entries of order one."""
SEARCH_RADIUS = 2
"""Pixels around the predicted position that are searched."""
NEIGHBORS = 6
MAX_NEIGHBOR_GRADIENT = 0.5
"""Change of the offset per pixel beyond which two neighboring matches are taken for different bodies."""
NEIGHBOR_SCALE = 5.0
"""Distance in patches over which a neighbor's vote falls to 1/e."""
NEIGHBOR_TOLERANCE = 1.0
"""Standard deviation in pixels of the residual of a confirming neighbor."""


@dataclass(frozen=True, slots=True)
class AffineMotions:
    """Affine backward flows: a point x of the target comes from x + offset + linear x."""

    offset: Float[Tensor, "b g 2"]
    linear: Float[Tensor, "b g 2 2"]

    def predict(self, xy: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n g 2"]:
        """The offset of each point under each motion."""
        return self.offset[:, None] + torch.einsum("bgde,bne->bngd", self.linear, xy)

    def select(self, index: Int[Tensor, "b k"]) -> "AffineMotions":
        """The motions with the given indices."""
        batch = torch.arange(len(index), device=index.device)[:, None]
        return AffineMotions(self.offset[batch, index], self.linear[batch, index])


def similarity_from_pair(
    baseline: Float[Tensor, "*b 2"], change: Float[Tensor, "*b 2"]
) -> tuple[Float[Tensor, "*b 2 2"], Float[Tensor, "*b"]]:
    """The similarity (minus the identity) under which the offset changes by `change` along `baseline`, and its norm."""
    x, y = baseline.unbind(-1)
    u, v = change.unbind(-1)
    length = (x * x + y * y).clamp(min=1.0)
    scale, turn = (x * u + y * v) / length, (x * v - y * u) / length
    linear = torch.stack((scale, -turn, turn, scale), dim=-1).unflatten(-1, (2, 2))
    return linear, torch.sqrt(scale.square() + turn.square())


@cache
def minimal_samples(patches: int, matches: int) -> Int[Tensor, "t 4"]:
    """Two patches, by texture rank, and a coarse match of each, by rank; seeded by the counts alone."""
    chance = torch.rand(MINIMAL_SAMPLES, 4, generator=generator("streams", patches, matches))
    sizes = torch.tensor([patches, patches, matches, matches])
    return (chance.pow(RANK_POWER) * sizes).long().minimum(sizes - 1)


def propose_motions(
    center: Float[Tensor, "b n 2"], coarse_offset: Float[Tensor, "b n w 2"], variance: Float[Tensor, "b n"]
) -> AffineMotions:
    """Similarities of the minimal samples, plausible ones first, cut off at `PROPOSALS`."""
    first, second, one, other = minimal_samples(*coarse_offset.shape[1:3]).to(center.device).unbind(-1)
    order = variance.argsort(dim=1, descending=True)
    first, second = order[:, first], order[:, second]
    batch = torch.arange(len(center), device=center.device)[:, None]
    start, offset = center[batch, first], coarse_offset[batch, first, one]
    baseline = center[batch, second] - start
    linear, gradient = similarity_from_pair(baseline, coarse_offset[batch, second, other] - offset)
    plausible = (baseline.norm(dim=-1) > MIN_BASELINE) & (gradient < MAX_SAMPLE_GRADIENT)
    best = plausible.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :PROPOSALS]
    return AffineMotions(offset - torch.einsum("btde,bte->btd", linear, start), linear).select(best)


def inlier_weight(
    motions: AffineMotions, center: Float[Tensor, "b n 2"], coarse_offset: Float[Tensor, "b n w 2"]
) -> Float[Tensor, "b n g"]:
    """MSAC weight of each patch for each motion, in [0, 1], by its nearest coarse match."""
    predicted = motions.predict(center)
    # One match at a time: the residuals of all at once do not fit into a processor's cache.
    residual = torch.full_like(predicted[..., 0], torch.inf)
    for offset in coarse_offset.unbind(2):
        torch.minimum(residual, (predicted - offset[:, :, None]).square().sum(-1), out=residual)
    return (1 - residual / INLIER_RADIUS**2).clamp(min=0)


def refit(
    motions: AffineMotions,
    center: Float[Tensor, "b n 2"],
    coarse_offset: Float[Tensor, "b n w 2"],
    vote: Float[Tensor, "b n"],
) -> AffineMotions:
    """Weighted least-squares affine motions of the inliers of each motion."""
    residual = coarse_offset[:, :, None] - motions.predict(center)[:, :, :, None]
    nearest = residual.square().sum(-1).argmin(-1)[..., None, None]
    residual = residual.gather(3, nearest.expand(-1, -1, -1, -1, 2))[..., 0, :]
    weight = (1 - residual.square().sum(-1) / INLIER_RADIUS**2).clamp(min=0) * vote[..., None] + 1e-6
    weight = weight / weight.sum(1, keepdim=True)
    # Regress the residual on the position relative to the weighted centroid: the normal equations are 2 x 2.
    centroid = torch.einsum("bng,bnd->bgd", weight, center)
    way = (center[:, :, None] - centroid[:, None]) / LENGTH_UNIT
    left = torch.einsum("bng,bngd,bnge->bgde", weight, way, way) + REFIT_RIDGE * torch.eye(2, device=way.device)
    right = torch.einsum("bng,bngd,bnge->bgde", weight, residual, way)
    change = torch.linalg.solve(left, right, left=False) / LENGTH_UNIT
    mean = torch.einsum("bng,bngd->bgd", weight, residual)
    offset = motions.offset + mean - torch.einsum("bgde,bge->bgd", change, centroid)
    return AffineMotions(offset, motions.linear + change)


def dominant_motions(matches: PatchMatches, center: Float[Tensor, "b n 2"]) -> AffineMotions:
    """Up to 4 affine motions by greedy inlier weight, refitted; motions with too few inliers are set to zero."""
    moving = matches.hypotheses.offset[:, :, 0].norm(dim=-1) > STATIC_RADIUS
    vote = moving * matches.variance / (matches.variance + TEXTURE_VARIANCE)
    proposals = propose_motions(center, matches.coarse_offset, matches.variance)
    weight = inlier_weight(proposals, center, matches.coarse_offset)
    left, chosen = vote, []
    for _ in range(DOMINANT_MOTIONS):
        best = (left[:, None] @ weight)[:, 0].argmax(1)
        chosen.append(best)
        left = left * (1 - weight[torch.arange(len(best), device=best.device), :, best])
    motions = proposals.select(torch.stack(chosen, dim=1))
    for _ in range(REFITS):
        motions = refit(motions, center, matches.coarse_offset, vote)
    supported = (vote[:, None] @ inlier_weight(motions, center, matches.coarse_offset))[:, 0] >= MIN_INLIERS
    return AffineMotions(motions.offset * supported[..., None], motions.linear * supported[..., None, None])


@torch.no_grad()
def add_hypotheses(
    matches: PatchMatches,
    layers: Float[Tensor, "b 6 h w"],
    pixels: Float[Tensor, "b n 3 s"],
    center: Float[Tensor, "b n 2"],
) -> Hypotheses:
    """The best hypotheses of the visible patches, from block matching and along the dominant motions.

    The number of hypotheses per patch stays the same.
    """
    motions = dominant_motions(matches, center)
    predicted = motions.predict(center)
    linear = motions.linear[:, None].expand(-1, center.shape[1], -1, -1, -1)
    along = refine_matches(layers, pixels, center, center[:, :, None] + predicted, linear, SEARCH_RADIUS)
    both = matches.hypotheses.concat(along)
    from_motion = (both.offset[:, :, :, None] - predicted[:, :, None]).norm(dim=-1).amin(-1)
    both = replace(both, displacement=torch.minimum(both.displacement, from_motion))
    return both.topk(matches.hypotheses.displacement.shape[2], center)


def nearest_matches(center: Float[Tensor, "b v 2"]) -> Int[Tensor, "b v j"]:
    """The nearest matches of other patches."""
    distance = torch.cdist(center, center)
    distance = torch.where(distance < PATCH / 2, torch.inf, distance)
    return distance.topk(min(NEIGHBORS, center.shape[1] - 1), largest=False).indices


def neighbor_similarities(
    center: Float[Tensor, "b v 2"], offset: Float[Tensor, "b v 2"], neighbor: Int[Tensor, "b v j"]
) -> Float[Tensor, "b v j 2 2"]:
    """The similarity of each match and each neighbor as a minimal sample; zero where implausible."""
    batch = torch.arange(len(center), device=center.device)[:, None, None]
    baseline, change = (values[batch, neighbor] - values[:, :, None] for values in (center, offset))
    linear, gradient = similarity_from_pair(baseline, change)
    return linear * (gradient < MAX_NEIGHBOR_GRADIENT)[..., None, None]


@torch.no_grad()
def local_similarity(
    center: Float[Tensor, "b v 2"],
    offset: Float[Tensor, "b v 2"],
    own: Float[Tensor, "b v 2 2"],
    log_reliability: Float[Tensor, "b v"],
) -> Float[Tensor, "b v 2 2"]:
    """The linear part of the motion around each match: of zero, its own and its neighbors' the best confirmed one."""
    neighbor = nearest_matches(center)
    own = own[:, :, None]
    linear = torch.cat((torch.zeros_like(own), own, neighbor_similarities(center, offset, neighbor)), dim=2)
    way = center[:, None] - center[:, :, None]
    predicted = offset[:, :, None, None] + torch.einsum("bvjde,bvle->bvjld", linear, way)
    residual = (predicted - offset[:, None, None]).square().sum(-1)
    vote = log_reliability[:, None].exp() * torch.exp(-way.norm(dim=-1) / (NEIGHBOR_SCALE * PATCH))
    support = torch.exp(-0.5 * (residual / NEIGHBOR_TOLERANCE**2).clamp(max=25.0)) * vote[:, :, None]
    # The neighbor of a minimal sample fits by construction, so it does not count.
    counted = torch.ones_like(support)
    counted[:, :, 2:].scatter_(3, neighbor[..., None], 0.0)
    best = (support * counted).sum(-1).argmax(-1)
    return linear.gather(2, best[..., None, None, None].expand(-1, -1, 1, 2, 2))[:, :, 0]
