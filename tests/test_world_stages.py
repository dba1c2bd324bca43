"""The figures on a world model mean what they say."""

import math

import pytest
import torch

from lpa_cwm.config import TrackerConfig
from lpa_cwm.evaluation.world_stages import (
    ErrorAccumulator,
    EvaluationPoints,
    evaluate_world,
    figures_table,
    generated_pairs,
)
from lpa_cwm.synth.pairs import Example
from lpa_cwm.worlds.learned.world import LearnedWorld

SIZE = 64


def scene(shift):
    """A texture that moves as a whole by whole pixels to the right; its last columns leave the frame."""
    wide = torch.rand(3, SIZE, SIZE + shift, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.avg_pool2d(wide, 3, stride=1, padding=1)
    wide = (255 * (wide - wide.amin()) / (wide.amax() - wide.amin())).to(torch.uint8)
    flow = torch.stack((torch.full((SIZE, SIZE), float(shift)), torch.zeros(SIZE, SIZE)))
    visible = (torch.arange(SIZE) + shift < SIZE).expand(SIZE, SIZE)
    return Example(wide[..., shift:].contiguous(), wide[..., :SIZE].contiguous(), flow, visible.contiguous())


class Slide:
    name = "slide"

    def pair(self, index, size):
        return scene(5)


@pytest.fixture(scope="module")
def figures():
    world = LearnedWorld.load()
    world.size = SIZE
    return evaluate_world(
        world,
        generated_pairs(Slide(), range(2), SIZE, points=30),
        TrackerConfig(masks=4),
    )


def test_a_sliding_texture_is_followed(figures):
    assert figures["motion"] == pytest.approx(5.0)
    assert figures["hidden_error_over_copy"] < 0.35
    assert figures["best_match_over_motion"] < 0.2
    assert figures["best_motion_over_motion"] < 0.1
    assert figures["best_over_motion"] <= figures["single_over_motion"]
    assert figures["uniform_over_motion"] < 0.5


def test_points_move_or_get_hidden():
    points = EvaluationPoints.of(scene(5), 40, 0)
    torch.testing.assert_close(points.end - points.xy, torch.tensor([5.0, 0.0]).expand(60, 2))
    assert torch.equal(points.visible, points.end[:, 0] < SIZE)
    assert (~points.visible[40:]).all()
    assert len(EvaluationPoints.of(scene(1), 40, 0).xy) == 20


def test_balanced_accuracy_and_relative_errors_by_hand():
    accumulator = ErrorAccumulator(error=0.3, copy_error=0.6)
    accumulator.add(
        visible=torch.tensor([True, True, True, False]),
        strength=torch.tensor([0.2, 0.06, 0.01, 0.04]),
        motion=torch.tensor([4.0, 2.0, 3.0, 100.0]),
        uniform=torch.tensor([1.0, 0.0, 0.5, 100.0]),
    )
    figures = accumulator.figures(0.05)
    assert figures["hidden_error_over_copy"] == pytest.approx(0.5)
    assert figures["uniform_over_motion"] == pytest.approx(0.5 / 3)
    assert figures["visibility"] == pytest.approx((2 / 3 + 1) / 2)
    assert figures["points"] == 3


def test_a_table_has_a_column_per_source():
    text = figures_table({"one": {"a_b": 0.5}, "two": {"a_b": 1.0, "c": math.nan}})
    assert text.splitlines()[0] == "| figure | one | two |"
    assert "| a b | 0.500 | 1.000 |" in text
    assert "| c | - | - |" in text
