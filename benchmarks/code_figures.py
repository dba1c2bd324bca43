"""Figures of the code: sizes, repeated names, options, imports, and what `track` and `compare` touch.

python benchmarks/code_figures.py
"""

import ast
import inspect
import pickle
import subprocess
import sys
import tempfile
import typing
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpa_cwm.cli.main import COMMANDS
from lpa_cwm.jobs import Shard

SOURCE = Path(__file__).parents[1] / "src" / "lpa_cwm"
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef

LOAD = """
import sys, lpa_cwm
lpa_cwm.load()
print(*sorted(name for name in sys.modules if name.split(".")[0] == "lpa_cwm"))
"""
TOUCHED = """
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
import lpa_cwm
from lpa_cwm.io import safe_load

root, called, reads, load = Path(lpa_cwm.__file__).parent, set(), [], safe_load.load_pickle

def note(frame, event, argument):
    path = frame.f_code.co_filename
    # The bodies of modules and classes, which run at import, are not optimized.
    if event == "call" and path.startswith(str(root)) and frame.f_code.co_flags & CO_OPTIMIZED:
        called.add(path)

def counted(path):
    reads.append(path)
    return load(path)

safe_load.load_pickle = counted
from lpa_cwm.cli.main import main
sys.setprofile(note)
try:
    main(sys.argv[1:])
finally:
    sys.setprofile(None)
    print(f"FIGURES {len(called)} {len(reads)}")
"""


def spread(lengths):
    """Median, 95th percentile and maximum."""
    median, high, most = np.percentile(lengths, [50, 95, 100])
    return f"median {median:.0f}, 95th percentile {high:.0f}, maximum {most:.0f}"


def repeated(names):
    """How many names occur more than once."""
    again = {name: count for name, count in Counter(names).items() if count > 1}
    return f"{len(again)} ({', '.join(sorted(again)) or 'none'})"


def sizes():
    """Files, lines, functions and names."""
    paths = sorted(SOURCE.rglob("*.py"))
    files = [len(path.read_text().splitlines()) for path in paths]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in nodes if isinstance(node, FUNCTIONS)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    public = [
        (str(path.relative_to(SOURCE)), node.name)
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, FUNCTIONS) and not node.name.startswith("_")
    ]
    bodies = sum(path.name != "__init__.py" for path in paths)
    print(f"files: {len(paths)}, of which {len(paths) - bodies} `__init__.py`; lines: {sum(files)}")
    print(f"lines of a file: {spread(files)}")
    print(f"functions: {len(lengths)}; lines of a function: {spread(lengths)}")
    print(f"classes: {len(classes)}; names of more than one class: {repeated(classes)}")
    print(f"public functions: {len(public)}; names twice in one module: {repeated(public)}")
    print(f"names of public functions in more than one module: {repeated(name for _, name in public)}")


def declared(command: Any):
    """Options of a command, by the class that declares them; those of groups too."""
    types = typing.get_type_hints(command, include_extras=True)
    for entry in fields(command):
        kind = types[entry.name]
        if isinstance(kind, type) and is_dataclass(kind) and not issubclass(kind, Shard):
            yield from declared(kind)
        elif "Positional" not in repr(kind):
            owner = next(one for one in reversed(command.__mro__) if entry.name in inspect.get_annotations(one))
            yield owner.__name__, entry.name


def run(code, *arguments):
    """Standard output of Python code in a process of its own."""
    result = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr)
    return result.stdout


def touched(*command):
    """Files with a function that a command calls, and how often it reads a data set."""
    last = run(TOUCHED, *command).splitlines()[-1]
    return map(int, last.split()[1:])


def main():
    sizes()
    options = {one for command in COMMANDS.values() for one in declared(command)}
    print(f"commands: {len(COMMANDS)}; options: {len(options)}")
    modules = run(LOAD).split()
    print(f"modules imported by `load()`: {len(modules)}, of baselines: {sum('baselines' in name for name in modules)}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        video = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
        entry = {"video": video, "points": np.full((2, 3, 2), 0.5, np.float32), "occluded": np.zeros((2, 3), bool)}
        (out / "data.pkl").write_bytes(pickle.dumps({"one": entry}))
        files, _ = touched("track", "--grid", "1", "--end", "3", "--save", out / "tracks.csv")
        print(f"files touched by `track`: {files}")
        small = ["--masks", "2", "--frames", "2"]
        methods = ["--methods", "uniform", "lpa", "static"]
        files, reads = touched("eval", "compare", out / "data.pkl", *methods, *small, "--out", out / "all")
        print(f"files touched by `eval compare`: {files}; the data set is read {reads} time(s)")


if __name__ == "__main__":
    main()
