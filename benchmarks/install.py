"""Time from `pip install` of the wheel to the first track, in a fresh environment of each Python, outside the checkout.

    pip wheel --no-deps -w dist .
    python benchmarks/install.py dist/lpa_cwm-*.whl --python python3.11 python3.12 python3.13

Wall time, and in parentheses processor time. The installation is mostly the download of torch; it depends on the
network and on the cache of pip.
"""

import argparse
import resource
import subprocess
import tempfile
import time
from pathlib import Path

IMPORT = "import time; start = time.perf_counter(); import lpa_cwm; print(time.perf_counter() - start)"
REPEATS = 5


def seconds(*words: object, cwd: Path) -> tuple[float, float]:
    """Wall time and processor time of a command that must succeed."""
    before, start = processor_seconds(), time.perf_counter()
    subprocess.run([str(word) for word in words], cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, processor_seconds() - before


def processor_seconds() -> float:
    """Processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def both(taken: tuple[float, float]) -> str:
    """Wall time, and in parentheses processor time."""
    return f"{taken[0]:.0f} s ({taken[1]:.0f} s)"


def best(*words: object, cwd: Path) -> float:
    """The least of several times: the machine may be busy with others."""
    return min(seconds(*words, cwd=cwd)[0] for _ in range(REPEATS))


def import_seconds(python: Path, cwd: Path) -> float:
    """Seconds of `import lpa_cwm` alone, without the start of Python."""
    runs = (subprocess.run([python, "-c", IMPORT], cwd=cwd, check=True, capture_output=True) for _ in range(REPEATS))
    return min(float(run.stdout) for run in runs)


def measure(python: str, wheel: Path, torch: str | None) -> dict[str, str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        seconds(python, "-m", "venv", here / "env", cwd=here)
        ours, program = here / "env/bin/python", here / "env/bin/lpa-cwm"
        wanted = [wheel, *([torch] if torch else [])]
        install = seconds(ours, "-m", "pip", "install", "--quiet", *wanted, cwd=here)
        first = seconds(program, "track", "--points", "108,128", "--save", "tracks.csv", cwd=here)
        again = seconds(program, "track", "--points", "108,128", "--save", "tracks.csv", cwd=here)
        rows = len((here / "tracks.csv").read_text().splitlines()) - 1
        versions = "import sys, torch, av; print(sys.version.split()[0], torch.__version__, av.__version__)"
        said = subprocess.run([ours, "-c", versions], cwd=here, check=True, capture_output=True, text=True).stdout
        return {
            "Python, torch, PyAV": ", ".join(said.split()),
            "pip install": both(install),
            "first track": both(first),
            "again": both(again),
            "rows": str(rows),
            "import lpa_cwm": f"{1000 * import_seconds(ours, here):.0f} ms",
            "--version": f"{best(program, '--version', cwd=here):.2f} s",
            "--help": f"{best(program, '--help', cwd=here):.2f} s",
            "track --help": f"{best(program, 'track', '--help', cwd=here):.2f} s",
            "completion": f"{best(program, 'completion', 'bash', cwd=here):.2f} s",
        }


def main() -> None:
    """Print a Markdown table, a row for each Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=["python3"])
    parser.add_argument("--torch", help="requirement of torch, for example torch==2.13.0; by default what pip chooses")
    given = parser.parse_args()
    for number, python in enumerate(given.python):
        row = measure(python, given.wheel.resolve(), given.torch)
        if number == 0:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
