"""The simulator's laws: physics that rests, rays that agree with plain geometry, motion that is true."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("mujoco")
pytest.importorskip("embreex")

from lpa_cwm.errors import InputError
from lpa_cwm.simulator.assets import Assets
from lpa_cwm.simulator.clip import SimulatedPairs, simulate_clip
from lpa_cwm.simulator.render import Camera, LightOcclusion, RenderSettings, edge_pixels, raster_centers
from lpa_cwm.simulator.scene import SceneConfig, pixel_rays, project, rotations

SHARED = Path(__file__).parents[2] / "shared" / "data"
SMALL = SceneConfig(
    resting=(3, 4), tossed=(2, 2), frames=8, settling=2.0, resting_within=3.0, travel=(1.5, 3.0), spin=3.0
)
SIZE = 64


@pytest.fixture(scope="module")
def assets():
    return Assets.of(None, "train")


@pytest.fixture(scope="module")
def clip(assets):
    return simulate_clip(("test", 1), SMALL, assets, RenderSettings(SIZE))


def test_quaternions_become_rotations_about_their_axis():
    free = np.random.default_rng(0).normal(size=(50, 4))
    unit = free / np.linalg.norm(free, axis=1, keepdims=True)
    matrices = rotations(unit)
    np.testing.assert_allclose(matrices @ matrices.swapaxes(-1, -2), np.broadcast_to(np.eye(3), (50, 3, 3)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(matrices), 1)
    np.testing.assert_allclose(matrices[0] @ unit[0, 1:], unit[0, 1:])


def test_a_point_appears_where_its_ray_leaves():
    rng = np.random.default_rng(1)
    xy = rng.uniform(0, 128, (2, 100)).astype(np.float32)
    points = pixel_rays(xy, 128) * rng.uniform(1, 20, 100).astype(np.float32)
    np.testing.assert_allclose(project(points, 128), xy, atol=1e-3)
    assert np.isnan(project(-points, 128)).all()


def test_the_camera_is_movis(clip):
    """35 mm before a 32 mm sensor: half the frame's width is seen under the arctangent of 16 / 35."""
    middle, side = pixel_rays(np.array([[32, 64], [32, 32]], dtype=np.float32), SIZE).T
    np.testing.assert_allclose(middle, (0, 0, -1))
    assert np.arccos(middle @ side) == pytest.approx(np.arctan(16 / 35), abs=1e-4)
    position, back = clip.scene.camera.position, clip.scene.camera.rotation[..., 2]
    np.testing.assert_allclose(position / np.linalg.norm(position, axis=-1, keepdims=True), back, atol=1e-9)
    frames = position[clip.scene.moment(0) :: 20][: len(clip)]
    steps = np.diff(frames, axis=0)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[:1], steps.shape), atol=1e-9)
    assert 1.5 <= np.linalg.norm(frames[-1] - frames[0]) <= 3.0


def test_bodies_rest_on_the_ground_until_they_are_hit(clip):
    scene, start = clip.scene, clip.scene.moment(-1)
    lowest = [
        scene.motion.poses[start, number].to_world(mesh.hull.T.astype(np.float32), scene.scale[number])[2].min()
        for number, mesh in enumerate(scene.meshes)
    ]
    resting = ~scene.motion.tossed
    np.testing.assert_allclose(np.array(lowest)[resting], 0, atol=0.1)
    assert (np.linalg.norm(scene.motion.velocity[start], axis=-1)[~resting] > 0.1).all()
    assert not scene.motion.velocity[start, resting].any()


def test_a_thrown_body_falls_as_galileo_says(clip):
    """Until something is hit: z = z0 - g t^2 / 2, and the horizontal velocity stays."""
    motion = clip.scene.motion
    time = np.arange(6) / (20 * 12)
    for number in np.flatnonzero(motion.tossed):
        height = motion.poses.position[:6, number, 2]
        # The origin is the middle of the box; the spin moves it about the center of mass.
        np.testing.assert_allclose(height, height[0] - 5 * time**2, atol=0.03)
        np.testing.assert_allclose(motion.velocity[5, number, 2], -10 * time[5], atol=0.6)


def nearest_triangle(origin, direction, vertices, faces):
    """Distance along each ray to the nearest triangle, by the plain Moeller-Trumbore formula; inf if there is none."""
    first, second, third = (vertices[faces[:, corner]] for corner in range(3))
    one, other = second - first, third - first
    across = np.cross(direction[:, None], other)
    volume = (across * one).sum(-1)
    volume = np.where(np.abs(volume) < 1e-12, np.nan, volume)
    away = origin - first
    u = (away * across).sum(-1) / volume
    back = np.cross(away, one)
    v = (direction[:, None] * back).sum(-1) / volume
    reach = (other * back).sum(-1) / volume
    return np.where((u >= 0) & (v >= 0) & (u + v <= 1) & (reach > 0), reach, np.inf).min(-1)


def world_mesh(scene, number, moment):
    pose = scene.motion.poses[moment, number]
    return scene.scale[number] * scene.meshes[number].vertices.astype(float) @ pose.rotation.T + pose.position


def test_rays_end_where_plain_geometry_says(clip):
    scene, moment = clip.scene, clip.scene.moment(3)
    xy = np.random.default_rng(2).uniform(0, SIZE, (2, 300)).astype(np.float32)
    hits = Camera(scene, SIZE).cast(moment, xy)
    camera = scene.camera[moment]
    direction = (camera.rotation @ pixel_rays(xy, SIZE)).T
    ground = np.where(direction[:, 2] < 0, -camera.position[2] / direction[:, 2], np.inf)
    reach = [
        nearest_triangle(camera.position, direction, world_mesh(scene, number, moment), mesh.faces)
        for number, mesh in enumerate(scene.meshes)
    ]
    expected = np.argmin(np.stack([np.minimum(ground, 50), *reach]), axis=0)
    # A ray along an edge may count for either side of it.
    assert (expected == hits.body).mean() > 0.99
    same = (expected == hits.body) & (expected > 0)
    assert same.sum() > 20
    np.testing.assert_allclose(hits.distance[same], np.min(reach, axis=0)[same], rtol=1e-3)
    place = scene.place(hits.local, hits.body, moment)
    np.testing.assert_allclose(place.T, camera.position + hits.distance[:, None] * direction, atol=2e-3)


def test_points_are_visible_exactly_when_no_triangle_is_in_front(clip):
    scene, source, target = clip.scene, clip.scene.moment(1), clip.scene.moment(6)
    xy = np.random.default_rng(3).uniform(0, SIZE, (2, 300)).astype(np.float32)
    eye = Camera(scene, SIZE)
    hits = eye.cast(source, xy)
    world = scene.place(hits.local, hits.body, target)
    goal, visible = eye.project_visible(target, world)
    origin = scene.camera.position[target]
    away = world.T - origin
    distance = np.linalg.norm(away, axis=-1)
    blocked = np.zeros(300, dtype=bool)
    for number, mesh in enumerate(scene.meshes):
        reach = nearest_triangle(origin, away / distance[:, None], world_mesh(scene, number, target), mesh.faces)
        blocked |= reach < distance * (1 - 3e-4)
    outside = ((goal < 0) | (goal >= SIZE)).any(0) | np.isnan(goal).any(0)
    assert ((~blocked & ~outside) == visible).mean() > 0.99
    assert 10 < visible.sum() < 300


def test_what_a_frame_shows_is_visible_in_it(clip):
    flow = clip.flow(2, 2)
    np.testing.assert_allclose(flow.offset, 0, atol=2e-3)
    assert flow.visible.mean() > 0.999


def sampled(image, offset):
    """The image read at each pixel's center plus the offset, with cubic interpolation."""
    place = raster_centers(len(image)).T.reshape(*offset.shape) + offset
    grid = torch.from_numpy(2 * place / len(image) - 1)[None].float()
    stack = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None]
    found = F.grid_sample(stack, grid, mode="bicubic", padding_mode="border", align_corners=False)
    return found[0].permute(1, 2, 0).numpy()


def test_there_and_back_again_is_where_one_was(clip):
    """Read the way back exactly at the target: the point that is seen there must be the one that was left."""
    forward = clip.flow(2, 5)
    goal = (raster_centers(SIZE) + forward.offset.reshape(-1, 2).T)[:, forward.visible.ravel()]
    eye, scene = Camera(clip.scene, SIZE), clip.scene
    hits = eye.cast(scene.moment(5), goal.astype(np.float32))
    back, _ = eye.project_visible(scene.moment(2), scene.place(hits.local, hits.body, scene.moment(2)))
    error = np.linalg.norm(back - raster_centers(SIZE)[:, forward.visible.ravel()], axis=0)
    assert np.quantile(error, 0.99) < 0.05
    assert np.median(error) < 0.002


def test_warping_by_the_flow_explains_the_picture(clip):
    warped, unwarped = [], []
    for frame in range(len(clip) - 3):
        flow = clip.flow(frame, frame + 3)
        now, later = clip.picture(frame).astype(float), clip.picture(frame + 3).astype(float)
        seen = flow.visible
        warped.append(np.abs(sampled(later, np.nan_to_num(flow.offset)) - now)[seen].mean())
        unwarped.append(np.abs(later - now)[seen].mean())
    assert np.mean(warped) < 0.4 * np.mean(unwarped)


def test_tracks_follow_the_flow(clip):
    """A track's step equals the flow at its place, wherever the flow is smooth enough to be interpolated."""
    tracks = clip.tracks(80)
    assert tracks.visible.any(1).all()
    errors = []
    for early, late in pairwise(range(len(clip))):
        both = tracks.visible[:, early] & tracks.visible[:, late]
        start = tracks.xy[both, early]
        step = tracks.xy[both, late] - start
        field = torch.from_numpy(clip.flow(early, late).offset).permute(2, 0, 1)[None]
        grid = torch.from_numpy(2 * start / SIZE - 1)[None, None]
        read = F.grid_sample(field, grid, padding_mode="border", align_corners=False)[0, :, 0].numpy().T
        errors.append(np.linalg.norm(read - step, axis=-1))
    assert np.quantile(np.concatenate(errors), 0.8) < 0.05


def test_a_clip_depends_on_its_identity_alone(assets, clip):
    again = simulate_clip(("test", 1), SMALL, assets, RenderSettings(SIZE))
    other = simulate_clip(("test", 2), SMALL, assets, RenderSettings(SIZE))
    np.testing.assert_array_equal(again.picture(4), clip.picture(4))
    np.testing.assert_array_equal(again.flow(4, 1).offset, clip.flow(4, 1).offset)
    assert np.abs(other.picture(4).astype(int) - clip.picture(4)).mean() > 5


def test_a_frame_does_not_depend_on_those_taken_before(assets):
    one, other = (simulate_clip(("order", 0), SMALL, assets, RenderSettings(32)) for _ in range(2))
    for frame in range(len(one)):
        one.picture(frame)
    np.testing.assert_array_equal(other.picture(6), one.picture(6))


def test_a_larger_frame_shows_the_same_scene(assets, clip):
    large = simulate_clip(("test", 1), SMALL, assets, RenderSettings(2 * SIZE))
    small_flow, large_flow = clip.flow(1, 4), large.flow(1, 4)
    inner = clip.body(1) == 0
    for shift in ((0, 1), (1, 0), (1, 1)):
        inner &= large.body(1)[shift[0] :: 2, shift[1] :: 2] == 0
    inner &= large.body(1)[::2, ::2] == 0
    halved = large_flow.offset.reshape(SIZE, 2, SIZE, 2, 2).mean((1, 3)) / 2
    np.testing.assert_allclose(halved[inner], small_flow.offset[inner], atol=0.05)
    picture = large.picture(1).reshape(SIZE, 2, SIZE, 2, 3).mean((1, 3))
    assert np.abs(picture - clip.picture(1)).mean() < 6


def test_bodies_cast_shadows(assets):
    """Ground from which a ray to the lamp hits a triangle gets little of its light, other ground most of it."""
    recipe = SceneConfig(resting=(3, 3), tossed=(1, 1), frames=2, settling=1.0, resting_within=2.0, outdoors=1.0)
    clip = simulate_clip(("shadow", 0), recipe, assets, RenderSettings(SIZE))
    scene = clip.scene
    light = scene.environment.light.towards[:, 0]
    eye, moment = Camera(scene, SIZE), scene.moment(0)
    hits = eye.cast(moment, raster_centers(SIZE))
    ground = np.flatnonzero((hits.body == 0) & (hits.local[2] < 1e-3) & (np.abs(hits.local[:2]).max(0) < 4))[::8]
    shaded = np.zeros(len(ground), dtype=bool)
    for number, mesh in enumerate(scene.meshes):
        corners = world_mesh(scene, number, moment)
        rays = [nearest_triangle(point, light[None], corners, mesh.faces)[0] for point in hits.local.T[ground]]
        shaded |= np.isfinite(rays)
    share, _ = LightOcclusion(scene, 256).of(moment, hits.local)
    assert share[ground][~shaded].mean() > 0.9
    assert share[ground][shaded].mean() < 0.3


def test_smoothing_touches_edges_only(assets, clip):
    rough = simulate_clip(("test", 1), SMALL, assets, RenderSettings(SIZE, samples=1))
    changed = (rough.picture(3) != clip.picture(3)).any(-1)
    assert changed.any()
    assert not (changed & ~edge_pixels(clip.hits(3), SIZE).reshape(SIZE, SIZE)).any()


def test_pairs_are_functions_of_their_number(assets):
    source = SimulatedPairs(SMALL, assets, gaps=(2, 4))
    gaps = np.abs(np.diff([source._walk(number) for number in range(50)], axis=1))
    assert set(gaps.ravel().tolist()) == {2, 3, 4}
    first, last = source.pair(0, 32), source.pair(6, 32)
    again = SimulatedPairs(SMALL, assets, gaps=(2, 4)).pair(6, 32)
    for name in ("source", "target", "flow", "visible"):
        torch.testing.assert_close(getattr(again, name), getattr(last, name), equal_nan=True)
    assert not torch.equal(first.source, last.source)
    torch.testing.assert_close(pickle.loads(pickle.dumps(source)).pair(6, 32).flow, last.flow, equal_nan=True)
    assert first.flow.shape == (2, 32, 32)
    back = source.pair(7, 32)
    torch.testing.assert_close(back.source, last.target)
    torch.testing.assert_close(back.target, last.source)


@pytest.mark.skipif(not SHARED.exists(), reason="the scanned objects and photographs are not on this machine")
def test_the_splits_share_no_asset():
    train, val = Assets.of(SHARED, "train"), Assets.of(SHARED, "val")
    assert not set(train.objects) & set(val.objects)
    assert not set(train.panoramas) & set(val.panoramas)
    assert not set(train.photographs.files) & set(val.photographs.files)
    assert len(val.objects) >= 10
    assert len(val.panoramas) >= 2


@pytest.mark.skipif(not SHARED.exists(), reason="the scanned objects and photographs are not on this machine")
def test_scanned_objects_take_part():
    clip = simulate_clip(("load_scan", 0), SMALL, Assets.of(SHARED, "val"), RenderSettings(32))
    assert any(mesh.name != "invented" for mesh in clip.scene.meshes)
    assert clip.picture(0).std() > 10


def test_a_folder_without_assets_is_refused(tmp_path):
    with pytest.raises(InputError, match="objects"):
        Assets.of(tmp_path, "train")


@pytest.mark.parametrize("settings", [{"size": 4}, {"samples": 0}])
def test_senseless_film_is_refused(settings):
    with pytest.raises(InputError, match="settings"):
        RenderSettings(**settings)


def test_gaps_must_fit_into_a_clip(assets):
    with pytest.raises(InputError, match="gaps"):
        SimulatedPairs(SMALL, assets, gaps=(1, 8))


def test_an_unknown_recipe_is_refused(assets):
    with pytest.raises(InputError, match="movi, hard"):
        simulate_clip((0,), "soft", assets)
