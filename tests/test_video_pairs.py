"""Pairs of real video: from one shot, moving, at the asked gaps, and never from held-out clips."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpa_cwm.errors import InputError
from lpa_cwm.io import video
from lpa_cwm.synth.images import procedural_photo
from lpa_cwm.synth.pairs import (
    VideoPairs,
    decode_folder,
    find_cuts,
    frame_difference,
    group_of,
    memmap,
    shots_of,
    split_of,
)

SHARED = Path(__file__).parents[2] / "shared" / "data" / "natural"


def scroll(seed, frames=12, step=3):
    """A camera that moves over a picture from left to right."""
    picture = torch.from_numpy(procedural_photo(np.random.default_rng(seed), 120)).permute(2, 0, 1)
    return [picture[:, 20:84, step * t : step * t + 72].contiguous() for t in range(frames)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for number in range(0, 120, 10):
        video.write(folder / f"walk_{number:03d}.mp4", scroll(number), 12.0)
    video.write(folder / "cut_000.mp4", scroll(1000, step=1) + scroll(1001, step=1), 12.0)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_frames_are_decoded_once_and_kept(folder, cache):
    shots = decode_folder(folder, cache)
    written = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert decode_folder(folder, cache) == shots
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == written
    one = next(shot for shot in shots if shot.clip == "walk_000")
    clip = video.read(folder / "walk_000.mp4")
    assert np.array_equal(memmap(one.frames)[5], clip[5].permute(1, 2, 0).numpy())


def test_a_clip_is_divided_at_its_cut(folder, cache):
    spans = [(shot.start, shot.stop) for shot in decode_folder(folder, cache) if shot.clip == "cut_000"]
    assert spans == [(0, 12), (12, 24)]


def test_fast_motion_is_not_a_cut_and_a_jump_is():
    rng = np.random.default_rng(3)
    picture = procedural_photo(rng, 200).astype(np.float32)
    pan = np.stack([picture[:32, 3 * t : 3 * t + 32] for t in range(30)])
    assert not find_cuts(pan).any()
    other = procedural_photo(np.random.default_rng(4), 200).astype(np.float32)
    both = np.concatenate((pan, np.stack([other[100:132, t : t + 32] for t in range(30)])))
    assert shots_of(both) == [(0, 30), (30, 60)]
    assert shots_of(both[:1]) == [(0, 1)]


def test_pairs_depend_on_their_number_alone(folder, cache):
    source = VideoPairs.of(folder, cache, "train")
    first = [source.pair(index, 48) for index in range(5)]
    for index in reversed(range(5)):
        assert torch.equal(source.pair(index, 48).source, first[index].source)
        assert torch.equal(source.pair(index, 48).target, first[index].target)
    assert first[0].source.shape == (3, 48, 48)
    assert first[0].flow is None
    assert first[0].visible is None


def test_gaps_are_as_asked_and_stay_in_the_shot(folder, cache):
    shots = decode_folder(folder, cache)
    index = {}
    for shot in shots:
        for number in range(shot.start, shot.stop):
            index[memmap(shot.frames)[number].tobytes()] = (shot, number)
    source = VideoPairs(tuple(shots), "train", gaps=(2, 4))
    gaps = set()
    for number in range(200):
        (one, at), (two, then) = (index[f.tobytes()] for f in source.span(np.random.default_rng(number))[[0, -1]])
        assert one == two
        gaps.add(then - at)
    assert gaps == {-4, -3, -2, 2, 3, 4}


def test_what_stands_still_is_passed_over(tmp_path):
    frames = scroll(1, frames=1) * 40 + scroll(1, frames=20, step=2)
    video.write(tmp_path / "mostly_still.mp4", frames, 12.0)
    shots = decode_folder(tmp_path, tmp_path / "cache")
    picky = VideoPairs(tuple(shots), "train", motion=4.0)
    pairs = [picky.pair(index, 48) for index in range(40)]
    assert np.mean([(p.source.float() - p.target.float()).abs().mean() > 3 for p in pairs]) > 0.9
    lax = replace(picky, motion=0.0)
    still = [frame_difference(*lax.crops(np.random.default_rng(i), 48)) < 1 for i in range(40)]
    assert np.mean(still) > 0.4


def test_neighboring_clips_are_held_out_together(folder, cache):
    assert group_of("ucf_031") == group_of("ucf_039") != group_of("ucf_040")
    assert group_of("031") == group_of("032")
    assert group_of("a_walk") == "a_walk"
    train, val = ({s.clip for s in VideoPairs.of(folder, cache, split).shots} for split in ("train", "val"))
    assert not {group_of(clip) for clip in train} & {group_of(clip) for clip in val}
    assert train == {clip for clip in train | val if split_of(group_of(clip)) == "train"}


def test_a_folder_without_videos_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no videos"):
        decode_folder(tmp_path, tmp_path)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared natural video is not here")
def test_shared_clips_are_readable(tmp_path):
    for name in ("davis_000.mp4", "ucfsports_010.mp4"):
        (tmp_path / name).symlink_to(SHARED / name)
    source = VideoPairs(tuple(decode_folder(tmp_path, tmp_path / "cache")), "train")
    assert source.pair(0, 128).source.float().std() > 10
