"""Peak memory of tracking and of the page: clips of several lengths and sizes, few and many points, 1 and 20 clients.

python benchmarks/memory.py
python benchmarks/memory.py --only points page

Each figure is the largest resident memory of a process of its own. The world model is the default one.
"""

import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

import lpa_cwm as lc
from lpa_cwm.io import video

sys.path.append(str(Path(__file__).parents[1] / "tests"))
CLIENTS = 20


@dataclass(frozen=True)
class Case:
    """A clip, points and settings."""

    group: str
    name: str
    frames: int = 3
    side: tuple[int, int] = (256, 256)
    points: int = 16
    settings: tuple[tuple[str, Any], ...] = ()
    """Those that differ from the world model's own."""
    tracker: str = "lpa"
    native: bool = False
    """Let a baseline work at the size of the clip."""


# 2,000 frames are to take minutes: one mask, no earlier frames, no re-evaluation.
FEW = {"points": 1, "settings": (("masks", 1), ("gaps", ()), ("passes", 0))}
TEN_MASKS = (("masks", 10),)
HUGE = (2160, 3840)
CASES = [
    Case("length", "64 frames, 1 point", frames=64, **FEW),
    Case("length", "2,000 frames, 1 point", frames=2000, **FEW),
    Case("points", "16 points, 10 masks", settings=TEN_MASKS),
    Case("points", "4,096 points, 10 masks", points=4096, settings=TEN_MASKS),
    Case("size", "256 x 256, 16 points"),
    Case("size", "3840 x 2160, 16 points", side=HUGE),
    Case("DIS", "DIS, 256 x 256", tracker="dis"),
    Case("DIS", "DIS, 3840 x 2160, as listed (works at 256 x 256)", side=HUGE, tracker="dis"),
    Case("DIS", "DIS, 3840 x 2160, at the clip's size", side=HUGE, tracker="dis", native=True),
]


def moving_frames(count, side):
    """Blocks of random colors that move to the right."""
    height, width = side
    draw = torch.Generator().manual_seed(0)
    wide = torch.randint(0, 256, (3, height // 16 + 1, width // 16 + 4), generator=draw, dtype=torch.uint8)
    wide = wide.repeat_interleave(16, 1).repeat_interleave(16, 2)
    for number in range(count):
        shift = number % 32
        yield wide[:, :height, shift : shift + width].contiguous()


def track(case):
    """Track a video file in this process and print the peak in MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clip.mp4")
        # In a process of its own: encoding takes memory, too.
        subprocess.run([sys.executable, __file__, "--encode", str(path), "--case", case.name], check=True)
        clip = video.read(path)
        tracker: Any = lc.load(case.tracker, **dict(case.settings))
        if case.native:
            tracker = replace(tracker, size=None)
        xy = torch.rand(case.points, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor(clip.hw[::-1])
        tracker.track(clip, lc.Queries(xy, torch.zeros(case.points).long()))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure_page():
    """Memory of the page's process before and after its clients, in MB: each opens a clip, tracks it and leaves."""
    import test_page_security
    from test_page_security import Server

    test_page_security.PATIENCE = 1000
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Path(scratch))
        try:

            def use(tab):
                assert server.call("offer", [], tab)[0]
                assert server.call("take_bundled", ["learned"], tab)[0]
                assert server.call("fill_grid", [None, 0, False], tab)[0]
                assert server.call("run", [None, ["lpa"], [], "learned", 2, False, "track"], tab)[0]
                server.listen(f"/gradio_api/heartbeat/{tab}")

            use("first")
            alone = peak_of(server.process.pid)
            with ThreadPoolExecutor(CLIENTS) as pool:
                for done in [pool.submit(use, f"client{number}") for number in range(CLIENTS)]:
                    done.result()
            return alone, peak_of(server.process.pid)
        finally:
            server.process.terminate()
            server.process.wait()


def peak_of(pid):
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def show(name, megabytes, start):
    print(f"| {name} | {megabytes:,.0f} | {time.monotonic() - start:.0f} |", flush=True)


def main(only: tuple[str, ...] = (), case: str = "", encode: str = "") -> None:
    """Print a table.

    Args:
        only: Groups: length, points, size, DIS, page; all when empty.
        case: Measure one case in this process.
        encode: Write the clip of the case to this file instead.
    """
    torch.set_num_threads(1)
    if case:
        chosen = next(one for one in CASES if one.name == case)
        if encode:
            video.write(encode, moving_frames(chosen.frames, chosen.side), 24.0)
        else:
            track(chosen)
        return
    print("| what | peak, MB | s |\n|---|---:|---:|")
    for one in CASES:
        if not only or one.group in only:
            start = time.monotonic()
            command = [sys.executable, __file__, "--case", one.name]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            show(one.name, float(found), start)
    if not only or "page" in only:
        start = time.monotonic()
        alone, together = measure_page()
        show("the page, 1 client", alone, start)
        show(f"the page, {CLIENTS} clients at once", together, start)


if __name__ == "__main__":
    tyro.cli(main)
