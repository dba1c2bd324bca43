"""`lpa-cwm paper`: every table and figure is written, on whatever data there are, and a finished part is kept."""

import json

import numpy as np
import pytest

from lpa_cwm.cli.main import main
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation.compare import PAPER_VARIANTS
from lpa_cwm.metrics import METRICS
from lpa_cwm.report.tables import paper_figures
from lpa_cwm.reproduction import tables
from lpa_cwm.reproduction.figures import find_case, find_cases
from lpa_cwm.reproduction.inputs import find_data
from lpa_cwm.reproduction.parts import PARTS, find_parts
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
    row = next(line for line in text.splitlines() if "LPA-CWM (lpa)" in line)
    published = {one.metric: one.value for one in paper_figures() if (one.table, one.dataset, one.method) == ROW}
    for name in tables.MAIN:
        assert f"paper {published[name]:.2f}" in row
    assert "| SMURF | – (paper 91.98)" in text
    difference = (quick / "table_1_difference_toy_davis.csv").read_text().splitlines()
    assert difference[0].startswith("method,in_the_paper,measure,paper,ours")


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


def test_data_are_found_by_their_form(tmp_path):
    save(tmp_path / "tapvid_davis.pkl", {})
    for place in ("robotap/a.pkl", "robotap/b.pkl", "kinetics/one.csv", "movi_f/movi_f-train.tfrecord-00000-of-00001"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
    (tmp_path / "kinetics/one.csv").write_text("name,0,10" + ",0.5,0.5,0" * 250 + "\n")
    for place, other in (("tables/scores.csv", "method,DCA\nlpa,68\n"), ("photos/empty.csv", "")):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_text(other)
    found = find_data(tmp_path)
    assert [path.name for path in found.benchmarks] == ["kinetics", "robotap", "tapvid_davis.pkl"]
    assert found.train == found.val == found.held_out == tmp_path / "movi_f"
    assert find_data(tmp_path / "tapvid_davis.pkl").held_out == tmp_path / "tapvid_davis.pkl"
    with pytest.raises(InputError, match="holds no benchmark"):
        find_data(tmp_path / "movi_f")
    with pytest.raises(InputError, match="choose among table-a1"):
        find_parts(["table-9"])


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


def test_every_row_of_the_papers_ablation_has_its_variant():
    rows = {one.method for one in paper_figures() if one.table == "ablation"}
    shown = {row: variant for block in tables.BLOCKS.values() for row, variant in block.items()}
    assert set(shown) == rows
    assert set(shown.values()) == set(PAPER_VARIANTS)


def test_every_column_is_a_measure_and_every_statistic_is_described():
    assert all(name in METRICS for name in (*tables.MAIN, *tables.THRESHOLDS, *tables.VISIBILITY))
    assert len(tables.STATISTICS) == 16
    assert np.isfinite([one.value for one in paper_figures()]).all()
