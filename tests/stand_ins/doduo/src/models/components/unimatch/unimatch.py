"""Stand-in for DODUO's matcher: the real constructor."""

import torch
import torch.nn as nn


class UniMatch(nn.Module):
    def __init__(
        self,
        num_scales=1,
        feature_channels=128,
        upsample_factor=8,
        num_head=1,
        ffn_dim_expansion=4,
        num_transformer_layers=6,
        bilinear_upsample=False,
        corr_fn="global",
    ):
        super().__init__()
        assert bilinear_upsample
        self.gain = nn.Parameter(torch.zeros(1))
