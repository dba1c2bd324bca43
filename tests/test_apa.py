"""APA against a plain loop over pixels, and the cases that rule its weights: still frames, clips, borders."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dense_candidates import dense_candidates
from lpa_cwm.adjudicators.apa import APA, SIZE, disc, mean_around, to_score_frame
from lpa_cwm.protocols import Adjudicator
from lpa_cwm.rng import generator
from lpa_cwm.types import Pair


class Stored:
    """A score model that answers with a stored tensor and counts the questions."""

    def __init__(self, score):
        self.score, self.calls = score, 0

    def __call__(self, frames):
        assert frames.shape[1:] == self.score.shape
        self.calls += 1
        return self.score[None].expand_as(frames)


def pair_of(source, target):
    return Pair(source, target, torch.zeros(1, 2))


def candidates_at(peak, side=256):
    return dense_candidates(torch.zeros(1, 1, 3, side, side).expand(*peak.shape[:2], -1, -1, -1), peak)


def noise(*shape, name):
    return torch.rand(shape, generator=generator("analytic", name))


@pytest.fixture
def moving():
    score = 2 * noise(3, SIZE, SIZE, name="score") - 1
    return Stored(score), pair_of(noise(3, 256, 256, name="source"), noise(3, 256, 256, name="target"))


def loop_gradient(score, source, target, stabilizer):
    """Eq. 3, one pixel at a time, in Python's own doubles."""
    height, width = score.shape[1:]
    score, source, target = (tensor.tolist() for tensor in (score, source, target))
    result = [[0.0] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            s = [score[c][i][j] for c in range(3)]
            change = [target[c][i][j] - source[c][i][j] for c in range(3)]
            inner = sum(a * b for a, b in zip(s, change, strict=True))
            result[i][j] = math.sqrt(sum(a * a for a in s)) / (abs(inner) + stabilizer)
    return result


def loop_bilinear(image, side):
    """Bilinear resize with pixel centers at the half and the border repeated."""
    size = len(image)

    def taps(i):
        place = min(max((i + 0.5) * size / side - 0.5, 0.0), size - 1.0)
        first = min(int(place), size - 2)
        return first, place - first

    result = []
    for i in range(side):
        a, u = taps(i)
        line = []
        for j in range(side):
            b, v = taps(j)
            top = (1 - v) * image[a][b] + v * image[a][b + 1]
            bottom = (1 - v) * image[a + 1][b] + v * image[a + 1][b + 1]
            line.append((1 - u) * top + u * bottom)
        result.append(line)
    return result


def loop_weights(image, peaks, radius=6, low=1e-3, high=1e3):
    """Eq. 4 for the candidates of one query."""
    beliefs = []
    for x, y in peaks:
        column, row = math.floor(x), math.floor(y)
        near = [
            value
            for i, line in enumerate(image)
            for j, value in enumerate(line)
            if (j - column) ** 2 + (i - row) ** 2 <= radius**2
        ]
        beliefs.append(min(max(math.fsum(near) / len(near), low), high))
    return [belief / math.fsum(beliefs) for belief in beliefs]


PEAKS = torch.tensor(
    [
        [[128.5, 128.5], [0.5, 0.5], [255.5, 3.5], [90.0, 41.99], [17.5, 200.5]],
        [[255.5, 255.5], [0.5, 130.5], [60.5, 255.5], [61.5, 254.5], [7.5, 6.5]],
    ]
)


def assert_like_loop(field, pair, weights):
    reference = loop_gradient(field.score, to_score_frame(pair.source), to_score_frame(pair.target), 1e-6)
    expected = [loop_weights(loop_bilinear(reference, 256), peaks) for peaks in PEAKS.tolist()]
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-5, atol=0)


def test_weights_equal_plain_loop(moving):
    field, pair = moving
    weights = APA(field)(pair, candidates_at(PEAKS)).weights
    assert weights.std(dim=-1).min() > 1e-3
    assert_like_loop(field, pair, weights)


def test_weights_equal_plain_loop_where_part_of_the_frame_stands_still(moving):
    field, pair = moving
    pair.target[:, :, :100] = pair.source[:, :, :100]
    weights = APA(field)(pair, candidates_at(PEAKS)).weights
    assert weights.max() > 0.3
    assert_like_loop(field, pair, weights)


def test_identical_frames_saturate_every_candidate(moving):
    field, pair = moving
    still = pair_of(pair.source, pair.source.clone())
    torch.testing.assert_close(APA(field).gradient(still), field.score.double().norm(dim=0) * 1e6)
    weights = APA(field)(still, candidates_at(PEAKS)).weights
    torch.testing.assert_close(weights, torch.full((2, 5), 0.2))


def test_silent_score_falls_to_the_lower_clip(moving):
    _, pair = moving
    field = Stored(torch.zeros(3, SIZE, SIZE))
    torch.testing.assert_close(APA(field)(pair, candidates_at(PEAKS)).weights, torch.full((2, 5), 0.2))


def test_both_clips_bound_the_ratio_of_weights(moving):
    field, pair = moving
    pair.target[:, :, :128] = pair.source[:, :, :128]
    field.score[:, :, SIZE // 2 :] = 0
    peak = torch.tensor([[[30.5, 99.5], [220.5, 99.5]]])
    weights = APA(field)(pair, candidates_at(peak)).weights
    torch.testing.assert_close(weights[0, 0] / weights[0, 1], torch.tensor(1e6), rtol=1e-5, atol=0)


def test_weights_are_permutation_equivariant_and_normalized(moving):
    field, pair = moving
    adjudicator = APA(field)
    order = torch.tensor([3, 0, 4, 2, 1])
    weights = adjudicator(pair, candidates_at(PEAKS)).weights
    torch.testing.assert_close(
        adjudicator(pair, candidates_at(PEAKS[:, order])).weights, weights[:, order], rtol=0, atol=0
    )
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2))
    assert (weights > 0).all()


def test_batch_equals_single_queries(moving):
    field, pair = moving
    adjudicator = APA(field)
    together = adjudicator(pair, candidates_at(PEAKS)).weights
    alone = torch.cat([adjudicator(pair, candidates_at(PEAKS[i : i + 1])).weights for i in range(2)])
    assert torch.equal(together, alone)


def test_score_is_evaluated_once_per_source(moving):
    field, pair = moving
    adjudicator = APA(field)
    for target in (pair.target, pair.source, pair.target):
        for peaks in (PEAKS, PEAKS[:1]):
            # Pairs of one source frame share what is derived from it.
            adjudicator(replace(pair, target=target), candidates_at(peaks))
    assert field.calls == 1
    adjudicator(pair_of(pair.source, pair.target), candidates_at(PEAKS))
    assert field.calls == 2


def test_is_an_adjudicator(moving):
    assert isinstance(APA(moving[0]), Adjudicator)


@pytest.mark.parametrize(("radius", "count"), [(0, 1), (1, 5), (2, 13), (6, 113)])
def test_disc_is_euclidean(radius, count):
    assert len(disc(radius)) == count


def test_disc_is_clipped_at_the_border():
    image = torch.arange(12.0).reshape(3, 4)
    mean = mean_around(image, torch.tensor([[0.5, 0.5], [3.5, 1.5], [1.5, 1.5]]), disc(1))
    torch.testing.assert_close(mean, torch.tensor([5 / 3, (3 + 6 + 7 + 11) / 4, 5.0]))


@pytest.mark.parametrize("side", [256, 512])
def test_frames_are_prepared_as_pillow_resizes(side):
    frame = noise(3, side, side, name="frame")
    planes = [Image.fromarray(plane.numpy()).resize((SIZE, SIZE), Image.Resampling.BILINEAR) for plane in frame]
    expected = 2 * torch.from_numpy(np.stack([np.asarray(plane) for plane in planes])) - 1
    torch.testing.assert_close(to_score_frame(frame), expected, rtol=0, atol=1e-4)
