"""Several methods, and every row of the ablation table, by one command that asks the world model once for all."""

import json
from collections import Counter

import pytest

from lpa_cwm.cli.main import main
from lpa_cwm.datasets.tapvid import TapVidDataset
from lpa_cwm.evaluation.compare import VARIANTS, compare
from lpa_cwm.evaluation.predict import Method
from lpa_cwm.io import safe_load
from lpa_cwm.metrics import load_scores
from lpa_cwm.report.tables import figures_of
from lpa_cwm.training.feature_cache import fill_cache
from tapvid_files import entries, save
from test_lpa_training import job

TOY = {"world": "toy", "settings": {"masks": 2, "passes": 0}}
FEW = ["--world", "toy", "--masks", "2", "--passes", "0"]
"""The toy world with little to compute: what is compared is which files are made of which."""


def test_a_comparison_reads_the_data_once_and_hashes_each_video_once(tmp_path, monkeypatch, capsys):
    """Predicting, scoring and the pictures of the report share one data set."""
    path = save(tmp_path / "data.pkl", entries(2, t=3, n=2))
    reads, hashes = Counter(), Counter()
    load, fingerprint = safe_load.load_pickle, TapVidDataset.fingerprint

    def counted_load(path):
        reads[path] += 1
        return load(path)

    def counted_fingerprint(self, index):
        hashes[index] += 1
        return fingerprint(self, index)

    monkeypatch.setattr(safe_load, "load_pickle", counted_load)
    monkeypatch.setattr(TapVidDataset, "fingerprint", counted_fingerprint)
    methods = [Method("static"), *(Method(name, **TOY) for name in ("uniform", "apa", "lpa"))]
    result = compare(path, tmp_path / "out", methods)
    assert list(result.scores) == list(result.folders) == ["static", "uniform", "apa", "lpa"]
    assert "data:image/jpeg" in result.report.read_text()
    assert reads == {path: 1}
    assert hashes == {0: 1, 1: 1}
    assert capsys.readouterr() == ("", "")


def no_report(folders, out, **_):
    """A report takes longer than all that it reports here."""
    return out / "index.html"


SOME = ("uniform-windowed", "lpa-windowed", "lpa-standard", "response-and-scalars")


@pytest.mark.parametrize("names", [SOME, pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_rows_are_trained_tracked_scored_and_reported(names, tmp_path, capsys, monkeypatch):
    variants = [variant for variant in VARIANTS if not names or variant.name in names]
    data = save(tmp_path / "data.pkl", entries(2, t=3, n=2))
    list(fill_cache(job(), tmp_path / "evidence"))
    command = ["eval", "ablate", str(data), "--cache", str(tmp_path / "evidence"), "--out", str(tmp_path / "out")]
    command += [*FEW, "--steps", "1", "--max-tracks", "1", "--frames", "2"]
    command += ["--only", *names] if names else []
    with monkeypatch.context() as patch:
        patch.setattr("lpa_cwm.evaluation.compare.write_report", no_report)
        main(command)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").rglob("*.npz")}
    main(command)
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").rglob("*.npz")}
    assert {path.name for path in (tmp_path / "out/runs").iterdir()} == {variant.name for variant in variants}
    for variant in variants:
        scores = json.loads((tmp_path / "out/runs" / variant.name / "scores.json").read_text())
        assert variant.method in json.dumps(scores)
    table = (tmp_path / "out/report/tables/data_cmc.md").read_text()
    assert all(f"| {variant.name} |" in table for variant in variants)


PAPER = {
    "uniform-windowed": "Uniform + Win.",
    "apa-windowed": "APA + Win.",
    "lpa-windowed": "LPA + Win.",
    "uniform-standard": "Uniform + Std.",
    "apa-standard": "APA + Std.",
    "lpa-standard": "LPA + Std.",
    "no-interaction": "w/o candidate-set interaction",
    "response-and-scalars": "Response + scalar cues only",
    "kl-only": "KL only",
    "kl-and-coordinate": "KL + coordinate supervision",
    "kl-and-best": "KL + best-candidate supervision",
    "paper-objective": "Full objective",
}


def test_every_ablation_stands_beside_its_own_row_of_the_paper(tmp_path, monkeypatch):
    path = save(tmp_path / "tapvid_davis.pkl", entries(2, t=3, n=2))
    monkeypatch.setattr("lpa_cwm.evaluation.compare.write_report", no_report)
    methods = [Method("uniform", **TOY, label=variant.name) for variant in VARIANTS]
    result = compare(path, tmp_path / "out", methods)
    for name, folder in result.folders.items():
        own = load_scores(folder / "scores.json")[0]
        assert {figure.method for figure in figures_of(own)} == ({PAPER[name]} if name in PAPER else set())


def test_compared_methods_have_the_runs_they_have_alone(tmp_path):
    data = str(save(tmp_path / "data.pkl", entries(2, t=3, n=2)))
    part = [*FEW, "--frames", "3"]
    main(["eval", "compare", data, "--methods", "static", "uniform", "apa", "--out", str(tmp_path / "all"), *part])
    main(["eval", "predict", data, "--adjudicator", "apa", "--out", str(tmp_path / "apa"), *part])
    alone = {path.name: path.read_bytes() for path in (tmp_path / "apa").glob("*.npz")}
    assert alone == {path.name: path.read_bytes() for path in (tmp_path / "all/runs/apa").glob("*.npz")}
    table = (tmp_path / "all/report/tables/data_cmc.md").read_text()
    assert all(name in table for name in ("static", "uniform", "apa"))


def test_shards_of_a_comparison_make_its_files_and_the_last_the_report(tmp_path, capsys):
    data = str(save(tmp_path / "data.pkl", entries(3, t=3, n=2)))
    command = ["eval", "compare", data, "--methods", "static", "uniform", *FEW, "--frames", "3"]
    for shard in ("1/2", "2/2"):
        assert not (tmp_path / "parts/report").exists()
        main([*command, "--out", str(tmp_path / "parts"), "--shard", shard])
        assert ("left to other shards" in capsys.readouterr().out) == (shard == "1/2")
    main([*command, "--out", str(tmp_path / "whole")])
    for path in (tmp_path / "whole/runs").rglob("*.npz"):
        assert (tmp_path / "parts" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()
    assert (tmp_path / "parts/report/index.html").exists()


def test_a_method_is_compared_once(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "compare", "data.pkl", "--methods", "apa", "apa", "--out", str(tmp_path)])
    assert "name each once" in capsys.readouterr().err
