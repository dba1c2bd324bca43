"""The project's own rules, checked mechanically: style, types, layers, sizes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
BIN = Path(sys.executable).parent


def run(*command: str) -> None:
    result = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_style_is_ruffs():
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")


def test_types_satisfy_pyright():
    run("pyright")


def test_layers_are_in_order():
    run("lint-imports", "--no-cache")


def functions():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(ROOT), node


def test_functions_are_short_and_annotated():
    for path, node in functions():
        length = node.end_lineno - node.lineno + 1
        assert length <= 60, f"{path}: {node.name} has {length} lines"
        assert node.returns is not None, f"{path}: {node.name} does not say what it returns"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_files_are_short_and_introduced(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    assert ast.get_docstring(ast.parse(text))


def test_no_drawers():
    forbidden = {"utils", "misc", "helpers", "common", "core", "base", "builder", "manager", "wrapper"}
    assert not {path.stem for path in SOURCES} & forbidden


@pytest.mark.parametrize("module", ["lpa_cwm", "lpa_cwm.metrics", "lpa_cwm.cli.main"])
def test_light_modules_do_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
