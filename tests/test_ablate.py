"""Several methods, and every row of the ablation table, by one command that asks the world model once for all."""

import json

import pytest
import torch
from lpa_cwm.worlds.remember import Remembering

from counting import CountingWorld
from lpa_cwm.adjudicators.uniform import uniform
from lpa_cwm.cli.main import main
from lpa_cwm.config import TrackerConfig
from lpa_cwm.evaluation.variants import VARIANTS
from lpa_cwm.tracker import CwmTracker, track_together
from lpa_cwm.training.feature_cache import cache
from lpa_cwm.types import Grid
from lpa_cwm.worlds.toy import ToyMotion, toy_clip
from tapvid_files import entries, save
from test_lpa_training import job


def first(pair, candidates):
    return torch.nn.functional.one_hot(candidates.peak[..., 0].long() * 0, candidates.peak.shape[1])[:, 0].float()


@pytest.mark.parametrize("passes", [0, 1])
def test_together_they_answer_as_each_alone_and_ask_less(passes):
    clip = toy_clip(ToyMotion(shift=(0.03, 0.01)), 3, (64, 64))
    world = CountingWorld(size=64, sigma=2.0, error=5.0, wrong=0.4)
    remembering = Remembering(world)
    settings = [
        (uniform, TrackerConfig(passes=passes)),
        (first, TrackerConfig(passes=0)),
        (uniform, TrackerConfig(localize="standard")),
    ]
    together = track_together([CwmTracker(remembering, *one) for one in settings], clip, Grid(2))
    joint = sum(world.masks)
    world.masks.clear()
    for tracks, one in zip(together, settings, strict=True):
        alone = CwmTracker(world, *one).track(clip, Grid(2))
        for name in ("xy", "visible", "strength", "support", "spread"):
            assert torch.equal(getattr(alone, name).nan_to_num(), getattr(tracks, name).nan_to_num())
    assert joint < 0.7 * sum(world.masks)


def test_all_rows_are_trained_tracked_scored_and_reported(tmp_path, capsys):
    data = save(tmp_path / "data.pkl", entries(2, t=3, n=2))
    list(cache(job(), tmp_path / "evidence"))
    command = ["eval", "ablate", str(data), "--cache", str(tmp_path / "evidence"), "--out", str(tmp_path / "out")]
    for _ in range(2):
        main([*command, "--world", "toy", "--steps", "2", "--max-tracks", "1", "--frames", "2"])
    assert {path.name for path in (tmp_path / "out/runs").iterdir()} == {variant.name for variant in VARIANTS}
    for variant in VARIANTS:
        scores = json.loads((tmp_path / "out/runs" / variant.name / "scores.json").read_text())
        assert variant.method in json.dumps(scores)
    table = (tmp_path / "out/report/tables/data_cmc.md").read_text()
    assert all(variant.name in table for variant in VARIANTS)


def test_compared_methods_have_the_runs_they_have_alone(tmp_path):
    data = str(save(tmp_path / "data.pkl", entries(2, t=3, n=2)))
    part = ["--world", "toy", "--masks", "2", "--frames", "3"]
    main(["eval", "compare", data, "--methods", "static", "uniform", "apa", "--out", str(tmp_path / "all"), *part])
    main(["eval", "predict", data, "--adjudicator", "apa", "--out", str(tmp_path / "apa"), *part])
    alone = {path.name: path.read_bytes() for path in (tmp_path / "apa").glob("*.npz")}
    assert alone == {path.name: path.read_bytes() for path in (tmp_path / "all/runs/apa").glob("*.npz")}
    table = (tmp_path / "all/report/tables/data_cmc.md").read_text()
    assert all(name in table for name in ("static", "uniform", "apa"))


def test_shards_of_a_comparison_make_its_files_and_the_last_the_report(tmp_path, capsys):
    data = str(save(tmp_path / "data.pkl", entries(3, t=3, n=2)))
    few = ["--world", "toy", "--masks", "2", "--frames", "3"]
    command = ["eval", "compare", data, "--methods", "static", "uniform", *few]
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
