"""Fuzzer of all readers: damages good files and counts what becomes of them. `make fuzz` runs it.

Inputs are read in child processes, many per child. A child that dies, takes longer than the limit or more than 1 GB
for one input is counted and, if need be, replaced. Input `number` of a reader is the same in every run with a seed:

    python tests/fuzz/fuzz.py --inputs 12000
    python tests/fuzz/fuzz.py --show "run.json" 17      # what input 17 does, with a traceback
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
RESULTS = ("ok", "refused", "traceback", "crash", "hang", "over 1 GB")
SECONDS = 10.0
"""CPU time for one input."""
WARM_UP = 60.0
"""CPU time for the first input of a reader in a process, which imports what the reader needs."""
IDLE = 300.0
"""Time in which a process must answer even if it does nothing."""
GIGABYTE = 10**9


def peak_memory() -> int:
    """Largest resident memory of this process since the last reset, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_one(name, number, seed, folder, scratch):
    """The result of one input, and the exception if there was an unexpected one."""
    from readers import READERS, damaged

    from lpa_cwm.errors import InputError

    to = Path(scratch) / f"{abs(hash((name, number)))}"
    try:
        path = damaged(name, number, seed, Path(folder), to)
        reset_peak()
        before = peak_memory()
        try:
            READERS[name].read(path)
            result = "ok", ""
        except InputError as error:
            result = ("refused", "") if "\n" not in str(error) else ("traceback", f"several lines: {error}")
        except Exception:
            result = "traceback", traceback.format_exc()
        taken = peak_memory() - before
        return ("over 1 GB", f"{taken >> 20} MB") if taken > GIGABYTE else result
    finally:
        shutil.rmtree(to, ignore_errors=True)


def child(folder: str, seed: int) -> None:
    """Read the inputs named on stdin, one a line, and answer each with a line."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    # Libraries in C print about damaged files.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory() as scratch:
        for line in sys.stdin:
            name, number = json.loads(line)
            result = read_one(name, number, seed, folder, scratch)
            answers.write(json.dumps(result) + "\n")
            answers.flush()


class Child:
    """A process that reads inputs."""

    def __init__(self, folder, seed):
        command = [sys.executable, __file__, "--child", str(folder), "--seed", str(seed)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.buffer = b""
        self.asked, self.since, self.used, self.known = None, 0.0, 0.0, set()

    def ask(self, case):
        self.asked, self.since, self.used = case, time.monotonic(), self.cpu_seconds()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(case).encode() + b"\n")
            self.process.stdin.flush()

    def answer(self):
        """The result of the last input; None while it is worked on."""
        if b"\n" in self.buffer or select.select([self.process.stdout], [], [], 0)[0]:
            self.buffer += os.read(self.process.stdout.fileno(), 1 << 16)
            if b"\n" in self.buffer:
                line, _, self.buffer = self.buffer.partition(b"\n")
                self.known.add(self.asked[0])
                return json.loads(line)
            if self.process.poll() is not None:
                return "crash", f"exit code {self.process.returncode}"
        limit = SECONDS if self.asked[0] in self.known else WARM_UP
        if self.cpu_seconds() - self.used > limit or time.monotonic() - self.since > IDLE:
            return "hang", f"more than {limit} s"
        return None

    def cpu_seconds(self):
        """Time that the process has computed, whatever else the machine does."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def fuzz(cases, folder, seed, workers=2):
    """Yield each input with its result."""
    waiting = iter(cases)
    children = []
    try:
        for case in (next(waiting, None) for _ in range(workers)):
            if case:
                children.append(Child(folder, seed))
                children[-1].ask(case)
        while children:
            select.select([one.process.stdout for one in children], [], [], 0.2)
            for place, one in enumerate(list(children)):
                answer = one.answer()
                if answer is None:
                    continue
                yield one.asked, answer
                if answer[0] in ("crash", "hang"):
                    one.end()
                    children[place] = one = Child(folder, seed)
                case = next(waiting, None)
                if case:
                    one.ask(case)
                else:
                    one.end()
                    children.remove(one)
                    break
    finally:
        for one in children:
            one.end()


def cases_of(inputs, names):
    """Inputs of all readers by turns, so that a short run tries each."""
    from readers import READERS

    total = sum(READERS[name].share for name in names)
    counts = {name: max(1, round(inputs * READERS[name].share / total)) for name in names}
    cases = [((number + 0.5) / counts[name], (name, number)) for name in names for number in range(counts[name])]
    return [case for _, case in sorted(cases)]


def table(counts: dict[str, Counter]) -> str:
    """Counts of each reader, and of all."""
    rows = [*counts.items(), ("all", sum(counts.values(), Counter()))]
    lines = [f"{'reader':24}{'inputs':>8}" + "".join(f"{name:>11}" for name in RESULTS)]
    for name, found in rows:
        lines.append(f"{name:24}{found.total():8}" + "".join(f"{found[result]:11}" for result in RESULTS))
    return "\n".join(lines)


def run(inputs=10_000, seed=0, only=(), workers=2, seconds=float("inf")):
    """Counts of each reader, and the inputs that were neither read nor refused; at most for some time."""
    start = time.monotonic()
    from readers import READERS, write_seeds

    names = [name for name in READERS if not only or name in only]
    counts, bad = {name: Counter() for name in names}, []
    with tempfile.TemporaryDirectory() as folder:
        write_seeds(Path(folder), names)
        for (name, number), (result, why) in fuzz(cases_of(inputs, names), folder, seed, workers):
            counts[name][result] += 1
            if result not in ("ok", "refused"):
                bad.append((name, number, result, why))
                last = why.strip().splitlines()[-1] if why else ""
                print(f"{name} {number}: {result}: {last}", file=sys.stderr, flush=True)
            if time.monotonic() - start > seconds:
                break
    return counts, bad


def show(name: str, number: int, seed: int) -> None:
    """Read one input in this process."""
    from readers import READERS, damaged, write_seeds

    with tempfile.TemporaryDirectory() as folder:
        write_seeds(Path(folder), [name])
        READERS[name].read(damaged(name, number, seed, Path(folder), Path(folder) / "damaged"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--show", nargs=2)
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        return child(given.child, given.seed)
    if given.show:
        return show(given.show[0], int(given.show[1]), given.seed)
    start = time.monotonic()
    counts, bad = run(given.inputs, given.seed, given.only, given.workers, given.seconds)
    print(table(counts))
    print(f"{time.monotonic() - start:.0f} s, seed {given.seed}")
    return sys.exit(bool(bad))


if __name__ == "__main__":
    main()
