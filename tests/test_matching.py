"""Laws of block matching over rotations and scales, and of RANSAC for dominant motions."""

import math

import pytest
import torch
import torch.nn.functional as F

from lpa_cwm.geometry import patch_centers, pixel_centers, to_sampler
from lpa_cwm.sampling import gather_patches
from lpa_cwm.worlds.layered.matching import (
    PATCH,
    SEARCH_STRIDE,
    Hypotheses,
    MatchingFeatures,
    PatchMatches,
    dct_basis,
    dense_descriptors,
    match_patches,
    sample_patches,
    search_warps,
)
from lpa_cwm.worlds.layered.ransac import MIN_INLIERS, add_hypotheses, dominant_motions

SIZE = 192
HW = (SIZE, SIZE)
CPU = torch.device("cpu")


def texture(seed):
    """Smooth color noise of two sizes."""
    rng = torch.Generator().manual_seed(seed)
    fine, coarse = (torch.rand(1, 3, SIZE // side, SIZE // side, generator=rng) for side in (3, 8))
    return sum(F.interpolate(part, HW, mode="bicubic") for part in (fine, coarse)).div(2).clamp(0, 1)


def similarity(degrees, growth):
    """Linear part of a motion, less the identity."""
    angle = math.radians(degrees)
    turn = growth * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return turn - torch.eye(2)


def moved(source, linear, shift):
    """A target whose point x comes from x + linear (x - center) + shift."""
    places = pixel_centers(HW)
    origin = places + (places - SIZE / 2) @ linear.T + torch.tensor(shift)
    return F.grid_sample(source, to_sampler(origin, HW)[None], padding_mode="border", align_corners=False)


def truth(centers, linear, shift):
    return (centers - SIZE / 2) @ linear.T + torch.tensor(shift)


def patch_matches(center, coarse_offset, variance):
    """Patches with known coarse matches and variance; the best match is the first coarse one."""
    n = center.shape[1]
    nothing = torch.zeros(1, n, 1)
    matches = Hypotheses(
        offset=coarse_offset[:, :, :1],
        linear=torch.zeros(1, n, 1, 2, 2),
        displacement=nothing,
        zero_mean_error=nothing,
        color_error=nothing,
        color_offset=torch.zeros(1, n, 1, 3),
        structure_tensor=torch.zeros(1, n, 1, 3),
    )
    return PatchMatches(matches, coarse_offset, variance)


def test_warped_kernels_describe_the_warped_source():
    source = texture(0)
    found = dense_descriptors(source)
    basis = dct_basis().flatten(1)
    for i, j in ((5, 9), (40, 71)):
        place = (torch.tensor([j, i]) * SEARCH_STRIDE + PATCH / 2).view(1, 1, 1, 2)
        for shape, linear in enumerate(search_warps(CPU)):
            seen = sample_patches(source, place, linear.expand(1, 1, 1, 2, 2))[0, 0, 0].flatten()
            scale = found[0, shape, -1, i, j]
            torch.testing.assert_close(found[0, shape, :-2, i, j] / scale, basis @ seen, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("degrees", "growth"), [(25, 1.0), (-20, 1.0), (70, 1.0), (-45, 1.0), (0, 1.33), (0, 0.75)])
def test_a_rotated_or_scaled_patch_is_matched_far_away(degrees, growth):
    linear, shift = similarity(degrees, growth), (18.0, -9.0)
    source = texture(3)
    centers = patch_centers(HW, PATCH)
    offset = truth(centers, linear, shift)
    inner = ((centers + offset - SIZE / 2).abs() < SIZE / 2 - 10).all(1).nonzero()[:, 0]
    matched = match_patches(MatchingFeatures.of(source), moved(source, linear, shift), inner[None], keep=4)
    error = (matched.hypotheses.offset[0, :, 0] - offset[inner]).norm(dim=-1)
    assert (error < 1).float().mean() > 0.8


@pytest.mark.parametrize(
    ("degrees", "growth", "shift"),
    [(0, 1.0, (70.0, 0.0)), (30, 1.2, (-50.0, 40.0)), (-70, 1.0, (20.0, 60.0))],
)
def test_a_dominant_motion_is_found_among_mostly_wrong_matches(degrees, growth, shift):
    rng = torch.Generator().manual_seed(7)
    linear = similarity(degrees, growth)
    center = torch.rand(1, 80, 2, generator=rng) * SIZE
    coarse_offset = torch.rand(1, 80, 4, 2, generator=rng) * 2 * SIZE - SIZE
    right = torch.arange(80) % 5 < 2
    coarse_offset[0, right, 1] = truth(center[0, right], linear, shift) + torch.randn(32, 2, generator=rng) / 2
    motions = dominant_motions(patch_matches(center, coarse_offset, torch.ones(1, 80)), center)
    error = (motions.predict(center)[0] - truth(center[0], linear, shift)[:, None]).norm(dim=-1).mean(0)
    assert error.min() < 1


def test_with_too_few_inliers_all_motions_are_zero():
    rng = torch.Generator().manual_seed(2)
    few = int(MIN_INLIERS)
    center = torch.rand(1, few, 2, generator=rng) * SIZE
    coarse_offset = torch.rand(1, few, 4, 2, generator=rng) * 2 * SIZE - SIZE
    motions = dominant_motions(patch_matches(center, coarse_offset, torch.ones(1, few)), center)
    assert (motions.offset == 0).all()
    assert (motions.linear == 0).all()


def test_static_patches_make_no_motion():
    center = patch_centers(HW, PATCH)[None]
    coarse_offset = torch.zeros(1, center.shape[1], 3, 2)
    motions = dominant_motions(patch_matches(center, coarse_offset, torch.ones(1, center.shape[1])), center)
    assert (motions.predict(center) == 0).all()


def test_motions_of_a_pair_do_not_depend_on_the_batch():
    rng = torch.Generator().manual_seed(5)
    center, coarse_offset = (
        torch.rand(2, 60, 2, generator=rng) * SIZE,
        torch.rand(2, 60, 4, 2, generator=rng) * 40,
    )
    variance = torch.rand(2, 60, generator=rng)
    matched = [patch_matches(center[i : i + 1], coarse_offset[i : i + 1], variance[i : i + 1]) for i in range(2)]
    matches = Hypotheses(*(torch.cat([getattr(a.hypotheses, n) for a in matched]) for n in Hypotheses.__slots__))
    together = dominant_motions(PatchMatches(matches, coarse_offset, variance), center)
    for i, one in enumerate(matched):
        alone = dominant_motions(one, center[i : i + 1])
        torch.testing.assert_close(together.predict(center)[i], alone.predict(center[i : i + 1])[0], atol=1e-2, rtol=0)


def test_along_a_dominant_motion_patches_find_what_they_miss_alone():
    linear, shift = similarity(48, 1.15), (30.0, -25.0)
    source = texture(8)
    target = moved(source, linear, shift)
    target = target + 0.2 * torch.randn(target.shape, generator=torch.Generator().manual_seed(4))
    centers = patch_centers(HW, PATCH)
    offset = truth(centers, linear, shift)
    inner = ((centers + offset - SIZE / 2).abs() < SIZE / 2 - 10).all(1).nonzero()[:, 0]
    visible = inner[torch.randperm(len(inner), generator=torch.Generator().manual_seed(1))[:60]][None]
    matched = match_patches(MatchingFeatures.of(source), target, visible, keep=4)
    found = add_hypotheses(
        matched, MatchingFeatures.of(source).layers, gather_patches(target, visible, PATCH), centers[visible]
    )

    def share(matches):
        return ((matches.offset[0, :, 0] - offset[visible[0]]).norm(dim=-1) < 1).float().mean()

    assert share(found) > share(matched.hypotheses) + 0.3
    assert found.offset.shape == matched.hypotheses.offset.shape
