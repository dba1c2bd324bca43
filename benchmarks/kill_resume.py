"""Kill `lpa-cwm eval predict` at random moments, let it resume, and compare the files with those of an undisturbed run.

python benchmarks/kill_resume.py DATASET --kills 20 --options --tracker dis
"""

import argparse
import hashlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def predict(dataset, out, options):
    command = [sys.executable, "-m", "lpa_cwm.cli.main", "eval", "predict", dataset, "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def files(folder):
    """Hashes of all that counts; times never repeat and temporary files are hidden."""
    found = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in found}


def differing(one, other):
    """Names of the files that are not the same in both folders."""
    first, second = files(one), files(other)
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="all that follows goes to predict")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        start = time.perf_counter()
        assert predict(arguments.dataset, whole, arguments.options).wait() == 0
        once = time.perf_counter() - start
        print(f"undisturbed: {len(files(whole))} files in {once:.1f} s", flush=True)
        done = 0
        while done < arguments.kills:
            process = predict(arguments.dataset, broken, arguments.options)
            try:
                # Half of an undisturbed run at most, so that the last kills still find work to interrupt.
                process.wait(timeout=rng.uniform(0.05, 0.5) * once)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
                print(f"kill {done}: {len(list(broken.glob('*.npz')))} predictions there", flush=True)
            else:
                print("finished before the kill; beginning anew", flush=True)
                assert not differing(broken, whole), differing(broken, whole)
                for path in broken.glob("*.npz"):
                    path.unlink()
        assert predict(arguments.dataset, broken, arguments.options).wait() == 0
        other = differing(broken, whole)
        left = len(list(broken.rglob(".*")))
        print(f"{done} kills; of {len(files(whole))} files these differ: {other}; temporary files left behind: {left}")
        sys.exit(bool(other))


if __name__ == "__main__":
    main()
