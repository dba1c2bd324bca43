"""The mechanism audit on candidate sets whose answers are known by heart."""

from dataclasses import replace

import pytest
import torch

from lpa_cwm.adjudicators.features import STATISTICS, STRENGTH
from lpa_cwm.cli.main import main
from lpa_cwm.evaluation.audit import (
    ORACLE,
    audit_sets,
    audit_table,
    describe_histogram,
    draw_audit,
    gap_closed,
    mean_by_video,
    n_correct_histogram,
    top1_hits,
)
from lpa_cwm.training.feature_cache import CandidateSets
from lpa_cwm.types import Judgement


def sets_of(peak, end):
    """Candidates without features."""
    g, m = peak.shape[:2]
    return CandidateSets(
        source=torch.zeros(g, 3, 32, 32),
        target=torch.zeros(g, m, 3, 32, 32),
        local_response=torch.zeros(g, m, 32, 32),
        response=torch.zeros(g, m, 32, 32),
        context=torch.zeros(1, 6, 64, 64),
        pair=torch.zeros(g, dtype=torch.long),
        statistics=torch.zeros(g, m, STATISTICS),
        peak=peak,
        end=end,
        apa_weights=torch.full((g, m), 1 / m),
        response_sigma=torch.full((g,), 2.0),
    )


# Three groups of two videos: candidates 0, 3 and 9 pixels from the truth, in different orders.
OFFSETS = torch.tensor([[0.0, 3.0, 9.0], [9.0, 0.0, 3.0], [3.0, 9.0, 0.0]])
PEAK = torch.stack((10 + OFFSETS, torch.full_like(OFFSETS, 20.0)), dim=-1)
EXAMPLE = sets_of(PEAK, torch.tensor([[10.0, 20.0]]).expand(3, 2).contiguous())
VIDEOS = ["a", "a", "b"]
UNIFORM = Judgement.of(torch.ones(3, 3))
SHARP = Judgement.of(torch.tensor([[0.8, 0.2, 0.0], [0.0, 0.6, 0.4], [0.0, 1.0, 0.0]]))


def test_figures_by_hand():
    stats = audit_sets(EXAMPLE, VIDEOS, {"uniform": UNIFORM, "lpa": SHARP})
    assert stats["uniform"].error.value == pytest.approx(4)
    assert stats[ORACLE].error.value == 0
    # Video a: 0.6 and 1.2 pixels; video b: 9 pixels; the two videos count alike.
    assert stats["lpa"].error.value == pytest.approx((0.9 + 9) / 2)
    assert gap_closed(stats, "lpa") == pytest.approx((4 - 4.95) / 4)
    assert stats["lpa"].hit.value == pytest.approx((1 + 0) / 2)
    assert stats["uniform"].hit.value == pytest.approx(1 / 3)
    assert stats["uniform"].support.value == pytest.approx(3)
    # Right are those 0 and 3 pixels away: all that is believed in video a, nothing in video b.
    assert stats["lpa"].correct.value == pytest.approx((1 + 0) / 2)
    assert stats["uniform"].correct.value == pytest.approx(2 / 3)
    assert [e.value for e in stats["lpa"].by_rank] == pytest.approx([0.35, 0.15, 0.5])
    assert [e.value for e in stats[ORACLE].by_rank] == pytest.approx([1, 0, 0])


def test_visibility_is_that_of_the_weighted_candidates():
    strong = torch.zeros(3, 3, STATISTICS)
    # The best candidates of two groups answer, so the oracle sees those; their mean is too weak.
    strong[0, 0, STRENGTH] = strong[1, 1, STRENGTH] = 0.12
    stats = audit_sets(replace(EXAMPLE, statistics=strong), VIDEOS, {"uniform": UNIFORM, "lpa": SHARP})
    assert [stats[name].visible.value for name in ("uniform", "lpa", ORACLE)] == pytest.approx([0, 0.5, 0.5])
    assert replace(EXAMPLE, statistics=strong).strength[0].tolist() == pytest.approx([0.12, 0, 0])


def test_the_visibility_factor_changes_nothing_but_visibility():
    strong = torch.full((3, 3, STATISTICS), 0.04)
    stats = audit_sets(
        replace(EXAMPLE, statistics=strong),
        VIDEOS,
        {"lpa": SHARP, "more": replace(SHARP, visibility=torch.full((3,), 1.5))},
    )
    assert (stats["lpa"].visible.value, stats["more"].visible.value) == (0, 1)
    for name in ("error", "hit", "support", "correct"):
        assert getattr(stats["more"], name).value == pytest.approx(getattr(stats["lpa"], name).value)


def test_where_there_is_something_to_choose():
    far = sets_of(PEAK + torch.tensor([[[0.0, 0.0]], [[0.0, 5.0]], [[0.0, -30.0]]]), EXAMPLE.end)
    assert n_correct_histogram(EXAMPLE) == [0, 0, 3, 0]
    assert n_correct_histogram(far) == [2, 0, 1, 0]
    assert describe_histogram([2, 0, 1, 0]) == (
        "Candidates within 4 px: none in 66.7% of the candidate sets, some in 33.3%, all 3 in 0.0%."
    )


def test_ties_hit_by_chance():
    weights = torch.tensor([[0.5, 0.5, 0.0]])
    assert top1_hits(weights, torch.tensor([[1.0, 2.0, 3.0]])).item() == 0.5
    assert top1_hits(weights, torch.tensor([[1.0, 1.0, 3.0]])).item() == 1


def test_videos_are_averaged_each_for_itself():
    values = torch.tensor([[1.0], [3.0], [7.0]])
    assert mean_by_video(values, ["b", "b", "a"]).tolist() == [[7.0], [2.0]]


def test_the_table_and_the_figure_show_every_adjudicator(tmp_path):
    stats = audit_sets(EXAMPLE, VIDEOS, {"uniform": UNIFORM, "apa": SHARP, "lpa": SHARP})
    text = audit_table(stats)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:]] == ["uniform", "apa", "lpa", ORACLE]
    draw_audit(stats, tmp_path / "audit.svg")
    drawn = (tmp_path / "audit.svg").read_text()
    for name in ("Uniform", "APA", "LPA", f"Best of {EXAMPLE.peak.shape[1]}"):
        assert f"<!-- {name} -->" in drawn


def test_a_figure_without_a_kind_is_refused_before_the_work(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["eval", "audit", str(tmp_path / "nothing there"), "--out", str(tmp_path / "figure")])
    assert stop.value.code == 2
    assert "must end in .png, .pdf or .svg" in capsys.readouterr().err
