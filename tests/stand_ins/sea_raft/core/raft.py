"""Stand-in for SEA-RAFT: the real signature, layout and ranges; the flow is the marker's motion."""

import torch
import torch.nn as nn
from extractor import ResNetFPN
from utils.utils import marker


class RAFT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.cnet = ResNetFPN(args, input_dim=6, output_dim=2 * args.dim, init_weight=True)
        self.fnet = ResNetFPN(args, input_dim=3, output_dim=2 * args.dim, init_weight=True)
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, image1, image2, iters=None, flow_gt=None, test_mode=False):
        assert test_mode
        assert not self.training
        assert iters == self.args.iters
        for image in (image1, image2):
            assert image.dtype == torch.float32
            assert image.shape[1] == 3
            assert 100 < image.max() <= 255, "pictures are from 0 to 255"
        motion = self.gain * (marker(image2) - marker(image1))
        # Going back from a frame with a blue corner misses by as many pixels as the corner is blue.
        motion[:, 0] += image1[:, 2, 0, 0].round() * 2.0**self.args.scale
        flow = motion[:, :, None, None].expand(-1, -1, *image1.shape[-2:])
        info = torch.zeros(len(flow), 4, *flow.shape[-2:])
        return {"final": flow, "flow": [torch.zeros_like(flow), flow], "info": [info, info], "nf": None}
