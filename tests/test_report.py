"""The report: what its tables say, what its files hold, and what it refuses."""

import csv
import io
import pickle
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser

import numpy as np
import pytest

from lpa_cwm import metrics
from lpa_cwm.cli.main import main
from lpa_cwm.errors import InputError
from lpa_cwm.report import page, results
from lpa_cwm.report import tables as formats
from lpa_cwm.report.page import FRAMES_PER_VIDEO, Curve, conclusion, write_report
from lpa_cwm.report.results import load_method_sets
from lpa_cwm.report.tables import Cell, Column, Row, Table, metric_column, text_cell, with_best


def truth_of(seed):
    rng = np.random.default_rng(seed)
    xy = 100 + np.cumsum(rng.normal(size=(6, 12, 2)) * 2, axis=1)
    seen = rng.random((6, 12)) < 0.85
    seen[:, 0] = True
    return metrics.Truth(xy, seen, np.zeros(6, dtype=int))


def run_folder(parent, name, noise, method="dis", dataset="davis", score=True, **fields):
    """A scored run as `lpa-cwm eval score` leaves it, with predictions off by `noise` pixels."""
    videos, trivial = {}, {kind: {} for kind in metrics.TRIVIAL}
    for seed in range(5):
        truth = truth_of(seed)
        rng = np.random.default_rng(seed + 100)
        sure = rng.random(truth.visible.shape)
        prediction = metrics.Prediction(
            truth.xy + rng.normal(size=truth.xy.shape) * noise, sure > 0.2, sure if score else None, seconds=0.1
        )
        videos[f"v/{seed}"] = metrics.measure(prediction, truth, thresholds=[0.0, 0.5, 0.9])
        for kind, predict in metrics.TRIVIAL.items():
            trivial[kind][f"v/{seed}"] = metrics.measure(predict(truth), truth)
    levels = [0.0, 0.5, 0.9] if score else []
    own = metrics.Scores(dataset, method, videos, manifest="m", thresholds=levels, **fields)
    references = [metrics.Scores(dataset, kind, found, manifest="m", reference=True) for kind, found in trivial.items()]
    folder = parent / name
    folder.mkdir()
    (folder / "scores.json").write_text(metrics.dump_scores([own, *references]))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [run_folder(folder, "coarse", 4.0, "uniform"), run_folder(folder, "fine", 1.0, "lpa", score=False)]


@pytest.fixture(scope="module")
def scored(runs):
    (only,) = load_method_sets(runs)
    return only


@pytest.fixture(scope="module")
def tables(scored):
    return {table.slug: table for table in results.tables(scored)}


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    return write_report(runs, tmp_path_factory.mktemp("report"))


def column(table, key):
    place = [column.key for column in table.columns].index(key)
    return [row.cells[place] for row in table.rows]


def test_every_overview_has_the_methods_then_floor_and_ceiling(tables):
    for slug in ("cmc", "cmc_by_distance", "tapvid", "tapvid_by_distance", "by_motion", "by_coverage"):
        table = tables[slug]
        assert [cell.text for cell in column(table, "method")] == ["uniform", "lpa", "static point", "ground truth"]
        assert [row.reference for row in table.rows] == [False, False, True, True]


def test_bold_follows_each_metrics_direction_and_leaves_references_out(tables):
    assert [cell.best for cell in column(tables["cmc"], "dca_avg")] == [False, True, False, False]
    assert [cell.best for cell in column(tables["tapvid"], "ad")] == [False, True, False, False]
    assert not any(cell.best for cell in column(tables["cmc"], "lcc_ceiling"))


def test_equal_best_values_are_all_bold_and_undefined_ones_never():
    columns = (Column("method", "Method"), metric_column("ad"))
    rows = [Row((text_cell("a"), Cell("", value))) for value in (2.0, 1.0, float("nan"), 1.0)]
    assert [row.cells[1].best for row in with_best(columns, rows)] == [False, True, False, True]


def test_numbers_are_means_over_videos_in_the_metrics_unit(scored, tables):
    cell = column(tables["cmc"], "dca_avg")[0]
    assert cell.value == pytest.approx(100 * np.nanmean(scored.methods[0].column("dca_avg")))
    low, high = cell.spread
    assert low < cell.value < high


def test_paired_differences_of_better_and_worse(scored, tables):
    table = tables["paired"]
    first = table.rows[0]
    assert [cell.text for cell in first.cells[:2]] == ["lpa", "uniform"]
    gain = column(table, "dca_avg")[0]
    expected = scored.methods[1].column("dca_avg") - scored.methods[0].column("dca_avg")
    assert gain.value == pytest.approx(100 * expected.mean())
    assert gain.best
    assert "won 100%" in gain.details


def test_sweep_is_there_only_for_methods_with_scores(tables):
    shown = [(row.cells[0].text, row.cells[1].text) for row in tables["sweep"].rows]
    assert shown[:4] == [("uniform", "as given"), ("uniform", "0"), ("uniform", "0.5"), ("uniform", "0.9")]
    assert ("lpa", "as given") in shown
    assert ("lpa", "0.5") not in shown


def test_paper_ours_difference(tables):
    table = tables["paper"]
    rows = {(row.cells[0].text, row.cells[2].text): row for row in table.rows}
    row = rows["lpa", "DCA ↑"]
    paper, ours, gap = row.cells[3:]
    assert (row.cells[1].text, paper.value) == ("LPA-CWM", 58.98)
    assert gap.value == pytest.approx(ours.value - 58.98)
    assert len(table.rows) == 2 * 19


def test_no_paper_table_for_other_data(tmp_path):
    (scored,) = load_method_sets([run_folder(tmp_path, "a", 1.0, "lpa", dataset="own clips")])
    assert not list(results.against_paper(scored))


def test_tracks_are_all_in_the_csv_and_the_worst_on_the_page(tables):
    table = tables["tracks"]
    assert len(table.rows) == 4 * 5 * 6
    assert len(list(csv.reader(io.StringIO(formats.to_csv(table))))) == 1 + len(table.rows)
    assert formats.to_html(table).count("<tr") == 1 + results.WORST_TRACKS
    worst = [cell.value for cell in column(table, "dca_avg")][:20]
    assert worst == sorted(worst)


def test_csv_reads_back_as_the_same_numbers(tables):
    table = tables["cmc"]
    rows = list(csv.DictReader(io.StringIO(formats.to_csv(table))))
    cell = column(table, "vis_ba")[1]
    assert float(rows[1]["vis_ba"]) == pytest.approx(cell.value, abs=1e-6)
    assert float(rows[1]["vis_ba_low"]) == pytest.approx(cell.spread[0], abs=1e-6)
    assert rows[1]["vis_ba_undefined"] == str(cell.undefined)


def tricky():
    columns = (Column("method", "Method"), metric_column("ad"))
    cell = Cell("1.00", 1.0, ("0.5 … 2.0",), 3, (0.5, 2.0), best=True)
    rows = (
        Row((text_cell("50% | a_b & <c>"), cell)),
        Row((text_cell("static"), Cell("–", float("nan"))), reference=True),
    )
    return Table("t", "Title", columns, rows, "A note.")


def test_markdown_keeps_its_columns():
    lines = [line for line in formats.to_markdown(tricky()).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert "**1.00** (0.5 … 2.0)" in lines[2]


def test_latex_escapes_and_sets_references_apart():
    found = formats.to_latex(tricky())
    assert r"50\% | a\_b \& <c> & \shortstack[r]{\textbf{1.00}\\{\tiny 0.5 \,..\, 2.0}} \\" in found
    assert r"AD $\downarrow$ \\" in found
    assert re.search(r"\\midrule\nstatic & -- ", found)


@pytest.mark.parametrize("write", [formats.to_markdown, formats.to_latex, formats.to_html])
def test_undefined_is_said_once_per_table(write):
    found = write(tricky())
    assert found.count("Undefined and left out of the mean: AD on 3 videos.") == 1
    assert found.lower().count("undef") == 1


def test_html_escapes():
    found = formats.to_html(tricky())
    assert "a_b &amp; &lt;c&gt;" in found
    assert '<td class=num data-value="1"><b>1.00</b><small>0.5 … 2.0</small></td>' in found


class Balance(HTMLParser):
    """Counts what is open, and collects addresses."""

    empty = ("meta", "img", "input")

    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.empty:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert not {"src", "href"} & dict(attrs).keys()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_nothing_from_elsewhere(report):
    page = report.read_text()
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert all(address.startswith(("#", "data:")) for address in parser.addresses)
    assert "http" not in page
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S).lower().replace("undefined", "")


def test_command_writes_the_same_page_and_all_tables_in_all_formats(runs, tables, report, tmp_path, capsys):
    main(["eval", "report", *map(str, runs), "--out", str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "index.html")
    made = re.compile("<p class=note>.*?</p>")
    assert made.sub("", (tmp_path / "index.html").read_text(), 1) == made.sub("", report.read_text(), 1)
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {f"davis_{slug}.{suffix}" for slug in tables for suffix in ("csv", "md", "tex")}


def test_data_sets_get_sections_of_their_own(runs, tmp_path):
    other = run_folder(tmp_path, "other", 1.0, dataset="kinetics")
    assert [scored.dataset for scored in load_method_sets([*runs, other])] == ["davis", "kinetics"]


def test_runs_of_one_method_are_told_apart_by_folder(tmp_path):
    (scored,) = load_method_sets([run_folder(tmp_path, name, 1.0) for name in ("a", "b")])
    assert [scores.method for scores in scored.methods] == ["dis (a)", "dis (b)"]


def test_runs_of_different_tracks_are_not_put_side_by_side(runs, tmp_path):
    scores = metrics.load_scores(runs[0] / "scores.json")
    (tmp_path / "scores.json").write_text(metrics.dump_scores([replace(one, manifest="x") for one in scores]))
    with pytest.raises(InputError, match=r"fine and .* are both of davis, but of other videos"):
        load_method_sets([tmp_path, runs[1]])


def test_unscored_run_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["eval", "report", str(tmp_path)])
    assert stop.value.code == 2
    assert "`lpa-cwm eval score` writes one" in capsys.readouterr().err


@pytest.mark.parametrize("values", [[0.0, 1.0], [3.0, 3.0], [0.0, 0.0], [12.3, 97.0], [-5.0, 0.001], [1e-9, 2e-9]])
def test_ticks_are_even_few_and_around_the_values(values):
    found = page.ticks(values)
    assert 2 <= len(found) <= 9
    assert found[0] <= min(values)
    assert found[-1] >= max(values)
    np.testing.assert_allclose(np.diff(found, 2), 0, atol=1e-9)


def test_radar_puts_one_at_the_rim_and_undefined_in_the_center():
    axes = page.RadarAxes(4)
    drawn = page.radar("t", [("a", "b")] * 4, [Curve("m", [(0.0, value) for value in (1.0, 0.5, 0.0, float("nan"))])])
    x, y = axes.width / 2, axes.height / 2
    corners = f"{x:.1f},{y - axes.rim:.1f} {x + axes.rim / 2:.1f},{y:.1f} {x:.1f},{y:.1f} {x:.1f},{y:.1f}"
    assert corners in drawn


def test_chart_without_points_is_nothing():
    assert page.chart("t", "x", "y", [Curve("m", [(0.0, float("nan"))])]) == ""


def test_worst_videos_are_drawn_while_the_data_set_is_there(tmp_path):
    rng = np.random.default_rng(0)
    clips = {}
    for name in ("a/b", "c"):
        points = np.clip(0.5 + np.cumsum(rng.normal(size=(3, 6, 2)) * 0.05, axis=1), 0, 1).astype(np.float32)
        pixels = rng.integers(0, 255, (6, 32, 48, 3), dtype=np.uint8)
        clips[name] = {"video": pixels, "points": points, "occluded": np.zeros((3, 6), dtype=bool)}
    data, run = tmp_path / "clips.pkl", tmp_path / "run"
    data.write_bytes(pickle.dumps(clips))
    main(["eval", "predict", str(data), "--tracker", "static", "--out", str(run)])
    main(["eval", "score", str(run)])
    page = write_report([run], tmp_path / "report").read_text()
    assert page.count("data:image/jpeg;base64,") == 2 * FRAMES_PER_VIDEO
    assert "static · a/b · DCA" in page
    data.unlink()
    assert "data:image" not in write_report([run], tmp_path / "report").read_text()


@pytest.mark.parametrize(
    ("name", "subset"),
    [("tum-rgbd/desk", "tum-rgbd"), ("hard-val-1-7", "hard"), ("movi-train-2-0", "movi"), ("a-b", "")],
)
def test_names_tell_subsets_and_recipes(name, subset):
    assert results.subset_of(name) == subset


def test_subsets_are_means_over_their_own_videos(scored, tables):
    """The videos' names begin alike, so there is no such table; renamed, each subset has its own means."""
    assert "subsets" not in tables
    renamed = {f"v/{seed}": f"{'even' if seed % 2 == 0 else 'odd'}/{seed}" for seed in range(5)}
    all_rows = [
        replace(scores, videos={renamed[name]: video for name, video in scores.videos.items()})
        for scores in scored.all_rows
    ]
    methods = tuple(scores for scores in all_rows if not scores.reference)
    references = tuple(scores for scores in all_rows if scores.reference)
    (table,) = results.by_subset(replace(scored, methods=methods, references=references))
    column = [one.key for one in table.columns].index("dca_avg")
    for row in table.rows:
        subset, method, count = (cell.text for cell in row.cells[:3])
        (scores,) = (one for one in all_rows if one.method == method)
        own = [video.values["dca_avg"] for name, video in scores.videos.items() if name.startswith(subset)]
        assert int(count) == len(own)
        assert row.cells[column].value == pytest.approx(100 * np.nanmean(own))


def test_the_page_begins_with_a_conclusion_a_date_and_the_command(runs, scored, tmp_path):
    page = write_report(runs, tmp_path, command="lpa-cwm eval report a b").read_text()
    header = page.partition("<header>")[2].partition("</header>")[0]
    assert conclusion(scored) in header
    assert f"{date.today()} · lpa-cwm eval report a b" in header


def test_conclusions_name_the_best_method_and_its_lead(scored, tmp_path):
    sentence = conclusion(scored)
    best = scored.estimates["lpa"]["dca_avg"].value
    assert sentence.startswith(f"On davis (5 videos) lpa has the highest DCA, {100 * best:.2f} %: ")
    assert sentence.endswith("more than uniform.")
    (alone,) = load_method_sets([run_folder(tmp_path, "a", 1.0)])
    assert re.fullmatch(r"On davis \(5 videos\) dis has a DCA of [\d.]+ %\.", conclusion(alone))
    run_folder(tmp_path, "b", 1.0)
    (equal,) = load_method_sets([tmp_path / "a", tmp_path / "b"])
    assert "is not clear" in conclusion(equal)


def test_rows_can_be_named(runs, tmp_path):
    main(["eval", "report", *map(str, runs), "--out", str(tmp_path), "--name", "first", "second"])
    table = (tmp_path / "tables/davis_cmc.md").read_text()
    assert "| first |" in table
    assert "| second |" in table
    with pytest.raises(InputError, match="1 names were given for 2 runs"):
        write_report(runs, tmp_path, names=["first"])
