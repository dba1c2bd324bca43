"""Kinetics from csv and clips: the frames FFmpeg's own filter would take, the tracks of the official script."""

import av
import numpy as np
import pytest
from av.filter import Graph

from lpa_cwm.datasets.tapvid import frames_at_rate, load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.io.video import VideoFile


def clip(path, fps, t, hw=(48, 64)):
    """Frames whose gray level tells their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "0"})
        stream.height, stream.width, stream.pix_fmt = *hw, "yuv420p"
        for number in range(t):
            pixels = np.full((*hw, 3), 5 * (number % 50), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


def filtered(path, fps):
    """Gray levels that FFmpeg's filter lets through."""
    levels = []
    with av.open(str(path)) as container:
        graph = Graph()
        nodes = [graph.add_buffer(template=container.streams.video[0]), graph.add("fps", f"fps={fps}")]
        graph.link_nodes(*nodes, graph.add("buffersink")).configure()
        for frame in [*container.decode(video=0), None]:
            graph.push(frame)
            while True:
                try:
                    levels.append(graph.pull().to_ndarray(format="gray").mean())
                except (av.BlockingIOError, av.EOFError):
                    break
    return levels


@pytest.mark.parametrize("fps", [25, 30, 24, 12, 50, 60, 7])
def test_frames_are_those_of_ffmpegs_filter(tmp_path, fps):
    path = clip(tmp_path / "a.mp4", fps, t=47)
    video = VideoFile(path)
    ours = [video.decode(index).float().mean().item() for index in frames_at_rate(video, 25)]
    theirs = filtered(path, 25)
    assert len(ours) == len(theirs)
    assert [round(level / 5) for level in ours] == [round(level / 5) for level in theirs]


def table(path, names, t=250, n=2, **changes):
    """A csv as published; returns what is in it."""
    rng = np.random.default_rng(0)
    tracks, lines = {}, []
    for name in names:
        tracks[name] = rng.uniform(0.1, 0.9, (n, t, 2)), rng.random((n, t)) < 0.3
        tracks[name][1][:, 0] = False
        for xy, hidden in zip(*tracks[name], strict=True):
            cells = [f"{x},{y},{int(h)}" for (x, y), h in zip(xy, hidden, strict=True)]
            lines.append(f"{name},7,17,{','.join(cells)}")
    path.write_text("\n".join(lines) + "\n")
    return tracks


def test_clips_become_samples(tmp_path):
    tracks = table(tmp_path / "kinetics.csv", ["-abc_d", "xyz"])
    clip(tmp_path / "val" / "-abc_d_000007_000017.mp4", 25, 260)
    clip(tmp_path / "xyz_000007_000017.mp4", 25, 40)
    for spec in (tmp_path / "kinetics.csv", tmp_path):
        dataset = load_dataset(spec)
        assert dataset.names == ["-abc_d_000007_000017", "xyz_000007_000017"]
    for index, (name, t) in enumerate([("-abc_d", 250), ("xyz", 40)]):
        sample = dataset[index]
        xy, hidden = tracks[name]
        assert len(sample.clip) == t
        official = xy[:, :t] * (64, 48) - 0.5
        assert np.allclose(sample.truth.xy.numpy(), official, atol=1e-3)
        assert np.array_equal(sample.truth.visible.numpy(), ~hidden[:, :t])
        assert sample.clip.hw == (48, 64)
        assert abs(sample.clip[30].float().mean().item() - 150) < 2
    assert dataset.fingerprint(0) != dataset.fingerprint(1)


def test_missing_clips_are_said(tmp_path):
    table(tmp_path / "kinetics.csv", ["a", "b", "c"])
    clip(tmp_path / "b_000007_000017.mp4", 25, 10)
    with pytest.warns(UserWarning, match="2 of 3 clips of .* are missing, left out: a_000007_000017, c_"):
        assert load_dataset(tmp_path / "kinetics.csv").names == ["b_000007_000017"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,7,17,0.1,0.2\n", "line 1, has 5 columns"),
        ("a,7,17,0.1,0.2,0\na,7,17,0.1,x,0\n", "line 2, is malformed"),
        ("a,7,17,0.1,0.2,2\n", "occlusion other than"),
        ("a,7,17,0.1,0.2,0\n", r"No clip of .* a_000007_000017.mp4"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, sentence):
    (tmp_path / "kinetics.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        load_dataset(tmp_path / "kinetics.csv")


def test_a_clip_that_is_no_video_is_named(tmp_path):
    table(tmp_path / "kinetics.csv", ["a"])
    (tmp_path / "a_000007_000017.mp4").write_text("nothing")
    dataset = load_dataset(tmp_path)
    with pytest.raises(InputError, match="not a video"):
        dataset[0]
