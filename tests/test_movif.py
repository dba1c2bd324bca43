"""MOVi-F records: exact against a file of TensorFlow's, flow signs checked."""

from pathlib import Path

import numpy as np
import pytest

from lpa_cwm.datasets.movif import MoviClips, RecordFile, check_flow_sign, read_clip, round_trip_error, rounded_targets
from lpa_cwm.errors import InputError
from lpa_cwm.synth.pairs import split_of
from lpa_cwm.training.pair_sampling import training_pairs
from movi_files import HIGH, LOW, drift, write

GOLDEN = Path(__file__).parent / "golden"
QUANTUM = (HIGH - LOW) / 65535


def test_a_file_written_by_tensorflow_is_read_exactly():
    records = RecordFile(GOLDEN / "movi_f-train.tfrecord-00000-of-00001")
    with np.load(GOLDEN / "movi_f_reference.npz") as reference:
        for number in range(len(records)):
            clip = read_clip(records, number)
            assert np.array_equal(clip.levels["forward"], reference["ff"][number])
            assert np.array_equal(clip.levels["backward"], reference["bf"][number])
            for t in range(24):
                assert np.array_equal(clip.frame(t).permute(1, 2, 0), reference["video"][number, t])
            low, high = clip.ranges["forward"]
            dy = reference["ff"][number, 3, :, :, 0] / 65535 * (high - low) + low
            assert np.allclose(clip.forward(3)[..., 1], dy, atol=1e-4)


def test_flows_that_have_nothing_to_do_with_each_other_are_refused():
    clip = read_clip(RecordFile(GOLDEN / "movi_f-train.tfrecord-00000-of-00001"), 0)
    with pytest.raises(InputError, match="does not belong to its forward flow"):
        check_flow_sign(clip, "golden")


@pytest.mark.parametrize("side", [128, 256, 512])
def test_flow_is_dx_dy_and_backward_flow_leads_back(tmp_path, side):
    clip = read_clip(RecordFile(write(tmp_path / "a", drift((3.0, -5.0), side, frames=2))), 0)
    assert (clip.size, len(clip), clip.name) == (side, 2, "7")
    assert np.allclose(clip.forward(0), (3, -5), atol=QUANTUM)
    assert np.allclose(clip.backward(1), (-3, 5), atol=QUANTUM)
    check_flow_sign(clip, "here")


def test_the_other_sign_is_refused_with_file_and_record(tmp_path):
    write(tmp_path / "x-train.tfrecord-0", drift((3.0, -5.0)), drift((3.0, -5.0), name="8", sign=-1))
    clips = [MoviClips.of(tmp_path, split) for split in {split_of("7"), split_of("8")}]
    with pytest.raises(InputError, match=r"x-train.tfrecord-0, record 1: the backward flow has the opposite sign"):
        [group[index] for group in clips for index in range(len(group))]


def test_a_scene_that_stands_still_has_no_sign_to_check(tmp_path):
    check_flow_sign(read_clip(RecordFile(write(tmp_path / "a", drift((0.1, 0.0), sign=-1))), 0), "here")


def test_counts_that_do_not_fit_are_refused(tmp_path):
    from lpa_cwm.simulator.clip import example

    bounds = np.float32([0, 1])
    flow = np.zeros(2 * 4 * 4, dtype=np.int64)
    features = {"forward_flow": flow, "backward_flow": flow[:-2], "video": [b"x"], "metadata/video_name": [b"1"]}
    ranges = {"metadata/forward_flow_range": bounds, "metadata/backward_flow_range": bounds}
    with pytest.raises(InputError, match="do not fit together"):
        read_clip(RecordFile(write(tmp_path / "a", example({**features, **ranges}))), 0)


def test_targets_and_round_trip_error_against_loops():
    rng = np.random.default_rng(0)
    forward, backward = (rng.normal(0, 3, (9, 9, 2)).astype(np.float32) for _ in range(2))
    forward[2, 3] = np.nan
    forward[4, 4, 1] = np.inf
    target, inside = rounded_targets(forward)
    error = round_trip_error(forward, backward)
    for y in range(9):
        for x in range(9):
            dx, dy = forward[y, x]
            fine = np.isfinite(dx) and np.isfinite(dy)
            column, row = (int(np.floor(x + 0.5 + dx)), int(np.floor(y + 0.5 + dy))) if fine else (-1, -1)
            assert inside[y, x] == (0 <= column < 9 and 0 <= row < 9)
            if inside[y, x]:
                assert target[y, x].tolist() == [column, row]
                expected = np.hypot(dx + backward[row, column, 0], dy + backward[row, column, 1])
                assert error[y, x] == pytest.approx(expected, rel=1e-5)
            else:
                assert np.isnan(error[y, x])


def test_clips_are_split_by_the_name_of_their_video(tmp_path):
    write(tmp_path / "m-train.tfrecord-0", *(drift((1.0, 0.0), 8, frames=2, name=str(n)) for n in range(30)))
    names = [{entry.name for entry in MoviClips.of(tmp_path, split).entries} for split in ("train", "val")]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 30
    with pytest.raises(InputError, match="0 records in 0 files"):
        MoviClips.of(tmp_path, "train", "*.nothing")


def test_the_cache_leaves_official_validation_shards_out(tmp_path):
    train = [str(number) for number in range(40) if split_of(str(number)) == "train"]
    for records, name in (("train", train[0]), ("validation", train[1])):
        write(tmp_path / f"movi_f-{records}.tfrecord-00000-of-00001", drift((2.0, 1.0), 64, name=name))
    assert list(training_pairs(tmp_path).videos) == [train[0]]
