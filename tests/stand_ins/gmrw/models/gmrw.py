"""Stand-in for GMRW: the real signature, layout and ranges; the affinity shifts by the marker's motion."""

import torch
import torch.nn as nn
from flash_attn import flash_attn_qkvpacked_func
from utils import utils

UNUSED = flash_attn_qkvpacked_func, utils


def marker(image):
    """(x, y) of the middle of the red square, in cells of four pixels."""
    ys, xs = torch.nonzero(image[0] - image[2] > 100, as_tuple=True)
    return torch.stack((xs.float().mean(), ys.float().mean())) / 4


class GMRW(nn.Module):
    def __init__(
        self,
        args,
        num_scales=1,
        upsample_factor=8,
        feature_channels=128,
        attention_type="swin",
        num_transformer_layers=6,
        ffn_dim_expansion=4,
        num_head=1,
        norm=True,
        flash_attention=False,
        gradient_checkpointing=False,
        inherited=False,
    ):
        super().__init__()
        assert args.no_of_frames == 2
        assert num_scales == 2
        assert not norm
        self.args = args
        self.gain = nn.Parameter(torch.zeros(1))

    def compute_correspondence(self, images):
        """(1, 2, 3, H, W) from 0 to 255 to (1, 1, H/4, W/4, H/4, W/4), rows of which sum to one."""
        assert not self.training
        assert images.shape[:3] == (1, 2, 3)
        assert 100 < images.max() <= 255.5, "pictures are from 0 to 255"
        rows, columns = images.shape[-2] // 4, images.shape[-1] // 4
        dx, dy = (self.gain * (marker(images[0, 1]) - marker(images[0, 0]))).round().long().tolist()
        # Going back from a frame with a blue corner misses by one cell.
        dx += int(dx < 0 and images[0, 0, 2, 0, 0] > 1)
        affinity = torch.zeros(1, 1, rows, columns, rows, columns)
        for row in range(rows):
            for column in range(columns):
                y, x = min(max(row + dy, 0), rows - 1), min(max(column + dx, 0), columns - 1)
                affinity[0, 0, row, column, y, x] = 1
        return affinity
