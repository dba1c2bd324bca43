"""Commands that cannot be carried out, and what is said about each.

`python tests/bad_invocations.py` prints the exit code and the sentence of every command. Each one is run in a folder
of its own, which holds an empty file `here`.
"""

import contextlib
import io
import os
import tempfile
from pathlib import Path

from lpa_cwm.cli.main import BAD_INPUT, main

BAD_INVOCATIONS = [
    ("track --masks 0", "whole number from 1 to"),
    ("track --sharpness nan", "number above 0"),
    ("track --visibility-threshold inf", "number from 0"),
    ("track --grid 100000", "whole number from 1 to 300"),
    ("track --device gpu", "expected auto, cpu, cuda"),
    ("track --device cuda:99", "no device cuda:99"),
    ("track --world nonsense", "choose one of toy, learned"),
    ("track --adjudicator foo", "uniform, apa, lpa, or a baseline by --tracker: static"),
    ("track --tracker foo", "'foo' is not a known"),
    ("track --tracker lpa", "--adjudicator lpa"),
    ("track --tracker static --adjudicator lpa", "give one of them"),
    ("track --tracker static --masks 3 --weights w", "does not take --weights, --masks"),
    ("track --tracker static --world learned", "does not take --world"),
    ("track --tracker static --score_model=compact --no-subpixel", "does not take --score-model, --subpixel"),
    ("eval predict d --out r --tracker lk --preset default", "does not take --preset"),
    ("track --adjudicator apa --weights here", "--weights is for lpa, but the adjudicator is apa"),
    ("explain --score-model compact", "--score-model is for apa, but the adjudicator is lpa"),
    ("track --out a.txt", "must end in"),
    ("track --save here/t.csv", "is a file, not a folder"),
    ("page --port 70000", "from 1 to 65535"),
    ("data cache d --out c --gaps 5 2", "1 <= MIN <= MAX"),
    ("data cache d --out c --world nonsense", "not a known world model"),
    ("data simulate --out s --shard 3/2", "1 <= I <= N"),
    ("data fetch nonsense", "not a known download"),
    ("eval compare d --out r --methods lpa nonsense", "'nonsense' is not a known"),
    ("eval audit c --out figure.txt", "must end in"),
    ("train lpa c --steps 0", "from 1 to"),
    ("train lpa c --clip nan", "or inf"),
    ("train lpa c --rate 0", "above 0"),
    ("track --batch 0", "whole number from 1 to"),
    ("track --device mps", "no device mps"),
    ("track https://example.org/clip.mp4", "https://example.org/clip.mp4 is an address; download it first"),
    ("track rtsp://example.org/live", "is an address; download it first"),
    ("track absent.mp4", "There is no absent.mp4"),
    ("track here", "here is not a video that FFmpeg can open (Invalid data found when processing input)"),
    ("track --points 4,3 --grid 2", "give one of them"),
    ("track --points 999,3", "not inside the frame"),
    ("track --points 9,3@999", "frames 0 to 15"),
    ("track --object 5,5,2,2", "x0 < x1"),
    ("track --object 1..5,5,2,2", "neither a box"),
    ("track --start 15", "at least two"),
    ("track --tracker static --backward --batch 2", "does not take --batch"),
    ("track --tracker opt-cwm --score-model adm", "does not take --score-model"),
    ("track --format coco", "which was not given"),
    ("track --save t.csv --format coco", "must end in .json"),
    ("track camera:0 --tracker lk", "streams are tracked by our tracker"),
    ("track camera:0 here", "a stream is tracked alone"),
    ("track camera:99 --world toy", "There is no camera 99"),
    ("explain --target 99", "before frame 16"),
    ("explain --target 1 --point 3,4@5", "after the point's frame 5"),
    ("eval score here", "expected"),
    ("eval score absent --dataset absent.pkl", "expected"),
    ("eval predict absent.pkl --out r", "absent.pkl"),
    ("eval report absent", "absent"),
]
"""Words of a command, and a part of the sentence."""


def run(words: str) -> tuple[int, str]:
    """Exit code and what is written to stderr; 0 if the command ends by itself."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words.split())
        except SystemExit as stop:
            return int(stop.code or 0), said.getvalue()
    return 0, said.getvalue()


def print_exit_codes() -> None:
    """A line for each command, and how many are refused with one sentence and nothing written."""
    refused = 0
    for words, part in BAD_INVOCATIONS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("here").touch()
            code, said = run(words)
            clean = os.listdir() == ["here"]
        refused += code == BAD_INPUT and part in said and said.count("\n") == 1 and clean
        print(f"{code}  lpa-cwm {words}\n   {said.strip()}")
    print(f"{refused} of {len(BAD_INVOCATIONS)}: exit code {BAD_INPUT}, one sentence, nothing written")


if __name__ == "__main__":
    print_exit_codes()
