"""Turned evidence is the evidence of the turned scene."""

import pytest
import torch

from dense_candidates import dense_candidates
from lpa_cwm.adjudicators.features import gather
from lpa_cwm.training.augment import Turn
from lpa_cwm.types import Pair

SIDE = 96


def scene():
    draw = torch.Generator().manual_seed(5)
    source, target = torch.rand(2, 3, SIDE, SIDE, generator=draw)
    xy = torch.rand(2, 2, generator=draw) * 60 + 18
    response = torch.rand(2, 4, 3, SIDE, SIDE, generator=draw) - 0.5
    peak = (torch.rand(2, 4, 2, generator=draw) * 60 + 18).floor() + 0.5
    return Pair(source, target, xy), dense_candidates(response, peak)


def inputs(pair, candidates):
    evidence = gather(pair, candidates)
    return evidence.local, evidence.response, evidence.context.expand(2, -1, -1, -1), evidence.statistics


def points(turn, xy):
    x, y = xy.unbind(-1)
    x, y = (SIDE - x if turn.across else x), (SIDE - y if turn.down else y)
    return torch.stack((y, x) if turn.swap else (x, y), dim=-1)


@pytest.mark.parametrize("turn", [Turn(), Turn(down=True), Turn(across=True), Turn(swap=True), Turn(True, False, True)])
def test_turned_evidence_is_that_of_the_turned_scene(turn):
    pair, candidates = scene()
    other = Pair(turn.image(pair.source), turn.image(pair.target), points(turn, pair.xy))
    seen = inputs(other, dense_candidates(turn.image(candidates.response.dense()), points(turn, candidates.peak)))
    for ours, theirs in zip(turn(*inputs(pair, candidates)), seen, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_colors_change_alike_in_both_frames():
    pair, candidates = scene()
    turn = Turn(colors=(2, 0, 1))
    other = Pair(pair.source[[2, 0, 1]], pair.target[[2, 0, 1]], pair.xy)
    ours, theirs = turn(*inputs(pair, candidates)), inputs(other, candidates)
    for one, two in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(one, two)
    # Fourteen statistics and the difference of the frames do not see colors; edges are of gray values and do.
    torch.testing.assert_close(ours[3][..., :15], theirs[3][..., :15])


def test_all_turns_are_drawn_and_a_key_draws_the_same():
    assert len({Turn.drawn("t", step) for step in range(800)}) == 48
    assert Turn.drawn("t", 3) == Turn.drawn("t", 3)
