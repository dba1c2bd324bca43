"""TFRecord files are read exactly, and damage is named by file and record."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpa_cwm.datasets.movif import RecordFile, decode_varint, decode_varints
from lpa_cwm.errors import InputError
from lpa_cwm.simulator.clip import example
from movi_files import write


def encoded(value):
    """Protobuf's base-128 code, written the plain way."""
    value %= 2**64
    out = []
    while value > 127:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_packed_numbers_are_those_that_were_packed(values):
    data = b"".join(map(encoded, values))
    assert decode_varints(np.frombuffer(data, dtype=np.uint8)).tolist() == values


@given(st.integers(0, 2**63 - 1))
def test_single_numbers_too(value):
    data = encoded(value)
    assert decode_varint(memoryview(data + b"\xff"), 0) == (value, len(data))


FEATURES = {
    "names": [b"one", b"", b"three"],
    "floats": np.float32([0.5, -2.25, 1e30]),
    "integers": np.array([0, 1, 127, 128, 16384, 65535]),
    "nothing": np.array([], dtype=np.int64),
}


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "some.tfrecord", *(example({**FEATURES, "number": np.array([n])}) for n in range(3)))


def test_features_come_back_as_they_were(shard):
    read = RecordFile(shard)
    assert len(read) == 3
    found = read.features(1, [*FEATURES, "number"])
    assert found["names"] == FEATURES["names"]
    for name in ("floats", "integers", "nothing"):
        assert np.array_equal(found[name], FEATURES[name])
    assert [read.peek(n, "number")[0] for n in range(3)] == [0, 1, 2]


def test_only_what_is_wanted_is_decoded(shard):
    assert set(RecordFile(shard).features(0, ["floats"])) == {"floats"}


def test_a_missing_feature_is_named(shard):
    with pytest.raises(InputError, match=r"some.tfrecord, record 2: it has no depth, video"):
        RecordFile(shard).features(2, ["video", "depth", "floats"])


def damaged(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def test_a_file_cut_short_is_named_with_its_record(shard):
    whole = shard.read_bytes()
    each = len(whole) // 3
    for lost, record in ((1, 2), (each - 12, 2), (each - 5, 2), (each + 3, 1), (2 * each + 20, 0)):
        shard.write_bytes(whole[:-lost])
        with pytest.raises(InputError, match=rf"some.tfrecord, record {record}: the file ends after"):
            RecordFile(shard)
    shard.write_bytes(whole[:-each])
    assert len(RecordFile(shard)) == 2


def test_a_changed_byte_is_found_and_other_records_remain(shard):
    each = shard.stat().st_size // 3
    read = RecordFile(damaged(shard, lambda data: data.__setitem__(each + 40, data[each + 40] ^ 1)))
    with pytest.raises(InputError, match=r"some.tfrecord, record 1: its checksum"):
        read.features(1, ["floats"])
    assert np.array_equal(read.features(2, ["floats"])["floats"], FEATURES["floats"])


def test_a_changed_length_is_found(shard):
    with pytest.raises(InputError, match=r"record 0: the checksum of its length"):
        RecordFile(damaged(shard, lambda data: data.__setitem__(0, data[0] ^ 1)))


def test_what_is_no_example_and_what_is_no_file(tmp_path):
    path = write(tmp_path / "odd.tfrecord", b"\x0d\x01\x02\x03\x04")
    with pytest.raises(InputError, match=r"record 0: it is not a tf.train.Example"):
        RecordFile(path).features(0, ["video"])
    with pytest.raises(InputError, match="missing or empty"):
        RecordFile(tmp_path / "none.tfrecord")
