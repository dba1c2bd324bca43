"""The object at a click, by GrabCut (Rother et al. 2004) of OpenCV."""

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, UInt8
from torch import Tensor

from lpa_cwm.errors import require

REACH = 0.3
"""Largest distance of an object's border from the click, in units of the frame's shorter side."""
CORE = 0.02
"""Radius around the click that belongs to the object, in the same units."""
WORKING_SIDE = 320
"""Longer side at which frames are segmented, in pixels."""
ROUNDS = 4


def segment_object(frame: UInt8[Tensor, "3 h w"], x: float, y: float) -> Bool[Tensor, "h w"]:
    """The connected foreground around a place; never farther than `REACH` from it."""
    cv2 = require("cv2", extra="flow")
    pixels = rearrange(frame.cpu(), "c h w -> h w c").contiguous().numpy()
    shrink = min(1.0, WORKING_SIDE / max(pixels.shape[:2]))
    small = cv2.resize(pixels, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA) if shrink < 1 else pixels
    height, width = small.shape[:2]
    side = min(height, width)
    rows, columns = np.mgrid[:height, :width] + 0.5
    distance = np.hypot(columns - x * shrink, rows - y * shrink)
    labels = np.where(distance <= REACH * side, cv2.GC_PR_FGD, cv2.GC_BGD).astype(np.uint8)
    # Without some probable background inside, the whole disc can stay foreground.
    labels[(distance > REACH * side / 2) & (labels == cv2.GC_PR_FGD)] = cv2.GC_PR_BGD
    core = distance <= max(1.5, CORE * side)
    labels[core] = cv2.GC_FGD
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.setRNGSeed(0)
    cv2.grabCut(np.ascontiguousarray(small), labels, None, *models, ROUNDS, cv2.GC_INIT_WITH_MASK)
    foreground = np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.uint8)
    _, parts = cv2.connectedComponents(foreground)
    mask = np.isin(parts, np.unique(parts[core & (foreground == 1)])).astype(np.uint8)
    whole = cv2.resize(mask, pixels.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    return torch.from_numpy(whole > 0)
