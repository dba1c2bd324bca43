"""Arrays and containers come back exactly; whatever else a pickle asks for is refused by name and never called."""

import io
import os
import pickle
from collections import OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm.errors import InputError
from lpa_cwm.io import safe_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def save(path, value, protocol=4):
    path.write_bytes(pickle.dumps(value, protocol))
    return path


ARRAYS = {
    "float": np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32),
    "big endian": np.arange(5, dtype=">f8"),
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "bool": np.array([[True, False]]),
    "video": np.random.default_rng(1).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8),
    "jpegs": np.array([b"\xff\xd8abc\xff\xd9", b"\xff\xd8\xff\xd9"]),
    "objects": np.array([b"\xff\xd8abc", b"x", None], dtype=object),
    "names": np.array(["a", "bcd"]),
    "nothing": np.zeros((0, 7, 2), np.float32),
    "not contiguous": np.arange(20)[::3],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back(tmp_path, name, protocol):
    array = ARRAYS[name]
    path = save(tmp_path / "a.pkl", array, protocol)
    found = safe_pickle.load(path)
    assert np.array_equal(found, array)
    assert found.dtype == pickle.loads(path.read_bytes()).dtype
    assert found.shape == array.shape


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_containers_come_back(tmp_path, protocol):
    value = {"a": [1, 2.5, "x", b"y", None, True], "b": (1, {2, 3}, frozenset({4})), "c": OrderedDict(z=1)}
    value["scalars"] = [np.float32(1.5), np.int64(-3), np.bool_(True)]
    assert safe_pickle.load(save(tmp_path / "a.pkl", value, protocol)) == value


def test_the_names_of_older_numpy_are_understood(tmp_path):
    new = pickle.dumps(ARRAYS["float"], 2)
    (tmp_path / "a.pkl").write_bytes(new.replace(b"numpy._core", b"numpy.core"))
    assert np.array_equal(safe_pickle.load(tmp_path / "a.pkl"), ARRAYS["float"])


class Calls:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


REFUSED = {
    "system": (Calls(os.system, "touch called"), f"{os.system.__module__}.system"),
    "eval": (Calls(eval, "open('called', 'w')"), "eval"),
    "getattr": (Calls(getattr, "x", "upper"), "getattr"),
    "path": (Path("x"), "pathlib"),
    "deque": (deque([1]), "collections.deque"),
    "array's friends": (Calls(np.load, "x"), "numpy.load"),
    "structured": (np.zeros(2, [("a", "i4")]), "V4"),
    "subclass": (np.ma.masked_array([1]), "numpy.ma"),
    "other codecs": (Calls(io.text_encoding, "x"), "io.text_encoding"),
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused_by_name(tmp_path, monkeypatch, name, protocol):
    monkeypatch.chdir(tmp_path)
    value, sentence = REFUSED[name]
    save(tmp_path / "a.pkl", {"video": [value]}, protocol)
    with pytest.raises(InputError, match=sentence):
        safe_pickle.load(tmp_path / "a.pkl")
    assert not (tmp_path / "called").exists()


def test_a_dtype_cannot_be_turned_into_pointers(tmp_path):
    state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 8, 0)
    forged = b"cnumpy\ndtype\n(VS8\nI00\nI01\ntR" + pickle.dumps(state, 0)[:-1] + b"b."
    (tmp_path / "a.pkl").write_bytes(forged)
    with pytest.raises(InputError, match="structured"):
        safe_pickle.load(tmp_path / "a.pkl")


def test_object_arrays_are_never_made_from_raw_bytes(tmp_path):
    make = b"cnumpy.core.numeric\n_frombuffer\n(C\x08AAAAAAAAcnumpy\ndtype\n(VO8\nI00\nI01\ntR(I1\ntVC\ntR."
    (tmp_path / "a.pkl").write_bytes(make)
    with pytest.raises(InputError):
        safe_pickle.load(tmp_path / "a.pkl")


def test_truncation_anywhere_gets_a_sentence(tmp_path):
    whole = pickle.dumps({"video": ARRAYS["video"], "points": ARRAYS["float"], "names": ["a"]}, 4)
    for end in range(len(whole)):
        (tmp_path / "a.pkl").write_bytes(whole[:end])
        with pytest.raises(InputError, match="no complete pickle"):
            safe_pickle.load(tmp_path / "a.pkl")


def test_random_damage_never_escapes(tmp_path):
    rng = np.random.default_rng(0)
    whole = np.frombuffer(pickle.dumps({"video": ARRAYS["jpegs"], "points": ARRAYS["float"]}, 4), np.uint8)
    refused = 0
    for _ in range(300):
        damaged = whole.copy()
        damaged[rng.integers(0, len(whole), 3)] = rng.integers(0, 256, 3)
        (tmp_path / "a.pkl").write_bytes(damaged.tobytes())
        try:
            safe_pickle.load(tmp_path / "a.pkl")
        except InputError:
            refused += 1
    assert refused > 30


def test_an_absent_file_gets_a_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        safe_pickle.load(tmp_path / "absent.pkl")
