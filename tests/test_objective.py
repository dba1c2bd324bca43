"""The training objective: by its laws and by hand."""

import math

import pytest
import torch

from lpa_cwm.adjudicators.lpa import to_judgement
from lpa_cwm.training.lpa import (
    Objective,
    decoded_accuracy,
    endpoint_error,
    soft_targets,
    visibility_loss,
    weighted_endpoint,
)
from lpa_cwm.types import Judgement

PAPER = Objective(visibility=0.0, decoded=0.0)


def sigma(count, pixels=2.0):
    return torch.full((count,), pixels)


def test_targets_fall_by_e_every_four_pixels():
    targets = soft_targets(torch.tensor([[0.0, 4.0, 8.0]]))
    assert targets.sum().item() == pytest.approx(1)
    assert (targets[0, 0] / targets[0, 1]).item() == pytest.approx(math.e, rel=1e-5)


def test_the_divergence_vanishes_exactly_at_the_targets():
    peak = torch.rand(6, 10, 2) * 256
    end = torch.rand(6, 2) * 256
    errors = (peak - end[:, None]).norm(dim=-1)
    only, strength = Objective(coordinate=0.0, rank=0.0, visibility=0.0, decoded=0.0), torch.rand(6, 10)
    assert only(-errors / 4 + 3, peak, end, strength, torch.zeros(6), sigma(6)).item() == pytest.approx(0, abs=1e-5)
    assert only(-errors / 5, peak, end, strength, torch.zeros(6), sigma(6)) > 1e-4


def test_each_term_by_hand():
    peak = torch.tensor([[[0.0, 0.0], [10.0, 0.0]]])
    end = torch.tensor([[0.0, 0.0]])
    logits = torch.zeros(1, 2)
    q = 1 / (1 + math.exp(-2.5))
    divergence = q * math.log(q / 0.5) + (1 - q) * math.log((1 - q) / 0.5)
    coordinate = (5 - 0.5) / 2  # SmoothL1 of 5 pixels in x and 0 in y, averaged over both
    best = math.log(2)
    given = logits, peak, end, torch.full((1, 2), 0.05), torch.zeros(1), sigma(1)
    paper = divergence + 2 * coordinate + 0.2 * best
    wrong = (1 - 0.5 * (1 + sum(1 / (1 + (10 / k) ** 6) for k in (1, 2, 4, 8, 16)) / 5)) * 20
    assert Objective(0.0, 0.0, 0.0, 0.0)(*given).item() == pytest.approx(divergence, rel=1e-5)
    assert PAPER(*given).item() == pytest.approx(paper, rel=1e-5)
    assert Objective(visibility=0.0)(*given).item() == pytest.approx(paper + wrong, rel=1e-5)
    assert Objective()(*given).item() == pytest.approx(paper + wrong + 4 * 2 * math.log(2), rel=1e-5)


def test_weighted_endpoints():
    peak = torch.tensor([[[0.0, 0.0], [10.0, 4.0]]])
    weights = torch.tensor([[0.75, 0.25]])
    assert weighted_endpoint(weights, peak).tolist() == [[2.5, 1.0]]
    assert endpoint_error(weights, peak, torch.tensor([[2.5, 4.0]])).item() == 3


def test_about_a_hidden_point_only_its_visibility_is_learned():
    peak, strength, log_visibility = torch.rand(2, 10, 2) * 256, torch.rand(2, 10) / 10, torch.tensor([0.3, -0.2])
    end = torch.tensor([[3.0, 4.0], [math.nan, math.nan]])
    logits = torch.randn(2, 10, requires_grad=True)
    rest = Objective(visibility=0.0)
    assert rest(logits[1:], peak[1:], end[1:], strength[1:], log_visibility[1:], sigma(1)).item() == 0
    alone = rest(logits[:1], peak[:1], end[:1], strength[:1], log_visibility[:1], sigma(1))
    assert rest(logits, peak, end, strength, log_visibility, sigma(2)).item() == pytest.approx(alone.item(), rel=1e-5)
    whole = Objective()(logits, peak, end, strength, log_visibility, sigma(2))
    seen = torch.tensor([True, False])
    both = alone + 4 * visibility_loss(to_judgement(logits, log_visibility), strength, seen)
    assert whole.item() == pytest.approx(both.item(), rel=1e-5)
    whole.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_candidates_that_agree_answer_together():
    """Two that agree on the truth outvote a more believed one far away; each by itself would not."""
    end = torch.tensor([[50.0, 50.0]])
    strength, weights = torch.full((1, 3), 0.09), torch.tensor([[0.3, 0.3, 0.4]])
    together = torch.tensor([[[50.0, 50.0], [50.0, 50.5], [90.0, 90.0]]])
    apart = torch.tensor([[[50.0, 50.0], [50.0, 60.0], [90.0, 90.0]]])
    assert decoded_accuracy(weights, together, end, strength, sigma(1)) > 0.95
    assert decoded_accuracy(weights, apart, end, strength, sigma(1)) < 0.5
    assert decoded_accuracy(weights, apart, end, strength, sigma(1, 10.0)) > 0.5


def test_an_answer_is_right_as_evaluation_counts():
    """Of one candidate alone: the share of the distances beyond its error, where the steps are soft no more."""
    one = torch.ones(1, 1)
    for error, share in ((0.0, 1.0), (1.4142, 0.8), (5.6569, 0.4), (60.0, 0.0)):
        peak, end = torch.tensor([[[10.0 + error, 20.0]]]), torch.tensor([[10.0, 20.0]])
        assert decoded_accuracy(one, peak, end, one, sigma(1)).item() == pytest.approx(share, abs=0.01)


def test_a_strong_response_outvotes_a_weak_one():
    peak, end = torch.tensor([[[0.0, 0.0], [100.0, 0.0]]]), torch.tensor([[0.0, 0.0]])
    even = torch.full((1, 2), 0.5)
    logits = torch.zeros(1, 2, requires_grad=True)
    assert decoded_accuracy(even, peak, end, torch.tensor([[0.09, 0.01]]), sigma(1)) > 0.95
    assert decoded_accuracy(even, peak, end, torch.tensor([[0.01, 0.09]]), sigma(1)) < 0.05
    decoded_accuracy(logits.softmax(1), peak, end, torch.full((1, 2), 0.05), sigma(1)).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] > 0 > logits.grad[0, 1]


def test_visibility_by_hand():
    """At the threshold it is even; a hundredth of strength more means odds times e; seen points count twice."""
    strength = torch.tensor([[0.0, 0.1], [0.0, 0.1]])
    weights = torch.tensor([[0.5, 0.5], [0.4, 0.6]])
    seen = torch.tensor([True, True])
    even, more = math.log(2), math.log(1 + math.exp(-1))
    assert visibility_loss(Judgement.of(weights), strength, seen).item() == pytest.approx(even + more, rel=1e-5)
    assert visibility_loss(Judgement.of(weights), strength, ~seen).item() == pytest.approx(
        (even + more + 1) / 2, rel=1e-5
    )


def test_visibility_makes_seen_points_strong_and_hidden_ones_weak():
    strength = torch.tensor([[0.02, 0.08], [0.02, 0.08]])
    logits = torch.zeros(2, 2, requires_grad=True)
    visibility_loss(Judgement.of(logits.softmax(1)), strength, torch.tensor([True, False])).backward()
    assert logits.grad is not None
    towards = -logits.grad
    assert towards[0, 1] > towards[0, 0]
    assert towards[1, 0] > towards[1, 1]


def test_the_visibility_head_has_to_do_with_visibility_alone():
    peak, strength, logits = torch.rand(2, 10, 2) * 256, torch.full((2, 10), 0.06), torch.randn(2, 10)
    end = torch.tensor([[3.0, 4.0], [math.nan, math.nan]])
    log_visibility = torch.zeros(2, requires_grad=True)
    assert torch.equal(
        Objective(visibility=0.0)(logits, peak, end, strength, log_visibility, sigma(2)),
        Objective(visibility=0.0)(logits, peak, end, strength, log_visibility + 1, sigma(2)),
    )
    Objective()(logits, peak, end, strength, log_visibility, sigma(2)).backward()
    assert log_visibility.grad is not None
    assert log_visibility.grad[0] < 0 < log_visibility.grad[1]
