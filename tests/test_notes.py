"""The scripts that renew pages of the documentation find the places that they write to."""

import importlib.util
import sys
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reproduction_notes.md"


@pytest.fixture(scope="module")
def notes():
    """The script of the notes as a module."""
    spec = importlib.util.spec_from_file_location("notes", ROOT / "benchmarks/notes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["notes"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["notes"]


def test_every_part_of_the_notes_has_its_table_on_the_page(notes, tmp_path):
    """Writing a table changes nothing but the lines between its two comments."""
    page = tmp_path / "page.md"
    for part in get_args(notes.Name):
        page.write_text(PAGE.read_text())
        notes.replace_table(page, part, ["", "| new |"])
        before, after = (
            PAGE.read_text().split(f"<!-- figures: {part} -->")[0],
            PAGE.read_text().split(f"<!-- end: {part} -->")[1],
        )
        assert page.read_text() == f"{before}<!-- figures: {part} -->\n\n| new |\n\n<!-- end: {part} -->{after}"
        between = PAGE.read_text().split(f"<!-- figures: {part} -->")[1].split(f"<!-- end: {part} -->")[0]
        assert f"`--part {part}`" in between


def test_a_page_without_the_place_is_refused(notes, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="lacks <!-- figures: gain -->"):
        notes.replace_table(page, "gain", [])
    assert page.read_text() == "nothing"


def test_the_pages_of_the_paper_hold_every_part():
    """docs/paper has a file for each table and figure: CSV, Markdown and LaTeX, or PNG, all linked by its index."""
    from lpa_cwm.reproduction.parts import PARTS

    folder = ROOT / "docs/paper"
    index = (folder / "index.md").read_text()
    for part in PARTS:
        kinds = ("png",) if part.paper.startswith("Figure") else ("csv", "md", "tex")
        for kind in kinds:
            name = f"{part.name.replace('-', '_')}.{kind}"
            assert (folder / name).stat().st_size > 100, name
            assert f"({name})" in index
    linked = {line.split(")")[0] for line in index.split("](")[1:]}
    assert linked == {path.name for path in folder.iterdir()} - {"index.md"}
