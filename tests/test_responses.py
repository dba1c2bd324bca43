"""Block-sparse responses against the dense tensors they stand for."""

import pytest
import torch

from lpa_cwm.config import TrackerConfig
from lpa_cwm.decode import distribution, windowed_sequence
from lpa_cwm.geometry import pixel_centers
from lpa_cwm.responses import Responses, argmax_xy, concatenate, dense_magnitude
from lpa_cwm.types import Candidates

SIDE, PATCH = 32, 8


def sparse(seed, n=3, m=4, kept=0.2, channels=1):
    """Random blocks at a random fifth of the patches."""
    draw = torch.Generator().manual_seed(seed)
    patches = (SIDE // PATCH) ** 2
    used = (torch.rand(n, m, patches, generator=draw) < kept).nonzero()
    blocks = torch.randn(len(used), channels, PATCH, PATCH, generator=draw)
    return Responses(blocks, used[:, 0], used[:, 1], used[:, 2], (n, m), (SIDE, SIDE))


@pytest.mark.parametrize("channels", [1, 3])
def test_blocks_are_the_dense_response(channels):
    response = sparse(0, channels=channels)
    dense = response.dense()
    assert dense.shape == (3, 4, 3, SIDE, SIDE)
    assert torch.equal(Responses.from_dense(dense, PATCH).dense(), dense)
    column, row = response.pixels()
    query, mask = (index[:, None, None] for index in (response.query, response.mask))
    assert torch.equal(dense[query, mask, 0, row[:, :, None], column[:, None]], response.blocks[:, 0])


@pytest.mark.parametrize("kept", [0.0, 0.2, 1.0])
def test_peaks_are_the_dense_argmax(kept):
    candidates = Candidates.of(sparse(1, kept=kept))
    magnitude = dense_magnitude(candidates.response.dense())
    torch.testing.assert_close(candidates.strength, magnitude.amax((-2, -1)))
    assert torch.equal(candidates.peak, argmax_xy(magnitude))


def test_aggregation_is_the_dense_weighted_sum():
    response, weights = sparse(2), torch.rand(3, 4).softmax(1)
    expected = torch.einsum("nmchw,nm->nchw", response.dense(), weights)
    torch.testing.assert_close(response.aggregate(weights).dense()[:, 0], expected)


def test_queries_are_taken_out():
    response, rows = sparse(5), torch.tensor([0, 2])
    assert torch.equal(response.of_queries(rows).dense(), response.dense()[rows])


def test_queries_are_put_together():
    first, second = (sparse(seed).aggregate(torch.ones(3, 4)) for seed in (3, 4))
    whole = concatenate(
        [first.with_queries(torch.tensor([0, 2, 4]), 6), second.with_queries(torch.tensor([1, 3, 5]), 6)]
    )
    assert torch.equal(whole.dense()[::2], first.dense())
    assert torch.equal(whole.dense()[1::2], second.dense())


def dense_steps(image, sharpness, windows):
    """Logits, mean and spread before and after each window, on the dense map."""
    logits = sharpness * image
    centers = pixel_centers((SIDE, SIDE))
    for _ in range(windows + 1):
        probability = logits.flatten(1).softmax(1).view_as(logits)
        mean = (probability[..., None] * centers).sum((1, 2))
        distance = (centers - mean[:, None, None]).square().sum(-1)
        spread = (probability * distance).sum((1, 2)).sqrt()
        yield logits, mean, spread
        logits = logits - distance / (2 * (3 * spread.clamp(min=0.5)) ** 2)[:, None, None]


@pytest.mark.parametrize("sharpness", [1.0, 20.0, 300.0])
def test_distribution_equals_the_dense_one(sharpness):
    response = sparse(5).aggregate(torch.full((3, 4), 0.25))
    image = dense_magnitude(response.dense())[:, 0] / 3
    steps = windowed_sequence(distribution(response, TrackerConfig(sharpness=sharpness)), 2)
    for found, (logits, mean, spread) in zip(steps, dense_steps(image, sharpness, 2), strict=True):
        got_mean, got_spread = found.moments()
        torch.testing.assert_close(got_mean, mean, atol=2e-3, rtol=0)
        torch.testing.assert_close(got_spread, spread, atol=2e-3, rtol=1e-3)
        assert torch.equal(found.peak(), argmax_xy(logits))
        torch.testing.assert_close(found.probability().sum((1, 2)), torch.ones(3))


def test_without_a_response_the_center_of_the_frame_is_left():
    """A flat distribution has its mean in the middle; windows keep it there."""
    empty = sparse(6, kept=0.0).aggregate(torch.ones(3, 4))
    *_, last = windowed_sequence(distribution(empty, TrackerConfig()), 2)
    assert (last.moments()[0] - SIDE / 2).abs().max() < 1e-3
    assert (last.peak() - SIDE / 2).abs().max() <= 0.5
