"""Files of simulated clips, read back by plain decoders and by the readers of the real formats."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mujoco")
pytest.importorskip("embreex")
pytest.importorskip("crc32c")

from lpa_cwm import jobs
from lpa_cwm.cli.main import main
from lpa_cwm.datasets.movif import MoviClips, RecordFile
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.simulator import scene as recipes
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.clip import ClipSeries, encode_png, encode_varints, example, write_records, write_series
from lpa_cwm.simulator.render import RenderSettings

GOLDEN = Path(__file__).parent / "golden" / "movi_f-train.tfrecord-00000-of-00001"
ALL_KEYS = Path(__file__).with_name("movi_f_keys.txt").read_text().split()
TINY = recipes.SceneConfig(name="tiny", resting=(2, 3), tossed=(1, 2), frames=6, settling=1.0, travel=(2.0, 4.0))


@pytest.fixture(scope="module", autouse=True)
def tiny_recipe():
    recipes.SCENE_CONFIGS["tiny"] = TINY
    yield
    del recipes.SCENE_CONFIGS["tiny"]


@pytest.fixture(scope="module")
def series():
    return ClipSeries(Assets.of(None, "train"), RenderSettings(48), "tiny", clips=3, per_file=2)


@pytest.fixture(scope="module")
def folder(series, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sim")
    write_series(series, folder, "movi")
    return folder


def test_varints_are_protobufs():
    def plain(value):
        code = bytearray()
        while value > 127:
            code.append(value & 127 | 128)
            value >>= 7
        return bytes([*code, value])

    values = np.array([0, 1, 127, 128, 300, 16383, 16384, 65535, 2**40])
    assert encode_varints(values) == b"".join(plain(value) for value in values.tolist())
    assert encode_varints(np.array([], dtype=np.int64)) == b""


def test_features_come_back(tmp_path):
    features = {"a": np.array([0, 5, 70000]), "b": np.array([0.5, -2.0]), "c": [b"x", b"", b"yz"]}
    path = tmp_path / "file.tfrecord"
    write_records(path, iter([example(features), example({"a": np.array([3])})]))
    shard = RecordFile(path)
    assert len(shard) == 2
    found = shard.features(0, ("a", "b", "c"))
    assert found["a"].tolist() == [0, 5, 70000]
    assert found["b"].tolist() == [0.5, -2.0]
    assert [bytes(item) for item in found["c"]] == features["c"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_pictures_survive(channels, kind):
    image = np.random.default_rng(0).integers(0, np.iinfo(kind).max, (5, 7, channels)).astype(kind)
    data = encode_png(image)
    if (channels, kind) != (3, np.uint16):
        # Pillow reads color of 16 bits as 8; the plain decoder below does not.
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))).reshape(image.shape), image)
    width, height, depth, color = struct.unpack(">IIBB", data[16:26])
    length = struct.unpack(">I", data[33:37])[0]
    lines = np.frombuffer(zlib.decompress(data[41 : 41 + length]), dtype=np.uint8).reshape(height, -1)
    rows = np.cumsum(lines[:, 1:], axis=0, dtype=np.uint8)
    assert (width, height, depth, color) == (7, 5, 8 * image.itemsize, 2 if channels == 3 else 0)
    np.testing.assert_array_equal(rows.view(np.dtype(kind).newbyteorder(">")).reshape(image.shape), image)


def test_the_reader_of_movi_f_gives_back_frames_and_flow(series, folder):
    clips = [clip for side in ("train", "val") for clip in all_of(folder, side)]
    assert len(clips) == 3
    for number in range(3):
        made = series.clip(number)
        read = next(clip for clip in clips if clip.name == made.name)
        np.testing.assert_array_equal(read.frame(2).permute(1, 2, 0).numpy(), made.picture(2))
        np.testing.assert_allclose(read.forward(2), made.flow(2, 3).offset, atol=0.01)
        np.testing.assert_allclose(read.backward(2), made.flow(2, 1).offset, atol=0.01)


def all_of(folder, side):
    try:
        clips = MoviClips.of(folder, side)
    except InputError:
        return []
    return [clips[index] for index in range(len(clips))]


def test_records_have_the_keys_and_types_of_movi_f(folder):
    golden, own = RecordFile(GOLDEN), RecordFile(sorted(folder.glob("*tfrecord*"))[0])
    names = [name for name in ALL_KEYS if len(golden.peek(0, name)) and len(own.peek(0, name))]
    assert {"video", "forward_flow", "backward_flow", "metadata/video_name"} <= set(names)
    real, made = golden.features(0, names), own.features(0, names)
    for name in names:
        assert type(made[name]) is type(real[name]), name
        if isinstance(real[name], np.ndarray):
            assert made[name].dtype == real[name].dtype, name
        elif real[name][0][:4] == b"\x89PNG":
            assert made[name][0][24:26] == real[name][0][24:26], f"{name}: bit depth and color type"


def test_work_is_shared_out_and_goes_on_where_it_stopped(series, folder, tmp_path):
    first = write_series(series, tmp_path, "movi", jobs.Shard(2, 2))
    assert [path.name for path in first] == ["sim_tiny_48-train.tfrecord-00001-of-00002"]
    assert first[0].read_bytes() == (folder / first[0].name).read_bytes()
    before = first[0].stat().st_mtime_ns
    paths = write_series(series, tmp_path, "movi")
    assert len(paths) == 2
    assert first[0].stat().st_mtime_ns == before
    assert (tmp_path / paths[0].name).read_bytes() == (folder / paths[0].name).read_bytes()


def test_clips_of_other_settings_are_not_mixed_in(series, folder):
    other = ClipSeries(series.assets, series.render, "tiny", seed=1, clips=3, per_file=2)
    with pytest.raises(InputError, match=r"\(seed was 0 and is 1; see"):
        write_series(other, folder, "movi")


def test_pickles_are_a_benchmark(series, tmp_path):
    write_series(series, tmp_path, "tapvid", tracks=20)
    dataset = load_dataset(tmp_path)
    assert len(dataset) == 3
    made = series.clip(0)
    sample = dataset[dataset.names.index(made.name)]
    truth, own = sample.truth, made.tracks(20)
    seen = truth.visible.numpy()
    np.testing.assert_allclose(truth.xy.numpy()[seen], own.xy[seen], atol=0.01)
    np.testing.assert_array_equal(seen, own.visible)
    assert sample.clip[0].shape == (3, 48, 48)
    with pytest.raises(InputError, match=r"\(tracks was 20 and is None; see"):
        write_series(series, tmp_path, "tapvid")


def test_the_command_writes_records(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(recipes.SCENE_CONFIGS, "movi", TINY)
    main(["data", "simulate", "--out", str(tmp_path), "--clips", "1", "--size", "32"])
    assert Path(capsys.readouterr().out.strip()).name == "sim_movi_32-train.tfrecord-00000-of-00001"


def test_the_command_says_what_is_missing(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["data", "simulate"])
    assert stop.value.code == 2
    assert "--out" in capsys.readouterr().err
