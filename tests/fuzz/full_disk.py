"""Run commands on a disk that becomes full at one write after another, then with room again; needs root on Linux.

    python tests/fuzz/full_disk.py                       # every command that writes files, 12 sizes each
    python tests/fuzz/full_disk.py --only train --sizes 40

The free space of a small disk goes from nothing to what the command needs. Each time the command must end with the
system's sentence, leave no temporary file and nothing that is half written; run again with enough room, it must write
what an undisturbed run writes.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from kills import CACHE, COMMANDS, EXACT, contents, import_all, start, wait, write_inputs

TRACK = "track --world toy --masks 2 --adjudicator uniform --points 9,9@12"
OTHERS = {
    "track, tables": f"{TRACK} --save {{out}}/t.csv",
    "track, arrays": f"{TRACK} --save {{out}}/t.npz",
    "track, video": f"{TRACK} --out {{out}}/t.mp4",
    "track, WebM": f"{TRACK} --out {{out}}/t.webm",
    "track, GIF": f"{TRACK} --out {{out}}/t.gif",
    "explain": "explain --world toy --masks 2 --adjudicator uniform --target 1 --out {out}/e.png",
    "eval audit": "eval audit {cache} --out {out}/a.png",
    "eval report": "eval report {run} --out {out}",
    "data cache": CACHE,
}
BLOCK = 4096
SAID = b"No space left on device"
MEGABYTES = 512


def fill(disk, free):
    """Leave this many blocks free."""
    with (disk / "filler").open("wb", buffering=0) as file:
        usage = shutil.disk_usage(disk)
        os.posix_fallocate(file.fileno(), 0, max(1, usage.free // BLOCK - free) * BLOCK)


def differing(found, whole):
    """Names of files that are there, but not as an undisturbed run writes them; logs grow, so they are left out."""
    return {
        name
        for name, data in found.items()
        if name in whole and whole[name] != data and not name.endswith((".jsonl", "checkpoint.pt", "sweep.json"))
    }


class Trial:
    """One command on a disk that becomes full."""

    def __init__(self, command, places, disk, scratch):
        self.command, self.disk, self.said = command, disk, scratch / "said.txt"
        self.places = places | {"out": disk / "out"}
        self.full, self.bad = 0, []

    def run(self):
        self.said.unlink(missing_ok=True)
        (self.disk / "out").mkdir(exist_ok=True)
        return wait(start(self.command, self.places, self.said))

    def undisturbed(self):
        """What two runs without trouble agree on, and the largest number of blocks that they have."""
        made = []
        for _ in range(2):
            code = self.run()
            assert code == 0, self.said.read_text()
            made.append(contents(self.disk / "out"))
            used = sum(-(-path.stat().st_size // BLOCK) + 1 for path in (self.disk / "out").rglob("*"))
            shutil.rmtree(self.disk / "out")
        self.whole = {name: data for name, data in made[0].items() if made[1].get(name) == data}
        assert not [name for name in made[0] if Path(name).suffix in EXACT and name not in self.whole]
        return used

    def disturbed(self, free):
        """Run with this many free blocks, then with enough."""
        (self.disk / "out").mkdir()
        fill(self.disk, free)
        code, said = self.run(), self.said.read_bytes().splitlines()[-1:]
        found = contents(self.disk / "out")
        hidden = [path for path in (self.disk / "out").rglob("*") if path.name.startswith(".")]
        if code:
            self.full += 1
            if code != 1 or not said or SAID not in said[0] or b"Traceback" in self.said.read_bytes():
                self.bad.append((free, "ended otherwise", code, said))
        if hidden or differing(found, self.whole):
            self.bad.append((free, "left", [path.name for path in hidden], differing(found, self.whole)))
        (self.disk / "filler").unlink()
        code, found = self.run(), contents(self.disk / "out")
        if code or any(found.get(name) != data for name, data in self.whole.items()):
            self.bad.append((free, "with room again", code, self.said.read_bytes().splitlines()[-1:]))
        shutil.rmtree(self.disk / "out")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=12)
    parser.add_argument("--only", nargs="*", default=(), help="beginnings of names")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import_all()
    alone = {name: words for name, (words, count) in COMMANDS.items() if count == 1 and "Ray" not in name}
    alone |= OTHERS
    names = [name for name in alone if not arguments.only or name.startswith(tuple(arguments.only))]
    bad = full = 0
    print("| command | sizes | disk full | wrong |\n|---|" + "---:|" * 3)
    with tempfile.TemporaryDirectory() as folder:
        places = write_inputs(Path(folder))
        places["run"] = Path(folder, "run")
        for words in ("eval predict {data} --tracker static --out {run}", "eval score {run}"):
            assert wait(start(words, places, Path(folder, "said.txt"))) == 0
        disk = Path(folder, "disk")
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(disk)], check=True)
        try:
            for name in names:
                trial = Trial(alone[name], places, disk, Path(folder))
                used = trial.undisturbed()
                draw = random.Random(name)
                sizes = sorted({0, 1, 2, 3, *(draw.randrange(2 * used) for _ in range(arguments.sizes - 4))})
                for free in sizes:
                    trial.disturbed(free)
                print(f"| {name} | {len(sizes)} | {trial.full} | {len(trial.bad)} |", flush=True)
                for line in trial.bad[:4]:
                    print(name, *line, file=sys.stderr, flush=True)
                bad, full = bad + len(trial.bad), full + trial.full
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)
    print(f"{full} full disks in {len(names)} commands; {bad} ended otherwise than they should")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
