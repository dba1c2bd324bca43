"""Arrays and containers come back exactly; whatever else a pickle asks for is refused by name and never called."""

import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
from collections import OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest

from lpa_cwm.errors import InputError
from lpa_cwm.io import safe_load

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
    found = safe_load.load_pickle(path)
    assert np.array_equal(found, array)
    assert found.dtype == pickle.loads(path.read_bytes()).dtype
    assert found.shape == array.shape


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_containers_come_back(tmp_path, protocol):
    value = {"a": [1, 2.5, "x", b"y", None, True], "b": (1, {2, 3}, frozenset({4})), "c": OrderedDict(z=1)}
    value["scalars"] = [np.float32(1.5), np.int64(-3), np.bool_(True)]
    assert safe_load.load_pickle(save(tmp_path / "a.pkl", value, protocol)) == value


def test_the_names_of_older_numpy_are_understood(tmp_path):
    new = pickle.dumps(ARRAYS["float"], 2)
    (tmp_path / "a.pkl").write_bytes(new.replace(b"numpy._core", b"numpy.core"))
    assert np.array_equal(safe_load.load_pickle(tmp_path / "a.pkl"), ARRAYS["float"])


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
        safe_load.load_pickle(tmp_path / "a.pkl")
    assert not (tmp_path / "called").exists()


def test_a_dtype_cannot_be_turned_into_pointers(tmp_path):
    state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 8, 0)
    forged = b"cnumpy\ndtype\n(VS8\nI00\nI01\ntR" + pickle.dumps(state, 0)[:-1] + b"b."
    (tmp_path / "a.pkl").write_bytes(forged)
    with pytest.raises(InputError, match="structured"):
        safe_load.load_pickle(tmp_path / "a.pkl")


def test_object_arrays_are_never_made_from_raw_bytes(tmp_path):
    make = b"cnumpy.core.numeric\n_frombuffer\n(C\x08AAAAAAAAcnumpy\ndtype\n(VO8\nI00\nI01\ntR(I1\ntVC\ntR."
    (tmp_path / "a.pkl").write_bytes(make)
    with pytest.raises(InputError):
        safe_load.load_pickle(tmp_path / "a.pkl")


def test_truncation_anywhere_gets_a_sentence(tmp_path):
    whole = pickle.dumps({"video": ARRAYS["video"], "points": ARRAYS["float"], "names": ["a"]}, 4)
    for end in range(len(whole)):
        (tmp_path / "a.pkl").write_bytes(whole[:end])
        with pytest.raises(InputError, match="no complete pickle"):
            safe_load.load_pickle(tmp_path / "a.pkl")


def test_random_damage_never_escapes(tmp_path):
    rng = np.random.default_rng(0)
    whole = np.frombuffer(pickle.dumps({"video": ARRAYS["jpegs"], "points": ARRAYS["float"]}, 4), np.uint8)
    refused = 0
    for _ in range(300):
        damaged = whole.copy()
        damaged[rng.integers(0, len(whole), 3)] = rng.integers(0, 256, 3)
        (tmp_path / "a.pkl").write_bytes(damaged.tobytes())
        try:
            safe_load.load_pickle(tmp_path / "a.pkl")
        except InputError:
            refused += 1
    assert refused > 30


def test_an_absent_file_gets_a_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        safe_load.load_pickle(tmp_path / "absent.pkl")


def raw(value):
    """The opcodes that make a value."""
    return pickletools.optimize(pickle.dumps(value, 3))[2:-1]


MAKE = b"cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + raw((0,)) + raw(b"b") + b"\x87R"
BUFFER = b"cnumpy._core.numeric\n_frombuffer\n("
HUGE = struct.pack("<Q", 2**32 - 64)


def state(shape, spec, content):
    """Set the state of the array on the stack."""
    return b"(" + raw(1) + raw(shape) + raw(np.dtype(spec)) + b"\x89" + content + b"tb"


def forged(shape, spec, content):
    """An array whose shape, dtype and content need not agree."""
    return MAKE + state(shape, spec, content)


DEEP = 250_000
"""Tuples in each other that overflow the stack when they are hashed."""
GLOBAL_BYTES, GLOBAL_BYTEARRAY = b"cbuiltins\nbytes\n", b"cbuiltins\nbytearray\n"
HOSTILE = {
    "no objects for the shape": forged((1000,), "O", b"]"),
    "too few objects": forged((3,), "O", raw([b"a", b"b"])),
    "too many objects": forged((1,), "O", raw([b"a", b"b"])),
    "objects in two dimensions": forged((1, 2), "O", raw([b"a", b"b"])),
    "objects of any type": forged((1,), "O", raw([[1]])),
    "objects as a tuple": forged((1,), "O", raw((b"a",))),
    "bytes for pointers": forged((1,), "O", raw(b"A" * 8)),
    "a buffer of pointers": BUFFER + raw(b"A" * 8) + raw(np.dtype("O")) + raw((1,)) + b"VC\ntR",
    "a scalar pointer": b"cnumpy._core.multiarray\nscalar\n" + raw(np.dtype("O")) + raw(b"A" * 8) + b"\x86R",
    "too few bytes": forged((1000,), "f8", raw(b"A" * 8)),
    "too many bytes": forged((1,), "f8", raw(b"A" * 80)),
    "text for bytes": forged((8,), "u1", raw("A" * 8)),
    "a negative dimension": forged((-1,), "f8", b"C\x00"),
    "two negative dimensions": forged((-2, -4), "f8", raw(b"A" * 64)),
    "a product that overflows": forged((2**61, 8), "f8", b"C\x00"),
    "an empty product that overflows": forged((0, 2**62, 2**62), "f8", b"C\x00"),
    "a shape of floats": forged((2.0,), "f8", raw(b"A" * 16)),
    "no dtype": MAKE + b"(" + raw((1, (1,))) + raw("f8") + b"\x89" + raw(b"A" * 8) + b"tb",
    "elements without size": b"cnumpy\ndtype\n" + raw(("S0", False, True)) + b"R",
    "a dtype with fields": b"cnumpy\ndtype\n" + raw(("i4,O", False, True)) + b"R",
    "a dtype of a dictionary": b"cnumpy\ndtype\n" + raw(({"names": ["a"], "formats": ["O"]},)) + b"R",
    "an array filled twice": forged((8,), "u1", raw(b"A" * 8)) + state((4,), "u1", raw(b"A" * 4)),
    "a view of an array": BUFFER + forged((8,), "u1", raw(b"A" * 8)) + raw(np.dtype("f8")) + raw((1,)) + b"VC\ntR",
    "entries of an array": forged((8,), "u1", raw(b"A" * 8)) + raw(0) + raw(1) + b"s",
    "a state for a function": b"c_codecs\nencode\n" + raw({"x": 1}) + b"b",
    "bytes of a number": GLOBAL_BYTES + raw((2**32,)) + b"R",
    "a bytearray of a number": GLOBAL_BYTEARRAY + raw((2**32,)) + b"R",
    "bytes by NEWOBJ": GLOBAL_BYTES + raw((2**32,)) + b"\x81",
    "long bytes": b"\x8e" + HUGE,
    "bytes longer than memory": b"\x8e" + b"\xff" * 8,
    "long bytes of 32 bits": b"B\xff\xff\xff\xff",
    "a long bytearray": b"\x96" + HUGE,
    "long text": b"\x8d" + HUGE,
    "a long number": b"\x8b\xff\xff\xff\x7f",
    "a number of negative length": b"\x8b\xff\xff\xff\xff",
    "a long string": b"T\xff\xff\xff\x7f",
    "a long frame": b"\x95" + HUGE,
    "one text copied often": raw("A" * 10**6)
    + b"q\x000"
    + (GLOBAL_BYTEARRAY + b"h\x00" + raw("latin-1") + b"\x86R") * 2000,
    "a key that overflows the stack": b"})" + b"\x85" * DEEP + b"Ns",
    "an element that overflows the stack": b"\x8f()" + b"\x85" * DEEP + b"\x90",
    "a buffer outside the file": b"\x97",
    "an object outside the file": b"Pelsewhere\n",
}
HARMLESS = {"a memo of two billion places": b"Nr\xff\xff\xff\x7f"}
PROBE = """
import resource, sys
from pathlib import Path
from lpa_cwm.io import safe_load
from lpa_cwm.errors import InputError

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, flush=True, end=" ")
    try:
        safe_load.load_pickle(path)
        print("admitted", flush=True)
    except InputError:
        print("refused", flush=True)
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_hostile_files_neither_crash_nor_fill_the_memory(tmp_path):
    names = [*HOSTILE, *HARMLESS]
    for number, content in enumerate([*HOSTILE.values(), *HARMLESS.values()]):
        (tmp_path / f"{number:03}").write_bytes(b"\x80\x05" + content + b".")
    found = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True)
    lines = [line.split() for line in found.stdout.splitlines()]
    assert found.returncode == 0, f"{names[len(lines) - 1]}: {found.stderr}"
    outcomes = {names[int(number)]: outcome for number, outcome in lines[:-1]}
    assert {name for name, outcome in outcomes.items() if outcome == "admitted"} == set(HARMLESS)
    assert len(outcomes) == len(names)
    assert int(lines[-1][1]) < 200_000, "kilobytes"


def test_an_array_of_objects_does_not_follow_its_list(tmp_path):
    grown = b"]q\x00" + raw(b"a") + b"a0" + forged((1,), "O", b"h\x00") + b"h\x00" + raw(b"b") + b"a0."
    (tmp_path / "a.pkl").write_bytes(b"\x80\x05" + grown)
    assert safe_load.load_pickle(tmp_path / "a.pkl").tolist() == [b"a"]
