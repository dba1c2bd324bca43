"""Which match of a visible patch is right: a transformer over all matches of all visible patches of a mask."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import constant
from lpa_cwm.worlds.learned.matching import Description, MatchHypotheses

SCALARS = 7
PLACE_UNIT, MOTION_UNIT = 32.0, 8.0
"""Pixels per unit of position and of motion inside the transformer."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Matches of visible patches: n patches with k matches each."""

    place: Float[Tensor, "b n 2"]
    """Centers of the patches in the target."""
    offset: Float[Tensor, "b n k 2"]
    token: Float[Tensor, "b n k w"]
    valid: Bool[Tensor, "b n"]
    """False for entries that only fill up the batch."""
    filled: bool
    """Whether there are such entries."""


def lookup(grid: Float[Tensor, "b i j c"], xy: Float[Tensor, "n *s 2"], step: int) -> Float[Tensor, "n *s c"]:
    """Nearest feature at points; several consecutive sets of points may share a grid."""
    batch, rows, columns, channels = grid.shape
    column = (xy[..., 0] / step).long().clamp(0, columns - 1)
    row = (xy[..., 1] / step).long().clamp(0, rows - 1)
    start = torch.arange(batch, device=xy.device).repeat_interleave(len(xy) // batch) * (rows * columns)
    index = row * columns + column + start.view(-1, *[1] * (xy.dim() - 2))
    return F.embedding(index, grid.reshape(-1, channels))


def bilinear(grid: Float[Tensor, "b i j c"], xy: Float[Tensor, "b n 2"], step: int) -> Float[Tensor, "b n c"]:
    """Bilinear feature at points; the border is repeated."""
    size = constant((grid.shape[2] * step, grid.shape[1] * step), xy.dtype, xy.device)
    sampler = (2 * xy / size - 1)[:, None]
    values = F.grid_sample(grid.permute(0, 3, 1, 2), sampler, padding_mode="border", align_corners=False)
    return rearrange(values, "b c 1 n -> b n c")


def gather_rows(values: Float[Tensor, "b p *s"], index: Int[Tensor, "b m n"]) -> Float[Tensor, "bm n *s"]:
    """Rows of every pair by the numbers of every mask."""
    batch, patches = values.shape[:2]
    start = torch.arange(batch, device=index.device)[:, None, None] * patches
    return values.flatten(0, 1)[(index + start).flatten(0, 1)]


class KernelAttention(nn.Module):
    """Attention whose logits add Gaussian kernels of relative position and relative motion, one pair per head.

    The kernels are dot products after adding a few channels, -a|x-y|^2 = 2a x.y - a|y|^2 + const, so no
    tensor of the size of all pairs is made. The message to a node has relative positions and motions of the others.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width + 5 * heads, width)
        spread = torch.linspace(-1.5, 1.5, heads)
        self.kernel = nn.Parameter(torch.stack((spread, -spread), dim=-1))

    def forward(self, x: Float[Tensor, "b n k w"], nodes: Nodes, mask: Float[Tensor, "#b 1 q q"]) -> Tensor:
        """The message to every node."""
        tokens = rearrange(x, "b n k w -> b (n k) w")
        q, k, v = rearrange(self.qkv(self.norm(tokens)), "b q (t h c) -> t b h q c", t=3, h=self.heads)
        place = repeat(nodes.place / PLACE_UNIT, "b n d -> b (n k) d", k=x.shape[2])
        where = torch.cat((place, nodes.offset.flatten(1, 2) / MOTION_UNIT), dim=-1)[:, None]
        sharp = F.softplus(self.kernel).repeat_interleave(2, dim=1)[None, :, None]
        ones = torch.ones_like(where[..., :1]).expand(-1, self.heads, -1, -1)
        query = torch.cat((q / q.shape[-1] ** 0.5, 2 * sharp * where, ones), dim=-1)
        key = torch.cat((k, where.expand(-1, self.heads, -1, -1), -(sharp * where.square()).sum(-1, keepdim=True)), -1)
        value = torch.cat((v, where.expand(-1, self.heads, -1, -1), ones), dim=-1)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
        content, center = attended[..., : v.shape[-1]], attended[..., v.shape[-1] : -1]
        relative = torch.asinh(center - where)
        spread = relative.square().sum(-1, keepdim=True)
        attended = torch.cat((content, relative, spread), dim=-1)
        return rearrange(self.out(rearrange(attended, "b h q c -> b q (h c)")), "b (n k) w -> b n k w", k=x.shape[2])


class KernelAttentionLayer(nn.Module):
    """Attention, then a two-layer perceptron, both residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = KernelAttention(width, heads)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Float[Tensor, "b n k w"], nodes: Nodes, mask: Float[Tensor, "#b 1 q q"]) -> Tensor:
        x = x + self.attention(x, nodes, mask)
        return x + self.mlp(x)


class Reliability(nn.Module):
    """Reads matches; gives every match a logit, a precision and a few features."""

    def __init__(self, descriptor: int, coarse: int, width: int, layers: int, heads: int, features: int) -> None:
        super().__init__()
        self.features = features
        self.embed_patch = nn.Linear(descriptor + coarse, width)
        self.embed_match = nn.Sequential(nn.Linear(SCALARS + coarse, width), nn.ReLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(KernelAttentionLayer(width, heads) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 + features))

    def tokens(
        self,
        source: Description,
        patches: Float[Tensor, "b p d"],
        centers: Float[Tensor, "b p 2"],
        matches: MatchHypotheses,
    ) -> Float[Tensor, "b p k w"]:
        """First tokens of all matches of target patches, from descriptors, places and matches; once per pair."""
        hw = source.hw
        own = lookup(source.coarse, centers, 8)
        patch = self.embed_patch(torch.cat((patches, own), dim=-1))
        origin = centers[:, :, None] + matches.offset
        there = bilinear(source.coarse, origin.flatten(1, 2), 8).unflatten(1, origin.shape[1:3])
        beyond = torch.maximum(-origin, origin - constant((hw[1], hw[0]), origin.dtype, origin.device)).amax(-1)
        scalars = torch.stack(
            (
                matches.log_prob.clamp(min=-12) / 4,
                matches.residual.clamp(min=1e-3).log(),
                (matches.residual / (matches.texture.norm(dim=-1, keepdim=True) + 0.02)).clamp(max=10).log1p(),
                *(matches.texture + 1e-3).log().unsqueeze(2).expand(-1, -1, matches.offset.shape[2], -1).unbind(-1),
                torch.log1p(matches.offset.norm(dim=-1)) / 2,
                beyond.clamp(-16, 16) / 16,
            ),
            dim=-1,
        )
        return patch[:, :, None] + self.embed_match(torch.cat((scalars, there), dim=-1))

    def forward(self, nodes: Nodes) -> tuple[Tensor, Tensor, Tensor]:
        """Logit, log-precision and features of every match; only matches of other patches are attended to."""
        x, count = nodes.token, nodes.token.shape[2]
        patch = torch.arange(x.shape[1], device=x.device).repeat_interleave(count)
        mask = torch.zeros(1, 1, len(patch), len(patch), device=x.device)
        mask = mask.masked_fill(patch[:, None] == patch, -1e4)
        if nodes.filled:
            silent = ~nodes.valid.repeat_interleave(count, dim=1)[:, None, None]
            mask = mask.masked_fill(silent, -2e4)
        for layer in self.layers:
            x = layer(x, nodes, mask)
        out = self.head(x)
        return out[..., 0], out[..., 1].clamp(-6, 6), out[..., 2:]
