"""A contact sheet of simulated clips: frames, motion and what stays visible."""

import numpy as np
from jaxtyping import Bool, Float, UInt8

from lpa_cwm.simulator.clip import SimClip

SHADE = 0.25
"""Brightness left to pixels that cannot be seen in the other frame."""


def flow_colors(offset: Float[np.ndarray, "h w 2"], largest: float) -> UInt8[np.ndarray, "h w 3"]:
    """Direction as hue and length as saturation; white does not move."""
    angle = np.arctan2(offset[..., 1], offset[..., 0])
    length = np.clip(np.hypot(offset[..., 0], offset[..., 1]) / largest, 0, 1)
    phase = angle[..., None] + np.array([0, -2, 2]) * np.pi / 3
    hue = np.clip(0.5 + np.cos(phase), 0, 1)
    return np.round(255 * np.nan_to_num(1 - length[..., None] * (1 - hue))).astype(np.uint8)


def shaded(picture: UInt8[np.ndarray, "h w 3"], visible: Bool[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """The picture, dark red where points are hidden."""
    hidden = (SHADE * picture + [120, 0, 0]).astype(np.uint8)
    return np.where(visible[..., None], picture, hidden)


def strip(clip: SimClip, columns: int = 5, gap: int = 4) -> UInt8[np.ndarray, "h w 3"]:
    """One clip: frames across it, then the flow over `gap` frames from the middle one, and which of it is visible."""
    middle = (len(clip) - gap) // 2
    frames = np.linspace(0, len(clip) - 1, columns).round().astype(int)
    flow = clip.flow(middle, middle + gap)
    largest = max(float(np.nanquantile(np.abs(flow.offset), 0.98)), 1.0)
    tiles = [clip.picture(int(frame)) for frame in frames]
    tiles += [clip.picture(middle), flow_colors(flow.offset, largest), shaded(clip.picture(middle), flow.visible)]
    return np.concatenate(tiles, axis=1)


def sheet(clips: list[SimClip]) -> UInt8[np.ndarray, "h w 3"]:
    """One strip under another."""
    return np.concatenate([strip(clip) for clip in clips])
