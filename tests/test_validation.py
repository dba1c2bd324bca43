"""Checks of files that others wrote: structure, arrays, names, and one sentence for whatever is wrong."""

import io
import json
import os
import threading
import zipfile
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lpa_cwm import validation
from lpa_cwm.errors import InputError
from lpa_cwm.io.safe_load import load_plain, load_weights
from lpa_cwm.io.video import read_rgb
from lpa_cwm.validation import check_array, check_name, parse_json, read_json, read_npz, reading, structure


@dataclass(frozen=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    mode: Literal["first", "strided"]
    inner: dict[str, Inner]
    pair: tuple[int, str] | None = None
    names: tuple[str, ...] = ()
    rest: list[float] = field(default_factory=list)


GOOD = {"mode": "first", "inner": {"a": {"number": 1, "share": 2}}, "pair": [1, "x"], "names": ["y"], "rest": [1, 2.5]}


def test_plain_values_become_annotated_dataclasses():
    found = structure(GOOD, Outer)
    assert found == Outer("first", {"a": Inner(1, 2.0)}, (1, "x"), ("y",), [1.0, 2.5])
    assert structure({"mode": "strided", "inner": {}}, Outer) == Outer("strided", {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "last"}, "mode is 'last'"),
        ({"inner": []}, "inner is list"),
        ({"inner": {"a": {"number": 1.0}}}, "inner.a.number is 1.0, expected int"),
        ({"inner": {"a": {"number": True}}}, "expected int"),
        ({"inner": {"a": {"share": 1}}}, "expected number, share"),
        ({"inner": {"a": {"number": 1, "x": 1}}}, "expected number, share"),
        ({"pair": [1]}, "pair"),
        ({"names": [1]}, r"names\[0\] is 1, expected str"),
        ({"rest": ["1"]}, r"rest\[0\] is '1', expected float"),
        ({"rest": [None]}, "expected float"),
    ],
)
def test_values_of_other_types_are_named(change, said):
    with pytest.raises(ValueError, match=said):
        structure(GOOD | change, Outer)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 50 + "]" * 50,
        "NaN",
        "[1e999]",
        "-Infinity",
        '{"a": 10000000000000000000}',
        '"\\ud800"',
        "{",
    ],
)
def test_json_that_nothing_could_handle_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x\.json is not a list") as refusal, reading(path, "a list", "remove it"):
        read_json(path)
    assert "\n" not in str(refusal.value)


def test_logs_may_have_numbers_that_are_not_finite():
    assert parse_json('{"loss": NaN}', finite=False)["loss"] != 0


def test_large_files_and_pipes_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(validation, "MAX_TEXT", 100)
    (tmp_path / "large").write_text("x" * 101)
    with pytest.raises(ValueError, match="at most"):
        validation.read_text(tmp_path / "large", 100)
    os.mkfifo(tmp_path / "pipe")
    refused = []

    def read():
        try:
            read_json(tmp_path / "pipe")
        except ValueError as error:
            refused.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert "regular" in str(refused[0])


def test_arrays_come_back(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6).reshape(2, 3)), "c": np.array("x")}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    found = read_npz(tmp_path / "x.npz")
    assert all(
        np.array_equal(found[name], array) and found[name].dtype == array.dtype for name, array in arrays.items()
    )
    assert set(read_npz(tmp_path / "x.npz", ("a", "z"))) == {"a"}


def npy(array, header=None):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue() if header is None else buffer.getvalue().replace(*header)


@pytest.mark.parametrize(
    "content",
    [
        npy(np.array([None])),
        npy(np.zeros(3), (b"(3,)", b"(9,)")),
        npy(np.zeros(3), (b"(3,)", b"(-3,)")),
        npy(np.zeros((3, 2)), (b"(3, 2)", b"(2**9)")),
        npy(np.zeros(3))[:-1],
        npy(np.zeros(1, [("x", "f4")])),
        b"\x93NUMPY\x03\x00",
        b"",
    ],
)
def test_arrays_whose_header_lies_are_refused(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(InputError, match=r"x\.npz is not"), reading(tmp_path / "x.npz", "an archive", "remove it"):
        read_npz(tmp_path / "x.npz")


def test_an_archive_that_unpacks_to_much_more_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(np.zeros(2**17)))
    with pytest.raises(ValueError, match="unpacks to 1048"):
        read_npz(tmp_path / "x.npz", most=2**20)


def test_rank_kind_and_finiteness_of_arrays():
    check_array(np.zeros((2, 3)), (None, 3), "f", "`a`")
    for array, said in (
        (np.zeros(3), "shape"),
        (np.zeros((2, 4)), "shape"),
        (np.zeros((2, 3), int), "int64"),
        (np.full((2, 3), np.inf), "finite"),
        ([1], "list"),
    ):
        with pytest.raises(ValueError, match=said):
            check_array(array, (None, 3), "f", "`a`")


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "x" * 241, "é" * 41, 7, b"x", None])
def test_names_that_cannot_be_file_names(name):
    with pytest.raises(InputError, match="is called"):
        check_name(name, "A video")


def test_pictures_of_many_pixels_and_odd_formats_are_refused(tmp_path, monkeypatch):
    from lpa_cwm.io import video

    Image.new("RGB", (20, 10)).save(tmp_path / "x.png")
    Image.new("RGB", (20, 10)).save(tmp_path / "x.eps")
    assert read_rgb(tmp_path / "x.png", "x").shape == (10, 20, 3)
    with pytest.raises(InputError, match="not a picture"):
        read_rgb(tmp_path / "x.eps", "x")
    monkeypatch.setattr(video, "MAX_PIXELS", 199)
    with pytest.raises(InputError, match="20x10 pixels"):
        read_rgb(tmp_path / "x.png", "x")


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(1).expand(2**45), torch.zeros(3, 3).to_sparse(), torch.zeros(3, device="meta")],
    ids=["expanded", "sparse", "meta"],
)
def test_tensors_larger_than_their_file_are_refused(tmp_path, tensor):
    torch.save({"a": [tensor]}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="tensor"):
        load_plain(tmp_path / "x.pt")


def test_weights_must_fit_in_name_shape_kind_and_be_finite(tmp_path):
    network = torch.nn.Linear(2, 1)
    good = network.state_dict()
    path = tmp_path / "x.safetensors"
    for change, said in (
        ({"weight": torch.zeros(2, 2)}, "1 tensors differ, first weight"),
        ({"bias": torch.tensor([torch.nan])}, "bias has numbers that are not finite"),
        ({"bias": torch.tensor([1])}, "bias holds torch.int64"),
        ({"more": torch.zeros(1)}, "first more"),
    ):
        save_file(good | change, path)
        with pytest.raises(InputError, match=said):
            load_weights(network, path, "a network", "give another")
    save_file({name: value.half() for name, value in good.items()}, path)
    load_weights(network, path, "a network", "give another")
    assert network.weight.dtype == torch.float32
    path.write_bytes((2**40).to_bytes(8, "little") + json.dumps({}).encode())
    with pytest.raises(InputError, match="header is longer"):
        load_weights(network, path, "a network", "give another")
