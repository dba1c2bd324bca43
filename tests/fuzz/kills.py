"""Kill commands at random moments, run them again, and compare the files with those of undisturbed runs.

    python tests/fuzz/kills.py                       # every command, 6 kills each
    python tests/fuzz/kills.py --only paper --kills 20

A command runs in a process that is forked from this one after all imports, so that kills hit its work. It is killed and
started again until it ends by itself; then its files are compared, removed, and it begins anew. Files that two
undisturbed runs write differently hold times and are not compared; arrays, weights and data sets are never among them.
"""

import argparse
import importlib
import importlib.util
import os
import pkgutil
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import lpa_cwm
from lpa_cwm.cli.main import main as run_command

PREDICT = "eval predict {data} --world toy --adjudicator uniform --masks 2 --out {out}"
CACHE = "data cache {train} --world toy --masks 2 --pairs 2 --queries 3 --gaps 1 2 --out {out}"
TRAIN_WORLD = "train world {pairs} --stages 0:64:1 --steps 6 --cooldown 2 --save-every 1 --out {out}"
PAPER = (
    "paper --data {folder} --methods static uniform lpa --world toy --masks 2 --steps 4 --sweep-queries 2 --out {out}"
)
COMMANDS = {
    "eval predict": (PREDICT, 1),
    "eval predict, two processes": (PREDICT, 2),
    "eval predict, Ray, 1 worker": (PREDICT + " --executor ray --workers 1", 1),
    "eval predict, Ray, 2 workers": (PREDICT + " --executor ray --workers 2", 1),
    "eval compare": ("eval compare {data} --world toy --methods uniform static --masks 2 --out {out}", 1),
    "data cache": (CACHE, 1),
    "data cache, two processes": (CACHE, 2),
    "data cache, Ray, 2 workers": (CACHE + " --executor ray --workers 2", 1),
    "data simulate, records": ("data simulate --clips 4 --per-file 1 --size 32 --out {out}", 1),
    "data simulate, two processes": ("data simulate --clips 4 --per-file 1 --form tapvid --size 32 --out {out}", 2),
    "train lpa": ("train lpa {cache} --steps 12 --batch 4 --save-every 2 --out {out}", 1),
    "train score": ("train score --photos {photos} --steps 12 --batch 1 --crop 16 --save-every 2 --out {out}", 1),
    "train world, 1 worker": (TRAIN_WORLD + " --workers 1", 1),
    "train world, 2 workers": (TRAIN_WORLD + " --workers 2", 1),
    "train confidence": ("train confidence {data} --world toy --adjudicator uniform --out {out}", 1),
    "train confidence, two processes": ("train confidence {data} --world toy --adjudicator uniform --out {out}", 2),
    "eval sweep": ("eval sweep {data} --world toy --adjudicator uniform --videos 1 --queries 1 --out {out}", 1),
    "paper": (PAPER + " --only table-1 table-2 table-d1 figure-4", 1),
}
"""Words of each command, and how many processes run it at once in one folder."""
EXACT = {".npz", ".npy", ".pkl", ".safetensors"}
"""Files that must never differ."""
SECONDS = re.compile(rb'("\w*seconds": )[\d.e+-]+')
"""Times inside of text, which two undisturbed runs may by chance have in common."""


def import_all():
    """Import what commands import when they run, so that no kill is spent on that."""
    for module in pkgutil.walk_packages(lpa_cwm.__path__, "lpa_cwm."):
        if not re.search(r"\.(page|torchmetrics|__main__)\b", module.name):
            importlib.import_module(module.name)


def write_inputs(folder):
    """Data sets, photographs, a cache and frame pairs that the commands read."""
    import numpy as np
    from PIL import Image

    from lpa_cwm.synth.pair_shards import FILES, SHARD_PAIRS, SIZE

    spec = importlib.util.spec_from_file_location(
        "example", Path(__file__).parents[2] / "examples/train_my_adjudicator.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name in ("paper/train", "paper/val", "photos", "pairs/00000_hard"):
        (folder / name).mkdir(parents=True)
    example.write_videos(folder / "data.pkl", [f"clip{index}" for index in range(8)], tracks=3)
    example.write_videos(folder / "paper/toy_davis.pkl", ["one", "two"], tracks=3)
    example.write_videos(folder / "paper/train/clips.pkl", [f"toy{index}" for index in range(17, 23)], tracks=3)
    example.write_videos(folder / "paper/val/clips.pkl", ["val1", "val2"], tracks=3)
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(
            folder / f"photos/photo_{number:02}.png"
        )
    side = SIZE // 4
    arrays = {"frames": rng.integers(0, 256, (SHARD_PAIRS, 2, 3, SIZE, SIZE), dtype=np.uint8)}
    arrays["flow"] = rng.normal(size=(SHARD_PAIRS, 2, side, side)).astype(np.float16)
    arrays["visible"] = np.ones((SHARD_PAIRS, side, side), bool)
    for name, array in arrays.items():
        np.save(folder / "pairs/00000_hard" / FILES[name], array)
    places = {"data": folder / "data.pkl", "folder": folder / "paper", "train": folder / "paper/train"}
    places |= {name: folder / name for name in ("photos", "pairs", "cache")}
    assert wait(start(CACHE, places | {"out": places["cache"]}, folder / "said.txt")) == 0
    return places


def start(command, places, said):
    """Run a command in a forked process with a session of its own; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = 1
    try:
        run_command(command.format(**places).split())
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        os._exit(code or 0)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ended(pid, seconds):
    """The exit code of a process if it ends in time, else None."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def contents(folder):
    """Bytes of all files by name, times taken out; hidden ones are temporary."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    # The list of the paper's parts has their times in a table.
    named = {str(path.relative_to(folder)): path for path in paths if path.name != "index.md"}
    return {name: SECONDS.sub(rb"\g<1>0", path.read_bytes()) for name, path in named.items()}


@dataclass
class Trial:
    """One command, killed again and again."""

    command: str
    processes: int
    places: dict
    scratch: Path
    rng: random.Random
    kills: int = 0
    compared: int = 0
    files: int = 0
    differing: set = field(default_factory=set)
    left: int = 0
    failed: int = 0
    reference: dict = field(default_factory=dict)

    def undisturbed(self):
        """Run twice; keep the files that both runs agree on, and the time of the first."""
        begin = time.monotonic()
        made = []
        for name in ("first", "second"):
            self.failed += wait(self.run(name)) != 0
            made.append(contents(self.scratch / name))
            self.seconds = time.monotonic() - begin if name == "first" else self.seconds
        first, second = made
        self.reference = {name: data for name, data in first.items() if second.get(name) == data}
        exact = {name for name in first | second if Path(name).suffix in EXACT or ".tfrecord-" in name}
        self.differing |= exact - self.reference.keys()
        self.files = len(self.reference)

    def run(self, name):
        return start(self.command, self.places | {"out": self.scratch / name}, self.scratch / "said.txt")

    def killed(self, most):
        """Kill until there were enough kills and a run has ended."""
        complete = False
        while self.kills < most or not complete:
            running = [self.run("killed") for _ in range(self.processes)]
            codes = [self.end(pid, self.kills < most) for pid in running]
            complete = all(code == 0 for code in codes)
            self.failed += any(code not in (0, None) for code in codes)
            if complete:
                self.compare()
            if self.failed > 3:
                return

    def end(self, pid, kill):
        """The exit code of a process, or None if it was killed."""
        code = ended(pid, self.rng.uniform(0.02, 0.9) * self.seconds) if kill else wait(pid)
        if code is None:
            # The process alone, as the out-of-memory killer does, or with all that it started.
            (os.kill if self.rng.random() < 0.5 else os.killpg)(pid, signal.SIGKILL)
            wait(pid)
            self.kills += 1
        return code

    def compare(self):
        """Compare what is there with the undisturbed run, and begin anew."""
        found = contents(self.scratch / "killed")
        self.differing |= {name for name, data in self.reference.items() if found.get(name) != data}
        self.left += sum(path.name.startswith(".") for path in (self.scratch / "killed").rglob("*"))
        self.compared += 1
        shutil.rmtree(self.scratch / "killed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(), help="beginnings of names")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import_all()
    names = [name for name in COMMANDS if not arguments.only or name.startswith(tuple(arguments.only))]
    if importlib.util.find_spec("ray") is None:
        names = [name for name in names if "Ray" not in name]
    total, bad = 0, 0
    print("| command | kills | runs compared | files | differ | temporary files left | failed |\n|---|" + "---:|" * 6)
    with tempfile.TemporaryDirectory() as folder:
        places = write_inputs(Path(folder))
        for name in names:
            scratch = Path(folder, "trials", name.replace(" ", "-"))
            scratch.mkdir(parents=True)
            trial = Trial(*COMMANDS[name], places, scratch, random.Random(f"{arguments.seed}/{name}"))
            trial.undisturbed()
            trial.killed(arguments.kills)
            counts = (trial.kills, trial.compared, trial.files, len(trial.differing), trial.left, trial.failed)
            print(f"| {name} | " + " | ".join(map(str, counts)) + " |", flush=True)
            if trial.differing or trial.failed:
                lines = (scratch / "said.txt").read_text().splitlines()[-3:]
                print(sorted(trial.differing)[:5], lines, file=sys.stderr, flush=True)
            total += trial.kills
            bad += bool(trial.differing or trial.failed or trial.left or not trial.files)
    print(f"{total} kills of {len(names)} commands; {bad} commands with differing files, failures or leftovers")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
