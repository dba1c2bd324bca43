"""Pairwise tracking against a plain loop, and the baselines that need nothing."""

import math

import numpy as np
import pytest
import torch

from lpa_cwm import InputError
from lpa_cwm.baselines.flow_trackers import (
    DisFlow,
    ForwardBackward,
    GapTracker,
    LucasKanade,
    PairwiseTracker,
    StaticPoint,
    zncc,
)
from lpa_cwm.baselines.registry import BASELINES, get_baseline
from lpa_cwm.protocols import Tracker
from lpa_cwm.types import Clip, Grid, Queries

HEIGHT, WIDTH, FRAMES = 20, 30, 6


def numbered_clip():
    """Frames whose pixels hold the frame's number, so that a stand-in flow knows which pair it is given."""
    numbers = torch.arange(FRAMES, dtype=torch.uint8)
    return Clip(numbers[:, None, None, None].expand(FRAMES, 3, HEIGHT, WIDTH).clone(), "numbered")


def field(source, target):
    """An arbitrary, uneven flow between two frames, with holes."""
    random = np.random.default_rng(100 * int(source) + int(target))
    flow = random.normal(0, 4, (2, HEIGHT, WIDTH)).astype(np.float32)
    flow[:, random.random((HEIGHT, WIDTH)) < 0.05] = np.nan
    return flow


def stand_in(before, after):
    pairs = zip(before[:, 0, 0, 0], after[:, 0, 0, 0], strict=True)
    return torch.from_numpy(np.stack([field(source, target) for source, target in pairs]))


def queries(count=40):
    random = np.random.default_rng(0)
    xy = (random.random((count, 2)) * (WIDTH, HEIGHT)).astype(np.float32)
    return Queries(torch.from_numpy(xy), torch.from_numpy(random.integers(0, FRAMES, count)))


def bilinear(image, x, y):
    """Value at raster point (x, y), centers at the half, border repeated."""
    u, v = min(max(x - 0.5, 0), WIDTH - 1), min(max(y - 0.5, 0), HEIGHT - 1)
    i, j = min(int(u), WIDTH - 2), min(int(v), HEIGHT - 2)
    a, b = u - i, v - j
    top = (1 - a) * image[:, j, i] + a * image[:, j, i + 1]
    bottom = (1 - a) * image[:, j + 1, i] + a * image[:, j + 1, i + 1]
    return (1 - b) * top + b * bottom


def plain(xy, source, target, limit):
    """Endpoint, visibility and round-trip error of one query in one target."""
    x, y = float(xy[0]), float(xy[1])
    dx, dy = field(source, target)[:, int(y), int(x)]
    ex, ey = x + dx, y + dy
    if not (0 <= ex < WIDTH and 0 <= ey < HEIGHT):
        return (ex, ey), False, math.inf
    back = bilinear(field(target, source), ex, ey)
    miss = math.hypot(dx + back[0], dy + back[1])
    return (ex, ey), miss <= limit, miss


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("limit", [6.0, 2.0])
def test_equals_a_plain_loop(batch, limit):
    asked = queries()
    tracks = PairwiseTracker(stand_in, ForwardBackward(limit), batch=batch, size=None).track(numbered_clip(), asked)
    assert tracks.strength is not None
    for n in range(len(asked)):
        source = int(asked.frame[n])
        assert tracks.xy[n, :source].isnan().all()
        assert not tracks.visible[n, :source].any()
        assert tracks.xy[n, source].tolist() == asked.xy[n].tolist()
        assert tracks.visible[n, source]
        for target in range(source + 1, FRAMES):
            xy, visible, miss = plain(asked.xy[n], source, target, limit)
            np.testing.assert_allclose(tracks.xy[n, target], xy, rtol=1e-5, atol=1e-5)
            assert bool(tracks.visible[n, target]) == visible
            if math.isfinite(miss):
                assert float(tracks.strength[n, target]) == pytest.approx(-miss, abs=1e-4)
            else:
                assert float(tracks.strength[n, target]) == -math.inf


def test_strength_at_the_limit_reproduces_visibility():
    tracks = PairwiseTracker(stand_in, size=None).track(numbered_clip(), queries())
    assert tracks.strength is not None
    assert torch.equal(tracks.visible, tracks.strength >= -6)


def test_error_at_the_limit_is_visible_and_leaving_the_frame_is_not():
    def shift(before, after):
        forward = before[:, 0, 0, 0] < after[:, 0, 0, 0]
        dx = torch.where(forward, 6.0, 0.0)[:, None, None].expand(-1, HEIGHT, WIDTH)
        return torch.stack((dx, torch.zeros_like(dx)), dim=1)

    asked = Queries(torch.tensor([[3.25, 4.5], [WIDTH - 6.0, 4.5]]), torch.tensor([0, 0]))
    tracks = PairwiseTracker(shift, size=None).track(numbered_clip(), asked)
    assert tracks.xy[0, 1].tolist() == [9.25, 4.5]
    assert tracks.visible[0].all()
    assert not tracks.visible[1, 1:].any()


def test_a_flow_of_the_wrong_shape_is_refused():
    tracker = PairwiseTracker(lambda before, after: torch.zeros(len(before), 2, HEIGHT // 2, WIDTH // 2), size=None)
    with pytest.raises(InputError, match=r"\(8, 2, 10, 15\)"):
        tracker.track(numbered_clip(), Queries(torch.tensor([[1.0, 1.0]]), torch.tensor([0])))


@pytest.mark.parametrize("frame", [-1, FRAMES])
def test_queries_in_frames_that_do_not_exist_are_refused(frame):
    with pytest.raises(InputError, match="frames 0 to 5"):
        StaticPoint().track(numbered_clip(), Queries(torch.tensor([[1.0, 1.0]]), torch.tensor([frame])))


def test_static_points_stay():
    asked = queries()
    tracks = StaticPoint().track(numbered_clip(), asked)
    for n, source in enumerate(asked.frame.tolist()):
        assert tracks.xy[n, :source].isnan().all()
        assert (tracks.xy[n, source:] == asked.xy[n]).all()
        assert tracks.visible[n].tolist() == [t >= source for t in range(FRAMES)]


@pytest.mark.parametrize("tracker", [StaticPoint(), PairwiseTracker(stand_in), GapTracker(stand_in), LucasKanade()])
def test_queries_are_validated_by_one_rule(tracker):
    with pytest.raises(InputError, match="no points to track"):
        tracker.track(numbered_clip(), Queries(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)))
    with pytest.raises(InputError, match="is not inside the frame"):
        tracker.track(numbered_clip(), Queries(torch.tensor([[WIDTH + 0.5, 1.0]]), torch.tensor([0])))


def textured(shift_x, shift_y):
    """A smooth random texture, moved by whole pixels."""
    noise = torch.rand(1, 3, 40, 40, generator=torch.Generator().manual_seed(0)) * 255
    smooth = torch.nn.functional.interpolate(noise, scale_factor=4, mode="bicubic").clamp(0, 255)[0].to(torch.uint8)
    return smooth[:, 16 - shift_y : 144 - shift_y, 16 - shift_x : 144 - shift_x]


def test_dis_follows_a_shift_in_the_right_direction():
    pytest.importorskip("cv2")
    frames = torch.stack([textured(0, 0), textured(5, -3)])
    asked = Queries(torch.tensor([[40.25, 60.75], [70.0, 50.0]]), torch.tensor([0, 0]))
    tracks = PairwiseTracker(DisFlow(), size=None).track(Clip(frames, "shift"), asked)
    np.testing.assert_allclose(tracks.xy[:, 1] - asked.xy, [[5, -3]] * 2, atol=0.3)
    assert tracks.visible.all()


def moving_clip(frames=20):
    """A texture that moves by one pixel per frame."""
    return Clip(torch.stack([textured(frame - 10, 10 - frame) for frame in range(frames)]), "moving")


@pytest.mark.parametrize(
    "tracker",
    [LucasKanade(size=None), GapTracker(DisFlow(), size=None), GapTracker(DisFlow(), (1,), direct=False, size=None)],
)
def test_chained_trackers_follow_a_steady_motion(tracker):
    pytest.importorskip("cv2")
    asked = Queries(torch.tensor([[50.25, 80.75], [60.0, 70.0]]), torch.tensor([0, 3]))
    tracks = tracker.track(moving_clip(), asked)
    assert tracks.xy[1, :3].isnan().all()
    assert not tracks.visible[1, :3].any()
    for row, start in enumerate(asked.frame.tolist()):
        steps = torch.arange(20 - start)[:, None] * torch.tensor([1.0, -1.0])
        np.testing.assert_allclose(tracks.xy[row, start:], asked.xy[row] + steps, atol=0.5)
        assert tracks.visible[row, start:].all()


def test_direct_lucas_kanade_matches_the_frame_of_the_query():
    """Each target is that of a clip of two frames: the query's, and the target."""
    pytest.importorskip("cv2")
    clip = moving_clip(8)
    asked = Queries(torch.tensor([[50.25, 80.75], [60.0, 70.0]]), torch.tensor([0, 3]))
    direct = LucasKanade(size=None, direct=True).track(clip, asked)
    for row, source in enumerate(asked.frame.tolist()):
        for target in range(source + 1, 8):
            two = Clip(torch.stack([clip[source], clip[target]]), "two")
            alone = LucasKanade(size=None).track(two, Queries(asked.xy[row : row + 1], torch.tensor([0])))
            assert torch.equal(alone.xy[0, 1], direct.xy[row, target])
            assert alone.visible[0, 1] == direct.visible[row, target]


def test_a_point_that_was_covered_is_found_again_over_a_gap():
    def shift(before, after):
        """One pixel per frame to the right; nonsense from or to the frames 2 and 3."""
        first, second = before[:, 0, 0, 0].int(), after[:, 0, 0, 0].int()
        covered = torch.isin(first, torch.tensor([2, 3])) | torch.isin(second, torch.tensor([2, 3]))
        dx = torch.where(covered, torch.where(second > first, 9.0, 0.0), (second - first).float())
        return torch.stack((dx, torch.zeros_like(dx)), dim=1)[..., None, None].expand(-1, -1, HEIGHT, WIDTH)

    asked = Queries(torch.tensor([[5.0, 4.5]]), torch.tensor([0]))
    chain, gaps = (
        GapTracker(shift, *settings, size=None).track(numbered_clip(), asked) for settings in (((1,), False), ())
    )
    assert gaps.visible[0].tolist() == [True, True, False, False, True, True]
    assert gaps.xy[0, -1].tolist() == [10.0, 4.5]
    assert chain.visible[0].tolist() == [True, True, False, False, False, False]


def test_each_pair_is_computed_once_for_all_points():
    pairs = []

    def counted(before, after):
        pairs.extend(zip(before[:, 0, 0, 0].tolist(), after[:, 0, 0, 0].tolist(), strict=True))
        return torch.zeros(len(before), 2, HEIGHT, WIDTH)

    tracks = GapTracker(counted, gaps=(1, 2), size=None).track(numbered_clip(), queries())
    assert tracks.xy.isfinite().all(-1).equal(queries().frame[:, None] <= torch.arange(FRAMES))
    assert len(pairs) == len(set(pairs))


def test_zncc_ignores_brightness_and_contrast():
    patch = torch.rand(5, 9, 9, generator=torch.Generator().manual_seed(0))
    found = zncc(torch.stack((0.3 * patch + 0.2, -patch, torch.ones_like(patch))), patch)
    torch.testing.assert_close(found, torch.tensor([[1.0], [-1.0], [0.0]]).expand(3, 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize("tracker", [PairwiseTracker, GapTracker])
def test_frames_are_resized_and_tracks_scaled_back(tracker):
    """A shift of one eighth of the width is one eighth of the width at any working size."""

    def shift(before, after):
        assert before.shape[-2:] == (64, 64)
        sign = (after[:, 0, 0, 0].int() - before[:, 0, 0, 0].int()).float()
        dx = (8 * sign)[:, None, None].expand(-1, 64, 64)
        return torch.stack((dx, torch.zeros_like(dx)), dim=1)

    asked = Queries(torch.tensor([[3.0, 4.5]]), torch.tensor([0]))
    tracks = tracker(shift, size=64).track(numbered_clip(), asked)
    np.testing.assert_allclose(tracks.xy[0, :, 0], 3 + WIDTH / 8 * np.arange(FRAMES), rtol=1e-5)
    np.testing.assert_allclose(tracks.xy[0, :, 1], 4.5, rtol=1e-5)


def test_every_baseline_introduces_itself():
    for name, entry in BASELINES.items():
        assert entry.name == name
        assert entry.what.endswith(".")
        assert entry.license
        assert entry.obtain
        missing = entry.missing()
        assert missing is None or missing.endswith(".")


def test_baselines_that_need_nothing_load():
    assert isinstance(get_baseline("static").load(), Tracker)
    assert isinstance(get_baseline("dis").load(), Tracker)
    assert get_baseline("static").identity() == get_baseline("dis").identity() == {}
    with pytest.raises(InputError, match="dis takes no checkpoint; ask for it as 'dis', not 'dis:x'"):
        get_baseline("dis:x")


def test_unknown_baselines_are_named():
    said = r"'rafft' is not a known method; did you mean raft\? Choose one of uniform, apa, lpa, static, lk"
    with pytest.raises(InputError, match=said):
        get_baseline("rafft")


def test_large_frames_go_through_the_estimator_in_small_batches(monkeypatch):
    from lpa_cwm.baselines import flow_trackers

    def sizes(most):
        seen = []

        def flow(before, after):
            seen.append(len(before) // 2)
            return torch.zeros(len(before), 2, *before.shape[-2:])

        monkeypatch.setattr(flow_trackers, "BATCH_PIXELS", most)
        clip = Clip(torch.zeros(6, 3, 8, 10, dtype=torch.uint8), "clip")
        flow_trackers.PairwiseTracker(flow, size=None).track(clip, Grid(2))
        return seen

    assert sizes(4 * 80) == [4, 1]
    assert sizes(2 * 80) == [2, 2, 1]
    assert sizes(1) == [1] * 5
