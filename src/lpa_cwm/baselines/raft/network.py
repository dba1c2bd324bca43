"""The network: encode, correlate, refine the flow a number of times, bring it to the frame's size."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from lpa_cwm.baselines.raft.correlation import Order, Pyramid
from lpa_cwm.baselines.raft.encoder import Encoder, Norm
from lpa_cwm.baselines.raft.update import FlowHead, Gru, MotionEncoder, upsample_bilinear, upsample_convex


@dataclass(frozen=True, slots=True)
class Layout:
    """What distinguishes the published networks."""

    small: bool = False
    context_norm: Norm = "batch"
    window: Order = "x first"


SMALL = Layout(small=True, context_norm="none")
LARGE = Layout()
SMURF = Layout(context_norm="instance", window="y first")


class UpdateBlock(nn.Module):
    """The parts of one refinement, under their published names."""

    def __init__(self, small: bool, windows: int) -> None:
        super().__init__()
        if small:
            self.encoder = MotionEncoder(windows, [96], (64, 32), 82)
            self.gru = Gru(96, 64 + 82, separable=False)
            self.flow_head = FlowHead(96, 128)
        else:
            self.encoder = MotionEncoder(windows, [256, 192], (128, 64), 128)
            self.gru = Gru(128, 128 + 128, separable=True)
            self.flow_head = FlowHead(128, 256)
            self.mask = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 576, 1))


class Raft(nn.Module):
    """Optical flow by recurrent all-pairs field transforms, for inference."""

    def __init__(self, layout: Layout = LARGE) -> None:
        super().__init__()
        small = layout.small
        widths = (32, 64, 96) if small else (64, 96, 128)
        self.layout = layout
        self.hidden, context = (96, 64) if small else (128, 128)
        self.radius = 3 if small else 4
        self.fnet = Encoder(widths, 128 if small else 256, "instance", narrow=small)
        self.cnet = Encoder(widths, self.hidden + context, layout.context_norm, narrow=small)
        self.update_block = UpdateBlock(small, 4 * (2 * self.radius + 1) ** 2)
        self.eval().requires_grad_(False)

    def forward(
        self,
        frames: Float[Tensor, "f 3 h w"],
        source: Int[Tensor, "b"],
        target: Int[Tensor, "b"],
        iterations: int = 12,
    ) -> Float[Tensor, "b 2 h w"]:
        """Flow (dx, dy) in pixels for pairs of frames, which are RGB in [-1, 1] with sides of a multiple of eight."""
        features = self.fnet(frames)
        used, rank = source.unique(return_inverse=True)
        hidden, context = self.cnet(frames[used])[rank].tensor_split((self.hidden,), dim=1)
        pyramid = Pyramid(features[source], features[target], self.radius, self.layout.window)
        return self._refine(pyramid, hidden.tanh(), context.relu(), iterations)

    def _refine(
        self, pyramid: Pyramid, hidden: Float[Tensor, "b d h w"], context: Float[Tensor, "b c h w"], iterations: int
    ) -> Float[Tensor, "b 2 h8 w8"]:
        """From zero flow, step by step; only the last flow is brought to full size."""
        block = self.update_block
        step = block.gru.begin(context)
        origin = cells(hidden)
        flow = torch.zeros_like(origin)
        for _ in range(iterations):
            windows = pyramid.look_up(origin + flow)
            hidden = step(hidden, block.encoder(windows, flow))
            flow = flow + block.flow_head(hidden)
        return upsample_bilinear(flow) if self.layout.small else upsample_convex(flow, 0.25 * block.mask(hidden))


def cells(features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
    """(column, row) of every cell of a feature map."""
    batch, _, height, width = features.shape
    columns = torch.arange(width, dtype=features.dtype, device=features.device)
    rows = torch.arange(height, dtype=features.dtype, device=features.device)
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy")).expand(batch, -1, -1, -1)


@dataclass(frozen=True, slots=True)
class RaftFlow:
    """A loaded network as a `pairwise.Flow`."""

    network: Raft
    iterations: int = 12

    @torch.no_grad()
    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """Frames of any size, whose sides are filled up, half on each, by repeating the border.

        Each distinct frame is encoded once, however many pairs it is in.
        """
        frames, place = torch.cat((before, after)).unique(dim=0, return_inverse=True)
        source, target = place.chunk(2)
        height, width = before.shape[-2:]
        # The coarsest of the four correlation levels must keep at least one cell.
        down, across = (max(64, -(-side // 8) * 8) - side for side in (height, width))
        left, top = across // 2, down // 2
        margins = [left, across - left, top, down - top]
        padded = F.pad(frames.float() / 127.5 - 1, margins, mode="replicate")
        flow = self.network.to(before.device)(padded, source, target, self.iterations)
        return flow[..., top : top + height, left : left + width]
