"""From matches of visible patches to the motion of every cell.

`VoteDensifier` fits local affine motions to the most probable matches. Every cell attends to its nearest visible
patches and groups their motions by mean shift into a mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import HW, constant, patch_centers
from lpa_cwm.worlds.learned.matching import PATCH, STRIDE, Description
from lpa_cwm.worlds.learned.reliability import Nodes, lookup

MATCHES_PER_PATCH = 1
"""Matches of a visible patch that can move cells: the most probable ones."""
FILLER_DISTANCE = 1e6
"""Added to the distance of entries that only fill up a batch, in pixels."""
CELLS_AT_ONCE = 2048
"""Listed cells whose voters fit into the cache of a CPU."""


@dataclass(frozen=True, slots=True)
class Motions:
    """How every cell moves: k affine motions with weights that sum to at most one.

    A point at `z` from the center of a cell comes from `z + offset + linear @ z` from the center, in the source. What
    the weights lack of one is the probability that the source does not show it.
    """

    offset: Float[Tensor, "m p k 2"]
    linear: Float[Tensor, "m p k 2 2"]
    weight: Float[Tensor, "m p 4 k"]
    """For each quarter of a cell, in raster order."""
    scale: Float[Tensor, "m p k"]
    """Expected error of a motion in pixels (of a Laplace distribution)."""
    color: Float[Tensor, "m p 3"]
    """For what the source does not show: mean color of the nearest visible patches."""

    @classmethod
    def join(cls, parts: "Sequence[Motions]") -> "Motions":
        """Concatenate the motions of several lists of cells."""
        return cls(*(torch.cat([getattr(part, entry.name) for part in parts], dim=1) for entry in fields(cls)))


def affine_fit(
    weight: Float[Tensor, "b i j"],
    at: Float[Tensor, "b i 2"],
    place: Float[Tensor, "b j 2"],
    offset: Float[Tensor, "b j 2"],
    ridge: Float[Tensor, ""],
) -> tuple[Float[Tensor, "b i 2"], Float[Tensor, "b i 4"]]:
    """Weighted least-squares affine motion around each point: its value there and its linear part, row by row."""
    px, py, dx, dy = (part[..., None] for part in (*place.unbind(-1), *offset.unbind(-1)))
    moments = weight @ torch.cat(
        (torch.ones_like(px), px, py, dx, dy, px * px, px * py, py * py, dx * px, dx * py, dy * px, dy * py), dim=-1
    )
    mass = moments[..., 0].clamp(min=1e-6)
    x, y, u, v, xx, xy, yy, ux, uy, vx, vy = (moments[..., 1:] / mass[..., None]).unbind(-1)
    damping = ridge * (1 + 1 / mass)
    xx, yy, xy = xx - x * x + damping, yy - y * y + damping, xy - x * y
    ux, uy, vx, vy = ux - u * x, uy - u * y, vx - v * x, vy - v * y
    det = xx * yy - xy * xy
    a, b, c, d = (
        (ux * yy - uy * xy) / det,
        (uy * xx - ux * xy) / det,
        (vx * yy - vy * xy) / det,
        (vy * xx - vx * xy) / det,
    )
    to_x, to_y = at[..., 0] - x, at[..., 1] - y
    value = torch.stack((u + a * to_x + b * to_y, v + c * to_x + d * to_y), dim=-1)
    return value, torch.stack((a, b, c, d), dim=-1)


@dataclass(frozen=True, slots=True)
class CellList:
    """Some cells of some masks."""

    mask: Int[Tensor, "e"]
    cell: Int[Tensor, "e"]

    @classmethod
    def of(cls, cells: Int[Tensor, "m p"]) -> "CellList":
        """Cells of every mask, as many of each."""
        masks = torch.arange(len(cells), device=cells.device)
        return cls(masks.repeat_interleave(cells.shape[1]), cells.flatten())

    def __len__(self) -> int:
        return len(self.cell)


@dataclass(frozen=True, slots=True)
class PointDistance:
    """Distance from every described position of a frame to the nearest of some points."""

    distance: Float[Tensor, "i j"]

    @classmethod
    def of(cls, xy: Float[Tensor, "n 2"], hw: HW) -> "PointDistance":
        """Distances to these points; an unknown point counts as near everywhere."""
        nearest = torch.cdist(patch_centers(hw, STRIDE, xy.device), xy).amin(1).nan_to_num(0)
        return cls(nearest.view(hw[0] // STRIDE, hw[1] // STRIDE))

    def lower_bound(self, xy: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b"]:
        """Lower bound of the distance from these places to the nearest point."""
        column, row = (xy / STRIDE).long().unbind(-1)
        rows, columns = self.distance.shape
        place = row.clamp(0, rows - 1) * columns + column.clamp(0, columns - 1)
        return self.distance.view(-1)[place] - 2**0.5 * STRIDE / 2


def pixel_radius(stretch: Float[Tensor, "*b 2 2"]) -> Float[Tensor, "*b"]:
    """Upper bound of the distance between the origins of a pixel and of the center of its cell."""
    return stretch.abs().sum(-1).amax(-1) * (2**0.5 * (PATCH - 1) / 2)


@dataclass(frozen=True, slots=True)
class AffineMatches:
    """The most probable matches of the visible patches as affine motions."""

    geometry: Float[Tensor, "m n k 9"]
    """Place, offset and linear part, and the logarithm of the probability."""
    content: Float[Tensor, "m n k f"]
    """Features, and the source's context at the match."""
    color: Float[Tensor, "m n 3"]


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest visible patches of cells."""

    centers: Float[Tensor, "#m p 2"]
    """Of the cells."""
    distance: Float[Tensor, "m p r"]
    rows: Int[Tensor, "m p r"]
    """Numbers of the patches in the batch."""

    def listed(self, mask: Int[Tensor, "e"], cell: Int[Tensor, "e"]) -> "Nearest":
        """Some cells of some masks, as a list."""
        centers = self.centers.expand(len(self.rows), -1, -1)
        return Nearest(*(values[mask, cell][None] for values in (centers, self.distance, self.rows)))


@dataclass(frozen=True, slots=True)
class Voters:
    """The matches that every cell attends to, as affine motions; coordinates are planes because that is faster."""

    left: Float[Tensor, "m p s"]
    up: Float[Tensor, "m p s"]
    """Vector from the patch of the match to the cell, in pixels."""
    u: Float[Tensor, "m p s"]
    v: Float[Tensor, "m p s"]
    """The motion at the cell."""
    linear: Float[Tensor, "4 m p s"]
    trust: Float[Tensor, "m p s"]
    content: Float[Tensor, "m p s f"]

    @classmethod
    def of(cls, matches: AffineMatches, near: Nearest) -> "Voters":
        """Matches of the nearest patches, extrapolated to the cells."""
        rows = near.rows
        geometry = F.embedding(rows, matches.geometry.flatten(0, 1).flatten(1))
        found = rearrange(geometry, "m p r (k f) -> f m p (r k)", k=MATCHES_PER_PATCH)
        x, y, u, v, a, b, c, d, trust = found.contiguous().unbind(0)
        content = F.embedding(rows, matches.content.flatten(0, 1).flatten(1))
        left, up = near.centers[..., :1] - x, near.centers[..., 1:] - y
        u, v = u + a * left + b * up, v + c * left + d * up
        content = rearrange(content, "m p r (k f) -> m p (r k) f", k=MATCHES_PER_PATCH)
        return cls(left, up, u, v, torch.stack((a, b, c, d)), trust, content)

    def may_show(self, centers: Float[Tensor, "#m p 2"], near: PointDistance, radius: float) -> Bool[Tensor, "m p"]:
        """Which cells can show something within the radius of a point, whatever the weights of their voters are.

        Every mode is a mean of voters, so the cell's middle comes from the box that their origins span.
        """
        x, y = centers[..., :1] + self.u, centers[..., 1:] + self.v
        low, high = torch.stack((x.amin(-1), y.amin(-1)), dim=-1), torch.stack((x.amax(-1), y.amax(-1)), dim=-1)
        stretch = self.linear.movedim(0, -1).unflatten(-1, (2, 2)) + torch.eye(2, device=x.device)
        most = pixel_radius(stretch).amax(-1) + (high - low).norm(dim=-1) / 2 + radius
        return near.lower_bound((low + high) / 2) <= most

    def moments(self, features: int) -> Float[Tensor, "m p s g"]:
        """What is averaged over the members of a mode: motion and its square, linear part, context.

        Motions are relative to the first voter's, so that no digits are lost in their variance.
        """
        u, v = self.u - self.u[..., :1], self.v - self.v[..., :1]
        planes = (u, v, *self.linear, u.square() + v.square())
        return torch.cat((torch.stack(planes, dim=-1), self.content[..., features:]), dim=-1)


class VoteDensifier(nn.Module):
    """Every cell attends to its nearest visible patches and groups their motions into a few modes."""

    pool: Tensor
    """Sums the channels of each group of the context."""

    def __init__(self, context: int, groups: int, features: int, nearest: int = 10, modes: int = 4) -> None:
        super().__init__()
        self.context, self.groups, self.features = context, groups, features
        self.nearest, self.modes = nearest, modes
        self.fit = nn.Parameter(torch.tensor([3.2, 0.7, -1.6, 4.0]))
        """Logarithms: radius in pixels, motion tolerance in pixels, tolerance per pixel of distance, ridge."""
        self.bandwidth = nn.Parameter(torch.tensor(0.3))
        self.score = nn.Sequential(
            nn.Linear(groups + features + 8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
        )
        self.sharpen = nn.Linear(2 * groups + 1, 1)
        self.spread = nn.Parameter(torch.tensor([-1.0, -1.0, -3.0]))
        nn.init.zeros_(self.sharpen.weight)
        nn.init.zeros_(self.sharpen.bias)
        pool = torch.eye(groups).repeat_interleave(context // groups, dim=0)
        self.register_buffer("pool", pool, persistent=False)

    def forward(
        self,
        source: Description,
        nodes: Nodes,
        logit: Float[Tensor, "m n k"],
        precision: Float[Tensor, "m n k"],
        features: Float[Tensor, "m n k f"],
        color: Float[Tensor, "m n 3"],
        cells: Int[Tensor, "m p"] | None = None,
    ) -> Motions:
        """The motions of all cells, or for each mask of these alone: no cell depends on another."""
        matches = self.affine(source, nodes, logit, precision, features, color)
        return self.densify(source, matches, self.neighbors(source, nodes, cells))

    def affine(
        self,
        source: Description,
        nodes: Nodes,
        logit: Float[Tensor, "m n k"],
        precision: Float[Tensor, "m n k"],
        features: Float[Tensor, "m n k f"],
        color: Float[Tensor, "m n 3"],
    ) -> AffineMatches:
        """The best match of every visible patch, made an affine motion by those nearby."""
        log_prob = F.pad(logit, (0, 1)).log_softmax(-1)[..., :-1]
        best, kept = log_prob.topk(MATCHES_PER_PATCH, dim=-1)
        offset = nodes.offset.gather(2, kept[..., None].expand(-1, -1, -1, 2))
        features = features.gather(2, kept[..., None].expand(-1, -1, -1, features.shape[-1]))
        offset, linear = self.smooth(nodes, offset, best, precision.gather(2, kept))
        place = nodes.place[:, :, None].expand_as(offset)
        tag = lookup(source.context, place + offset, STRIDE)
        geometry = torch.cat((place, offset, linear, best[..., None]), dim=-1)
        return AffineMatches(geometry, torch.cat((features, tag), dim=-1), color)

    def densify_near(
        self,
        source: Description,
        matches: AffineMatches,
        nodes: Nodes,
        hidden: Bool[Tensor, "m p"],
        points: PointDistance,
        radius: float,
    ) -> tuple[Motions, CellList]:
        """The motions of the hidden cells that can show something within the radius of a point, some at a time."""
        near = self.neighbors(source, nodes)
        wanted = Voters.of(matches, near).may_show(near.centers, points, radius) & hidden
        cells, parts = CellList(*wanted.nonzero().unbind(-1)), []
        at_once = CELLS_AT_ONCE if wanted.device.type == "cpu" else max(len(cells), 1)
        for first in range(0, max(len(cells), 1), at_once):
            some = slice(first, first + at_once)
            parts.append(self.densify(source, matches, near.listed(cells.mask[some], cells.cell[some])))
        return Motions.join(parts), cells

    def neighbors(self, source: Description, nodes: Nodes, cells: Int[Tensor, "m p"] | None = None) -> Nearest:
        """The nearest visible patches of all cells, or for each mask of these."""
        centers = patch_centers(source.hw, PATCH, nodes.place.device)
        centers = centers[None] if cells is None else centers[cells]
        sets, count = nodes.valid.shape
        # Ties, which are common on a grid, go to the patch that comes first, whatever else is in the batch.
        distance = torch.cdist(centers.expand(sets, -1, -1), nodes.place)
        distance = distance + (nodes.place @ constant((1.7e-5, 1e-4), nodes.place.dtype, nodes.place.device))[:, None]
        if nodes.filled:
            distance = distance + FILLER_DISTANCE * ~nodes.valid[:, None]
        near, index = distance.topk(min(self.nearest, count), dim=-1, largest=False)
        return Nearest(centers, near, index + torch.arange(sets, device=index.device)[:, None, None] * count)

    def vote(
        self, source: Description, voters: Voters, near: Nearest
    ) -> tuple[Float[Tensor, "m p s"], Float[Tensor, "m p s s"]]:
        """The weight of every voter in every cell, and how similarly the voters move."""
        hw = source.hw
        x, y = near.centers[..., None].unbind(-2)
        u, v, trust = voters.u, voters.v, voters.trust
        features, tag = voters.content.split((self.features, self.context), dim=-1)
        # Context at the origin of the cell by each voter: does it belong to the same object as the voter's match?
        there = lookup(source.context, torch.stack((x + u, y + v), dim=-1), STRIDE)
        beyond = torch.maximum(torch.maximum(-x - u, x + u - hw[1]), torch.maximum(-y - v, y + v - hw[0]))
        nearer = near.distance.repeat_interleave(MATCHES_PER_PATCH, dim=-1)
        prior = (trust - nearer / PATCH).softmax(-1)
        gap = (u[..., :, None] - u[..., None, :]).square() + (v[..., :, None] - v[..., None, :]).square()
        # Exponents are bounded because denormal numbers are slow.
        kernel = torch.exp((gap * (-0.5 * torch.exp(-2 * self.bandwidth))).clamp(min=-30))
        support = (kernel @ prior[..., None])[..., 0].clamp(min=1e-3).log()
        scalars = (
            voters.left / 16,
            voters.up / 16,
            torch.log1p(nearer / 8),
            nearer / near.distance[..., :1].clamp(min=8) - 1,
        )
        scalars += (trust, support, beyond.clamp(-16, 16) / 16, torch.log1p(u * u + v * v) / 2)
        score = self.score(torch.cat(((there * tag) @ self.pool, features, torch.stack(scalars, dim=-1)), dim=-1))
        scores = score[..., 0] - FILLER_DISTANCE * (nearer > FILLER_DISTANCE / 2)
        # A cell is uncovered if its voters predict so, each weighted by its probability.
        absent = (score[..., 1] * scores.softmax(-1)).sum(-1, keepdim=True)
        weight = torch.cat((scores, scores.logsumexp(-1, keepdim=True) + absent), dim=-1).softmax(-1)[..., :-1]
        return weight, kernel

    def smooth(
        self, nodes: Nodes, offset: Float[Tensor, "m n k 2"], best: Float[Tensor, "m n k"], precision: Tensor
    ) -> tuple[Float[Tensor, "m n k 2"], Float[Tensor, "m n k 4"]]:
        """Each kept match as an affine motion, fitted to matches nearby that move alike."""
        radius, tolerance, slope, ridge = self.fit.exp()
        place = nodes.place[:, :, None].expand_as(offset).flatten(1, 2)
        motion = offset.flatten(1, 2)
        far, away = squared_distances(place), squared_distances(motion)
        logits = far * (-0.5 / radius**2) - 0.5 * away / (tolerance**2 + slope**2 * far)
        trust = best + precision - 50 * ~nodes.valid[..., None]
        own = torch.eye(motion.shape[1], device=motion.device, dtype=torch.bool)
        log_weight = torch.where(own, precision.flatten(1)[:, None], trust.flatten(1)[:, None])
        # Coordinates relative to the middle lose no digits.
        middle = place.mean(1, keepdim=True)
        value, linear = affine_fit(
            torch.exp((logits + log_weight).clamp(min=-30)), place - middle, place - middle, motion, ridge
        )
        return value.view_as(offset), linear.view(*offset.shape[:3], 4)

    def densify(self, source: Description, matches: AffineMatches, near: Nearest) -> Motions:
        """Modes of the voters' motions by one mean-shift step from greedily chosen seeds (Comaniciu and Meer 2002)."""
        voters = Voters.of(matches, near)
        weight, kernel = self.vote(source, voters, near)
        count = weight.shape[-1]
        dense = (kernel @ weight[..., None])[..., 0]
        start = (torch.arange(weight[..., 0].numel(), device=weight.device) * count).view(weight.shape[:2])
        rest, left = weight, torch.ones_like(weight)
        members = []
        for _ in range(self.modes):
            seed = (dense * left).argmax(-1)
            row = F.embedding(start + seed, kernel.reshape(-1, count))
            members.append(rest * row)
            rest, left = rest * (1 - row), left * (1 - row)
        member = torch.stack(members, dim=2)
        mass = member.sum(-1)
        mode = (member @ voters.moments(self.features)) / mass[..., None].clamp(min=1e-9)
        offset, linear, square, tag = mode.split((2, 4, 1, self.context), dim=-1)
        variance = (square[..., 0] - offset[..., 0].square() - offset[..., 1].square()).clamp(min=0)
        floor, factor, growth = self.spread.exp()
        scale = (floor**2 + factor * variance + (growth * near.distance[..., :1]) ** 2).sqrt()
        offset = offset + torch.stack((voters.u[..., :1], voters.v[..., :1]), dim=-1)
        share = (-near.distance / PATCH).softmax(-1)
        color = (share[..., None] * F.embedding(near.rows, matches.color.flatten(0, 1))).sum(-2)
        linear = linear.unflatten(-1, (2, 2))
        middle = near.centers[..., None, None, :] + quarter_centers(offset.device)[:, None]
        weight = self.quarters(source, middle + quarter_flow(offset, linear), mass, tag)
        return Motions(offset, linear, weight, scale, color)

    def quarters(self, source: Description, origin: Tensor, mass: Tensor, tag: Tensor) -> Tensor:
        """Weights of the modes in each quarter of a cell, sharpened by the source's context at its origin."""
        there = lookup(source.context, origin, STRIDE)
        tag = tag * ((tag.square() @ self.pool).clamp(min=1e-6).rsqrt() @ self.pool.T)
        alike = (there * tag[:, :, None]) @ self.pool
        level = mass.clamp(min=1e-6).log()[:, :, None, :, None].expand(-1, -1, 4, -1, -1)
        inputs = torch.cat((alike, alike.mean(2, keepdim=True).expand_as(alike), level / 4), dim=-1)
        logits = level[..., 0] + self.sharpen(inputs)[..., 0]
        rest = (1 - mass.sum(-1)).clamp(min=1e-6).log()[:, :, None, None].expand(-1, -1, 4, -1)
        return torch.cat((logits, rest), dim=-1).softmax(-1)[..., :-1]


def squared_distances(points: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n n"]:
    """Squared distances between all pairs of points."""
    x, y = points.unbind(-1)
    return (x[:, :, None] - x[:, None]).square() + (y[:, :, None] - y[:, None]).square()


def quarter_centers(device: torch.device | None = None) -> Float[Tensor, "4 2"]:
    """Centers of the quarters of a cell about its center, in raster order."""
    far = PATCH / 4
    return constant(((-far, -far), (far, -far), (-far, far), (far, far)), torch.get_default_dtype(), device)


def quarter_flow(offset: Float[Tensor, "m p k 2"], linear: Float[Tensor, "m p k 2 2"]) -> Float[Tensor, "m p 4 k 2"]:
    """Backward flow of every mode at the center of every quarter."""
    x, y = (linear[..., axis] * (PATCH / 4) for axis in (0, 1))
    return torch.stack((offset - x - y, offset + x - y, offset - x + y, offset + x + y), dim=2)


def at_quarters(motions: Motions) -> Float[Tensor, "m p 4 k 2"]:
    """Backward flow of every mode at the center of every quarter."""
    return quarter_flow(motions.offset, motions.linear)
