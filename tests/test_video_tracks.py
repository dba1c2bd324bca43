"""Annotated clips of natural video: tracks follow what moves, occluders hide exactly what they cover."""

import numpy as np
import pytest
import torch
from einops import rearrange

pytest.importorskip("cv2", reason="OpenCV is not installed; `pip install lpa-cwm[flow]`")

from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.rng import numpy_rng
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.synth.pairs import Shot, VideoPairs
from lpa_cwm.synth.video_flow import FRAMES, MIN_FRAMES, VideoTracks, confirmed_tracks, write_annotated

STEP = np.array([2, -1])
HW = (120, 160)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    """A window that moves over smooth random texture: what it shows moves by the opposite of `STEP` per frame."""
    coarse = torch.from_numpy(np.random.default_rng(0).uniform(0, 255, (1, 3, 100, 100))).float()
    wide = torch.nn.functional.interpolate(coarse, (400, 400), mode="bicubic").clamp(0, 255)
    picture = rearrange(wide[0], "c h w -> h w c").numpy().astype(np.uint8)
    corners = [(20 + STEP[0] * time, 200 + STEP[1] * time) for time in range(3 * FRAMES)]
    return np.stack([picture[y : y + HW[0], x : x + HW[1]] for x, y in corners])


@pytest.fixture(scope="module")
def source(frames, tmp_path_factory) -> VideoTracks:
    path = tmp_path_factory.mktemp("clips") / "clip.npy"
    np.save(path, frames)
    return VideoTracks(VideoPairs((Shot(path, "clip", 0, len(frames)),), "train"), ImagePool.of(None, "train"))


def test_confirmed_tracks_follow_the_motion_until_they_leave(frames):
    clip = rearrange(torch.from_numpy(frames[:20].copy()), "t h w c -> t c h w")
    xy, inside = confirmed_tracks(clip, MIN_FRAMES, numpy_rng("test"))
    truth = xy[:, :1] - torch.arange(20)[:, None] * torch.from_numpy(STEP)
    error = (xy - truth).norm(dim=-1)[inside]
    assert len(xy) > 100
    assert error.quantile(0.95) < 1
    assert inside[:, : MIN_FRAMES + 1].all()
    assert not inside.all()
    # Who has left does not come back.
    assert (inside.int().diff(dim=1) <= 0).all()


@pytest.mark.parametrize("number", [1, 2])
def test_points_are_hidden_exactly_where_the_picture_has_changed(source, number):
    clip = source(number)
    plain, stride, _, _ = source.sample(numpy_rng("video tracks", "train", 0, number))
    changed = (clip.frames.float() - plain[::stride].float()).abs().amax(1) > 2
    for time in range(FRAMES):
        xy = clip.xy[:, time]
        here = ((xy > 2) & (xy < torch.tensor(HW[::-1]) - 2)).all(-1)
        column, row = xy[here].long().unbind(-1)
        covered = torch.nn.functional.max_pool2d(changed[time][None, None].float(), 3, 1, 1)[0, 0][row, column] > 0
        assert (covered | clip.visible[here, time]).all()
    hidden = ~clip.visible & ((clip.xy > 0) & (clip.xy < torch.tensor(HW[::-1]))).all(-1)
    assert hidden.any()
    assert clip.visible.any(1).all()


def test_clips_depend_on_their_number_only_and_are_read_as_a_data_set(source, tmp_path):
    first = source(0)
    again = source(0)
    assert torch.equal(first.frames, again.frames)
    assert not torch.equal(first.frames, source(1).frames)
    paths = list(write_annotated(source, tmp_path, 2, per_file=1))
    written = [path.read_bytes() for path in paths]
    paths[1].unlink()
    list(write_annotated(source, tmp_path, 2, per_file=1))
    assert [path.read_bytes() for path in paths] == written
    data = load_dataset(tmp_path)
    assert len(data) == 2
    # Tracks that are never visible are left out by the reader.
    seen = first.visible.any(1)
    torch.testing.assert_close(data[0].truth.xy, first.xy[seen], atol=1e-3, rtol=0)
    assert torch.equal(data[0].truth.visible, first.visible[seen])
    with pytest.raises(InputError, match="seed"):
        list(write_annotated(VideoTracks(source.videos, source.pictures, seed=1), tmp_path, 2, per_file=1))


def test_short_videos_are_refused(source):
    short = VideoPairs((source.videos.shots[0].__class__(source.videos.shots[0].frames, "clip", 0, 9),), "train")
    with pytest.raises(InputError, match="longer videos"):
        VideoTracks(short, source.pictures)(0)
