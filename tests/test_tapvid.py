"""Every published form of TAP-Vid gives the same samples, in native pixels; bad files are named."""

import io
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import Image

from lpa_cwm.config import Selection, evenly_spaced
from lpa_cwm.datasets.tapvid import first_queries, load_dataset, strided_queries
from lpa_cwm.errors import InputError
from lpa_cwm.io import safe_load
from lpa_cwm.protocols import Dataset
from tapvid_files import entries, entry, jpegs, save

REAL = Path(__file__).parents[2] / "shared" / "data" / "real_dev.pkl"


def test_a_sample_has_the_pixels_of_the_file(tmp_path):
    content = entries(3)
    dataset = load_dataset(save(tmp_path / "davis.pkl", content))
    assert isinstance(dataset, Dataset)
    assert (dataset.name, dataset.names, len(dataset)) == ("davis", list(content), 3)
    for index, (name, raw) in enumerate(content.items()):
        sample = dataset[index]
        assert (sample.clip.name, len(sample.clip), sample.clip.hw) == (name, 6, (20, 30))
        assert np.array_equal(sample.truth.xy.numpy(), raw["points"] * np.float32([30, 20]))
        assert np.array_equal(sample.truth.visible.numpy(), ~raw["occluded"])
        for t in range(6):
            assert np.array_equal(rearrange(sample.clip[t], "c h w -> h w c").numpy(), raw["video"][t])


def test_frames_are_decoded_once(tmp_path):
    clip = load_dataset(save(tmp_path / "a.pkl", entries(1)))[0].clip
    assert all(clip[t] is clip[t] for t in (5, 0, 3, 1, 2, 4))
    assert clip[0] is clip[0]


def same(one, other):
    assert torch.equal(one.truth.xy, other.truth.xy)
    assert torch.equal(one.truth.visible, other.truth.visible)
    assert torch.equal(one.queries.xy, other.queries.xy)
    assert torch.equal(one.queries.frame, other.queries.frame)
    assert all(torch.equal(one.clip[t], other.clip[t]) for t in range(len(one.clip)))


def test_lists_shards_and_splits_hold_the_same_videos(tmp_path):
    content = entries(7)
    whole = load_dataset(save(tmp_path / "dict.pkl", content))
    listed = load_dataset(save(tmp_path / "list.pkl", list(content.values())))
    for folder, cut in (("shards", list), ("splits", dict)):
        (tmp_path / folder).mkdir()
        for shard in range(3):
            part = list(content.items())[3 * shard : 3 * shard + 3]
            save(tmp_path / folder / f"{shard:04}_of_0003.pkl", cut(part) if cut is dict else [raw for _, raw in part])
    shards, splits = load_dataset(tmp_path / "shards"), load_dataset(tmp_path / "splits")
    assert splits.names == whole.names
    assert listed.names == shards.names == [f"{number:04}" for number in range(7)]
    for index in (6, 0, 3, 5):
        for dataset in (listed, shards, splits):
            same(dataset[index], whole[index])
            assert dataset.fingerprint(index) == whole.fingerprint(index)


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda files: np.array(files, dtype=object)])
def test_jpeg_frames_are_decoded(tmp_path, form):
    raw = entry(hw=(256, 256))
    files = jpegs(raw["video"])
    clip = load_dataset(save(tmp_path / "a.pkl", {"a": raw | {"video": form(files)}}))[0].clip
    exact = np.asarray(Image.open(io.BytesIO(files[2])))
    assert np.array_equal(rearrange(clip[2], "c h w -> h w c").numpy(), exact)


def test_one_file_is_in_memory_at_a_time(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    for shard in range(4):
        save(tmp_path / "set" / f"{shard}.pkl", [entry(shard)])
    videos, loads = [], []
    load = safe_load.load_pickle

    def counted(path):
        content = load(path)
        loads.append(path.name)
        videos.extend(weakref.ref(raw["video"]) for raw in content)
        return content

    monkeypatch.setattr(safe_load, "load_pickle", counted)
    dataset = load_dataset(tmp_path / "set")
    for index in range(4):
        _ = dataset[index].clip[0], dataset.fingerprint(index)
        assert sum(video() is not None for video in videos) <= 1
    assert loads == ["0.pkl", "1.pkl", "2.pkl", "3.pkl"] * 2


def test_first_queries_are_where_a_track_is_first_visible():
    visible = torch.tensor([[1, 0, 1], [0, 0, 1], [0, 1, 1]]).bool()
    track, frame = first_queries(visible)
    assert (track.tolist(), frame.tolist()) == ([0, 1, 2], [0, 2, 1])


def test_strided_queries_are_every_visible_point_of_every_fifth_frame():
    visible = torch.rand(9, 23, generator=torch.Generator().manual_seed(0)) < 0.6
    plain = [(n, t) for t in range(0, 23, 5) for n in range(9) if visible[n, t]]
    track, frame = strided_queries(visible)
    assert list(zip(track.tolist(), frame.tolist(), strict=True)) == plain


@pytest.mark.parametrize("queries", ["first", "strided"])
def test_queries_lie_on_visible_truth(tmp_path, queries):
    dataset = load_dataset(save(tmp_path / "a.pkl", entries(4, n=8, t=12)), Selection(queries=queries))
    for index in range(4):
        sample = dataset[index]
        rows = torch.arange(len(sample.queries))
        assert torch.equal(sample.truth.xy[rows, sample.queries.frame], sample.queries.xy)
        assert sample.truth.visible[rows, sample.queries.frame].all()
        assert len(sample.truth.xy) == len(sample.queries)


def test_tracks_never_visible_are_dropped_and_hidden_points_may_be_anything(tmp_path):
    raw = entry(n=4)
    raw["occluded"][2] = True
    raw["points"][2] = np.nan
    raw["points"][raw["occluded"]] = 1e6
    sample = load_dataset(save(tmp_path / "a.pkl", {"a": raw}))[0]
    assert np.array_equal(sample.truth.visible.numpy(), ~raw["occluded"][[0, 1, 3]])


def test_a_selection_is_a_part_of_the_whole(tmp_path):
    content = entries(10, n=7, t=9)
    path = save(tmp_path / "a.pkl", content)
    part = load_dataset(path, Selection(videos=("4",), max_tracks=3, frames=5))
    assert part.names == [list(content)[index] for index in (0, 2, 5, 7)]
    sample, whole = part[1], load_dataset(path)[2]
    assert len(sample.clip) == 5
    assert torch.equal(sample.truth.xy, whole.truth.xy[[0, 2, 4], :5])
    assert part.fingerprint(1) != load_dataset(path).fingerprint(2)


def test_videos_are_chosen_by_name_and_pattern(tmp_path):
    names = ["badja/bear", "badja/camel", "tum/a[1]", "0007", "7"]
    path = save(tmp_path / "a.pkl", {name: entry(seed) for seed, name in enumerate(names)})
    chosen = {("badja/*",): names[:2], ("7",): ["7"], ("tum/a[1]",): ["tum/a[1]"], ("7", "*camel"): [names[1], "7"]}
    for videos, expected in chosen.items():
        assert load_dataset(path, Selection(videos=videos)).names == expected
    assert load_dataset(path, Selection(videos=("3",))).names == ["badja/bear", "badja/camel", "0007"]
    for videos, sentence in {("dog",): "No video is called 'dog'", ("9",): "expected 1 to 5"}.items():
        with pytest.raises(InputError, match=sentence):
            load_dataset(path, Selection(videos=videos))
    for wrong in ({"max_tracks": 0}, {"frames": 1}):
        with pytest.raises(InputError, match="or more"):
            Selection(**wrong)


def test_spreading_keeps_even_distances():
    for have in range(1, 20):
        for number in range(1, 25):
            chosen = evenly_spaced(range(have), number)
            assert len(set(chosen)) == min(number, have)
            assert chosen == sorted(chosen)
            steps = {b - a for a, b in pairwise(chosen)}
            assert not steps or max(steps) - min(steps) <= 1


def broken(**changes):
    return entry() | changes


POINTS = entry()["points"]
OUTSIDE = POINTS * np.float32(256)
BAD = {
    "no points": ({"video": 1, "occluded": 2}, "expected video, points and occluded"),
    "not a video": ([1], "is given as list"),
    "integer points": (broken(points=POINTS.astype(int)), "an array of int64"),
    "listed points": (broken(points=POINTS.tolist()), "points of the video a are list"),
    "occlusion as numbers": (broken(occluded=entry()["occluded"].astype(np.uint8)), "an array of uint8"),
    "points in three dimensions": (broken(points=np.zeros((3, 6, 3), np.float32)), r"points \[3, 6, 3\]"),
    "fewer occlusions": (broken(occluded=np.zeros((2, 6), bool)), r"occluded \[2, 6\]"),
    "fewer frames": (broken(video=entry()["video"][:5]), "5 frames but tracks of 6"),
    "float video": (broken(video=entry()["video"] / 255), "of float64"),
    "gray video": (broken(video=entry()["video"][..., :1]), r"\[6, 20, 30, 1\]"),
    "text video": (broken(video="frames"), "are str"),
    "pixels for points": (broken(points=OUTSIDE), r"visible points outside \[0, 1\]"),
    "not finite": (broken(points=np.full_like(POINTS, np.nan)), "not finite"),
    "no tracks": (broken(points=POINTS[:0], occluded=entry()["occluded"][:0]), "has no tracks"),
    "never visible": (broken(occluded=np.ones((3, 6), bool)), "no track that is visible"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_video_is_named(tmp_path, name):
    raw, sentence = BAD[name]
    dataset = load_dataset(save(tmp_path / "a.pkl", {"good": entry(), "a": raw}))
    assert len(dataset[0].clip) == 6
    with pytest.raises(InputError, match=sentence):
        dataset[1]


def test_points_a_little_outside_are_accepted(tmp_path):
    raw = entry()
    raw["points"][0, 1] = (-0.002, 1.005)
    assert load_dataset(save(tmp_path / "a.pkl", {"a": raw}))[0].truth.xy[0, 1, 0] < 0


def test_a_broken_frame_is_named(tmp_path):
    raw = entry(jpeg=True)
    raw["video"][3] = b"\xff\xd8nothing"
    clip = load_dataset(save(tmp_path / "a.pkl", {"a": raw}))[0].clip
    assert clip[2].shape == (3, 20, 30)
    with pytest.raises(InputError, match="Frame 3 of the video a"):
        clip[3]


def test_bad_files_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "twice").mkdir()
    for number in range(2):
        save(tmp_path / "twice" / f"{number}.pkl", {"a": entry()})
    save(tmp_path / "number.pkl", 3)
    save(tmp_path / "numbered.pkl", {1: entry()})
    save(tmp_path / "nothing.pkl", {})
    sentences = {
        "absent.pkl": "There is no",
        "empty": "neither .pkl nor .csv",
        "twice": "Two videos",
        "number.pkl": "holds a int",
        "numbered.pkl": "holds a dict",
        "nothing.pkl": "no videos",
    }
    for name, sentence in sentences.items():
        with pytest.raises(InputError, match=sentence):
            load_dataset(tmp_path / name)


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is absent")
def test_real_clips_load_as_their_table_says():
    dataset = load_dataset(REAL)
    counts = {"badja/": (4, 79), "jhmdb/": (28, 397), "tum/": (8, 192), "middlebury/": (4, 256)}
    for subset, (videos, tracks) in counts.items():
        part = load_dataset(REAL, Selection(videos=(subset + "*",)))
        assert len(part) == videos
        assert sum(len(part[index].queries) for index in range(videos)) == tracks
    assert len(dataset) == 44
    assert dataset[0].clip.hw == (256, 256)


def test_queries_half_a_pixel_outside_are_moved_to_the_border():
    """As in Kinetics, whose script shifts points by half a pixel; what is farther outside is left for a refusal."""
    from lpa_cwm.datasets.tapvid import clamp_to_border
    from lpa_cwm.geometry import inside

    given = torch.tensor([[-0.5, 3.0], [64.0, 48.5], [10.25, 20.5], [-0.6, 3.0]])
    moved = clamp_to_border(given, (48, 64))
    assert inside(moved, (48, 64)).tolist() == [True, True, True, False]
    assert moved[0].tolist() == [0.0, 3.0]
    assert torch.equal(moved[2:], given[2:])
