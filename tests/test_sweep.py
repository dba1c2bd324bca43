"""The sweep measures the tracker it is given, on the same queries in every setting."""

import json

import pytest
import torch

from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.cli.main import main
from lpa_cwm.errors import InputError
from lpa_cwm.evaluation import compare as compare_module
from lpa_cwm.evaluation.compare import (
    MASKS,
    PASSES,
    choose_queries,
    errors_and_times,
    open_pairs,
    sweep,
    sweep_pairs,
)
from lpa_cwm.report.page import write_report
from lpa_cwm.report.results import read_cells
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.training.pair_sampling import Correspondence
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip
from movi_files import drift, write
from tapvid_files import entries, save


class OnePair:
    """A source of one video with two queries, or of several videos with given numbers of queries per pair."""

    def __init__(self, *counts):
        self.counts = counts or ((2,),)
        self.videos = tuple(f"toy{number}" for number in range(len(self.counts)))

    def pairs_of(self, video):
        clip = toy_clip(ToyMotion(shift=(2 / 64, 0.0)), 2, (64, 64))
        for number, count in enumerate(self.counts[video]):
            xy = torch.tensor([[20.5, 20.5], [30.5, 40.5], [40.5, 20.5], [24.5, 44.5], [34.5, 24.5]])[:count]
            yield Correspondence(clip[0], clip[1], xy, xy + torch.tensor([2.0, 0.0]), ("toy", number, 1))


def tracker():
    world = ToyWorld(size=64, sigma=2.0)
    return CwmTracker(world, uniform, world.defaults)


def numbers(videos):
    return [[len(pair.xy) for pair in pairs] for pairs in videos]


def test_every_setting_is_measured_on_every_query():
    cells = list(sweep_pairs(tracker(), choose_queries(OnePair(), 1, 2)))
    assert [(cell.masks, cell.passes) for cell in cells] == [(m, r) for m in MASKS for r in PASSES]
    assert {cell.queries for cell in cells} == {2}
    assert all(cell.error < 0.5 for cell in cells if cell.passes)
    assert all(cell.seconds > 0 for cell in cells)


def test_videos_give_the_same_number_of_queries_and_the_total_is_exact():
    many = OnePair(*[(5,)] * 12)
    assert numbers(choose_queries(many, 10, 40)) == [[4]] * 10
    assert numbers(choose_queries(many, 10, 38)) == [[4]] * 9 + [[2]]
    uneven = OnePair((1, 1), (5,), (), (3, 3), (4,), (2,))
    assert numbers(choose_queries(uneven, 3, 12)) == [[4], [3, 1], [4]]
    assert numbers(choose_queries(uneven, 5, 20)) == [[4], [3, 1], [4], [1, 1], [2]]


def test_records_of_movi_f_are_swept(tmp_path):
    records = [drift((3.0, 1.0), name=str(number)) for number in range(12)]
    write(tmp_path / "movi_f-validation.tfrecord-00000-of-00001", *records)
    write(tmp_path / "movi_f-train.tfrecord-00000-of-00001", drift((3.0, 1.0), name="99"))
    videos = choose_queries(open_pairs(tmp_path, 4, (1, 1)), 10, 40)
    assert [sum(len(pair.xy) for pair in pairs) for pairs in videos] == [4] * 10
    assert all(pair.identity[2] == pair.identity[1] + 1 for pairs in videos for pair in pairs)


def test_the_time_of_a_query_has_the_encoding_of_its_frames_and_not_their_preparation(monkeypatch):
    """The paper's protocol: factual prediction to endpoint; without input, output and what comes before the model."""
    happened, one = [], tracker()
    describe, resize = ToyWorld.describe, compare_module.crop_resize
    monkeypatch.setattr(ToyWorld, "describe", lambda self, frame: happened.append("encode") or describe(self, frame))
    monkeypatch.setattr(compare_module, "crop_resize", lambda *given: happened.append("resize") or resize(*given))
    monkeypatch.setattr(compare_module.time, "perf_counter", lambda: happened.append("clock") or 0.0)
    list(errors_and_times(one, next(OnePair().pairs_of(0))))
    assert happened == ["resize"] * 2 + ["clock", "encode", "encode", "clock"] * 2


def test_a_sweep_of_fewer_queries_than_asked_for_says_so(tmp_path):
    path = save(tmp_path / "data.pkl", entries(2, n=4, t=4))
    with pytest.warns(UserWarning, match="40 queries of 10 videos were asked for; 8 of 2 that move were found"):
        sweep(path, world="toy", adjudicator="uniform")


def test_the_command_takes_settings_and_score_models(tmp_path, capsys):
    path = save(tmp_path / "data.pkl", entries(3, n=4, t=4))
    few = ["--world", "toy", "--adjudicator", "apa", "--videos", "2", "--queries", "2"]
    command = ["eval", "sweep", str(path), *few, "--json"]
    main([*command, "--out", str(tmp_path / "out"), "--windows", "0"])
    cells = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [cell["queries"] for cell in cells] == [2] * len(MASKS) * len(PASSES)
    with pytest.raises(SystemExit):
        main([*command, "--out", str(tmp_path / "out"), "--windows", "1"])
    assert "settings.windows was 0 and is 1" in capsys.readouterr().err


def test_a_stopped_sweep_goes_on_and_is_reported(tmp_path):
    folder = tmp_path / "how many"
    queries = choose_queries(OnePair(), 1, 2)
    begun = sweep_pairs(tracker(), queries, folder)
    first = [next(begun), next(begun)]
    begun.close()
    cells = list(sweep_pairs(tracker(), queries, folder))
    # Times differ from run to run, so what was measured before is recognized by them.
    assert cells[:2] == first
    assert read_cells(folder) == cells
    page = write_report([folder], tmp_path / "report").read_text()
    assert "R = 2" in page
    table = (tmp_path / "report/tables/how many_sweep.md").read_text()
    assert f"{cells[-1].seconds:.3f}" in table


def test_what_does_not_move_is_refused():
    with pytest.raises(InputError, match="Nothing moves"):
        choose_queries(OnePair((), ()), 1, 2)
