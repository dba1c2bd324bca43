"""The sixteen statistics and the local crops against plain loops."""

import math

import pytest
import torch

from dense_candidates import dense_candidates
from features_reference import reference
from lpa_cwm.adjudicators import features
from lpa_cwm.responses import Responses
from lpa_cwm.types import Pair

SIZE = 40


def example(seed, zeros=0.0):
    draw = torch.Generator().manual_seed(seed)
    frames = torch.rand(2, 3, SIZE, SIZE, generator=draw)
    response = torch.randn(3, 4, 3, SIZE, SIZE, generator=draw)
    response[torch.rand(3, 4, 1, SIZE, SIZE, generator=draw).expand_as(response) < zeros] = 0
    xy = torch.rand(3, 2, generator=draw) * SIZE
    peak = torch.rand(3, 4, 2, generator=draw) * SIZE
    peak[0, 0] = torch.tensor([0.5, 0.5])
    peak[1, 1] = torch.tensor([SIZE - 0.5, 20.5])
    return Pair(frames[0], frames[1], xy), dense_candidates(response, peak), response


@pytest.mark.parametrize(("seed", "zeros"), [(0, 0.0), (1, 0.1), (2, 0.7), (3, 1.0)])
def test_each_statistic_equals_a_plain_loop(seed, zeros):
    pair, candidates, response = example(seed, zeros)
    got = features.extract(pair, candidates).statistics[..., : features.STATISTICS]
    strength = response.abs().sum(2)
    for n in range(3):
        for m in range(4):
            expected = torch.tensor(reference(pair, pair.xy[n], candidates.peak[n, m], strength[n, m]))
            torch.testing.assert_close(got[n, m], expected, rtol=2e-5, atol=1e-6)


def test_statistics_3_to_10_are_compressed():
    values = torch.linspace(-5, 5, 16)
    logged = features.compress(values)
    for dimension, (before, after) in enumerate(zip(values.tolist(), logged.tolist(), strict=True), start=1):
        expected = math.copysign(math.log1p(abs(before)), before) if 3 <= dimension <= 10 else before
        assert after == pytest.approx(expected, rel=1e-6)


def bilinear(image, x, y):
    """Value at a raster point, the border repeated."""
    height, width = image.shape
    x, y = min(max(x - 0.5, 0), width - 1), min(max(y - 0.5, 0), height - 1)
    c, r = min(int(x), width - 2), min(int(y), height - 2)
    top = image[r, c] * (1 - (x - c)) + image[r, c + 1] * (x - c)
    bottom = image[r + 1, c] * (1 - (x - c)) + image[r + 1, c + 1] * (x - c)
    return float(top * (1 - (y - r)) + bottom * (y - r))


def test_local_crops_span_64_pixels_with_samples_on_both_edges():
    pair, candidates, response = example(5)
    local = features.extract(pair, candidates).local
    n, m = 2, 3
    offsets = [-32 + 64 * i / 31 for i in range(32)]
    strength = response[n, m].abs().sum(0)
    strength = strength / (strength.max() + 1e-8)
    for i, j in [(0, 0), (31, 31), (15, 16), (7, 28)]:
        sx, sy = (float(v) + offsets[k] for v, k in zip(pair.xy[n], (j, i), strict=True))
        ex, ey = (float(v) + offsets[k] for v, k in zip(candidates.peak[n, m], (j, i), strict=True))
        for channel in range(3):
            source, target = bilinear(pair.source[channel], sx, sy), bilinear(pair.target[channel], ex, ey)
            assert local[n, m, channel, i, j].item() == pytest.approx(source, abs=1e-5)
            assert local[n, m, 3 + channel, i, j].item() == pytest.approx(target, abs=1e-5)
            assert local[n, m, 6 + channel, i, j].item() == pytest.approx(abs(target - source), abs=1e-5)
        assert local[n, m, 9, i, j].item() == pytest.approx(bilinear(strength, ex, ey), abs=1e-5)


def test_the_median_does_not_depend_on_how_much_of_a_map_is_zero():
    draw = torch.Generator().manual_seed(0)
    image = torch.rand(6, 1, 3, 40, 40, generator=draw)
    for row, empty in enumerate((0, 100, 799, 800, 801, 1600)):
        image[row].view(3, -1)[:, torch.randperm(1600, generator=draw)[:empty]] = 0
    response = Responses.from_dense(image, 8)
    expected = image.sum(2).flatten(1).median(1).values
    torch.testing.assert_close(features.lower_median(response, response.magnitude()), expected)
