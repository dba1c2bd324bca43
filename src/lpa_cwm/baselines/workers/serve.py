"""The worker's side of the protocol: runs under the user's interpreter with the external code; needs numpy and torch.

A message is eight bytes, little endian, that hold a length, and then an `.npz` archive of that many bytes. The worker
sends `protocol` once its network is loaded. After that every question gets one answer, until the pipe is closed:

    video uint8 [t h w 3], queries float32 [n 3] (t, x, y)  ->  tracks float32 [n t 2] (x, y), visible bool [n t]
    before uint8 [b h w 3], after uint8 [b h w 3]           ->  flow float32 [b 2 h w] (dx, dy)

Points are in pixels of the video, a pixel's center at +0.5. A worker whose code fails exits, and its parent reads
the reason from the standard error. These files must run under Python 3.8.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

PROTOCOL = 1


@dataclass(frozen=True)
class Setup:
    """Paths of the code and its weights, device and options."""

    checkout: str
    checkpoint: str
    device: str
    options: dict[str, str]

    def read(self) -> Any:
        """Load the checkpoint's tensors and plain options; code in it is not executed."""
        import torch

        if hasattr(torch.serialization, "add_safe_globals"):
            torch.serialization.add_safe_globals([argparse.Namespace])
        return torch.load(self.checkpoint, map_location="cpu", weights_only=True)


def send(stream: BinaryIO, arrays: dict[str, np.ndarray]) -> None:
    """Write one message."""
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # pyright: ignore[reportArgumentType]
    stream.write(struct.pack("<Q", archive.tell()))
    stream.write(archive.getbuffer())
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, np.ndarray] | None:
    """Read one message; None at the end of the stream."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    (length,) = struct.unpack("<Q", header)
    content = stream.read(length)
    if len(content) < length:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take the pipes to the parent; the external code prints to standard error and reads an empty input."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return questions, answers


def loader(name: str) -> Callable[[Setup], Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]]:
    """`load_NAME` of `methods.py`, or `load` of a script; this folder must not shadow the checkout's modules."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    ours = os.path.basename(name) == name
    script = os.path.join(folder, ("methods" if ours else name) + ".py")
    spec = importlib.util.spec_from_file_location("worker_" + name, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "load_" + name) if ours else module.load


def best_device() -> str:
    """The GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def parse_setup() -> tuple[str, Setup]:
    """The method and its setup, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method")
    for name in ("checkout", "checkpoint", "device"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--option", action="append", default=[])
    given = parser.parse_args()
    device = best_device() if given.device == "auto" else given.device
    options = dict(option.split("=", 1) for option in given.option)
    return given.method, Setup(given.checkout, given.checkpoint, device, options)


def main() -> None:
    """Load one method and answer until the pipe is closed."""
    questions, answers = private_streams()
    method, setup = parse_setup()
    answer = loader(method)(setup)
    send(answers, {"protocol": np.array(PROTOCOL)})
    while True:
        question = receive(questions)
        if question is None:
            return
        send(answers, answer(question))


if __name__ == "__main__":
    main()
