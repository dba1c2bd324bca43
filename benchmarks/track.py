"""Time and peak memory of `lpa-cwm track` on clips of several lengths, each in a process of its own.

python benchmarks/track.py --frames 64 640 [-- --adjudicator uniform --masks 1 --passes 0]
"""

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lpa_cwm.io.video import write
from lpa_cwm.registry import bundled_clip


@dataclass(frozen=True)
class Track:
    """Follow a grid of points through the bundled clip, played to and fro for as long as asked."""

    options: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Further options of `lpa-cwm track`, after two dashes."""
    frames: tuple[int, ...] = (64,)
    grid: int = 8

    def run(self):
        clip = bundled_clip("learned")
        there = list(range(len(clip)))
        swing = there + there[-2:0:-1]
        # The largest child so far is what the system remembers, so the shortest clip goes first.
        for count in sorted(self.frames):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "clip.mp4"
                write(path, (clip[swing[i % len(swing)]] for i in range(count)), 12.0)
                verb = ["track", str(path), "--grid", str(self.grid), "--save", str(Path(folder) / "tracks.csv")]
                begin = time.perf_counter()
                command = [sys.executable, "-c", "from lpa_cwm.cli.main import main; main()", *verb, *self.options]
                subprocess.run(command, check=True, capture_output=True)
                spent = time.perf_counter() - begin
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
            print(f"{count} frames, {self.grid**2} points: {spent:.0f} s, at most {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    tyro.cli(Track).run()
