"""From motions to pixels: each pixel weighs where its cell says it may come from, or makes up what was uncovered.

What is inferred (origins, weights, invention) is a `Drawing`; drawing a source by a drawing is linear in that source.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.geometry import pixel_centers
from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.densify import Motions
from lpa_cwm.worlds.layered.encoder import FINE_STRIDE, Pyramid
from lpa_cwm.worlds.layered.patches import PATCH


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a target frame is drawn: the sum over k of weight times (source at origin plus light), plus invention."""

    motions: Motions
    weight: Float[Tensor, "b k h w"]
    invention: Float[Tensor, "b 3 h w"]
    """Color made up, already times its weight."""

    @property
    def hw(self) -> tuple[int, int]:
        """Size of the frame in pixels."""
        return self.weight.shape[-2], self.weight.shape[-1]


def origins(motions: Motions, hw: tuple[int, int], step: int = 1) -> Float[Tensor, "b k h w 2"]:
    """Where in the source each pixel (or each center of `step` x `step` pixels) comes from, by each motion."""
    side = PATCH // step
    within = (pixel_centers((side, side), motions.offset.device) * step - PATCH / 2).to(motions.offset.dtype)
    moved = torch.einsum("bpkde,ije->bpkijd", motions.linear, within) + motions.offset[..., None, None, :]
    columns = hw[1] // PATCH
    field = rearrange(moved, "b (r c) k i j d -> b k (r i) (c j) d", c=columns)
    return field + pixel_centers((hw[0] // step, hw[1] // step), field.device) * step


def warp(image: Float[Tensor, "b c h w"], places: Float[Tensor, "b k i j 2"]) -> Float[Tensor, "b k c i j"]:
    """Bilinear values of one image at the places of each of k fields, in pixels of the image."""
    k, i, j = places.shape[1:4]
    values = read(image, rearrange(places, "b k i j d -> b (k i j) d"))
    return rearrange(values, "b (k i j) c -> b k c i j", k=k, i=i, j=j)


def spread(values: Float[Tensor, "b p k f"], columns: int, side: int) -> Float[Tensor, "b k f h w"]:
    """Values of the cells repeated over squares of `side` pixels."""
    return repeat(values, "b (r c) k f -> b k f (r i) (c j)", c=columns, i=side, j=side)


def pieces(source: Float[Tensor, "b 3 h w"], motions: Motions) -> Float[Tensor, "b k 3 h w"]:
    """The frame as each motion alone would have it."""
    hw = (source.shape[-2], source.shape[-1])
    return warp(source, origins(motions, hw)) + spread(motions.light, hw[1] // PATCH, PATCH)


def draw(source: Float[Tensor, "b 3 h w"], drawing: Drawing) -> Float[Tensor, "b 3 h w"]:
    """The predicted frame; linear in the source up to light and invention."""
    return (pieces(source, drawing.motions) * drawing.weight[:, :, None]).sum(1) + drawing.invention


def likeness(
    seen: Float[Tensor, "b k c h w"], identity: Float[Tensor, "b p k c"], groups: int
) -> Float[Tensor, "b k groups h w"]:
    """Inner products, group by group, of what is seen at each place with its cell's motion."""
    side = PATCH // FINE_STRIDE
    # A cell's identity is broadcast over its places, never copied to them.
    seen = rearrange(seen, "b k (g f) (r i) (c j) -> b k g f r i c j", g=groups, i=side, j=side)
    own = rearrange(identity, "b (r c) k (g f) -> b k g f r 1 c 1", g=groups, c=seen.shape[6])
    return rearrange((seen * own).sum(3), "b k g r i c j -> b k g (r i) (c j)")


class Renderer(nn.Module):
    """Weights of the motions at every pixel and the colors of what no motion explains."""

    def __init__(self, groups: int, channels: int, motions: int, described: int) -> None:
        """`channels` of the fine context are compared with the motion's identity in `groups`; four are read as is."""
        super().__init__()
        self.groups, self.channels, self.motions = groups, channels, motions
        self.unary = 4
        self.likeness = nn.Parameter(torch.full((groups,), 0.3))
        each = 1 + groups + self.unary + 3
        outputs = (motions + 4) * FINE_STRIDE**2
        self.pyramid = Pyramid(motions * each + 5, (24, 40, 64), (outputs,), stem=1)
        for parameter in self.pyramid.heads.parameters():
            nn.init.zeros_(parameter)
        self.identify = nn.Linear(described, channels)
        self.doubt = nn.Parameter(torch.tensor(-3.0))

    def forward(
        self,
        source: Float[Tensor, "b 3 h w"],
        shown: Float[Tensor, "b 4 h w"],
        motions: Motions,
        fine: Float[Tensor, "b f h2 w2"],
    ) -> Drawing:
        """The drawing of the frame; `shown` is the target where visible, else zero, and whether it is."""
        hw = (source.shape[-2], source.shape[-1])
        cells = hw[1] // PATCH, PATCH // FINE_STRIDE
        places = origins(motions, hw, FINE_STRIDE)
        seen = warp(torch.cat((fine, F.avg_pool2d(source, FINE_STRIDE)), dim=1), places / FINE_STRIDE)
        compared, unary, color = seen.split((self.channels, self.unary, 3), dim=2)
        color = color + spread(motions.light, *cells)
        same = likeness(compared, self.identify(motions.identity), self.groups)
        log_mass = spread(motions.log_mass[..., None], *cells)
        known = torch.cat((log_mass / 4, same, unary, color - 0.5), dim=2).flatten(1, 2)
        claim = spread(motions.claim[:, :, None, None], *cells)[:, 0] / 4
        told = F.avg_pool2d(shown, FINE_STRIDE)
        out = self.pyramid(torch.cat((known, claim, told), dim=1))[0]
        prior = log_mass[:, :, 0] + torch.einsum("g,bkghw->bkhw", self.likeness, same)
        out = F.pixel_shuffle(out, FINE_STRIDE)
        logits = repeat(prior, "b k h w -> b k (h i) (w j)", i=FINE_STRIDE, j=FINE_STRIDE) + out[:, : self.motions]
        doubt = out[:, self.motions, None].squeeze(2) + self.doubt
        share = torch.cat((logits, doubt), dim=1).softmax(1)
        blend = torch.einsum("bkhw,bkchw->bchw", prior.softmax(1), color).detach()
        blend = F.interpolate(blend, scale_factor=FINE_STRIDE, mode="bilinear")
        invention = share[:, -1:] * (blend + out[:, self.motions + 1 :])
        return Drawing(motions, share[:, :-1], invention)
