"""Dense inverse search, OpenCV's classical optical flow: no weights, 20 ms a pair."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.errors import need


@dataclass(frozen=True, slots=True)
class Dis:
    """The medium preset on gray frames; a `pairwise.Flow`."""

    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """One pair after the other: OpenCV uses all cores for each."""
        cv2 = need("cv2", extra="flow")
        search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        pictures = rearrange(torch.stack((before, after)).cpu(), "k b c h w -> b k h w c").numpy()
        gray = [[cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in pair] for pair in pictures]
        flows = np.stack([search.calc(first, second, None) for first, second in gray])
        return rearrange(torch.from_numpy(flows).to(before.device), "b h w d -> b d h w")
