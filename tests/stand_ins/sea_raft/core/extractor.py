"""Stand-in for SEA-RAFT's encoder: building it would download weights."""

import torch.nn as nn


class ResNetFPN(nn.Module):
    def __init__(self, args, input_dim=3, output_dim=256, ratio=1.0, norm_layer=nn.BatchNorm2d, init_weight=False):
        super().__init__()
        assert args.pretrain in ("resnet18", "resnet34")
        self.init_weight = init_weight
        self.conv1 = nn.Conv2d(input_dim, args.initial_dim, kernel_size=7, stride=2, padding=3)
        self._init_weights(args)

    def _init_weights(self, args):
        if self.init_weight:
            raise RuntimeError("the network cannot be reached")
