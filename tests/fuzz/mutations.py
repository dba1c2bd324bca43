"""Damaging files: bytes of any format, and the values inside of JSON, NumPy, pickle, PyTorch and record files."""

import io
import json
import pickle
import struct
import zipfile
import zlib

import numpy as np
import torch

NUMBERS = (0, 1, -1, 2, 7, 127, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53, 2**62, 2**63 - 1)
VALUES = (None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x")
VALUES += ("\ud800", "a\0b", "../../x", "9" * 5000, "x" * 70_000, [], {}, [[]], [1, "2"], {"x": 1}, [None], [1e308] * 9)
DEEP = "[" * 50_000 + "]" * 50_000


def cut(rng, data):
    return data[: rng.randrange(len(data) + 1)]


def flip(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        changed[place(rng, changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def place(rng, data, room=1):
    """A position, more often near the beginning or the end, where headers and tables of contents are."""
    last = max(0, len(data) - room)
    near = min(last, 200)
    return rng.choice((rng.randint(0, last), rng.randint(0, near), rng.randint(last - near, last)))


def number(rng, data):
    """Overwrite a length, an offset or a count."""
    form = rng.choice(("B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(form)
    value = rng.choice(NUMBERS) & (256**size - 1)
    at = place(rng, data, size)
    return data[:at] + struct.pack(form, value) + data[at + size :]


def remove(rng, data):
    at = place(rng, data)
    return data[:at] + data[at + rng.choice((1, 2, 8, 100, 5000)) :]


def repeat(rng, data):
    at = place(rng, data)
    part = data[at : at + rng.choice((1, 4, 64, 1000))]
    return data[:at] + part * rng.choice((2, 3, 50)) + data[at + len(part) :]


def blank(rng, data):
    at = place(rng, data)
    size = rng.choice((1, 16, 512, 8192))
    return data[:at] + rng.choice((b"\0", b"\xff", b"A")) * min(size, len(data) - at) + data[at + size :]


def replace_all(rng, data):
    return rng.choice((b"", b"\0", b"hello\n", b"<html>", b"[]", b"{}", b"null", rng.randbytes(100), DEEP.encode()))


BYTES = (cut, cut, flip, flip, flip, number, number, number, remove, repeat, blank, replace_all)


def damage_bytes(rng, data):
    """One or several changes of bytes; most formats are damaged by nothing else."""
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        data = rng.choice(BYTES)(rng, data) if data else rng.randbytes(8)
    return data


def change_value(rng, held, values):
    """Replace, remove or rename something inside nested lists and dictionaries."""
    spots = []
    level = [held]
    while level:
        inner = level.pop()
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        spots += [(inner, key) for key in keys[:40]]
        level += [inner[key] for key in keys[:40] if isinstance(inner[key], dict | list) and inner[key]]
    if not spots:
        return rng.choice(values)
    inner, key = rng.choice(spots)
    kind = rng.randrange(6)
    if kind == 0:
        del inner[key]
    elif kind == 1 and isinstance(inner, dict):
        inner[rng.choice(("", "x", "../y", "step", "\ud800", "n" * 400))] = inner.pop(key)
    elif kind == 2:
        other, name = rng.choice(spots)
        inner[key] = other.get(name) if isinstance(other, dict) else other[name] if name < len(other) else None
    else:
        inner[key] = rng.choice(values)
    return held


def damage_json(rng, data):
    if rng.random() < 0.25:
        return damage_bytes(rng, data)
    lines = data.decode().splitlines() if data.count(b"\n{") else [data.decode()]
    at = rng.randrange(len(lines))
    held = change_value(rng, json.loads(lines[at]), VALUES)
    lines[at] = json.dumps(held)
    if rng.random() < 0.05:
        lines[at] = lines[at].replace("1", DEEP, 1)
    return "\n".join(lines).encode()


def damage_csv(rng, data):
    if rng.random() < 0.4:
        return damage_bytes(rng, data)
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = str(rng.choice(VALUES)).encode("utf-8", "replace").decode()
    if rng.random() < 0.3:
        row.append(str(rng.choice(NUMBERS)))
    return "\n".join(",".join(row) for row in rows).encode()


def strange_array(rng, array):
    """The array in another type, rank or length, or with numbers that are not finite."""
    changes = [
        lambda: array.astype(rng.choice(("f2", "f8", "i8", "u1", "?", "c8", "U4"))),
        lambda: array[..., None],
        lambda: array[:0],
        lambda: array[: len(array) // 2] if array.ndim else array,
        lambda: np.full_like(array, rng.choice((0, 1, 255))),
        lambda: np.where(np.ones_like(array, bool), np.array(rng.choice((np.nan, np.inf, -1e30, 1e30)), "f4"), 0),
        lambda: np.array(rng.choice(NUMBERS)),
        lambda: np.zeros((0, 2**40), "u1"),
        lambda: np.array([None, "x"], dtype=object),
        lambda: np.array("text"),
        lambda: array.astype(array.dtype.newbyteorder()) if array.dtype.kind in "iuf" else array,
        lambda: np.asfortranarray(array),
        lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        lambda: array.ravel(),
        lambda: np.zeros(rng.choice(((5, 5), (1, 1, 1, 1), (2**20,))), "f4"),
    ]
    return rng.choice(changes)()


def damage_npz(rng, data):
    """Replace an array, or write a header, a length or a method of packing that is a lie."""
    if rng.random() < 0.4:
        return damage_bytes(rng, data)
    with np.load(io.BytesIO(data), allow_pickle=True) as archive:
        arrays = dict(archive)
    name = rng.choice(sorted(arrays))
    buffer = io.BytesIO()
    kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    bomb = rng.random() < 0.005
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if bomb else kind, compresslevel=1) as packed:
        for key, array in arrays.items():
            if key == name and rng.random() < 0.2:
                continue
            content = io.BytesIO()
            np.lib.format.write_array(content, strange_array(rng, array) if key == name else array)
            body = content.getvalue()
            if key == name and rng.random() < 0.3:
                body = damage_bytes(rng, body[:128]) + body[128:]
            if key == name and bomb:
                body = body[:128] + bytes(260 << 20)
            packed.writestr(f"{key}.npy", body)
    return buffer.getvalue()


def damage_npy(rng, data):
    """A single array: another array, or a header that is a lie."""
    if rng.random() < 0.5:
        return damage_bytes(rng, data[:200]) + data[200:]
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, strange_array(rng, np.load(io.BytesIO(data))))
    return buffer.getvalue()


def damage_message(rng, data):
    """A length and an archive."""
    if rng.random() < 0.3:
        return damage_bytes(rng, data[:40]) + data[40:]
    body = damage_npz(rng, data[8:])
    return struct.pack("<Q", len(body)) + body


def damage_pickle(rng, data):
    """Other values in place of arrays, texts and containers."""
    if rng.random() < 0.5:
        return damage_bytes(rng, data)
    held = pickle.loads(data)
    arrays = [
        np.zeros(3),
        np.array([None]),
        np.array([b"x"], dtype=object),
        b"bytes",
        bytearray(9),
        {1: 2},
        (1,),
        2**70,
    ]
    entry = held[rng.choice(list(held))] if isinstance(held, dict) else rng.choice(held)
    if rng.random() < 0.6:
        name = rng.choice(sorted(entry))
        array = entry[name]
        entry[name] = strange_array(rng, array) if isinstance(array, np.ndarray) else rng.choice(VALUES)
    else:
        held = change_value(rng, held, (*VALUES, *arrays))
    return pickle.dumps(held, protocol=rng.choice((2, 3, 4, 5)))


def damage_safetensors(rng, data):
    """Shapes, types, offsets and texts of the table of contents."""
    if rng.random() < 0.4:
        return damage_bytes(rng, data)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    if "__metadata__" in header and rng.random() < 0.5:
        texts = header["__metadata__"]
        name = rng.choice(sorted(texts))
        texts[name] = damage_json(rng, texts[name].encode()).decode("utf-8", "replace")
    else:
        dtypes = ("F16", "F64", "I64", "BOOL", "BF16", "F8_E4M3", "C64", "U8", "X")
        header = change_value(rng, header, (*VALUES, *NUMBERS, *dtypes, [2**40, 2**40], [0], [0, 2**50]))
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def strange_tensor(rng, tensor):
    changes = [
        lambda: tensor[..., None],
        lambda: tensor[:0] if tensor.ndim else tensor,
        lambda: tensor.to(rng.choice((torch.float16, torch.complex64, torch.int64, torch.bool))),
        lambda: torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor,
        lambda: torch.zeros(1).expand(2**45),
        lambda: torch.zeros(1).expand(3, 2**31),
        lambda: torch.zeros(3, 3).to_sparse(),
        lambda: torch.zeros(3, device="meta"),
        lambda: torch.tensor(5.0),
        lambda: torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8),
    ]
    return rng.choice(changes)()


def damage_torch(rng, data):
    """Other tensors and values, in the new or the old format."""
    if rng.random() < 0.5:
        return damage_bytes(rng, data)
    held = torch.load(io.BytesIO(data), weights_only=True)
    named = held
    while isinstance(named, dict) and rng.random() < 0.8:
        inner = [value for value in named.values() if isinstance(value, dict) and value]
        if not inner:
            break
        named = rng.choice(inner)
    name = rng.choice(list(named))
    if isinstance(named[name], torch.Tensor) and rng.random() < 0.7:
        named[name] = strange_tensor(rng, named[name])
    elif rng.random() < 0.3:
        del named[name]
    else:
        named[name] = rng.choice((None, -1, 10**30, "x", b"y", [], {}, float("nan"), torch.zeros(2)))
    buffer = io.BytesIO()
    torch.save(held, buffer, _use_new_zipfile_serialization=rng.random() < 0.7)
    return buffer.getvalue()


def damage_records(rng, data):
    """Change the content of a record and repair its checksums, so that the reader does not stop at them."""
    import crc32c

    from lpa_cwm.datasets.movif import masked_crc

    if rng.random() < 0.3:
        return damage_bytes(rng, data)
    (length,) = struct.unpack("<Q", data[:8])
    record = data[12 : 12 + length]
    names = (b"video", b"forward_flow", b"metadata/forward_flow_range", b"metadata/video_name")
    if rng.random() < 0.3:
        name = rng.choice(names)
        record = record.replace(name, rng.choice(names).ljust(len(name), b"x")[: len(name)])
    elif rng.random() < 0.5:
        at = record.find(rng.choice(names))
        record = record[:at] + damage_bytes(rng, record[at : at + 60]) + record[at + 60 :]
    else:
        record = damage_bytes(rng, record)
    parts = (struct.pack("<Q", len(record)), record)
    return b"".join(part + struct.pack("<I", masked_crc(crc32c.crc32c(part))) for part in parts) + data[16 + length :]


def damage_png(rng, data):
    """Change chunks of a PNG and repair their checksums."""
    if rng.random() < 0.5 or data[:4] != b"\x89PNG":
        return damage_bytes(rng, data)
    header = bytearray(data[12:29])
    for _ in range(rng.choice((1, 2))):
        at = rng.randrange(4, 17)
        header[at] = rng.choice((0, 1, 3, 4, 16, 64, 127, 255))
    return data[:12] + bytes(header) + struct.pack(">I", zlib.crc32(header)) + data[33:]
