"""The page without a browser: points, uploads, runs, pictures, explanations."""

import csv
import importlib.util
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lpa_cwm import registry
from lpa_cwm.cli.main import COMMANDS
from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.io.video import read, write
from lpa_cwm.io.visualization import confidence_of
from lpa_cwm.page import server as models
from lpa_cwm.page.drawing import (
    PALETTE,
    ObservedPairs,
    Question,
    confidence_color,
    draw_clicks,
    draw_results,
    explain_point,
    heat_map,
    log_scale,
    panel_columns,
    point_color,
    render_panel,
    side_by_side,
)
from lpa_cwm.page.guard import Limits, accept_upload, first_frames, lock_clip
from lpa_cwm.page.server import PageServer, RunOptions, Stopped, check_address, check_world, cwm_tracker, run_methods
from lpa_cwm.page.session import (
    MAX_POINTS,
    MAX_UNDO,
    Point,
    Session,
    add_grid,
    clear_points,
    click_point,
    queries,
    undo,
)
from lpa_cwm.types import Tracks
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

CLIP = toy_clip(ToyMotion(shift=(0.02, 0.01)), 4, (60, 80), name="toy")


@pytest.fixture
def session():
    return Session(lock_clip(CLIP), bundled=True)


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "in" / "mine.mp4"
    write(path, CLIP.frames, 12.0)
    return path


def test_a_click_adds_a_point_and_a_click_on_it_removes_it(session):
    two = click_point(click_point(session, 10.0, 20.0, 0), 40.0, 30.0, 1)
    assert [(point.x, point.y, point.frame) for point in two.points] == [(10, 20, 0), (40, 30, 1)]
    assert click_point(two, 10.5, 20.5, 0).points == two.points[1:]
    # The same place in another frame is another point.
    assert len(click_point(two, 10.0, 20.0, 1).points) == 3
    assert session.points == ()


def test_every_change_can_be_undone(session):
    steps = [session]
    for change in (
        lambda now: click_point(now, 10.0, 20.0, 0),
        lambda now: click_point(now, 40.0, 30.0, 0),
        lambda now: click_point(now, 10.0, 20.0, 0),
        clear_points,
    ):
        steps.append(change(steps[-1]))
    now = steps[-1]
    for before in reversed(steps[:-1]):
        now = undo(now)
        assert now == before
    assert undo(now) == now == clear_points(now)


def test_a_point_keeps_its_color_and_a_new_one_takes_the_free_one(session):
    three = click_point(click_point(click_point(session, 10.0, 10.0, 0), 30.0, 10.0, 0), 50.0, 10.0, 0)
    less = click_point(three, 30.0, 10.0, 0)
    assert [point.color for point in less.points] == [0, 2]
    assert [point.color for point in click_point(less, 70.0, 10.0, 0).points] == [0, 2, 1]


def test_what_cannot_be_clicked(session):
    with pytest.raises(InputError, match="last frame"):
        click_point(session, 10.0, 10.0, 3)
    full = replace(session, points=tuple(Point(0.0, 0.0, 0, number) for number in range(MAX_POINTS)))
    with pytest.raises(InputError, match="64 points"):
        click_point(full, 50.0, 50.0, 0)


def test_a_grid_is_added_around_the_points_up_to_the_limit(session):
    one = click_point(session, 8.0, 6.0, 0)
    grid = add_grid(one, 0)
    assert len(grid.points) == 25
    assert len(add_grid(grid, 0).points) == 25
    assert undo(grid).points == one.points
    assert len(add_grid(add_grid(grid, 1), 2).points) == MAX_POINTS
    with pytest.raises(InputError, match="last frame"):
        add_grid(session, 3)


@pytest.mark.parametrize("place", [(float("nan"), 1.0), (-1.0, 5.0), (1e9, 5.0)])
def test_clicks_outside_the_frame_are_refused(session, place):
    with pytest.raises(InputError, match="outside"):
        click_point(session, *place, 0)


def test_the_history_of_changes_is_bounded(session):
    for number in range(MAX_UNDO + 5):
        session = click_point(session, 10.0 + 30 * (number % 2), 20.0, 0)
    assert len(session.past) == MAX_UNDO


def test_queries_are_the_points_in_their_order(session):
    found = queries(click_point(click_point(session, 40.0, 30.0, 1), 10.0, 20.0, 0).points)
    assert found.xy.tolist() == [[40, 30], [10, 20]]
    assert found.frame.tolist() == [1, 0]
    assert len(queries(())) == 0


def test_an_upload_moves_into_its_folder(video, tmp_path):
    clip = accept_upload(video, tmp_path / "tab", Limits())
    assert (len(clip), clip.hw, clip.name) == (4, (60, 80), "mine")
    assert not video.exists()
    assert [path.name for path in (tmp_path / "tab").iterdir()] == ["mine.mp4"]
    short = first_frames(clip, 2)
    assert len(short) == 2
    assert torch.equal(short[1], clip[1])
    with pytest.raises(IndexError):
        short[2]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(megabytes=0), "MB"),
        (Limits(frames=3), "4 frames; the page takes up to 3"),
        (Limits(pixels=4000), "80x60"),
        (Limits(decoded=15000), "together"),
    ],
)
def test_uploads_beyond_a_limit_are_refused_and_removed(video, tmp_path, limits, said):
    with pytest.raises(InputError, match=said):
        accept_upload(video, tmp_path / "tab", limits)
    assert list((tmp_path / "tab").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a video" * 100])
def test_a_broken_upload_is_a_sentence_without_our_folders(tmp_path, content):
    path = tmp_path / "in.mp4"
    path.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        accept_upload(path, tmp_path / "tab", Limits())
    assert str(refusal.value).startswith("in.mp4")
    assert str(tmp_path) not in str(refusal.value)


def test_frames_without_end_are_refused_before_they_are_decoded(video, tmp_path, monkeypatch):
    monkeypatch.setattr("lpa_cwm.page.guard.VideoFile", lambda path: pytest.fail("decoded"))
    with pytest.raises(InputError, match="frames"):
        accept_upload(video, tmp_path / "tab", Limits(frames=2))


def test_a_refused_upload_leaves_the_former_one(video, tmp_path):
    server = PageServer(tmp_path / "server")
    session = server.open_upload(video, "a")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no")
    with pytest.raises(InputError):
        server.open_upload(broken, "a")
    assert session.clip[3].shape == (3, 60, 80)
    assert len(list(server.folder_of(server.uploads, "a").iterdir())) == 1


def run_toy(points, methods=("uniform",), **settings):
    return run_methods(CLIP, points, list(methods), "toy", **settings)


def test_a_run_is_the_trackers_own_and_is_reported(session):
    points = click_point(click_point(session, 30.0, 20.0, 0), 40.0, 30.0, 1).points
    heard = []
    tracks = run_toy(points, ("uniform", "apa"), on_frame=lambda *news: heard.append(news))
    for method, found in tracks.items():
        direct = registry.load(method, "toy").track(CLIP, queries(points))
        assert torch.equal(found.xy.nan_to_num(), direct.xy.nan_to_num())
    assert heard == [(done, 4) for done in range(4)]


def test_baselines_run_beside_adjudicators_and_are_reported(session):
    points = click_point(session, 30.0, 20.0, 0).points
    heard = []
    tracks = run_toy(points, ("uniform", "static"), on_frame=lambda *news: heard.append(news), backward=True)
    assert list(tracks) == ["uniform", "static"]
    assert (tracks["static"].xy == torch.tensor([30.0, 20.0])).all()
    assert {total for _, total in heard} == {4 + 4}, "backward there is nothing to do"
    with pytest.raises(InputError, match="'rafft' is not a method that runs here"):
        run_toy(points, ("rafft",))


@pytest.mark.parametrize("method", ["uniform", "dis"])
def test_a_run_stops_when_told(session, tmp_path, method):
    if method == "dis":
        pytest.importorskip("cv2")
    server, heard = PageServer(tmp_path), []

    def report(*news):
        heard.append(news)
        server.stop("a")

    with pytest.raises(Stopped):
        server.run(click_point(session, 30.0, 20.0, 0), RunOptions([method], "toy", 3), "a", report)
    assert len(heard) == 1
    assert not list(server.results.rglob("*.mp4"))


def test_a_stop_before_the_first_frame_is_not_lost(session, tmp_path):
    server = PageServer(tmp_path)
    stop = server.start("a")
    server.stop("a")
    with pytest.raises(Stopped):
        server.run(
            click_point(session, 30.0, 20.0, 0), RunOptions(["uniform"], "toy", 3), "a", lambda *news: None, stop
        )


def test_a_new_clip_stops_the_run_on_the_former_one(session, tmp_path):
    server = PageServer(tmp_path)
    first = server.open_bundled("toy", "a")

    def report(*news):
        server.open_bundled("toy", "a")

    with pytest.raises((Stopped, InputError)):
        server.run(click_point(first, 30.0, 20.0, 0), RunOptions(["uniform"], "toy", 3), "a", report)
    with pytest.raises(InputError, match="closed this clip"):
        first.clip[0]


def test_the_oldest_tab_is_closed_beyond_the_limit(video, tmp_path):
    server = PageServer(tmp_path / "page", Limits(tabs=2))
    first = server.open_upload(video, "a")
    for tab in "bc":
        server.open_bundled("toy", tab)
    assert list(server.clips) == ["b", "c"]
    assert not list(server.uploads.rglob("*.mp4"))
    with pytest.raises(InputError, match="reload"):
        first.clip[0]


@pytest.mark.parametrize(
    ("points", "methods", "said"), [((), ["uniform"], "click"), ((Point(9.0, 9.0, 0, 0),), [], "method")]
)
def test_a_run_needs_points_and_methods(points, methods, said):
    with pytest.raises(InputError, match=said):
        run_toy(points, methods)


def test_downloads_hold_the_tracks_and_tabs_do_not_mix(session, tmp_path):
    server = PageServer(tmp_path)
    points = {"a": click_point(session, 30.0, 20.0, 0), "b": click_point(session, 50.0, 40.0, 1)}
    options = RunOptions(["uniform", "apa"], "toy", 2)
    files = {tab: server.run(one, options, tab, print)[1] for tab, one in points.items()}
    for tab, (x, y, frames) in {"a": (30, 20, 3), "b": (50, 40, 2)}.items():
        rows = list(csv.DictReader(files[tab].csv["apa"].read_text().splitlines()))
        assert len(rows) == frames
        assert (float(rows[0]["x"]), float(rows[0]["y"])) == (x, y)
        with np.load(files[tab].npz["uniform"]) as arrays:
            assert arrays["xy"].shape == (1, 3, 2)
        assert len(read(files[tab].videos["confidence"])) == 3
    server.close("a")
    assert not files["a"].videos["track"].exists()
    assert files["b"].videos["track"].exists()


def test_a_second_run_has_new_addresses_and_removes_the_first(session, tmp_path):
    server, one = PageServer(tmp_path), click_point(session, 30.0, 20.0, 0)
    first, second = (server.run(one, RunOptions(["uniform"], "toy", 1), "a", print)[1] for _ in range(2))
    assert first.videos["track"].name == second.videos["track"].name
    assert not first.videos["track"].exists()
    assert second.videos["track"].exists()


def test_the_toy_world_is_for_its_own_clip(session):
    check_world(session, "toy")
    with pytest.raises(InputError, match="own clip"):
        check_world(replace(session, bundled=False), "toy")


def test_lpa_is_offered_once_its_weights_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "bundled_lpa", lambda: tmp_path / "lpa.safetensors")
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "cache"))
    assert models.runnable_adjudicators() == ["uniform", "apa"]
    assert any("LPA" in sentence for sentence in models.missing_models())
    (tmp_path / "lpa.safetensors").touch()
    assert models.runnable_adjudicators() == ["uniform", "apa", "lpa"]
    assert "opt-cwm" not in models.runnable_worlds()
    (tmp_path / "cache" / "opt-cwm").mkdir(parents=True)
    assert not any("opt-cwm" in sentence for sentence in models.missing_models())


def test_points_are_drawn_where_they_were_clicked(session):
    plain = np.asarray(draw_clicks(session.clip, 0, ()))
    point = click_point(session, 20.0, 30.0, 0).points[0]
    drawn = np.asarray(draw_clicks(session.clip, 0, (point,)))
    scale = drawn.shape[1] // 80
    assert tuple(drawn[30 * scale, 20 * scale]) == point_color(point) == PALETTE[0]
    assert np.array_equal(draw_clicks(session.clip, 1, (point,)), draw_clicks(session.clip, 1, ()))
    assert plain.shape == drawn.shape


@pytest.mark.parametrize(
    ("count", "hw", "columns"),
    [(1, (256, 256), 1), (2, (256, 256), 2), (2, (360, 640), 1), (3, (640, 360), 3), (4, (9, 9), 2)],
)
def test_panels_are_as_large_as_a_square_admits(count, hw, columns):
    assert panel_columns(count, hw[1], hw[0]) == columns


def test_panels_of_all_methods_are_one_picture(session):
    point = click_point(session, 20.0, 30.0, 0).points
    tracks = Tracks(torch.full((1, 4, 2), 20.0), torch.ones(1, 4, dtype=torch.bool))
    one, two = (
        list(side_by_side(CLIP, dict.fromkeys(names, tracks), point, max_side=600)) for names in (["A"], ["A", "B"])
    )
    assert len(one) == len(two) == 4
    # Two wide panels stand below each other, each below a title of 34 pixels.
    assert one[0].shape == (3, 484, 600)
    assert two[0].shape == (3, 600, 349)
    assert torch.equal(two[0][:, 34:296], two[0][:, 338:])


def test_tracks_are_drawn_by_track_or_by_confidence(session):
    points = click_point(click_point(session, 20.0, 30.0, 0), 60.0, 30.0, 0).points
    xy = torch.tensor([[20.0, 30.0], [60.0, 30.0]])[:, None].expand(2, 4, 2)
    strength = torch.tensor([1.0, 0.1])[:, None].expand(2, 4)
    tracks = Tracks(xy, strength >= 0.1, strength)
    assert confidence_of(tracks)[:, 0].tolist() == [1.0, 0.5]
    for color_by, colors in (
        ("track", [point_color(point) for point in points]),
        ("confidence", [confidence_color(1.0), confidence_color(0.5)]),
    ):
        drawn = np.asarray(draw_results(session.clip, tracks, points, 2, color_by))
        scale = drawn.shape[1] // 80
        assert [tuple(drawn[30 * scale, x * scale]) for x in (20, 60)] == colors


def test_confidence_orders_visible_above_hidden():
    strength = torch.tensor([[-torch.inf, -9.0, -6.0, -1.0, 0.0, torch.nan]])
    tracks = Tracks(torch.zeros(1, 6, 2), torch.tensor([[False, False, True, True, True, True]]), strength)
    value = confidence_of(tracks)[0]
    assert ((value >= 0) & (value <= 1)).all()
    assert (value[:2] < 0.5).all()
    assert (value[2:] >= 0.5).all()
    assert value[1] < value[2] < value[3] < value[4]
    assert confidence_of(Tracks(tracks.xy, tracks.visible)).tolist() == [[0, 0, 1, 1, 1, 1]]


def test_heat_rises_with_the_value():
    gray = torch.full((3, 8, 8), 0.5)
    ramp = torch.linspace(0, 1, 64).view(8, 8)
    light = np.asarray(heat_map(ramp, gray)).astype(float).sum(-1).ravel()
    assert light[-1] == light.max()
    assert tuple(np.asarray(heat_map(torch.zeros(8, 8), gray))[0, 0]) == (76, 76, 76)
    nearly_even = torch.full((8, 8), 1 / 64)
    nearly_even[3, 4] += 1e-4
    share = log_scale(nearly_even / nearly_even.sum())
    assert share[3, 4] == 1
    assert share.median() == pytest.approx(0, abs=1e-4)


def question(session, target=3, title="Uniform"):
    return Question(session.clip, click_point(session, 30.0, 20.0, 0).points, 0, target, title)


def test_the_explanation_is_the_trackers_answer_in_two_passes(session):
    asked, pairs = question(session), ObservedPairs()
    first, second = (
        explain_point(asked, cwm_tracker("uniform", "toy", **settings), pairs) for settings in ({"passes": 0}, {})
    )
    tracks = registry.load("uniform", "toy").track(CLIP, queries(asked.points))
    once = registry.load("uniform", "toy", passes=0).track(CLIP, queries(asked.points))
    assert torch.equal(second.result.xy[0], tracks.xy[0, 3])
    assert torch.equal(first.result.xy[0], once.xy[0, 3])
    assert second.visible == bool(tracks.visible[0, 3])


def test_the_view_ranks_all_candidates(session):
    asked = question(session, title="APA")
    explained = explain_point(asked, cwm_tracker("apa", "toy"), ObservedPairs())
    page = render_panel(asked, explained, final=True)
    weights = [float(text) for text in re.findall(r"<b>([\d.]+)%</b>", page)]
    assert len(weights) == TrackerConfig().masks
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(100, abs=1)
    assert page.count("<img") == 2 + TrackerConfig().masks + 1 + 3
    assert f"{explained.result.strength[0]:.3f}" in page
    assert "pending" in render_panel(asked, explained, final=False)


def test_the_direct_path_is_shown_before_the_point_is_tracked_through_time(session, monkeypatch):
    from lpa_cwm.page import app

    monkeypatch.setattr(
        app.models,
        "cwm_tracker",
        lambda method, world, **settings: cwm_tracker(method, world, **{"gaps": (1, 2), **settings}),
    )
    page = SimpleNamespace(server=SimpleNamespace(pairs=ObservedPairs()))
    one = click_point(session, 30.0, 20.0, 0)
    first, result = app.Page.why(page, one, 0, 3, "uniform", "toy")
    assert "pending" in first
    assert "from one source frame" in first
    assert "pending" not in result
    assert "from 3 source frames" in result


def test_only_later_frames_can_be_explained(session):
    with pytest.raises(InputError, match="after it"):
        explain_point(question(session, target=0), cwm_tracker("uniform", "toy"), ObservedPairs())


def test_observed_pairs_are_kept_by_clip_and_forgotten_with_it():
    tracker, pairs = cwm_tracker("uniform", "toy"), ObservedPairs(limit=3)
    clips = [lock_clip(CLIP), lock_clip(CLIP)]
    first = pairs.get(tracker, clips[0], 0, 1)
    assert pairs.get(tracker, clips[0], 0, 1) is first
    assert pairs.get(tracker, clips[1], 0, 1) is not first
    for target in (2, 3):
        pairs.get(tracker, clips[1], 0, target)
    assert len(pairs.entries) == 3
    assert pairs.get(tracker, clips[0], 0, 1) is not first
    pairs.forget(clips[1].frames)
    assert [frames for frames, _ in pairs.entries.values()] == [clips[0].frames]


def test_two_tabs_may_ask_for_pairs_at_once():
    tracker, pairs = cwm_tracker("uniform", "toy"), ObservedPairs(limit=2)
    clips = [lock_clip(CLIP) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(pairs.get, tracker, clips[n % 4], 0, 1 + n % 3) for n in range(60)]
        for n, future in enumerate(asked):
            assert future.result().identity == ("clip", "toy", 0, 1 + n % 3)
    assert len(pairs.entries) == 2


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 0), ("127.0.0.1", 70000), ("no.such.host.invalid", None)])
def test_addresses_that_cannot_be_served_are_refused(host, port):
    with pytest.raises(InputError, match=r"(give one from 1|cannot be served)"):
        check_address(host, port)


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="free port"):
            check_address("127.0.0.1", taken.getsockname()[1])
    check_address("127.0.0.1", None)


PAGE = """
import sys
from pathlib import Path

import gradio

from lpa_cwm.page import server as models
from lpa_cwm.page.app import Page, present
from lpa_cwm.page.layout import sentences
from lpa_cwm.page.server import PageServer


def shown(mistake):
    try:
        with sentences():
            mistake()
    except gradio.Error as error:
        return str(error)


built = Page(PageServer(Path(sys.argv[1])))
methods, baselines, world, method, said = built.offer()
assert [name for _, name in methods.choices] == models.runnable_adjudicators()
assert method.value in models.runnable_adjudicators()
assert [name for name, _ in baselines.choices] == models.runnable_baselines()
assert world.value in models.runnable_worlds()
assert built.blocks.analytics_enabled is False
assert "reload" in shown(lambda: present(None))
assert "terminal" in shown(lambda: {}["an accident"])
assert "accident" not in shown(lambda: {}["an accident"])
"""


def test_the_page_offers_what_can_run_and_says_mistakes_in_sentences(tmp_path):
    if importlib.util.find_spec("gradio") is None:
        pytest.skip('the page needs gradio: pip install "lpa-cwm[demo]"')
    # In a process of its own, because Gradio leaves an event loop open.
    result = subprocess.run([sys.executable, "-c", PAGE, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_command_serves_this_machine_alone():
    demo = COMMANDS["page"]()
    assert (demo.host, demo.share) == ("127.0.0.1", False)


# --- Corrections, objects, zoom ---------------------------------------------------------------------------------------


def test_a_second_click_corrects_a_track(session):
    from lpa_cwm.page.session import Results, correct_track, queries, track_points

    one = click_point(click_point(session, 30.0, 20.0, 0), 10.0, 10.0, 1)
    results = Results(one.clip, one.points, run_toy(one.points))
    x, y = results.tracks["uniform"].xy[0, 2].tolist()
    chosen = correct_track(one, results, "uniform", x, y, 2)
    assert chosen.chosen == one.points[0].color
    fixed = correct_track(chosen, results, "uniform", 33.0, 22.0, 2)
    assert fixed.chosen is None
    asked = queries(fixed.points)
    assert asked.tracks.tolist() == [0, 1, 0]
    assert track_points(fixed.points) == one.points
    again = run_toy(fixed.points)["uniform"]
    assert again.xy[0, 2].tolist() == [33.0, 22.0]
    assert len(again.xy) == 2
    with pytest.raises(InputError, match="no track at this place"):
        correct_track(one, results, "uniform", 1.0, 39.0, 2)


def test_tracking_goes_backward_and_then_takes_the_last_frame(session):
    last = len(session.clip) - 1
    one = click_point(session, 30.0, 20.0, last, backward=True)
    tracks = run_methods(one.clip, one.points, ["uniform", "static"], "toy", backward=True)
    assert all(found.xy.isfinite().all() for found in tracks.values())


def test_an_object_is_selected_by_a_click():
    pytest.importorskip("cv2", reason="the extra `flow` is not installed")
    from lpa_cwm.page.session import segment_object

    frame = torch.full((3, 80, 120), 60, dtype=torch.uint8)
    frame += torch.randint(0, 12, frame.shape, generator=torch.Generator().manual_seed(0)).byte()
    frame[0, 30:50, 40:60] = 230
    region = segment_object(frame, 50.0, 40.0)
    truth = torch.zeros(80, 120, dtype=torch.bool)
    truth[30:50, 40:60] = True
    assert (region & truth).sum() / (region | truth).sum() > 0.9


def test_zoom_shows_the_part_around_the_last_point(session):
    one = replace(click_point(session, 30.0, 20.0, 0), zoom=2)
    left, top, right, bottom = one.view()
    assert left <= 30 < right
    assert top <= 20 < bottom
    assert (right - left, bottom - top) == (session.clip.hw[1] // 2, session.clip.hw[0] // 2)
    assert draw_clicks(one.clip, 0, one.points, one.view()).size[0] > 0


def test_the_gallery_opens(tmp_path):
    from lpa_cwm.registry import GALLERY

    server = PageServer(tmp_path)
    assert len(GALLERY) == 3
    for name in GALLERY:
        assert server.open_gallery(name, "a").clip.name == name
    with pytest.raises(InputError, match="not a clip"):
        server.open_gallery("absent", "a")
