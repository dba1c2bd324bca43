"""Clips come back as they were written, in any order of access, in bounded memory, or with a clear sentence."""

import struct
import sys
import weakref
from itertools import pairwise
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from einops import rearrange
from PIL import Image

from lpa_cwm.errors import InputError
from lpa_cwm.io import video
from lpa_cwm.io.video import open_stream
from lpa_cwm.types import Frames


def smooth_clip(t=30, h=48, w=64):
    """A gradient that moves; smooth, so that H.264 keeps it almost exactly."""
    x = torch.linspace(0, 3, w)[None, None, None] + torch.arange(t)[:, None, None, None] / 10
    y = torch.linspace(0, 2, h)[None, None, :, None]
    phase = torch.tensor([0.0, 2.0, 4.0])[None, :, None, None]
    return (127 + 100 * torch.sin(x + y + phase)).to(torch.uint8)


def encode(path, codec, *, pix_fmt="yuv420p", options=None, t=40, container_format=None):
    """Write frames whose gray level is 6 times their number."""
    with av.open(str(path), "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=25, options=options or {})
        stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
        for number in range(t):
            pixels = np.full((48, 64, 3), 6 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def number_shown(frame):
    return round(frame.float().mean().item() / 6)


def test_round_trip(tmp_path):
    frames = smooth_clip()
    video.write(tmp_path / "clip.mp4", iter(frames), fps=12.5)
    clip = video.read(tmp_path / "clip.mp4")
    assert isinstance(clip.frames, Frames)
    assert (len(clip), clip.hw, clip.fps, clip.name) == (30, (48, 64), 12.5, "clip")
    for index in range(30):
        error = (clip[index].int() - frames[index].int()).abs().float()
        assert error.mean() < 4
        assert error.max() < 32
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


def test_odd_sizes_grow_by_a_repeated_border(tmp_path):
    frames = smooth_clip(3, 47, 63)
    video.write(tmp_path / "clip.mp4", frames, fps=24.0)
    shown = video.read(tmp_path / "clip.mp4")[2].int()
    assert shown.shape == (3, 48, 64)
    assert (shown[:, :47, :63] - frames[2].int()).abs().float().mean() < 4
    assert (shown[:, 47, :63] - frames[2, :, 46].int()).abs().float().mean() < 4


FORMATS = {
    "b_frames.mp4": ("libx264", {"bf": "3", "g": "7"}),
    "open_gop.mp4": ("libx264", {"bf": "3", "g": "6", "x264-params": "open-gop=1"}),
    "one_key.mp4": ("libx264", {"g": "1000"}),
    "matroska.mkv": ("libx264", {"bf": "2", "g": "9"}),
    "transport.ts": ("libx264", {"bf": "2", "g": "9"}),
    "raw.h264": ("libx264", {"bf": "2", "g": "9"}),
    "old.avi": ("mpeg4", {"g": "8", "b": "4M"}),
    "intra.avi": ("mjpeg", {}),
    "web.webm": ("libvpx-vp9", {"g": "8"}),
    "hidden_frames.webm": ("libvpx", {"g": "30", "auto-alt-ref": "1", "lag-in-frames": "16", "b": "100k"}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_any_order_of_access_gives_the_same_frames(tmp_path, name):
    codec, options = FORMATS[name]
    encode(tmp_path / name, codec, options=options, pix_fmt="yuvj420p" if codec == "mjpeg" else "yuv420p")
    in_order = list(video.read(tmp_path / name))
    assert [number_shown(frame) for frame in in_order] == list(range(40))
    clip = video.read(tmp_path / name)
    order = [39, 0, 20, 5, 6, 4, 13, 12, 38, 39, 1, -1, *torch.randperm(40).tolist()]
    for index in order:
        assert torch.equal(clip[index], in_order[index])


def test_a_recording_cut_at_random_begins_with_its_first_whole_frame(tmp_path):
    encode(tmp_path / "whole.ts", "libx264", options={"bf": "2", "g": "9"})
    data = (tmp_path / "whole.ts").read_bytes()
    (tmp_path / "cut.ts").write_bytes(data[188 * (len(data) // 188 // 2) :])
    shown = [number_shown(frame) for frame in video.read(tmp_path / "cut.ts")]
    assert 0 < shown[0] < 39
    assert shown == list(range(shown[0], 40))


def test_reading_on_does_not_decode_again(tmp_path, monkeypatch):
    encode(tmp_path / "clip.mp4", "libx264", options={"g": "10"})
    file = video.VideoFile(tmp_path / "clip.mp4")
    jumps = []
    monkeypatch.setattr(video.VideoFile, "_go_to", lambda self, nearest: jumps.append(nearest))
    for index in range(40):
        file.decode(index)
    assert not jumps


def test_only_the_last_few_frames_are_kept():
    alive = weakref.WeakSet()

    def decode(index):
        frame = torch.full((3, 2, 2), index, dtype=torch.uint8)
        alive.add(frame)
        return frame

    frames = video.LazyFrames(200, decode, kept=5)
    for index in range(200):
        assert frames[index][0, 0, 0] == index
        assert frames[0][0, 0, 0] == 0
        assert len(alive) <= 6
    assert len({id(frames[0]) for _ in range(3)}) == 1
    with pytest.raises(IndexError):
        frames[200]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_rotation_metadata_is_respected(tmp_path, turns):
    frames = smooth_clip(2)
    video.write(tmp_path / "clip.mp4", frames, fps=24.0)
    upright = video.read(tmp_path / "clip.mp4")[1]
    matrix = {1: (0, 1, -1, 0), 2: (-1, 0, 0, -1), 3: (0, -1, 1, 0)}[turns]
    set_display_matrix(tmp_path / "clip.mp4", *matrix)
    # Display matrices turn clockwise, torch the other way.
    assert torch.equal(video.read(tmp_path / "clip.mp4")[1], torch.rot90(upright, -turns, (1, 2)))


def test_mirrored_metadata_is_respected(tmp_path):
    video.write(tmp_path / "clip.mp4", smooth_clip(2), fps=24.0)
    upright = video.read(tmp_path / "clip.mp4")[1]
    set_display_matrix(tmp_path / "clip.mp4", -1, 0, 0, 1)
    assert torch.equal(video.read(tmp_path / "clip.mp4")[1], upright.flip(2))


def set_display_matrix(path, a, b, c, d):
    """Replace the identity in the track header."""
    data = path.read_bytes()
    track = data.index(b"tkhd")
    one = 1 << 16
    identity = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 1 << 30)
    place = data.index(identity, track)
    turned = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    path.write_bytes(data[:place] + turned + data[place + len(identity) :])


def save_pictures(folder, frames, names):
    folder.mkdir()
    for name, frame in zip(names, frames, strict=True):
        Image.fromarray(rearrange(frame, "c h w -> h w c").numpy()).save(folder / name)


def test_a_folder_of_pictures_is_a_clip_in_natural_order(tmp_path):
    frames = smooth_clip(12)
    save_pictures(tmp_path / "run", frames, [f"frame{number}.png" for number in range(12)])
    (tmp_path / "run" / "notes.txt").write_text("not a picture")
    clip = video.read(tmp_path / "run")
    assert (len(clip), clip.hw, clip.name) == (12, (48, 64), "run")
    assert all(torch.equal(clip[index], frames[index]) for index in range(12))


def test_pictures_are_turned_upright(tmp_path):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    clip = video.read(tmp_path)
    assert clip.hw == (3, 2)
    assert np.array_equal(rearrange(clip[0], "c h w -> h w c").numpy(), np.rot90(pixels, -1))


def sound_alone(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_bad_input_is_named(tmp_path):
    (tmp_path / "text.mp4").write_text("hello")
    (tmp_path / "nothing.mp4").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    sound_alone(tmp_path / "sound.m4a")
    encode(tmp_path / "whole.mp4", "libx264")
    (tmp_path / "half.mp4").write_bytes((tmp_path / "whole.mp4").read_bytes()[:1500])
    save_pictures(tmp_path / "sizes", [smooth_clip(1)[0], smooth_clip(1, 8, 8)[0]], ["a.png", "b.png"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.jpg").write_text("hello")
    sentences = {
        "absent.mp4": "There is no",
        "text.mp4": "not a video",
        "nothing.mp4": "not a video",
        "half.mp4": "half.mp4",
        "sound.m4a": "no video stream",
        "folder": "no pictures",
        "sizes": "64x48",
        "broken": "not a picture",
    }
    for name, sentence in sentences.items():
        with pytest.raises(InputError, match=sentence):
            video.read(tmp_path / name)


def test_damage_inside_a_file_is_named(tmp_path):
    encode(tmp_path / "clip.avi", "mjpeg", pix_fmt="yuvj420p")
    data = bytearray((tmp_path / "clip.avi").read_bytes())
    starts = [i for i in range(len(data) - 1) if data[i : i + 2] == b"\xff\xd8"]
    for start, end in list(pairwise(starts))[10:12]:
        data[start : end - 16] = bytes(end - 16 - start)
    (tmp_path / "clip.avi").write_bytes(data)
    clip = video.read(tmp_path / "clip.avi")
    assert number_shown(clip[5]) == 5
    with pytest.raises(InputError, match="damaged"):
        list(clip)
    assert number_shown(clip[30]) == 30


def test_deep_pictures_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="8 bits"):
        video.read(tmp_path)[0]


@pytest.mark.parametrize(
    ("name", "frames", "sentence"),
    [
        ("a.mp4", [], "no frame"),
        ("a.xyz", smooth_clip(2), "xyz"),
        ("a.mp4", [smooth_clip(1)[0], smooth_clip(1, 8, 8)[0]], "Frame 1"),
    ],
)
def test_nothing_is_left_behind_by_a_failed_write(tmp_path, name, frames, sentence):
    with pytest.raises(InputError, match=sentence):
        video.write(tmp_path / name, frames, fps=24.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("accepts", [True, False], ids=["PyAV 14", "PyAV 19"])
def test_any_pyav_reads_and_writes(tmp_path, monkeypatch, accepts):
    opened, names = av.open, []

    def new(file, mode="r", options=None):
        names.append(file)
        return opened(file, mode, options=options)

    def old(file, mode="r", options=None, metadata_errors="strict"):
        assert mode == "w" or metadata_errors == "replace"
        return new(file, mode, options)

    monkeypatch.setattr(av, "open", old if accepts else new)
    video.write(tmp_path / "clip.mp4", smooth_clip(3), fps=24.0)
    assert len(video.read(tmp_path / "clip.mp4")) == 3
    assert len(names) == 3


@pytest.mark.parametrize("name", ["http:x.mp4", "concat:a|b.mp4", "file:x.mp4", "-.mp4", "%d.mp4"])
def test_names_that_look_like_addresses_are_files(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    video.write(name, smooth_clip(3), fps=24.0)
    assert (tmp_path / name).is_file()
    assert len(video.read(name)) == 3


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXTINF:1,\n{other}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{other}'\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_playlists_lead_nowhere(tmp_path, monkeypatch, kind):
    """Neither a file nor standard input may make FFmpeg open other files or addresses."""
    video.write(tmp_path / "other.mp4", smooth_clip(3), fps=24.0)
    path = tmp_path / "list.mp4"
    path.write_text(PLAYLISTS[kind].format(other=tmp_path / "other.mp4"))
    with pytest.raises(InputError, match="not a video"):
        video.read(path)
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        with pytest.raises(InputError, match="not a video"):
            open_stream("-")


def test_a_codec_that_is_unknown_is_one_sentence(tmp_path):
    video.write(tmp_path / "clip.avi", smooth_clip(3), fps=24.0)
    data = (tmp_path / "clip.avi").read_bytes()
    # The four letters of the codec, in the stream's header and in its format.
    (tmp_path / "clip.avi").write_bytes(data.replace(b"H264", b"Zz9~"))
    with pytest.raises(InputError, match="cannot decode here"):
        video.read(tmp_path / "clip.avi")
