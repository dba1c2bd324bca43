"""Execute the scripts of this folder cell by cell and write them as notebooks with their outputs.

python examples/notebooks/export.py
"""

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = ("track_a_video", "score_a_tracker")


def cells(text):
    """Cells of a script: those that begin with `# %% [markdown]` are comments, the others code."""
    for number, part in enumerate(text.split("# %%")[1:]):
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            yield number, "markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
        else:
            yield number, "code", body.strip("\n")


def execute(code, names, count):
    """Outputs of a cell with its number: what it prints, and its last expression."""
    tree, printed, shown = ast.parse(code), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if shown is not None:
        data = {"text/plain": repr(shown)}
        if hasattr(shown, "_repr_html_"):
            data["text/html"] = shown._repr_html_()
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def notebook(path):
    """A script as an executed notebook, in version 4.5 of the format."""
    names, found = {"__name__": "__main__"}, []
    for number, kind, text in cells(path.read_text()):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.strip()}
        if kind == "code":
            count = 1 + sum(cell["cell_type"] == "code" for cell in found)
            cell |= {"execution_count": count, "outputs": execute(text, names, count)}
        found.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def main(names=NAMES, out=FOLDER):
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            made = {name: json.dumps(notebook(FOLDER / f"{name}.py"), indent=1) for name in names}
        finally:
            os.chdir(before)
    for name, text in made.items():
        (Path(out) / f"{name}.ipynb").write_text(text + "\n")
        print(Path(out) / f"{name}.ipynb")


if __name__ == "__main__":
    main()
