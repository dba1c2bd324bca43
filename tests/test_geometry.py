"""Laws of coordinates: round trips, centers, views."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from lpa_cwm.geometry import (
    Crop,
    axis_centers,
    center_of,
    center_of_flat,
    centered_grid,
    from_sampler,
    index_of,
    inside,
    patch_centers,
    patch_of,
    pixel_centers,
    rescale,
    sample_bilinear,
    sample_pixels,
    to_continuous_index,
    to_sampler,
    unit_range,
)
from lpa_cwm.rng import generator

sizes = st.tuples(st.integers(2, 400), st.integers(2, 400))
unit = st.floats(0, 0.999)


@given(sizes, st.data())
def test_a_pixels_center_lies_in_that_pixel(hw, data):
    row, column = data.draw(st.integers(0, hw[0] - 1)), data.draw(st.integers(0, hw[1] - 1))
    index = torch.tensor([column, row])
    assert torch.equal(index_of(center_of(index), hw), index)
    assert torch.equal(center_of_flat(torch.tensor(row * hw[1] + column), hw[1]), center_of(index))
    assert torch.equal(pixel_centers(hw)[row, column], center_of(index))


@given(sizes, sizes, unit, unit)
def test_resizing_there_and_back_is_nothing(source, target, u, v):
    xy = torch.tensor([u * source[1], v * source[0]], dtype=torch.float64)
    torch.testing.assert_close(rescale(rescale(xy, source, target), target, source), xy)


@given(sizes, unit, unit, unit, st.data())
def test_views_round_trip_and_stay_inside(hw, u, v, shrink, data):
    side = max(1, int(min(hw) * (1 - shrink)))
    xy = torch.tensor([u * hw[1], v * hw[0]], dtype=torch.float64)
    view = Crop.around(xy.float(), side, hw, 256)
    assert 0 <= view.x <= hw[1] - side
    assert 0 <= view.y <= hw[0] - side
    torch.testing.assert_close(view.to_frame(view.to_crop(xy)), xy)
    assert inside(view.to_crop(center_of(index_of(xy, hw)).double()), (256, 256))


def test_the_corner_of_a_frame_is_the_corner_of_the_full_view():
    view = Crop.full((100, 200), 256)
    corners = torch.tensor([[0.0, 0.0], [200.0, 100.0]])
    torch.testing.assert_close(view.to_crop(corners), torch.tensor([[0.0, 0.0], [256.0, 256.0]]))


def test_the_sampler_reads_a_pixel_at_its_center():
    image = torch.arange(12.0).view(1, 1, 3, 4)
    grid = to_sampler(pixel_centers((3, 4)), (3, 4))[None]
    read = torch.nn.functional.grid_sample(image, grid, align_corners=False)
    torch.testing.assert_close(read, image)


def test_points_outside():
    points = torch.tensor([[0.0, 0.0], [4.0, 1.0], [-0.1, 1.0], [float("nan"), 1.0], [3.9, 2.9]])
    assert inside(points, (3, 4)).tolist() == [True, False, False, False, True]
    assert patch_of(torch.tensor([17.0, 7.9]), (32, 32), 8).tolist() == [2, 0]


@given(sizes, unit, unit)
def test_sampler_coordinates_round_trip(hw, u, v):
    xy = torch.tensor([u * hw[1], v * hw[0]], dtype=torch.float64)
    torch.testing.assert_close(from_sampler(to_sampler(xy, hw), hw), xy)


@given(sizes, st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_a_bilinear_value_is_the_weighted_mean_of_four_pixels(hw, u, v):
    """Outside the outermost pixel centers the border is repeated."""
    image = torch.rand(hw, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    xy = torch.tensor([u * hw[1], v * hw[0]], dtype=torch.float64)
    column, row = to_continuous_index(xy).clamp(min=torch.zeros(2), max=torch.tensor([hw[1] - 1, hw[0] - 1])).tolist()
    left, top = math.floor(column), math.floor(row)
    right, bottom = min(left + 1, hw[1] - 1), min(top + 1, hw[0] - 1)
    upper, lower = (image[y, left] + (column - left) * (image[y, right] - image[y, left]) for y in (top, bottom))
    found = sample_bilinear(image[None, None], xy[None, None])
    torch.testing.assert_close(found[0, 0, 0], upper + (row - top) * (lower - upper))


def test_grids_of_centers_agree():
    centers = pixel_centers((3, 5))
    assert axis_centers(0, 5).tolist() == centers[0, :, 0].tolist()
    assert to_continuous_index(centers[2, 4]).tolist() == [4.0, 2.0]
    assert centered_grid(3).view(3, 3, 2)[1, 1].tolist() == [0.0, 0.0]
    assert patch_centers((16, 24), 8).tolist() == [[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12]]


def test_sampled_pixels_are_bilinear_values_of_the_whole_frame():
    draw = generator("test", "pixels")
    frame = torch.randint(0, 256, (3, 20, 30), generator=draw, dtype=torch.uint8)
    xy = torch.rand(7, 5, 2, generator=draw) * torch.tensor([36.0, 26.0]) - 3
    whole = sample_bilinear(unit_range(frame)[None], xy.flatten(0, 1)[None]).view(7, 5, 3)
    torch.testing.assert_close(sample_pixels(frame, xy), whole, atol=1e-5, rtol=0)
