"""The two-frame masked predictor: a ViT encoder and a ViT decoder that read each token where it is needed, once.

A hidden token enters the encoder as the mask token without a position, so all hidden tokens stay equal: one token
stands for all of them, with the logarithm of their number added to its key logit. The decoder's last block is
evaluated only where its output is read. Both leave the answer unchanged.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of the network; the defaults are the published ones."""

    size: int = 256
    """Side of the square frames in pixels."""
    scale: int = 1
    """How many times larger the frames are than those the weights were trained on."""
    patch: int = 8
    dim: int = 768
    depth: int = 12
    """Blocks of the encoder, and as many of the decoder."""
    heads: int = 12

    @property
    def side(self) -> int:
        """Patches along a side."""
        return self.size // self.patch

    @property
    def pixels(self) -> int:
        """Values in a patch."""
        return 3 * self.patch**2


@dataclass(frozen=True, slots=True)
class Layout:
    """Which token is where under each mask; counts of hidden patches may differ between masks."""

    hidden: Bool[Tensor, "m p"]
    shown: Int[Tensor, "m v"]
    """Target patches that the encoder sees, padded with hidden ones."""
    bias: Float[Tensor, "m l"]
    """Added to the encoder's key logits: log of how many tokens each one stands for."""
    origin: Int[Tensor, "m q"]
    """For each token of the decoder the encoder's token that stands for it."""
    read: Int[Tensor, "m r"]
    """Target patches whose prediction is read, padded with visible ones."""

    @classmethod
    def of(cls, hidden: Bool[Tensor, "m p"]) -> "Layout":
        """The encoder's tokens are the source's, the visible target's and one mask token, in this order."""
        masks, patches = hidden.shape
        visible = (~hidden).sum(1)
        shown = hidden.int().argsort(dim=1, stable=True)[:, : int(visible.max())]
        copies = torch.cat((visible.new_ones(masks, patches), ~hidden.gather(1, shown)), dim=1)
        bias = torch.cat((copies, patches - visible[:, None]), dim=1).float().log()
        source = torch.arange(patches, device=hidden.device).expand(masks, -1)
        last = patches + shown.shape[1]
        target = torch.where(hidden, last, patches + (~hidden).cumsum(1) - 1)
        # At least one patch is read, so that a mask that hides nothing needs no case of its own.
        most = max(int((patches - visible).max()), 1)
        read = (~hidden).int().argsort(dim=1, stable=True)[:, :most]
        return cls(hidden, shown, bias, torch.cat((source, target), dim=1), read)

    def __getitem__(self, rows: Int[Tensor, "b"]) -> "Layout":
        """The layout of a batch, given the mask of each of its rows."""
        return Layout(self.hidden[rows], self.shown[rows], self.bias[rows], self.origin[rows], self.read[rows])


def pick(tokens: Float[Tensor, "b l d"], index: Int[Tensor, "b k"]) -> Float[Tensor, "b k d"]:
    """Some tokens of each row."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


class Attention(nn.Module):
    """Multi-head attention of some tokens to all tokens."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def forward(
        self, reader: Float[Tensor, "b r d"], tokens: Float[Tensor, "b l d"], bias: Float[Tensor, "b l"] | None
    ) -> Float[Tensor, "b r d"]:
        query = rearrange(self.query(reader), "b r (k d) -> b k r d", k=self.heads)
        key, value = rearrange(self.key_value(tokens), "b l (s k d) -> s b k l d", s=2, k=self.heads)
        added = None if bias is None else bias[:, None, None].to(query.dtype)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=added)
        return self.output(rearrange(heads, "b k r d -> b r (k d)"))


class Block(nn.Module):
    """A pre-norm transformer block whose output may be asked for at some tokens only."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(
        self,
        tokens: Float[Tensor, "b l d"],
        bias: Float[Tensor, "b l"] | None = None,
        read: Int[Tensor, "b r"] | None = None,
    ) -> Float[Tensor, "b r d"]:
        normed = self.norm1(tokens)
        reader, kept = (normed, tokens) if read is None else (pick(normed, read), pick(tokens, read))
        kept = kept + self.attention(reader, normed, bias)
        return kept + self.mlp(self.norm2(kept))


class Transformer(nn.Module):
    """Blocks and a final norm."""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(
        self,
        tokens: Float[Tensor, "b l d"],
        bias: Float[Tensor, "b l"] | None = None,
        read: Int[Tensor, "b r"] | None = None,
    ) -> Float[Tensor, "b r d"]:
        """All tokens, or only those to be `read`: then the last block is evaluated at these alone."""
        *blocks, last = self.blocks
        for block in blocks:
            tokens = block(tokens, bias)
        return self.norm(last(tokens, bias, read))


class Predictor(nn.Module):
    """Predicts hidden patches of the target from the source and the visible patches of the target."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = a = architecture
        patches = a.side**2
        self.embedding = nn.Linear(a.pixels, a.dim)
        self.mask_token = nn.Parameter(torch.zeros(a.dim))
        self.encoder_positions = nn.Parameter(torch.zeros(2 * patches, a.dim))
        self.decoder_positions = nn.Parameter(torch.zeros(2 * patches, a.dim))
        self.encoder = Transformer(a.dim, a.depth, a.heads)
        self.bridge = nn.Linear(a.dim, a.dim)
        self.decoder = Transformer(a.dim, a.depth, a.heads)
        self.head = nn.Linear(a.dim, a.pixels)

    def patches(self, image: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b p v"]:
        """An image cut into patches in raster order, channel slowest inside a patch."""
        patch = self.architecture.patch
        return rearrange(image, "... c (y i) (x j) -> ... (y x) (c i j)", i=patch, j=patch)

    def embed(self, frame: Float[Tensor, "3 h w"], place: int) -> Float[Tensor, "p d"]:
        """Tokens, with positions, of the source (place 0) or the target (place 1)."""
        return self.embedding(self.patches(frame)) + self.encoder_positions.chunk(2)[place]

    def embed_change(self, change: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b p d"]:
        """What a change of a frame adds to its tokens, the embedding being linear."""
        return F.linear(self.patches(change), self.embedding.weight)

    def encode(
        self, source: Float[Tensor, "b p d"], target: Float[Tensor, "p d"], layout: Layout
    ) -> Float[Tensor, "b l d"]:
        """States of the source's tokens, of the visible target's and of the mask token."""
        mask_token = self.mask_token.expand(len(source), 1, -1)
        return self.encoder(torch.cat((source, target[layout.shown], mask_token), dim=1), layout.bias)

    def decode(self, states: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b 3 h w"]:
        """The predicted target, RGB in [0, 1], zero where it is visible."""
        tokens = pick(self.bridge(states), layout.origin) + self.decoder_positions
        values = self.pixels(self.decoder(tokens, read=layout.hidden.shape[1] + layout.read))
        blank = values.new_zeros(*layout.hidden.shape, values.shape[-1])
        index = layout.read[..., None].expand_as(values)
        image = blank.scatter(1, index, values) * layout.hidden[..., None]
        side, patch = self.architecture.side, self.architecture.patch
        return rearrange(image, "b (y x) (i j c) -> b c (y i) (x j)", y=side, i=patch, c=3)

    def pixels(self, tokens: Float[Tensor, "b r d"]) -> Float[Tensor, "b r v"]:
        """Values of patches, in single precision: of their small differences half precision would leave steps."""
        with torch.autocast(tokens.device.type, enabled=False):
            return self.head(tokens.float())
