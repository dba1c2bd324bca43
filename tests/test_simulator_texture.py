"""Textures, procedural bodies and light: what is read is what was put in."""

import numpy as np
import pytest
from PIL import Image

from lpa_cwm.simulator import assets as shapes
from lpa_cwm.simulator import texture as patterns
from lpa_cwm.simulator.assets import Mesh, corner_normals
from lpa_cwm.simulator.environment import directions_of, light_of
from lpa_cwm.simulator.texture import Texture, to_linear, to_srgb


def centers(height, width):
    """The middle of every texel, as shares of the picture."""
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    return np.stack((x.ravel(), y.ravel())).astype(np.float32)


def picture(height=16, width=32, seed=0):
    return np.random.default_rng(seed).random((height, width, 3)).astype(np.float32)


def test_bytes_survive_the_way_to_light_and_back():
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    np.testing.assert_allclose(to_srgb(to_linear(every)).astype(int), every, atol=1)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_level_is_the_mean_of_the_blocks_it_stands_for(level):
    image = picture()
    side = 2**level
    blocks = image.reshape(16 // side, side, 32 // side, side, 3).mean((1, 3))
    texture = Texture.of(image)
    uv = centers(16 // side, 32 // side)
    found = texture.read(uv, np.full(uv.shape[1], level, dtype=np.float32))
    np.testing.assert_allclose(found.T.reshape(blocks.shape), blocks, atol=1e-5)
    np.testing.assert_allclose(texture.level(level), blocks, atol=1e-6)


def test_levels_in_between_are_blended():
    texture, uv = Texture.of(picture()), np.array([[0.3, 0.8], [0.2, 0.6]], dtype=np.float32)
    low, high, middle = (texture.read(uv, np.full(2, level, dtype=np.float32)) for level in (1, 2, 1.25))
    np.testing.assert_allclose(middle, 0.75 * low + 0.25 * high, atol=1e-5)


def test_periodic_textures_have_no_seam():
    image = picture()
    texture = Texture.of(image, "both")
    at_seam = texture.read(np.array([[0.0], [0.5 / 16]], dtype=np.float32), np.zeros(1, dtype=np.float32))
    np.testing.assert_allclose(at_seam[:, 0], (image[0, 0] + image[0, -1]) / 2, atol=1e-5)


def test_pages_are_kept_apart():
    images = [picture(seed=seed) for seed in range(3)]
    texture = Texture.stack([Texture.of(image) for image in images])
    uv = centers(16, 32)
    for page, image in enumerate(images):
        found = texture.read(uv, np.zeros(uv.shape[1], dtype=np.float32), np.full(uv.shape[1], page))
        np.testing.assert_allclose(found.T.reshape(image.shape), image, atol=1e-4)


@pytest.mark.parametrize("form", sorted(set(shapes.FORMS), key=lambda form: form.__name__))
def test_invented_bodies_are_closed(form):
    """Every edge of a closed surface belongs to two triangles, once vertices in the same place are one."""
    for seed in range(3):
        solid = form(np.random.default_rng(seed))
        _, place = np.unique(np.round(solid.vertices, 6), axis=0, return_inverse=True)
        faces = place.reshape(-1)[solid.faces]
        faces = faces[[len(set(face)) == 3 for face in faces.tolist()]]
        edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
        _, count = np.unique(edges, axis=0, return_counts=True)
        assert (count % 2 == 0).all()
        assert solid.uv.min() >= -1e-9
        assert solid.uv.max() <= 1 + 1e-9


def test_a_mesh_is_brought_to_unit_size_with_texels_to_match():
    mesh = Mesh.of("box", shapes.box(np.random.default_rng(0)), Texture.of(picture(64, 64)))
    assert np.ptp(mesh.vertices, axis=0).max() == pytest.approx(1)
    assert np.abs(mesh.hull).max() <= 0.5 + 1e-6
    assert {tuple(np.abs(normal).round(5).tolist()) for normal in mesh.normals.reshape(-1, 3)} == {
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
    }
    corners = mesh.vertices[mesh.faces]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) / 2
    texels = (mesh.texels**2 * area).sum()
    assert texels == pytest.approx(64**2 * 0.96**2, rel=1e-4)


def test_round_bodies_have_smooth_normals():
    tilt, angle = np.meshgrid(np.linspace(0, np.pi, 30), np.linspace(0, 2 * np.pi, 60), indexing="ij")
    ball = np.stack((np.sin(tilt) * np.cos(angle), np.sin(tilt) * np.sin(angle), np.cos(tilt)), axis=-1)
    solid = shapes.grid_mesh(ball, np.zeros((30, 60, 2)))
    normals, area = corner_normals(solid.vertices.astype(np.float32), solid.faces.astype(np.int32))
    whole = area > 1e-6
    along = np.abs((normals * solid.vertices[solid.faces]).sum(-1))[whole]
    assert along.min() > 0.99
    assert area.sum() == pytest.approx(4 * np.pi, rel=0.01)


def test_the_light_comes_from_where_the_panorama_is_bright():
    panorama = np.full((512, 1024, 3), 0.1, dtype=np.float32)
    towards = np.array([0.5, -0.5, np.sqrt(0.5)])
    panorama[directions_of(512, 1024) @ towards > 0.99] = 1.0
    light = light_of(Texture.of(panorama, "across"), 0.9)
    assert light.towards[:, 0] @ towards > 0.97
    up = np.array([[0], [0], [1]], dtype=np.float32)
    whole = np.ones(1, dtype=np.float32)
    shown = light.on(up, whole, whole)[:, 0] @ [0.2126, 0.7152, 0.0722]
    assert shown == pytest.approx(0.9, rel=0.02)
    assert (light.around(up) > light.around(-up)).all()


def test_invented_pictures_are_light():
    rng = np.random.default_rng(0)
    poster = Image.new("RGB", (40, 30), (200, 10, 10))
    pictures = [patterns.sky(rng), patterns.relief(rng), patterns.with_posters(rng, patterns.plaster(rng), [poster])]
    pictures += [floor(rng) for floor in set(patterns.FLOORS)]
    for found in pictures:
        assert found.dtype == np.float32
        assert found.min() >= 0
        assert found.std() > 0.01
    assert pictures[1].mean() == pytest.approx(1, abs=1e-3)
