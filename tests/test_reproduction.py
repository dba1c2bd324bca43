"""`lpa-cwm paper`: every table and figure is written, on whatever data there are, and a finished part is kept."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lpa_cwm.cli.main import main
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.compare import PAPER_VARIANTS
from lpa_cwm.metrics import METRICS
from lpa_cwm.report.tables import paper_figures
from lpa_cwm.reproduction import parts, tables
from lpa_cwm.reproduction.cases import find_case, find_cases, second_mode, spread_of
from lpa_cwm.reproduction.figures import color_of
from lpa_cwm.reproduction.index import describe_accuracy, describe_audit, describe_literal
from lpa_cwm.reproduction.inputs import PaperData, PaperRun, find_data
from lpa_cwm.reproduction.parts import PARTS, costs, find_parts
from lpa_cwm.reproduction.tables import ADAPTERS, label_of
from tapvid_files import entries, save
from test_examples import example

pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
PUBLISHED = {"Table 1", "Table 2", "Table A.1", "Table C.1", "Table C.2", "Table D.1"}
PUBLISHED |= {f"Figure {number}" for number in ("1", "3", "4", "5", "6", "A.1", "C.1", "E.1", "F.1")}
"""All of the paper but Figure 2, a drawing of the method."""
QUICK = ["table-a1", "table-d1", "table-1", "table-c1", "table-c2", "figure-4", "figure-5", "figure-c1"]
SMALL = ["--world", "toy", "--masks", "2", "--sweep-queries", "2", "--steps", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A benchmark that is called as one of the paper's, and motion data."""
    here = tmp_path_factory.mktemp("data")
    write = example("train_my_adjudicator").write_videos
    write(here / "toy_davis.pkl", ["one", "two"], tracks=3)
    for part, names in (("train", [f"toy{index}" for index in range(17, 21)]), ("val", ["val1", "val2"])):
        (here / part).mkdir()
        write(here / part / "clips.pkl", names, tracks=3)
    return here


@pytest.fixture(scope="module")
def made(folder, tmp_path_factory):
    """Everything, made once."""
    out = tmp_path_factory.mktemp("out")
    main(["paper", "--data", str(folder), "--out", str(out), "--methods", "static", "uniform", "apa", "lpa", *SMALL])
    return out


@pytest.fixture(scope="module")
def quick(folder, tmp_path_factory):
    """Parts that need few predictions."""
    out = tmp_path_factory.mktemp("quick")
    data, only = str(folder / "toy_davis.pkl"), ["--only", *QUICK, "--videos", "one", "--max-tracks", "1"]
    main(["paper", "--data", data, "--out", str(out), "--methods", "static", "uniform", "lpa", *SMALL, *only])
    return out


def test_every_table_and_figure_is_a_part():
    assert {part.paper for part in PARTS} == PUBLISHED


def check_files(made, parts):
    index = (made / "index.md").read_text()
    for part in parts:
        stem = part.name.replace("-", "_")
        for suffix in ("pdf", "png") if part.paper.startswith("Figure") else ("csv", "md", "tex"):
            path = made / f"{stem}.{suffix}"
            assert path.stat().st_size > 100, path
            assert f"({path.name})" in index
        assert f"| {part.paper} |" in index
    assert "| toy_davis |" in index
    assert "lpa-cwm" in index


def test_parts_are_written(quick):
    check_files(quick, find_parts(QUICK))


@pytest.mark.slow
def test_all_parts_are_written_after_a_training(made):
    check_files(made, PARTS)


def test_our_figures_stand_beside_the_papers(quick):
    """The cell of Table 1 is the mean of the run's scores, and its small print the published figure."""
    scores = json.loads((quick / "runs/toy_davis/runs/lpa/scores.json").read_text())
    assert scores
    text = (quick / "table_1.md").read_text()
    row = next(line for line in text.splitlines() if "| LPA-CWM |" in line)
    published = {one.metric: one.value for one in paper_figures() if (one.table, one.dataset, one.method) == ROW}
    for name in tables.MAIN:
        assert re.search(rf"\({published[name]:.2f}[;)]", row)
    assert "| SMURF | – (91.98)" in text


@pytest.mark.parametrize("name", ["table_1", "table_c1", "table_c2"])
def test_every_table_has_paper_ours_and_difference_in_columns(quick, name):
    """For each of our rows that the paper has, and each measure: the published figure and the gap to ours."""
    kind = {"table_1": "main", "table_c1": "thresholds", "table_c2": "visibility"}[name]
    with (quick / f"{name}_difference.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    asked = [one for one in paper_figures() if (one.table, one.dataset) == (kind, "DAVIS")]
    ours = {"Uniform CWM", "LPA-CWM"}
    assert {row["method"].partition(" (")[0] for row in rows} == ours
    assert [float(row["paper"]) for row in rows] == [one.value for one in asked if one.method in ours]
    for row in rows:
        if row["ours"]:
            assert float(row["difference"]) == pytest.approx(float(row["ours"]) - float(row["paper"]), abs=1e-5)


ROW = ("main", "DAVIS", "LPA-CWM")


@pytest.mark.slow
def test_the_ablation_has_the_papers_rows(made):
    text = (made / "table_2.md").read_text()
    rows = {one.method for one in paper_figures() if one.table == "ablation"}
    assert all(f"| {row} |" in text for row in rows)
    assert (made / "training/full/lpa.safetensors").exists()


def test_the_same_command_goes_on_and_other_settings_are_refused(quick, folder, capsys):
    before = (quick / "table_1.csv").stat().st_mtime_ns
    (quick / "figure_5.png").unlink()
    words = ["paper", "--data", str(folder / "toy_davis.pkl"), "--out", str(quick), "--videos", "one", "--max-tracks"]
    words += ["1", "--methods", "static", "uniform", "lpa", *SMALL]
    main([*words, "--only", "table-1", "figure-5", "--json"])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["paper"] for one in told] == ["Table 1", "Figure 5"]
    assert (quick / "figure_5.png").exists()
    assert (quick / "table_1.csv").stat().st_mtime_ns == before
    with pytest.raises(SystemExit):
        main([*words, "--passes", "0"])
    assert "settings.passes was 1 and is 0" in capsys.readouterr().err


def test_a_dry_run_lists_cost_and_what_is_missing_and_writes_nothing(tmp_path, capsys):
    write = example("train_my_adjudicator").write_videos
    data = write(tmp_path / "toy.pkl", ["one"], tracks=2)
    main(["paper", "--data", data, "--out", str(tmp_path / "out"), *SMALL, "--dry-run", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert {part["paper"] for part in plan["parts"]} == PUBLISHED
    by_name = {part["name"]: part for part in plan["parts"]}
    assert by_name["table-1"]["seconds"] > 0
    assert "Data without DAVIS, Kinetics, RoboTAP." in by_name["table-1"]["lacks"]
    assert "No training: 6 rows only." in by_name["table-2"]["lacks"]
    assert "toy instead" in by_name["figure-6"]["lacks"]
    assert "bundled LPA" in by_name["figure-e1"]["lacks"]
    assert "cotracker3" in plan["baselines"]
    assert not (tmp_path / "out").exists()


def test_rows_of_every_world_model_are_in_the_plan(tmp_path, monkeypatch):
    data = example("train_my_adjudicator").write_videos(tmp_path / "toy.pkl", ["one"], tracks=2)
    seconds = {"ToyWorld": 1.0, "LearnedWorld": 5.0}
    monkeypatch.setattr(
        parts,
        "estimate_cost",
        lambda tracker, *_: SimpleNamespace(seconds=seconds[type(tracker.world).__name__], targets=1),
    )
    run = PaperRun(PaperData((Path(data),)), tmp_path, "toy", methods=("uniform", "lpa"))
    both = replace(run, methods=("uniform", "lpa", "uniform@learned", "static"))
    # One re-evaluation of each adjudicator after a first pass that both share.
    assert costs(both)["runs"] / costs(run)["runs"] == pytest.approx((1.5 * 1 + 5) / 1.5)
    assert costs(both)["sweep"] == costs(run)["sweep"]


OTHER_TABLES = {
    "tables/scores.csv": "method,DCA\nlpa,68\n",
    "photos/empty.csv": "",
    "kinetics/scores.csv": "video,DCA\nname,68\n",
    "own.csv": "frame,point,x,y,visible\n0,0,3.5,2.5,1\n",
    "export/tracks.csv": "scorer,a,a\n0,1.5,2.5\n",
}
"""Tables that are no benchmarks, also beside the table of Kinetics."""


def test_data_are_found_by_their_form(tmp_path):
    save(tmp_path / "tapvid_davis.pkl", {})
    for place in ("robotap/a.pkl", "robotap/b.pkl", "kinetics/one.csv", "movi_f/movi_f-train.tfrecord-00000-of-00001"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
    (tmp_path / "kinetics/one.csv").write_text("name,0,10" + ",0.5,0.5,0" * 250 + "\n")
    found = find_data([tmp_path])
    assert [path.name for path in found.benchmarks] == ["tapvid_davis.pkl", "robotap"]
    assert found.left_out == (f"{tmp_path}/kinetics/one.csv is left out: none of its clips is in its folder or below.",)
    (tmp_path / "kinetics/name_000000_000010.mp4").touch()
    for place, other in OTHER_TABLES.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(other)
    found = find_data([tmp_path])
    assert [path.name for path in found.benchmarks] == ["tapvid_davis.pkl", "kinetics", "robotap"]
    assert found.left_out == ()
    assert found.train == found.val == found.held_out == tmp_path / "movi_f"
    assert find_data([tmp_path / "kinetics"]).benchmarks == (tmp_path / "kinetics/one.csv",)
    assert find_data([tmp_path / "tapvid_davis.pkl"]).held_out == tmp_path / "tapvid_davis.pkl"
    both = find_data([tmp_path / "robotap/a.pkl", tmp_path])
    assert [path.name for path in both.benchmarks] == ["tapvid_davis.pkl", "kinetics", "robotap", "a.pkl"]
    with pytest.raises(InputError, match="holds no benchmark"):
        find_data([tmp_path / "movi_f"])
    with pytest.raises(InputError, match="choose among table-a1"):
        find_parts(["table-9"])


def test_a_row_may_ask_another_world_model(tmp_path):
    """So the literal Eq. 1, `learned-total`, stands beside the default in every table, with the same settings."""
    run = PaperRun(PaperData((tmp_path / "data.pkl",)), tmp_path, weights=tmp_path / "lpa.safetensors")
    own, literal = run.method("lpa"), run.method("lpa@learned-total")
    assert (own.row, own.world) == ("lpa", "learned")
    assert (literal.row, literal.world) == ("lpa (learned-total)", "learned-total")
    assert (literal.settings, literal.weights) == (own.settings, own.weights)


def test_cases_are_chosen_by_truth_alone(tmp_path):
    """Same query frame, all visible in the target, five at most, and the latest such frame."""
    data = load_dataset(save(tmp_path / "data.pkl", entries(4, n=9, t=8)))
    for name in data.names:
        case = find_case(data, name)
        sample = case.sample
        assert set(sample.queries.frame[case.rows].tolist()) == {case.source}
        assert sample.truth.visible[case.rows, case.target].all()
        assert len(case.rows) == 5
        asked = sample.queries.frame == case.source
        later = sample.truth.visible[asked].sum(0)[case.target + 1 :]
        assert (later < 5).all()
    assert [case.video for case in find_cases([data], 2)] == [data.names[0], data.names[2]]
    more = find_cases([data], 6)
    assert [case.video for case in more[:4]] == data.names
    assert all(case.target - case.source <= (more[0].target - more[0].source) for case in more[4:])
    assert len({(case.video, case.target) for case in more}) == len(more)


def test_every_row_of_the_papers_ablation_has_its_variant():
    rows = {one.method for one in paper_figures() if one.table == "ablation"}
    shown = {row: variant for block in tables.BLOCKS.values() for row, variant in block.items()}
    assert set(shown) == rows
    assert set(shown.values()) == set(PAPER_VARIANTS)


def test_every_column_is_a_measure_and_every_statistic_is_described():
    assert all(name in METRICS for name in (*tables.MAIN, *tables.THRESHOLDS, *tables.VISIBILITY))
    assert len(tables.STATISTICS) == 16
    assert np.isfinite([one.value for one in paper_figures()]).all()


def rows_of_latex(text):
    """Rows of the body, without what leads them."""
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    return [line for line in body.splitlines() if line.endswith(r"\\") and not line.startswith(r"\multicolumn")]


@pytest.mark.parametrize("name", ["table_1", "table_c1", "table_c2", "table_a1", "table_d1", "figure_5"])
def test_latex_is_balanced_and_every_row_is_complete(quick, name):
    """Braces and environments match, and each row has a cell for every column; no compiler is needed to see that."""
    text = (quick / f"{name}.tex").read_text()
    plain = re.sub(r"\\[{}%&$#_]", "", text.replace(r"\\", " "))
    assert plain.count("{") == plain.count("}")
    assert plain.replace("$$", "").count("$") % 2 == 0
    assert re.findall(r"\\begin\{(\w+\*?)\}", text) == re.findall(r"\\end\{(\w+\*?)\}", text)[::-1]
    types = re.search(r"\\begin\{tabularx?\}(?:\{\\linewidth\})?\{(.*?)\}\n", text)[1].replace("|", "")
    rows = rows_of_latex(text)
    assert rows
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(types) - 1, row


def test_tables_are_laid_out_as_the_papers(quick):
    """Groups over columns, the data set beside its rows, our rows shaded; data sets side by side in Table C.2."""
    main_table, visibility = ((quick / f"{name}.tex").read_text() for name in ("table_1", "table_c2"))
    assert r"\multicolumn{7}{c}{\textbf{CMC (Ours)}} & \multicolumn{5}{c}{\textbf{TAP-Vid First}}" in main_table
    assert r"\rotatebox{90}{\textbf{toy\_davis}}" in main_table
    shaded = [row for row in rows_of_latex(main_table) if r"\rowcolor{blue!10}" in row]
    assert [re.search(r"& ([^&]*CWM)", row)[1] for row in shaded] == ["Uniform CWM", "APA-CWM", "LPA-CWM"]
    assert r"\multicolumn{4}{c}{\textbf{toy\_davis}}" in visibility
    assert all(f"{name} & " in visibility for name in ("SMURF", "CoTracker3", "Static point", "LPA-CWM"))


def test_the_page_says_what_came_out_beside_the_paper(quick):
    """Sentences are made from the tables of the run, so that they are true of it."""
    index = (quick / "index.md").read_text()
    order = re.findall(r"^## ((?:Table|Figure) [\w.]+):", index, re.MULTILINE)
    assert order == [
        "Table 1",
        "Figure 4",
        "Figure 5",
        "Table A.1",
        "Figure C.1",
        "Table C.1",
        "Table C.2",
        "Table D.1",
    ]
    assert "| LPA-CWM |" in index
    rows = [
        {"dataset": "DAVIS", "method": name, "measure": "DCA ↑", "ours": ours, "paper": paper}
        for name, ours, paper in (
            ("Uniform CWM", "40", "36.87"),
            ("APA-CWM", "39", "55.79"),
            ("LPA-CWM", "45", "58.98"),
        )
    ]
    (said,) = describe_accuracy(rows)
    assert "on DAVIS: 40.0, 39.0 and 45.0; in the paper 36.9, 55.8 and 59.0." in said
    assert "LPA minus uniform: +5.0; in the paper +22.1." in said
    assert list(describe_accuracy([row | {"ours": ""} for row in rows])) == []
    audited = {"adjudicator": "lpa", "epe": "1.5", "epe_low": "1.234", "epe_high": "2"}
    (said,) = describe_audit([audited, {"adjudicator": "best of M", "epe": "0.8", "epe_low": "", "epe_high": ""}])
    assert said.endswith("px: lpa 1.50 (1.23 … 2.00), best of M 0.80.")
    literal = [{"dataset": "a", "method": name, "dca_avg": dca} for name, dca in (("LPA-CWM", "50"), (TOTAL, "20"))]
    assert list(describe_literal(literal)) == [
        "Eq. 1 literally (`learned-total`) against motion held fixed, DCA on a: 20.0 against 50.0 (LPA-CWM)."
    ]


TOTAL = "LPA-CWM (learned-total)"


def test_a_method_has_one_color_and_the_papers_name():
    assert color_of("lpa (learned-total)") == color_of("lpa")
    assert len({color_of(name) for name in (*ADAPTERS, "uniform", "apa", "lpa", "lk")}) == 10
    assert [label_of(name) for name in ("lpa", "lpa (learned-total)", "sea-raft", "dis-gaps")] == [
        "LPA-CWM",
        TOTAL,
        "SEA-RAFT",
        "dis-gaps",
    ]


def test_the_second_mode_is_apart_from_the_peak():
    values = torch.full((64, 64), 0.01)
    values[10, 10], values[12, 10], values[50, 50] = 1.0, 0.9, 0.5
    assert second_mode(values) == pytest.approx(0.49)
    assert second_mode(torch.full((64, 64), 0.5)) == 0
    assert spread_of(torch.nn.functional.pad(torch.ones(1, 1), (5, 6, 3, 4))) == 0
    pair = torch.zeros(8, 8)
    pair[2, 3], pair[2, 7] = 1.0, 1.0
    assert spread_of(pair) == pytest.approx(2.0)
