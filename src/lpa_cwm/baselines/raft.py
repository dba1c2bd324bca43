"""RAFT (Teed & Deng 2020, arXiv:2003.12039), inference only, and readers of published RAFT and SMURF weights.

Encode both frames, correlate all pairs of cells, refine the flow with a recurrent unit, upsample. Module names are
those of the published files. SMURF (Stone et al. 2021, arXiv:2105.07014) is the same network with two switches.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from lpa_cwm import validation
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import center_of, to_sampler
from lpa_cwm.io.safe_load import check_state_dict, load_state_dict
from lpa_cwm.validation import reading

Norm = Literal["instance", "batch", "none"]


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    """Normalization layer by name; `none` is the identity."""
    layers = {"instance": nn.InstanceNorm2d, "batch": nn.BatchNorm2d}
    return layers[kind](channels) if kind in layers else nn.Identity()


class RaftResidual(nn.Module):
    """Residual block (He et al. 2016): two 3x3 convolutions, or a bottleneck of three."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, narrow: bool) -> None:
        super().__init__()
        middle = outputs // 4
        if narrow:
            shapes = [(inputs, middle, 1, 1), (middle, middle, 3, stride), (middle, outputs, 1, 1)]
        else:
            shapes = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        self.depth = len(shapes)
        for number, (before, after, kernel, step) in enumerate(shapes, start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, kernel, step, kernel // 2))
            self.add_module(f"norm{number}", norm_layer(norm, after))
        shortcut = (nn.Conv2d(inputs, outputs, 1, stride), norm_layer(norm, outputs)) if stride > 1 else ()
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        """Convolution, norm and ReLU for each layer, the last one included."""
        y = x
        for number in range(1, self.depth + 1):
            y = self.get_submodule(f"norm{number}")(self.get_submodule(f"conv{number}")(y)).relu_()
        return (self.downsample(x) + y).relu_()


class RaftEncoder(nn.Module):
    """Frame to features at one eighth of its size: a stem of stride 2 and three stages, the last two of stride 2."""

    def __init__(self, widths: tuple[int, int, int], outputs: int, norm: Norm, narrow: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3)
        self.norm1 = norm_layer(norm, widths[0])
        before = widths[0]
        for number, width in enumerate(widths, start=1):
            stride = 1 if number == 1 else 2
            blocks = RaftResidual(before, width, stride, norm, narrow), RaftResidual(width, width, 1, norm, narrow)
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            before = width
        self.conv2 = nn.Conv2d(before, outputs, 1)

    def forward(self, frame: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h8 w8"]:
        """RGB in [-1, 1] to features."""
        x = torch.relu_(self.norm1(self.conv1(frame)))
        for number in (1, 2, 3):
            x = self.get_submodule(f"layer{number}")(x)
        return self.conv2(x)


WindowOrder = Literal["x first", "y first"]
"""Order of the window indices in the channels."""


class CorrelationPyramid:
    """All-pairs correlation volume: dot products of all source and target cells, at four target resolutions."""

    def __init__(
        self, source: Float[Tensor, "b c h w"], target: Float[Tensor, "b c h w"], radius: int, order: WindowOrder
    ) -> None:
        volume = einsum(source, target, "b c h w, b c i j -> b h w i j") / source.shape[1] ** 0.5
        self.levels = [rearrange(volume, "b h w i j -> (b h w) 1 i j")]
        while len(self.levels) < 4:
            self.levels.append(F.avg_pool2d(self.levels[-1], 2))
        span = torch.arange(-radius, radius + 1, device=source.device)
        indexing = "ij" if order == "x first" else "xy"
        self.window = torch.stack(torch.meshgrid(span, span, indexing=indexing), dim=-1)

    def look_up(self, cell: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b k h w"]:
        """Bilinear windows around one (column, row) of the target per source cell; zero outside; finest level first."""
        batch, _, height, _ = cell.shape
        center = rearrange(cell, "b d h w -> (b h w) 1 1 d")
        windows = [self._window(level, center / 2**number) for number, level in enumerate(self.levels)]
        return rearrange(torch.cat(windows, dim=1), "(b h w) k -> b k h w", b=batch, h=height)

    def _window(self, level: Float[Tensor, "q 1 i j"], center: Float[Tensor, "q 1 1 2"]) -> Float[Tensor, "q k"]:
        hw = (level.shape[2], level.shape[3])
        # Sampling points = center + window offsets; only this sum has one row per cell and window point.
        points = to_sampler(center, hw) + (to_sampler(center_of(self.window), hw) + 1)
        return F.grid_sample(level, points, align_corners=False).flatten(1)


Step = Callable[[Tensor, Tensor], Tensor]
"""Maps hidden state and motion features to the next hidden state."""


class MotionEncoder(nn.Module):
    """Correlation windows and flow to motion features; the flow itself is concatenated."""

    def __init__(self, windows: int, correlation: list[int], flow: tuple[int, int], outputs: int) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(windows, correlation[0], 1)
        self.convc2 = nn.Sequential()
        if len(correlation) > 1:
            self.convc2 = nn.Conv2d(correlation[0], correlation[1], 3, padding=1)
        self.convf1 = nn.Conv2d(2, flow[0], 7, padding=3)
        self.convf2 = nn.Conv2d(flow[0], flow[1], 3, padding=1)
        self.conv = nn.Conv2d(correlation[-1] + flow[1], outputs - 2, 3, padding=1)

    def forward(self, windows: Float[Tensor, "b k h w"], flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b c h w"]:
        """Encode both inputs and concatenate."""
        seen = self.convc2(self.convc1(windows).relu_()).relu_()
        moved = self.convf2(self.convf1(flow).relu_()).relu_()
        return torch.cat((self.conv(torch.cat((seen, moved), dim=1)).relu_(), flow), dim=1)


class ContextConv:
    """Convolution over (hidden state, context, motion); the constant contribution of the context is computed once."""

    def __init__(self, parts: list[nn.Conv2d], context: Float[Tensor, "b c h w"]) -> None:
        weight = torch.cat([part.weight for part in parts])
        bias = torch.cat([part.bias for part in parts if part.bias is not None])
        hidden = parts[0].out_channels
        first, fixed, last = weight.tensor_split((hidden, hidden + context.shape[1]), dim=1)
        self.padding = (weight.shape[2] // 2, weight.shape[3] // 2)
        self.weight = torch.cat((first, last), dim=1)
        self.share = F.conv2d(context, fixed, bias, padding=self.padding)

    def __call__(self, hidden: Float[Tensor, "b d h w"], motion: Float[Tensor, "b m h w"]) -> Float[Tensor, "b e h w"]:
        """Equal to one convolution over all three inputs."""
        return F.conv2d(torch.cat((hidden, motion), dim=1), self.weight, padding=self.padding).add_(self.share)


class ConvGru(nn.Module):
    """Convolutional GRU (Ballas et al. 2016): 3x3, or separable along x and then y."""

    def __init__(self, hidden: int, inputs: int, separable: bool) -> None:
        super().__init__()
        self.kernels = {"1": (1, 5), "2": (5, 1)} if separable else {"": (3, 3)}
        for suffix, kernel in self.kernels.items():
            for gate in "zrq":
                self.add_module(f"conv{gate}{suffix}", nn.Conv2d(hidden + inputs, hidden, kernel))

    def step_for(self, context: Float[Tensor, "b c h w"]) -> Step:
        """Return the recurrent step for a fixed context."""
        units = [self._unit(suffix, context) for suffix in self.kernels]

        def step(hidden: Tensor, motion: Tensor) -> Tensor:
            for gates, proposal in units:
                update, reset = gates(hidden, motion).sigmoid_().chunk(2, dim=1)
                hidden = torch.lerp(hidden, proposal(reset * hidden, motion).tanh_(), update)
            return hidden

        return step

    def _unit(self, suffix: str, context: Float[Tensor, "b c h w"]) -> tuple[ContextConv, ContextConv]:
        z, r, q = (cast(nn.Conv2d, self.get_submodule(f"conv{gate}{suffix}")) for gate in "zrq")
        return ContextConv([z, r], context), ContextConv([q], context)


class FlowHead(nn.Module):
    """Hidden state to a flow update."""

    def __init__(self, inputs: int, middle: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, middle, 3, padding=1)
        self.conv2 = nn.Conv2d(middle, 2, 3, padding=1)

    def forward(self, hidden: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
        """Two convolutions."""
        return self.conv2(self.conv1(hidden).relu_())


def upsample_bilinear(flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b 2 h8 w8"]:
    """Bilinear upsampling by 8 with aligned corners."""
    return 8 * F.interpolate(flow, scale_factor=8, mode="bilinear", align_corners=True)


def upsample_convex(flow: Float[Tensor, "b 2 h w"], mask: Float[Tensor, "b k h w"]) -> Float[Tensor, "b 2 h8 w8"]:
    """Convex upsampling by 8: each pixel is a convex combination of its 3x3 coarse neighbors."""
    weights = rearrange(mask, "b (n i j) h w -> b n i j h w", i=8, j=8).softmax(dim=1)
    around = F.unfold(8 * flow, 3, padding=1).unflatten(1, (2, 9)).unflatten(-1, flow.shape[-2:])
    return rearrange(einsum(weights, around, "b n i j h w, b d n h w -> b d h i w j"), "b d h i w j -> b d (h i) (w j)")


@dataclass(frozen=True, slots=True)
class RaftVariant:
    """Differences between the published networks."""

    small: bool = False
    context_norm: Norm = "batch"
    window: WindowOrder = "x first"


SMALL = RaftVariant(small=True, context_norm="none")
LARGE = RaftVariant()
SMURF = RaftVariant(context_norm="instance", window="y first")


class UpdateBlock(nn.Module):
    """Modules of one refinement step, under their published names."""

    def __init__(self, small: bool, windows: int) -> None:
        super().__init__()
        if small:
            self.encoder = MotionEncoder(windows, [96], (64, 32), 82)
            self.gru = ConvGru(96, 64 + 82, separable=False)
            self.flow_head = FlowHead(96, 128)
        else:
            self.encoder = MotionEncoder(windows, [256, 192], (128, 64), 128)
            self.gru = ConvGru(128, 128 + 128, separable=True)
            self.flow_head = FlowHead(128, 256)
            self.mask = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 576, 1))


class Raft(nn.Module):
    """Recurrent all-pairs field transforms, in evaluation mode."""

    def __init__(self, variant: RaftVariant = LARGE) -> None:
        super().__init__()
        small = variant.small
        widths = (32, 64, 96) if small else (64, 96, 128)
        self.variant = variant
        self.hidden, context = (96, 64) if small else (128, 128)
        self.radius = 3 if small else 4
        self.fnet = RaftEncoder(widths, 128 if small else 256, "instance", narrow=small)
        self.cnet = RaftEncoder(widths, self.hidden + context, variant.context_norm, narrow=small)
        self.update_block = UpdateBlock(small, 4 * (2 * self.radius + 1) ** 2)
        self.eval().requires_grad_(False)

    def forward(
        self,
        frames: Float[Tensor, "f 3 h w"],
        source: Int[Tensor, "b"],
        target: Int[Tensor, "b"],
        iterations: int = 12,
    ) -> Float[Tensor, "b 2 h w"]:
        """Flow (dx, dy) in pixels for pairs of frames; frames are RGB in [-1, 1] with sides that 8 divides."""
        features = self.fnet(frames)
        used, rank = source.unique(return_inverse=True)
        hidden, context = self.cnet(frames[used])[rank].tensor_split((self.hidden,), dim=1)
        pyramid = CorrelationPyramid(features[source], features[target], self.radius, self.variant.window)
        return self._refine(pyramid, hidden.tanh(), context.relu(), iterations)

    def _refine(
        self,
        pyramid: CorrelationPyramid,
        hidden: Float[Tensor, "b d h w"],
        context: Float[Tensor, "b c h w"],
        iterations: int,
    ) -> Float[Tensor, "b 2 h8 w8"]:
        """Iterate from zero flow; only the last flow is upsampled."""
        block = self.update_block
        step = block.gru.step_for(context)
        origin = cell_grid(hidden)
        flow = torch.zeros_like(origin)
        for _ in range(iterations):
            windows = pyramid.look_up(origin + flow)
            hidden = step(hidden, block.encoder(windows, flow))
            flow = flow + block.flow_head(hidden)
        return upsample_bilinear(flow) if self.variant.small else upsample_convex(flow, 0.25 * block.mask(hidden))


def cell_grid(features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
    """Column and row of every cell of a feature map."""
    batch, _, height, width = features.shape
    columns = torch.arange(width, dtype=features.dtype, device=features.device)
    rows = torch.arange(height, dtype=features.dtype, device=features.device)
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy")).expand(batch, -1, -1, -1)


@dataclass(frozen=True, slots=True)
class RaftFlow:
    """A RAFT network as a `flow_trackers.Flow`."""

    network: Raft = field(repr=False)
    iterations: int = 12

    @torch.no_grad()
    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """Flow for frames of any size, padded by repeating the border; each distinct frame is encoded once."""
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


EXPECTED = "a published RAFT file (.pth)"
TENSORFLOW = re.compile(r"^(?:feature|flow)_model/(.+)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE$")
"""A variable of SMURF's checkpoint; optimizer slots have longer names."""
TORCHVISION = (
    (r"^raft\.", ""),
    (r"^feature_encoder\.", "fnet."),
    (r"^context_encoder\.", "cnet."),
    (r"net\.convnormrelu\.0\.", "net.conv1."),
    (r"net\.convnormrelu\.1\.", "net.norm1."),
    (r"net\.conv\.", "net.conv2."),
    (r"\.convnormrelu(\d)\.0\.", r".conv\1."),
    (r"\.convnormrelu(\d)\.1\.", r".norm\1."),
    (r"\.motion_encoder\.conv\.0\.", ".encoder.conv."),
    (r"\.motion_encoder\.conv(c|f)\w+?(\d)\.0\.", r".encoder.conv\1\2."),
    (r"^mask_predictor\.convrelu\.0\.", "update_block.mask.0."),
    (r"^mask_predictor\.conv\.", "update_block.mask.2."),
)
"""From the names of torchvision and of SMURF's PyTorch port to RAFT's."""


def load_raft(path: Path) -> Raft:
    """Build RAFT, small RAFT or SMURF, as the file requires, and load its weights."""
    state = read_state(path)
    network = Raft(variant_of(state))
    check_state_dict(state, network, path, EXPECTED)
    network.load_state_dict(state)
    return network


def read_state(path: Path) -> dict[str, Tensor]:
    """Read tensors under RAFT's names from a `.pth` of RAFT or torchvision or an `.npz` of SMURF's variables."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a published RAFT file (.pth), or run `lpa-cwm data fetch raft`.")
    if path.suffix == ".npz":
        with reading(path, "an archive of SMURF's variables", "fetch it again"):
            return from_tensorflow(read_smurf_archive(path))
    return rename_torchvision(
        {name.removeprefix("module."): tensor for name, tensor in load_state_dict(path, EXPECTED).items()}
    )


def read_smurf_archive(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an `.npz` archive."""
    with reading(path, "an archive of arrays", "expected SMURF's variables (.npz)"):
        return validation.read_npz(path)


def rename_torchvision(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map torchvision's names to RAFT's; drop the shortcut's norm, which RAFT registers twice."""
    # RAFT numbers the recurrent units only if there are two.
    number = r"\1" if any("convgru2" in name for name in state) else ""
    rules = (*TORCHVISION, (r"\.recurrent_block\.convgru(\d)\.conv(\w)\.", rf".gru.conv\2{number}."))
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        ours[name] = tensor
    return {name: tensor for name, tensor in ours.items() if ".norm3." not in name}


def from_tensorflow(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Map SMURF's TensorFlow variables to RAFT's names; kernels [h w in out] become [out in h w]."""
    state: dict[str, Tensor] = {}
    for name, array in variables.items():
        if match := TENSORFLOW.match(name):
            module, kind = match.groups()
            # Keras counts only layers with weights; RAFT's sequence has a ReLU between the two.
            module = module.replace("mask/layer_with_weights-1", "mask/2").replace("layer_with_weights-", "")
            tensor = torch.from_numpy(array).float()
            state[f"{module.replace('/', '.')}.{'weight' if kind == 'kernel' else 'bias'}"] = (
                rearrange(tensor, "h w i o -> o i h w").contiguous() if kind == "kernel" else tensor
            )
    return state


def variant_of(state: dict[str, Tensor]) -> RaftVariant:
    """Infer the variant: small networks have one recurrent unit; SMURF's context encoder has no learned norm."""
    if "update_block.gru.convz.weight" in state:
        return SMALL
    return LARGE if "cnet.norm1.weight" in state else SMURF
