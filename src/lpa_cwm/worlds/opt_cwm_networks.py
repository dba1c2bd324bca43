"""The networks of Opt-CWM (Stojanov et al. 2025, arXiv:2503.19953): two-frame predictor and perturbation generator.

The predictor is a masked autoencoder (He et al. 2021, arXiv:2111.06377) with a ViT encoder and a ViT decoder. Two
savings leave the answer unchanged. A hidden token enters the encoder as the mask token without a position, so all
hidden tokens stay equal: one token stands for all of them, with the logarithm of their number added to its key logit.
The decoder's last block is evaluated only where its output is read.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

WINDOW = 20
"""Side of the perturbation in pixels of a 256 x 256 frame."""


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
class TokenLayout:
    """Token indices under each mask; the number of hidden patches may differ between masks."""

    hidden: Bool[Tensor, "m p"]
    visible: Int[Tensor, "m v"]
    """Target patches in the encoder, padded with hidden ones."""
    key_bias: Float[Tensor, "m l"]
    """Added to the encoder's key logits: log of the number of tokens that each token stands for."""
    encoder_index: Int[Tensor, "m q"]
    """The encoder token of each decoder token."""
    read: Int[Tensor, "m r"]
    """Target patches whose prediction is read, padded with visible ones."""

    @classmethod
    def of(cls, hidden: Bool[Tensor, "m p"]) -> "TokenLayout":
        """The encoder's tokens are the source's, the visible target's and one mask token, in this order."""
        masks, patches = hidden.shape
        count = (~hidden).sum(1)
        visible = hidden.int().argsort(dim=1, stable=True)[:, : int(count.max())]
        copies = torch.cat((count.new_ones(masks, patches), ~hidden.gather(1, visible)), dim=1)
        key_bias = torch.cat((copies, patches - count[:, None]), dim=1).float().log()
        source = torch.arange(patches, device=hidden.device).expand(masks, -1)
        mask_token = patches + visible.shape[1]
        target = torch.where(hidden, mask_token, patches + (~hidden).cumsum(1) - 1)
        # At least one patch is read, so that a mask that hides nothing needs no case of its own.
        most = max(int((patches - count).max()), 1)
        read = (~hidden).int().argsort(dim=1, stable=True)[:, :most]
        return cls(hidden, visible, key_bias, torch.cat((source, target), dim=1), read)

    def __getitem__(self, rows: Int[Tensor, "b"]) -> "TokenLayout":
        """The layout of a batch, given the mask of each row."""
        return TokenLayout(*(getattr(self, name)[rows] for name in self.__slots__))


def gather_tokens(tokens: Float[Tensor, "b l d"], index: Int[Tensor, "b k"]) -> Float[Tensor, "b k d"]:
    """The tokens of each row at the given indices."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017) from the reading tokens to all tokens."""

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


class TransformerBlock(nn.Module):
    """A pre-norm transformer block; its output can be restricted to the tokens that are read."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = MultiHeadAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(
        self,
        tokens: Float[Tensor, "b l d"],
        bias: Float[Tensor, "b l"] | None = None,
        read: Int[Tensor, "b r"] | None = None,
    ) -> Float[Tensor, "b r d"]:
        normed = self.norm1(tokens)
        reader, kept = (normed, tokens) if read is None else (gather_tokens(normed, read), gather_tokens(tokens, read))
        kept = kept + self.attention(reader, normed, bias)
        return kept + self.mlp(self.norm2(kept))


class Transformer(nn.Module):
    """Blocks and a final norm."""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(
        self,
        tokens: Float[Tensor, "b l d"],
        bias: Float[Tensor, "b l"] | None = None,
        read: Int[Tensor, "b r"] | None = None,
    ) -> Float[Tensor, "b r d"]:
        """All tokens, or the tokens `read`; the last block is then evaluated at these alone."""
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
        self.enc_to_dec = nn.Linear(a.dim, a.dim)
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
        """What a change of a frame adds to its tokens; the embedding is linear."""
        return F.linear(self.patches(change), self.embedding.weight)

    def encode(
        self, source: Float[Tensor, "b p d"], target: Float[Tensor, "p d"], layout: TokenLayout
    ) -> Float[Tensor, "b l d"]:
        """States of the source's tokens, of the visible target's and of the mask token."""
        mask_token = self.mask_token.expand(len(source), 1, -1)
        return self.encoder(torch.cat((source, target[layout.visible], mask_token), dim=1), layout.key_bias)

    def decode(self, states: Float[Tensor, "b l d"], layout: TokenLayout) -> Float[Tensor, "b 3 h w"]:
        """The predicted target, RGB in [0, 1], zero where it is visible."""
        tokens = gather_tokens(self.enc_to_dec(states), layout.encoder_index) + self.decoder_positions
        values = self.pixels(self.decoder(tokens, read=layout.hidden.shape[1] + layout.read))
        blank = values.new_zeros(*layout.hidden.shape, values.shape[-1])
        index = layout.read[..., None].expand_as(values)
        image = blank.scatter(1, index, values) * layout.hidden[..., None]
        side, patch = self.architecture.side, self.architecture.patch
        return rearrange(image, "b (y x) (i j c) -> b c (y i) (x j)", y=side, i=patch, c=3)

    def pixels(self, tokens: Float[Tensor, "b r d"]) -> Float[Tensor, "b r v"]:
        """Pixel values in single precision: half precision would quantize the small differences of predictions."""
        with torch.autocast(tokens.device.type, enabled=False):
            return self.head(tokens.float())


class PerturbationGenerator(nn.Module):
    """From the state of a source token to a colored Gaussian: its position, shape and amplitude in each channel."""

    def __init__(self, dim: int = 768, width: int = 512) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Linear(width, 18),
            nn.LayerNorm(18),
            nn.Tanh(),
        )

    def forward(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b 3 20 20"]:
        return gaussian_perturbation(rearrange(self.mlp(states), "... (c k) -> ... c k", c=3))


def gaussian_perturbation(raw: Float[Tensor, "*b 6"]) -> Float[Tensor, "*b 20 20"]:
    """A correlated Gaussian from six parameters in (-1, 1); its largest sample is the signed amplitude."""
    parameters = raw.float()[..., None, None].unbind(-3)
    row_mean, column_mean, row_sigma, column_sigma, correlation, amplitude = parameters
    half = WINDOW / 2
    axis = torch.linspace(-half, half, WINDOW, device=raw.device)
    rows = (axis[:, None] - half * row_mean) / gaussian_sigma(row_sigma)
    columns = (axis - half * column_mean) / gaussian_sigma(column_sigma)
    correlation = 0.98 * correlation
    distance = (rows**2 - 2 * correlation * rows * columns + columns**2) / (1 - correlation**2)
    return amplitude * torch.exp((distance.amin((-2, -1), keepdim=True) - distance) / 2)


def gaussian_sigma(raw: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Standard deviation between 1 and 10 pixels."""
    return 1 + 4.5 * (raw + 1)


def paste(
    perturbations: Float[Tensor, "b 3 window window"], pixel: Int[Tensor, "b 2"], size: int, scale: int = 1
) -> Float[Tensor, "b 3 size size"]:
    """Each perturbation on an empty frame, its middle sample at the query's (column, row); cut at the border."""
    perturbations = F.interpolate(perturbations, scale_factor=scale, mode="nearest")
    window = perturbations.shape[-1]
    # Coordinates of the frame's pixels in the window; one ring of zeros stands for everything outside.
    offset = torch.arange(size, device=pixel.device) - pixel[..., None] + window // 2
    column, row = (offset.clamp(-1, window) + 1).unbind(1)
    batch = torch.arange(len(perturbations), device=pixel.device)[:, None, None]
    ringed = rearrange(F.pad(perturbations, (1, 1, 1, 1)), "b c i j -> b i j c")
    return rearrange(ringed[batch, row[:, :, None], column[:, None, :]], "b y x c -> b c y x")
