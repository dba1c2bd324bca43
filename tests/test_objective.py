"""The training objective: by its laws and by hand."""

import math

import pytest
import torch

from lpa_cwm.training.objective import Objective, endpoint_error, soft_targets, weighted_endpoint


def test_targets_fall_by_e_every_four_pixels():
    targets = soft_targets(torch.tensor([[0.0, 4.0, 8.0]]))
    assert targets.sum().item() == pytest.approx(1)
    assert (targets[0, 0] / targets[0, 1]).item() == pytest.approx(math.e, rel=1e-5)


def test_the_divergence_vanishes_exactly_at_the_targets():
    peak = torch.rand(6, 10, 2) * 256
    end = torch.rand(6, 2) * 256
    errors = (peak - end[:, None]).norm(dim=-1)
    only = Objective(coordinate=0.0, best=0.0)
    assert only(-errors / 4 + 3, peak, end).item() == pytest.approx(0, abs=1e-5)
    assert only(-errors / 5, peak, end) > 1e-4


def test_each_term_by_hand():
    peak = torch.tensor([[[0.0, 0.0], [10.0, 0.0]]])
    end = torch.tensor([[0.0, 0.0]])
    scores = torch.zeros(1, 2)
    q = 1 / (1 + math.exp(-2.5))
    divergence = q * math.log(q / 0.5) + (1 - q) * math.log((1 - q) / 0.5)
    coordinate = (5 - 0.5) / 2  # SmoothL1 of 5 pixels in x and 0 in y, averaged over both
    best = math.log(2)
    assert Objective(0.0, 0.0)(scores, peak, end).item() == pytest.approx(divergence, rel=1e-5)
    assert Objective()(scores, peak, end).item() == pytest.approx(divergence + 2 * coordinate + 0.2 * best, rel=1e-5)


def test_weighted_endpoints():
    peak = torch.tensor([[[0.0, 0.0], [10.0, 4.0]]])
    weights = torch.tensor([[0.75, 0.25]])
    assert weighted_endpoint(weights, peak).tolist() == [[2.5, 1.0]]
    assert endpoint_error(weights, peak, torch.tensor([[2.5, 4.0]])).item() == 3


def test_about_a_hidden_point_nobody_is_believed():
    peak = torch.rand(2, 10, 2) * 256
    end = torch.tensor([[3.0, 4.0], [math.nan, math.nan]])
    scores = torch.randn(2, 10, requires_grad=True)
    only, even = Objective(0.0, 0.0), torch.full((1, 10), 0.1)
    assert only(torch.zeros(1, 10), peak[1:], end[1:]).item() == pytest.approx(0, abs=1e-6)
    hidden = torch.nn.functional.kl_div(scores[1:].log_softmax(1), even, reduction="sum")
    assert only(scores[1:], peak[1:], end[1:]).item() == pytest.approx(hidden.item(), rel=1e-5)
    assert only(scores, peak, end).item() == pytest.approx(((only(scores[:1], peak[:1], end[:1]) + hidden) / 2).item())
    # The terms that need an endpoint are those of the other group alone.
    rest = Objective()(scores[:1], peak[:1], end[:1]) - only(scores[:1], peak[:1], end[:1])
    whole = Objective()(scores, peak, end)
    assert (whole - only(scores, peak, end)).item() == pytest.approx(rest.item(), rel=1e-4)
    whole.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
