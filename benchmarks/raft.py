"""Our RAFT against the same weights in the plainest form: time and flow of one pair, in one run.

lpa-cwm data fetch raft
python benchmarks/raft.py                      # raft-small and raft-sintel, 256 x 256, 12 iterations
python benchmarks/raft.py --pairs real_dev.pkl # also the end-point error on its Middlebury pairs
PYTHONPATH=/where/torchvision/is python benchmarks/raft.py --torchvision

The plain form follows the published description step by step: windows are read with `grid_sample`, gates see hidden
state, context and motion at once, and every iteration is brought to full size, as the authors' code and torchvision's
do. Times are processor seconds; versions take turns, and the ratio of their medians is printed. Torchvision is no
dependency of ours: its wheel for the CPU build of torch is not on the package index, and the one for CUDA only imports
beside it when two operators are declared first.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from einops import rearrange

from lpa_cwm.baselines.flow_trackers import PairwiseTracker
from lpa_cwm.baselines.raft import RaftFlow, load_raft, rename_torchvision
from lpa_cwm.config import Selection
from lpa_cwm.datasets.download import RAFT
from lpa_cwm.datasets.tapvid import load_dataset


class Plain:
    """RAFT written down once more, from its state dict and nothing else."""

    def __init__(self, state, iterations):
        self.state, self.iterations = state, iterations
        self.small = "update_block.gru.convz.weight" in state

    def conv(self, name, x, stride=1):
        weight = self.state[f"{name}.weight"]
        padding = (weight.shape[2] // 2, weight.shape[3] // 2)
        return F.conv2d(x, weight, self.state[f"{name}.bias"], stride, padding)

    def norm(self, name, x):
        if name.startswith("fnet"):
            return F.instance_norm(x)
        if self.small:
            return x
        mean, variance, weight, bias = (
            self.state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, weight, bias)

    def block(self, name, x, stride):
        y, last = x, 3 if self.small else 2
        for number in range(1, last + 1):
            step = stride if number == (2 if self.small else 1) else 1
            y = F.relu(self.norm(f"{name}.norm{number}", self.conv(f"{name}.conv{number}", y, step)))
        if stride > 1:
            x = self.norm(f"{name}.downsample.1", self.conv(f"{name}.downsample.0", x, stride))
        return F.relu(x + y)

    def encode(self, name, x):
        x = F.relu(self.norm(f"{name}.norm1", self.conv(f"{name}.conv1", x, 2)))
        for layer in (1, 2, 3):
            x = self.block(f"{name}.layer{layer}.0", x, 1 if layer == 1 else 2)
            x = self.block(f"{name}.layer{layer}.1", x, 1)
        return self.conv(f"{name}.conv2", x)

    def pyramid(self, first, second):
        volume = torch.einsum("bchw,bcij->bhwij", first, second) / first.shape[1] ** 0.5
        levels = [rearrange(volume, "b h w i j -> (b h w) 1 i j")]
        for _ in range(3):
            levels.append(F.avg_pool2d(levels[-1], 2))
        return levels

    def look_up(self, levels, cell):
        radius, out = 3 if self.small else 4, []
        batch, _, height, _ = cell.shape
        span = torch.arange(-radius, radius + 1).float()
        window = torch.stack(torch.meshgrid(span, span, indexing="ij"), dim=-1)
        for number, level in enumerate(levels):
            center = rearrange(cell, "b d h w -> (b h w) 1 1 d") / 2**number
            size = torch.tensor([level.shape[3] - 1, level.shape[2] - 1])
            out.append(F.grid_sample(level, 2 * (center + window) / size - 1, align_corners=True).flatten(1))
        return rearrange(torch.cat(out, dim=1), "(b h w) k -> b k h w", b=batch, h=height)

    def gate(self, suffix, hidden, x):
        both = torch.cat((hidden, x), dim=1)
        z = torch.sigmoid(self.conv(f"update_block.gru.convz{suffix}", both))
        r = torch.sigmoid(self.conv(f"update_block.gru.convr{suffix}", both))
        q = torch.tanh(self.conv(f"update_block.gru.convq{suffix}", torch.cat((r * hidden, x), dim=1)))
        return (1 - z) * hidden + z * q

    def motion(self, windows, flow):
        seen = F.relu(self.conv("update_block.encoder.convc1", windows))
        if not self.small:
            seen = F.relu(self.conv("update_block.encoder.convc2", seen))
        moved = F.relu(self.conv("update_block.encoder.convf1", flow))
        moved = F.relu(self.conv("update_block.encoder.convf2", moved))
        both = F.relu(self.conv("update_block.encoder.conv", torch.cat((seen, moved), dim=1)))
        return torch.cat((both, flow), dim=1)

    def enlarge(self, flow, hidden):
        if self.small:
            return 8 * F.interpolate(flow, scale_factor=8, mode="bilinear", align_corners=True)
        mask = self.conv("update_block.mask.2", F.relu(self.conv("update_block.mask.0", hidden)))
        batch, _, height, width = flow.shape
        mask = (0.25 * mask).view(batch, 1, 9, 8, 8, height, width).softmax(dim=2)
        around = F.unfold(8 * flow, 3, padding=1).view(batch, 2, 9, 1, 1, height, width)
        return rearrange((mask * around).sum(2), "b d i j h w -> b d (h i) (w j)")

    @torch.no_grad()
    def __call__(self, before, after):
        first, second = (frame.float() / 127.5 - 1 for frame in (before, after))
        levels = self.pyramid(self.encode("fnet", first), self.encode("fnet", second))
        hidden, context = self.encode("cnet", first).split((96, 64) if self.small else (128, 128), dim=1)
        hidden, context = torch.tanh(hidden), F.relu(context)
        height, width = hidden.shape[-2:]
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        origin = torch.stack((columns, rows)).float().expand(len(before), -1, -1, -1)
        flow = full = torch.zeros_like(origin)
        for _ in range(self.iterations):
            inputs = torch.cat((context, self.motion(self.look_up(levels, origin + flow), flow)), dim=1)
            for suffix in ("",) if self.small else ("1", "2"):
                hidden = self.gate(suffix, hidden, inputs)
            change = F.relu(self.conv("update_block.flow_head.conv1", hidden))
            flow = flow + self.conv("update_block.flow_head.conv2", change)
            full = self.enlarge(flow, hidden)
        return full


def declare_operators():
    """Without them a torchvision for CUDA cannot be imported beside a torch for the CPU; keep what is returned."""
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def torchvision_raft(state, iterations):
    """The same weights in torchvision, under its names."""
    from torchvision.models.optical_flow import raft_large, raft_small

    network = (raft_small if "update_block.gru.convz.weight" in state else raft_large)(weights=None).eval()
    names = rename_torchvision({name: name for name in network.state_dict()})
    network.load_state_dict({theirs: state[ours] for ours, theirs in names.items()})

    @torch.no_grad()
    def flow(before, after):
        first, second = (frame.float() / 127.5 - 1 for frame in (before, after))
        return network(first, second, num_flow_updates=iterations)[-1]

    return flow


def texture(shift, side=256):
    """A smooth random picture, moved."""
    noise = torch.rand(1, 3, 60, 60, generator=torch.Generator().manual_seed(0)) * 255
    large = F.interpolate(noise, size=(side + 64, side + 64), mode="bicubic").clamp(0, 255).to(torch.uint8)
    return large[..., 32 - shift[1] : 32 - shift[1] + side, 32 - shift[0] : 32 - shift[0] + side]


def timed(versions, pair, repeats):
    """Processor seconds of each version, which take turns."""
    seconds = {name: [] for name in versions}
    for _ in range(repeats):
        for name, flow in versions.items():
            began = time.process_time()
            flow(*pair)
            seconds[name].append(time.process_time() - began)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def end_point_errors(path):
    """Mean distance from the truth in each Middlebury pair of a data set, by weights and number of iterations."""
    dataset = load_dataset(path, Selection(videos=("middlebury/*",)))
    samples = [dataset[index] for index in range(len(dataset))]
    for file in ("raft-sintel.pth", "raft-small.pth", "raft-kitti.pth"):
        network = load_raft(RAFT.path(file))
        for iterations in (12, 20, 32):
            tracker = PairwiseTracker(RaftFlow(network, iterations))
            found = [tracker.track(sample.clip, sample.queries).xy[:, 1] for sample in samples]
            pairs = zip(found, samples, strict=True)
            errors = [(xy - sample.truth.xy[:, 1]).norm(dim=-1).mean().item() for xy, sample in pairs]
            each = ", ".join(f"{name} {error:.3f}" for name, error in zip(dataset.names, errors, strict=True))
            print(f"{file}, {iterations} iterations: end-point error {np.mean(errors):.3f} px ({each})")


@dataclass
class Options:
    """What to compare."""

    iterations: int = 12
    repeats: int = 7
    threads: int = 1
    torchvision: bool = False
    """Also compare with torchvision, if it can be imported."""
    pairs: Path | None = None
    """Also measure the end-point error on the Middlebury pairs of this data set."""


def main(options: Options):
    torch.set_num_threads(options.threads)
    library = declare_operators() if options.torchvision else None
    pair = texture((0, 0)), texture((5, -3))
    for file in ("raft-small.pth", "raft-sintel.pth"):
        network = load_raft(RAFT.path(file))
        versions = {
            "ours": RaftFlow(network, options.iterations),
            "plain": Plain(network.state_dict(), options.iterations),
        }
        if options.torchvision:
            versions["torchvision"] = torchvision_raft(network.state_dict(), options.iterations)
        flows = {name: flow(*pair) for name, flow in versions.items()}
        seconds = timed(versions, pair, options.repeats)
        both = timed({"ours": versions["ours"]}, [torch.cat(pair), torch.cat(pair[::-1])], options.repeats)["ours"]
        print(f"{file}: shift (5, -3), mean flow {[round(v, 2) for v in flows['ours'].mean((0, 2, 3)).tolist()]}")
        for name, value in seconds.items():
            ratio, difference = value / seconds["ours"], float((flows[name] - flows["ours"]).abs().max())
            print(f"  {name:12} {value:6.3f} s   {ratio:5.2f} x ours   differs by {difference:.1e} px")
        print(f"  ours, both directions: {both:6.3f} s   {2 * seconds['plain'] / both:5.2f} x faster than plain")
    del library
    if options.pairs:
        end_point_errors(options.pairs)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
