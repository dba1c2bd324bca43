"""The paper's figures: complete, consistent between its tables, and matched to the right methods."""

from collections import Counter, defaultdict

import pytest

from lpa_cwm.metrics import METRICS, Scores
from lpa_cwm.report.tables import ABLATIONS, figures_of, paper_figures, paper_row

DCA = [f"dca_{k}" for k in (1, 2, 4, 8, 16)]


def test_every_row_and_column_is_there():
    assert Counter(figure.table for figure in paper_figures()) == {
        "main": 3 * 9 * 12,
        "ablation": (4 + 4 + 6) * 12,
        "thresholds": 3 * 9 * 10,
        "visibility": 3 * 9 * 4,
    }
    keys = Counter((figure.table, figure.dataset, figure.method, figure.metric) for figure in paper_figures())
    assert set(keys.values()) == {1}
    assert {figure.metric for figure in paper_figures()} <= METRICS.keys()
    assert {figure.dataset for figure in paper_figures()} == {"DAVIS", "Kinetics", "RoboTAP"}


def test_percentages_are_percentages():
    assert all(0 <= figure.value <= 100 for figure in paper_figures())


def test_mean_accuracy_is_the_mean_of_its_thresholds():
    rows = defaultdict(dict)
    for figure in paper_figures():
        if figure.table == "thresholds":
            rows[figure.dataset, figure.method][figure.metric] = figure.value
    assert len(rows) == 27
    for row in rows.values():
        assert row["dca_avg"] == pytest.approx(sum(row[name] for name in DCA) / 5, abs=0.0101)
        assert sorted(row[name] for name in DCA) == [row[name] for name in DCA]
        assert row["cts_4"] <= row["cts_8"] <= row["complete"]


def test_tables_agree_where_they_repeat_a_figure():
    seen = defaultdict(set)
    for figure in paper_figures():
        seen[figure.dataset, figure.method, figure.metric].add(figure.value)
    assert all(len(values) == 1 for values in seen.values())
    assert len(paper_figures()) - len(seen) == 3 * 9 * (4 + 3), (
        "coverage, complete, DCA, CTS4; VisBA, OF1, LCC stand twice"
    )


def test_ablation_repeats_the_main_table():
    rows = {(figure.method, figure.metric): figure.value for figure in paper_figures() if figure.dataset == "DAVIS"}
    same = {"LPA-CWM": ("Full LPA-CWM", "Full objective", "LPA + Win."), "APA-CWM": ("APA + Win.",)}
    same["Uniform CWM"] = ("Uniform CWM (reference)", "Uniform + Win.")
    for name, others in same.items():
        for other in others:
            for metric in ("coverage", "dca_avg", "of1", "aj", "ad", "oa"):
                assert rows[other, metric] == rows[name, metric]


@pytest.mark.parametrize(
    ("dataset", "gain"), [("DAVIS", 60.0), ("Kinetics", 29.0), ("RoboTAP", 18.1)]
)  # The abstract gives the largest and the smallest.
def test_relative_gains_of_the_abstract(dataset, gain):
    dca = {f.method: f.value for f in paper_figures() if (f.table, f.dataset, f.metric) == ("main", dataset, "dca_avg")}
    assert 100 * (dca["LPA-CWM"] / dca["Uniform CWM"] - 1) == pytest.approx(gain, abs=0.05)


def scores(method, dataset="tapvid_davis", **notes):
    return Scores(dataset, method, {}, notes=notes)


@pytest.mark.parametrize(
    ("run", "row"),
    [
        (scores("lpa"), "LPA-CWM"),
        (scores("lpa (runs)"), "LPA-CWM"),
        (scores("uniform"), "Uniform CWM"),
        (scores("apa", settings={"config": {"windows": 0}}), "APA + Std."),
        (scores("sea-raft"), "SEA-RAFT"),
        (scores("raft"), "RAFT"),
        (scores("kl-only"), "KL only"),
        (scores("kl-and-best (again)"), "KL + best-candidate supervision"),
        (scores("no-decoded"), None),
        (scores("raft-small"), None),
        (scores("dis"), None),
    ],
)
def test_rows_in_the_paper(run, row):
    assert paper_row(run) == row


def test_every_row_of_an_ablation_is_in_the_paper():
    rows = {figure.method for figure in paper_figures()}
    assert rows >= {row for row in ABLATIONS.values() if row}


def test_figures_of_a_run_are_its_data_sets_own():
    found = {figure.metric: figure for figure in figures_of(scores("lpa", "robotap_split0"))}
    assert found["dca_avg"].value == 50.26
    assert found["fragmentation"].value == 2.59
    assert len(found) == 19
    assert not list(figures_of(scores("lpa", "real_dev")))
