"""Aggregation and localization against plain loops and by their laws."""

import math
from dataclasses import replace

import pytest
import torch

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import distribution, localize, windowed_sequence
from lpa_cwm.geometry import pixel_centers
from lpa_cwm.responses import Responses


def blob(x, y, height, size=64, sigma=2.0):
    """A positive RGB response with one peak in the middle of pixel (x, y)."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    bump = height * torch.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * sigma**2))
    return bump.expand(1, 3, size, size).clone()


def aggregated(image, patch=1):
    """A dense aggregated response [n 3 h w] as blocks."""
    return Responses.from_dense(image[:, None], patch)


def dense_distribution(logits):
    """A distribution whose logits are given at every pixel; a constant is added so that none is negative."""
    logits = logits - logits.amin((1, 2), keepdim=True)
    response = Responses.from_dense(logits[:, None, None].expand(-1, -1, 3, -1, -1), 1)
    start = distribution(response, TrackerConfig())
    return replace(start, value=response.blocks.flatten(1))


def plain_windowed(field, sharpness, windows):
    """The paper's formulas, one pixel at a time."""
    height, width = field.shape
    weight = [[math.exp(sharpness * float(field[r, c])) for c in range(width)] for r in range(height)]
    for _ in range(windows):
        total = sum(map(sum, weight))
        mean_x = sum(weight[r][c] * (c + 0.5) for r in range(height) for c in range(width)) / total
        mean_y = sum(weight[r][c] * (r + 0.5) for r in range(height) for c in range(width)) / total
        distance = [[(c + 0.5 - mean_x) ** 2 + (r + 0.5 - mean_y) ** 2 for c in range(width)] for r in range(height)]
        spread = math.sqrt(sum(weight[r][c] * distance[r][c] for r in range(height) for c in range(width)) / total)
        scale = 2 * (3 * max(spread, 0.5)) ** 2
        weight = [[weight[r][c] * math.exp(-distance[r][c] / scale) for c in range(width)] for r in range(height)]
    total = sum(map(sum, weight))
    return torch.tensor(weight) / total


@pytest.mark.parametrize("windows", [0, 1, 2])
def test_windows_equal_the_plain_formulas(windows):
    response = torch.rand(1, 3, 9, 13, generator=torch.Generator().manual_seed(1)) * 0.1
    method = TrackerConfig(sharpness=50.0)
    *_, last = windowed_sequence(distribution(aggregated(response), method), windows)
    expected = plain_windowed(response.abs().sum(1)[0] / 3, 50, windows)
    torch.testing.assert_close(last.probability()[0], expected, atol=1e-6, rtol=1e-4)


def test_a_distant_second_peak_is_suppressed():
    """Two blobs side by side are slightly lower than a lone distant one; the window decides for the company."""
    response = torch.maximum(blob(20, 20, 0.100), blob(24, 22, 0.100)) + blob(56, 56, 0.1005)
    standard = localize(aggregated(response, 8), TrackerConfig(windows=0, sharpness=100.0))
    windowed = localize(aggregated(response, 8), TrackerConfig(sharpness=100.0))
    assert standard.tolist() == [[56.5, 56.5]]
    assert (windowed - torch.tensor([[22.5, 21.5]])).norm() < 4


def test_aggregation_weighs_signed_responses():
    response = torch.randn(2, 3, 3, 4, 5)
    weights = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    expected = sum(weights[:, m, None, None, None] * response[:, m] for m in range(3))
    found = Responses.from_dense(response, 1).aggregate(weights)
    torch.testing.assert_close(found.dense()[:, 0], expected)
    opposite = Responses.from_dense(torch.cat((response, -response), 1), 1)
    assert opposite.aggregate(torch.full((2, 6), 1 / 6)).blocks.abs().amax() < 1e-6


def test_mean_and_sum_differ_by_three():
    response = torch.randn(2, 3, 4, 5)
    total, mean = (distribution(aggregated(response), TrackerConfig(reduce=how)).value for how in ("sum", "mean"))
    torch.testing.assert_close(total, 3 * mean)


def test_permuting_candidates_leaves_the_endpoint():
    response = torch.randn(1, 5, 3, 16, 16)
    weights = torch.rand(1, 5).softmax(1)
    order = torch.randperm(5)
    a = localize(Responses.from_dense(response, 8).aggregate(weights), TrackerConfig())
    b = localize(Responses.from_dense(response[:, order], 8).aggregate(weights[:, order]), TrackerConfig())
    # Sums in another order differ in the last bits, and so do answers between pixels.
    torch.testing.assert_close(a, b)


def test_a_window_never_collapses():
    sharp = dense_distribution(
        torch.full((1, 8, 8), -1e4).index_put((torch.tensor(0), torch.tensor(3), torch.tensor(4)), torch.tensor(0.0))
    )
    assert sharp.windowed().peak().tolist() == [[4.5, 3.5]]
    assert sharp.moments()[1].item() == 0


def test_the_first_of_equal_peaks_in_raster_order():
    field = torch.zeros(1, 3, 4, 4)
    field[0, :, 1, 2] = field[0, :, 3, 0] = 1
    assert localize(aggregated(field), TrackerConfig(windows=0)).tolist() == [[2.5, 1.5]]


def test_a_summit_is_found_between_pixels():
    """The logarithm of a Gaussian is a parabola, whose top lies at the Gaussian's middle."""
    draw = torch.Generator().manual_seed(4)
    middle = 8 + 16 * torch.rand(20, 2, generator=draw)
    grid = pixel_centers((32, 32))
    logits = -0.5 * (grid - middle[:, None, None]).square().sum(-1) / 3.0**2
    torch.testing.assert_close(dense_distribution(logits).subpixel_peak(), middle, atol=1e-3, rtol=0)
    torch.testing.assert_close(dense_distribution(logits).peak(), middle, atol=0.5, rtol=0)


def test_a_summit_at_the_border_or_on_a_plateau_is_a_pixels_center():
    logits = torch.zeros(2, 6, 7)
    logits[0, 0, 6] = 5
    assert torch.equal(dense_distribution(logits).subpixel_peak(), dense_distribution(logits).peak())
