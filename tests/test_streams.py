"""Laws of the search for far and turned patches: likenesses in several shapes, and motions that many patches share."""

import math

import pytest
import torch
import torch.nn.functional as F
from lpa_cwm.worlds.layered.patches import PATCH, patch_centers, pixels_in

from lpa_cwm.geometry import pixel_centers, to_sampler
from lpa_cwm.worlds.layered.block_matching import STRIDE, describe, shapes, smooth_basis
from lpa_cwm.worlds.layered.ransac import QUORUM, find, follow
from lpa_cwm.worlds.layered.refine import Ground, Looks, Matches, match, window

SIZE = 192
HW = (SIZE, SIZE)
CPU = torch.device("cpu")


def texture(seed):
    """Smooth color noise of two sizes."""
    draw = torch.Generator().manual_seed(seed)
    fine, coarse = (torch.rand(1, 3, SIZE // side, SIZE // side, generator=draw) for side in (3, 8))
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


def looks_of(center, likeness, detail):
    """Patches of which only likenesses and detail are known; the best match is the first likeness."""
    n = center.shape[1]
    nothing = torch.zeros(1, n, 1)
    matches = Matches(
        offset=likeness[:, :, :1],
        linear=torch.zeros(1, n, 1, 2, 2),
        away=nothing,
        shape_error=nothing,
        color_error=nothing,
        light=torch.zeros(1, n, 1, 3),
        information=torch.zeros(1, n, 1, 3),
    )
    return Looks(matches, likeness, detail)


def test_shaped_kernels_read_the_source_turned_and_stretched():
    source = texture(0)
    found = describe(source)
    basis = smooth_basis().flatten(1)
    for i, j in ((5, 9), (40, 71)):
        place = (torch.tensor([j, i]) * STRIDE + PATCH / 2).view(1, 1, 1, 2)
        for shape, linear in enumerate(shapes(CPU)):
            seen = window(source, place, linear.expand(1, 1, 1, 2, 2))[0, 0, 0].flatten()
            scale = found[0, shape, -1, i, j]
            torch.testing.assert_close(found[0, shape, :-2, i, j] / scale, basis @ seen, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("degrees", "growth"), [(25, 1.0), (-20, 1.0), (70, 1.0), (-45, 1.0), (0, 1.33), (0, 0.75)])
def test_a_turned_or_stretched_patch_is_matched_far_away(degrees, growth):
    linear, shift = similarity(degrees, growth), (18.0, -9.0)
    source = texture(3)
    centers = patch_centers(HW)
    offset = truth(centers, linear, shift)
    inner = ((centers + offset - SIZE / 2).abs() < SIZE / 2 - 10).all(1).nonzero()[:, 0]
    looks = match(Ground.of(source), moved(source, linear, shift), inner[None], keep=4)
    error = (looks.matches.offset[0, :, 0] - offset[inner]).norm(dim=-1)
    assert (error < 1).float().mean() > 0.8


@pytest.mark.parametrize(
    ("degrees", "growth", "shift"),
    [(0, 1.0, (70.0, 0.0)), (30, 1.2, (-50.0, 40.0)), (-70, 1.0, (20.0, 60.0))],
)
def test_a_stream_is_found_among_mostly_wrong_likenesses(degrees, growth, shift):
    draw = torch.Generator().manual_seed(7)
    linear = similarity(degrees, growth)
    center = torch.rand(1, 80, 2, generator=draw) * SIZE
    likeness = torch.rand(1, 80, 4, 2, generator=draw) * 2 * SIZE - SIZE
    right = torch.arange(80) % 5 < 2
    likeness[0, right, 1] = truth(center[0, right], linear, shift) + torch.randn(32, 2, generator=draw) / 2
    streams = find(looks_of(center, likeness, torch.ones(1, 80)), center)
    error = (streams.foretell(center)[0] - truth(center[0], linear, shift)[:, None]).norm(dim=-1).mean(0)
    assert error.min() < 1


def test_without_a_quorum_there_is_only_rest():
    draw = torch.Generator().manual_seed(2)
    few = int(QUORUM)
    center = torch.rand(1, few, 2, generator=draw) * SIZE
    likeness = torch.rand(1, few, 4, 2, generator=draw) * 2 * SIZE - SIZE
    streams = find(looks_of(center, likeness, torch.ones(1, few)), center)
    assert (streams.offset == 0).all()
    assert (streams.linear == 0).all()


def test_still_patches_make_no_stream():
    center = patch_centers(HW)[None]
    likeness = torch.zeros(1, center.shape[1], 3, 2)
    streams = find(looks_of(center, likeness, torch.ones(1, center.shape[1])), center)
    assert (streams.foretell(center) == 0).all()


def test_streams_of_a_pair_are_those_it_has_alone():
    draw = torch.Generator().manual_seed(5)
    center, likeness = torch.rand(2, 60, 2, generator=draw) * SIZE, torch.rand(2, 60, 4, 2, generator=draw) * 40
    detail = torch.rand(2, 60, generator=draw)
    looks = [looks_of(center[i : i + 1], likeness[i : i + 1], detail[i : i + 1]) for i in range(2)]
    matches = Matches(*(torch.cat([getattr(a.matches, n) for a in looks]) for n in Matches.__slots__))
    together = find(Looks(matches, likeness, detail), center)
    for i, one in enumerate(looks):
        alone = find(one, center[i : i + 1])
        torch.testing.assert_close(
            together.foretell(center)[i], alone.foretell(center[i : i + 1])[0], atol=1e-2, rtol=0
        )


def test_along_a_stream_patches_find_what_they_miss_alone():
    linear, shift = similarity(48, 1.15), (30.0, -25.0)
    source = texture(8)
    target = moved(source, linear, shift)
    target = target + 0.2 * torch.randn(target.shape, generator=torch.Generator().manual_seed(4))
    centers = patch_centers(HW)
    offset = truth(centers, linear, shift)
    inner = ((centers + offset - SIZE / 2).abs() < SIZE / 2 - 10).all(1).nonzero()[:, 0]
    visible = inner[torch.randperm(len(inner), generator=torch.Generator().manual_seed(1))[:60]][None]
    looks = match(Ground.of(source), target, visible, keep=4)
    found = follow(looks, Ground.of(source).layers, pixels_in(visible, target), centers[visible])

    def share(matches):
        return ((matches.offset[0, :, 0] - offset[visible[0]]).norm(dim=-1) < 1).float().mean()

    assert share(found) > share(looks.matches) + 0.3
    assert found.offset.shape == looks.matches.offset.shape
