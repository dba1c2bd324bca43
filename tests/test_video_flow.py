"""Flow of natural video: known where a round trip closes, right there, and nowhere else."""

import numpy as np
import pytest
import torch
from einops import rearrange

pytest.importorskip("cv2", reason="OpenCV is not installed; `pip install lpa-cwm[flow]`")

from lpa_cwm.synth.pair_shards import SIZE, VIDEO_KINDS, flow_grid
from lpa_cwm.synth.pairs import Shot, VideoPairs
from lpa_cwm.synth.video_flow import follow_back, video_sources

STEP = np.array([3, -2])


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """Smooth random texture, larger than a frame."""
    coarse = torch.from_numpy(np.random.default_rng(0).uniform(0, 255, (1, 3, 96, 96))).float()
    wide = torch.nn.functional.interpolate(coarse, (400, 400), mode="bicubic").clamp(0, 255)
    return rearrange(wide[0], "c h w -> h w c").numpy().astype(np.uint8)


def moving(picture: np.ndarray, frames: int) -> list[torch.Tensor]:
    """A window that moves over the picture: what it shows moves by the opposite of `STEP` per frame."""
    corners = [60 + STEP * number for number in range(frames)]
    crops = [picture[y : y + SIZE, x : x + SIZE] for x, y in corners]
    return [rearrange(torch.from_numpy(crop.copy()), "h w c -> c h w") for crop in crops]


def test_the_flow_leads_back_through_all_frames(picture):
    pair = follow_back(moving(picture, 6))
    truth = torch.from_numpy(5 * STEP).float()[:, None, None]
    error = (pair.flow - truth)[:, pair.visible].norm(dim=0)
    assert pair.visible.float().mean() > 0.7
    assert error.median() < 0.2
    assert error.quantile(0.95) < 1


def test_points_that_leave_or_have_no_texture_or_no_way_back_are_unknown(picture):
    frames = moving(picture, 6)
    frames[-1][:, 96:160, 96:160] = 128
    pair = follow_back(frames)
    grid = flow_grid((SIZE, SIZE))
    flat = ((grid - 128).abs() < 26).all(0)
    leaving = grid[0] + 5 * STEP[0] >= SIZE
    assert not pair.visible[flat | leaving].any()
    assert torch.equal(pair.flow.isfinite().all(0), pair.visible)
    # A cut has no way back.
    other = frames[0].flip(-1).roll(77, -2)
    assert follow_back([other, frames[1]]).visible.float().mean() < 0.1


def test_pairs_are_a_function_of_their_number(picture, tmp_path):
    frames = np.stack([rearrange(frame, "c h w -> h w c").numpy() for frame in moving(picture, 18)])
    np.save(tmp_path / "clip.npy", frames)
    pairs = VideoPairs((Shot(tmp_path / "clip.npy", "clip", 0, 18),), "train")
    sources = video_sources(pairs)
    assert tuple(sources) == VIDEO_KINDS
    far, near = (source(3) for source in sources.values())
    assert torch.equal(sources["video"](3).frames, near.frames)
    lengths = [pair.flow[:, pair.visible].norm(dim=0).median() / float(np.linalg.norm(STEP)) for pair in (far, near)]
    assert 4.5 < lengths[0] < 16.5
    assert 0.5 < lengths[1] < 4.5
