"""The scripts that renew pages of the documentation find the places that they write to."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.config import ADJUDICATORS
from lpa_cwm.errors import InputError
from lpa_cwm.report.tables import paper_figures
from tapvid_files import entries, save

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


@pytest.fixture
def davis(notes, monkeypatch):
    """The script of the DAVIS tables as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module("davis")
    del sys.modules["davis"]


def test_the_davis_tables_of_the_results_are_written_by_their_script(davis, tmp_path, capsys):
    """Every table has its place on the page, with the rows of the run; what was not run is named."""
    page = tmp_path / "results.md"
    page.write_text((ROOT / "docs/results.md").read_text())
    data = save(tmp_path / "data.pkl", entries(2, n=3, t=4))
    command = davis.Davis(data, tmp_path / "out", ("static", "lk", "dis-gaps"), world="toy", page=page)
    command.run()
    parts = {
        name: rest.split("<!-- end")[0]
        for name, rest in re.findall(r"<!-- figures: (\S+) -->(.*?<!-- end)", page.read_text(), re.DOTALL)
    }
    assert set(parts) >= {"davis", "davis-minus", "davis-direct", "davis-halves"}
    rows = [line.split(" | ")[0].strip("| ") for line in parts["davis"].splitlines() if line.startswith("| `")]
    assert rows == [
        "`static`",
        "`lk`",
        "`dis-gaps`",
        *(f"`{name}`, direct" for name in ADJUDICATORS),
        *(f"`{name}`" for name in ADJUDICATORS),
    ]
    assert re.search(r"Not run here: .*`raft-things`", parts["davis"])
    assert parts["davis-minus"].count("| `") == 4
    assert parts["davis-halves"].count(" / ") == 25
    assert "Direct, LPA minus uniform weights: DCA " in parts["davis-direct"]


def paper_value(method, metric, dataset="DAVIS", kind="main"):
    rows = {(one.table, one.dataset, one.method, one.metric): one.value for one in paper_figures()}
    return rows[kind, dataset, method, metric]


def test_sentences_outside_the_tables_have_no_figures_but_the_papers():
    """What is measured is between the comments, which the script renews; so no sentence grows stale."""
    text = re.sub(r"<!-- figures: .*?<!-- end: \w+ -->", "", PAGE.read_text(), flags=re.DOTALL)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    gains = [paper_value(f"{name} + Win.", "dca_avg", kind="ablation") for name in ("Uniform", "APA", "LPA")]
    plain = [paper_value(f"{name} + Std.", "dca_avg", kind="ablation") for name in ("Uniform", "APA", "LPA")]
    gains = [new - old for new, old in zip(gains, plain, strict=True)]
    dca = [paper_value(name, "dca_avg") for name in ("Uniform CWM", "APA-CWM", "LPA-CWM")]
    papers = {*(f"{value:.2f}" for value in dca), f"{dca[1] - dca[0]:.2f}", f"{min(gains):.1f}", f"{max(gains):.1f}"}
    decimals = set(re.findall(r"\d+\.\d+", text.replace("Section 3.4", "")))
    # The masking rate and the visibility threshold are settings.
    assert decimals - {"89.9", "0.05"} <= papers
    assert papers <= decimals
    assert not re.search(r"\d+ of \d+", text)


def test_parts_are_kept_and_belong_to_their_settings(notes, tmp_path, monkeypatch, capsys):
    """A second run measures nothing; other settings need another folder."""
    made = []
    monkeypatch.setattr(notes.Notes, "total", lambda self, pairs: made.append(len(pairs)) or ["| table |"])
    monkeypatch.setattr(notes.Notes, "pairs", [])
    command = notes.Notes(tmp_path / "data.pkl", ("total",), work=tmp_path / "work")
    monkeypatch.setattr(notes.Notes, "sample", "A sample")
    command.run()
    command.run()
    assert made == [0]
    assert capsys.readouterr().out.count("| table |") == 2
    with pytest.raises(InputError, match="videos was 20 and is 3"):
        replace(command, videos=3).run()


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


def test_the_protocol_page_counts_the_parameters_that_there_are():
    def count(**options):
        return sum(parameter.numel() for parameter in LPA(**options).parameters())

    text = (ROOT / "docs/protocol.md").read_text()
    both, head = count(visibility_head=True, path=True), count(visibility_head=True) - count()
    for number in (count(), both, head):
        assert f"{number:,}" in text
    assert set(re.findall(r"\d,\d{3},\d{3}", text)) == {f"{count():,}", f"{both:,}"}
