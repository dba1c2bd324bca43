"""The project's own rules, checked mechanically: names, sizes, docstrings; `make lint` checks style, types, layers."""

import ast
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@cache
def parsed(path):
    return ast.parse(path.read_text())


@cache
def defined(kind):
    """All functions, or all classes, with their paths."""
    nodes = ((path.relative_to(ROOT), node) for path in SOURCES for node in ast.walk(parsed(path)))
    return [(path, node) for path, node in nodes if isinstance(node, kind)]


def test_functions_are_short_and_annotated():
    for path, node in defined(ast.FunctionDef):
        length = node.end_lineno - node.lineno + 1
        assert length <= 60, f"{path}: {node.name} has {length} lines"
        assert node.returns is not None, f"{path}: {node.name} does not say what it returns"


def test_most_functions_are_very_short():
    lengths = [node.end_lineno - node.lineno + 1 for _, node in defined(ast.FunctionDef)]
    assert statistics.median(lengths) <= 10


def test_public_functions_and_classes_are_described():
    for path in SOURCES:
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.relative_to(ROOT)}: {node.name} has no docstring"


def test_no_class_name_occurs_twice():
    names = [node.name for _, node in defined(ast.ClassDef)]
    assert not {name for name, count in Counter(names).items() if count > 1}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_name_is_defined_twice_in_a_namespace(path):
    """Neither a function twice in a module, nor a name that `__init__` takes from two places."""
    names = []
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
    assert not {name for name, count in Counter(names).items() if count > 1}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_files_are_short_and_introduced(path):
    text = path.read_text()
    assert text.count("\n") <= 500
    assert ast.get_docstring(parsed(path))


def test_no_public_function_name_occurs_twice():
    """`main` alone is that of every program."""
    public = [
        node.name
        for path in SOURCES
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != "main"
    ]
    assert not {name for name, count in Counter(public).items() if count > 1}


def test_every_module_is_in_the_core_or_outside_of_it():
    """The contract `the core needs nothing of the rest`, which `make lint` checks, leaves no module out."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contract = next(one for one in contracts if one["name"] == "the core needs nothing of the rest")
    named = [*contract["source_modules"], *contract["forbidden_modules"]]
    package = ROOT / "src" / "lpa_cwm"
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(named) == sorted(f"lpa_cwm.{name}" for name in modules - {"__init__", "__main__"})


def test_no_drawers():
    forbidden = {"utils", "misc", "helpers", "common", "core", "base", "builder", "manager", "wrapper"}
    assert not {path.stem for path in SOURCES} & forbidden


@pytest.mark.parametrize("module", ["lpa_cwm", "lpa_cwm.metrics", "lpa_cwm.cli.main"])
def test_light_modules_do_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
