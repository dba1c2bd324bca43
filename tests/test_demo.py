"""The page's logic without a browser: points, uploads, runs, pictures, explanations."""

import csv
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch

from lpa_cwm import registry
from lpa_cwm.cli import COMMANDS
from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.io.video import read, write
from lpa_cwm.page import models, run, why
from lpa_cwm.page.desk import Choice, Desk, check_world
from lpa_cwm.page.pictures import PALETTE, heat, ink, logarithmic, numbered, side_by_side
from lpa_cwm.page.session import MOST_POINTS, Point, Session, cleared, clicked, queries, undone
from lpa_cwm.page.upload import Limits, admitted, guarded, shortened
from lpa_cwm.types import Tracks
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

CLIP = toy_clip(ToyMotion(shift=(0.02, 0.01)), 4, (60, 80), name="toy")


@pytest.fixture
def session():
    return Session(guarded(CLIP), bundled=True)


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "in" / "mine.mp4"
    write(path, CLIP.frames, 12.0)
    return path


def test_a_click_adds_a_point_and_a_click_on_it_removes_it(session):
    two = clicked(clicked(session, 10.0, 20.0, 0), 40.0, 30.0, 1)
    assert [(point.x, point.y, point.frame) for point in two.points] == [(10, 20, 0), (40, 30, 1)]
    assert clicked(two, 10.5, 20.5, 0).points == two.points[1:]
    # The same place in another frame is another point.
    assert len(clicked(two, 10.0, 20.0, 1).points) == 3
    assert session.points == ()


def test_every_change_can_be_undone(session):
    steps = [session]
    for change in (
        lambda now: clicked(now, 10.0, 20.0, 0),
        lambda now: clicked(now, 40.0, 30.0, 0),
        lambda now: clicked(now, 10.0, 20.0, 0),
        cleared,
    ):
        steps.append(change(steps[-1]))
    now = steps[-1]
    for before in reversed(steps[:-1]):
        now = undone(now)
        assert now == before
    assert undone(now) == now == cleared(now)


def test_a_point_keeps_its_color_and_a_new_one_takes_the_free_one(session):
    three = clicked(clicked(clicked(session, 10.0, 10.0, 0), 30.0, 10.0, 0), 50.0, 10.0, 0)
    less = clicked(three, 30.0, 10.0, 0)
    assert [point.color for point in less.points] == [0, 2]
    assert [point.color for point in clicked(less, 70.0, 10.0, 0).points] == [0, 2, 1]


def test_what_cannot_be_clicked(session):
    with pytest.raises(InputError, match="last frame"):
        clicked(session, 10.0, 10.0, 3)
    full = replace(session, points=tuple(Point(0.0, 0.0, 0, number) for number in range(MOST_POINTS)))
    with pytest.raises(InputError, match="64 points"):
        clicked(full, 50.0, 50.0, 0)


def test_queries_are_the_points_in_their_order(session):
    found = queries(clicked(clicked(session, 40.0, 30.0, 1), 10.0, 20.0, 0).points)
    assert found.xy.tolist() == [[40, 30], [10, 20]]
    assert found.frame.tolist() == [1, 0]
    assert len(queries(())) == 0


def test_an_upload_moves_into_its_folder(video, tmp_path):
    clip = admitted(video, tmp_path / "tab", Limits())
    assert (len(clip), clip.hw, clip.name) == (4, (60, 80), "mine")
    assert not video.exists()
    assert [path.name for path in (tmp_path / "tab").iterdir()] == ["mine.mp4"]
    short = shortened(clip, 2)
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
        admitted(video, tmp_path / "tab", limits)
    assert list((tmp_path / "tab").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a video" * 100])
def test_a_broken_upload_is_a_sentence_without_our_folders(tmp_path, content):
    path = tmp_path / "in.mp4"
    path.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        admitted(path, tmp_path / "tab", Limits())
    assert str(refusal.value).startswith("in.mp4")
    assert str(tmp_path) not in str(refusal.value)


def test_frames_without_end_are_refused_before_they_are_decoded(video, tmp_path, monkeypatch):
    monkeypatch.setattr("lpa_cwm.page.upload.read", lambda path: pytest.fail("decoded"))
    with pytest.raises(InputError, match="frames"):
        admitted(video, tmp_path / "tab", Limits(frames=2))


def test_a_refused_upload_leaves_the_former_one(video, tmp_path):
    desk = Desk(tmp_path / "desk")
    session = desk.take_upload(video, "a")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no")
    with pytest.raises(InputError):
        desk.take_upload(broken, "a")
    assert session.clip[3].shape == (3, 60, 80)
    assert len(list(desk.folder_of(desk.uploads, "a").iterdir())) == 1


def follow_toy(points, methods=("uniform",), **settings):
    return run.follow(CLIP, points, methods, "toy", **settings)


def test_a_run_is_the_trackers_own_and_is_reported(session):
    points = clicked(clicked(session, 30.0, 20.0, 0), 40.0, 30.0, 1).points
    heard = []
    tracks = follow_toy(points, ("uniform", "apa"), report=lambda *news: heard.append(news))
    for method, found in tracks.items():
        direct = registry.load(method, "toy").track(CLIP, queries(points))
        assert torch.equal(found.xy.nan_to_num(), direct.xy.nan_to_num())
    assert heard == [(done, 5) for done in range(5)]


def test_a_run_stops_when_told(session):
    points = clicked(session, 30.0, 20.0, 0).points
    stop, heard = Event(), []

    def report(*news):
        heard.append(news)
        stop.set()

    with pytest.raises(run.Stopped):
        follow_toy(points, report=report, may_go_on=lambda: not stop.is_set())
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("points", "methods", "said"), [((), ["uniform"], "click"), ((Point(9.0, 9.0, 0, 0),), [], "method")]
)
def test_a_run_needs_points_and_methods(points, methods, said):
    with pytest.raises(InputError, match=said):
        follow_toy(points, methods)


def test_downloads_hold_the_tracks_and_tabs_do_not_mix(session, tmp_path):
    desk = Desk(tmp_path)
    points = {"a": clicked(session, 30.0, 20.0, 0), "b": clicked(session, 50.0, 40.0, 1)}
    files = {tab: desk.follow(one, Choice(["uniform", "apa"], "toy", 2), tab, print) for tab, one in points.items()}
    for tab, (x, y, frames) in {"a": (30, 20, 3), "b": (50, 40, 2)}.items():
        rows = list(csv.DictReader(files[tab].csv["apa"].read_text().splitlines()))
        assert len(rows) == frames
        assert (float(rows[0]["x"]), float(rows[0]["y"])) == (x, y)
        with np.load(files[tab].npz["uniform"]) as arrays:
            assert arrays["xy"].shape == (1, 3, 2)
        assert len(read(files[tab].mp4)) == 3
    desk.close("a")
    assert not files["a"].mp4.exists()
    assert files["b"].mp4.exists()


def test_a_second_run_has_new_addresses_and_removes_the_first(session, tmp_path):
    desk, one = Desk(tmp_path), clicked(session, 30.0, 20.0, 0)
    first, second = (desk.follow(one, Choice(["uniform"], "toy", 1), "a", print) for _ in range(2))
    assert first.mp4.name == second.mp4.name
    assert not first.mp4.exists()
    assert second.mp4.exists()


def test_the_toy_world_is_for_its_own_clip(session):
    check_world(session, "toy")
    with pytest.raises(InputError, match="own clip"):
        check_world(replace(session, bundled=False), "toy")


def test_lpa_is_offered_once_its_weights_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "bundled_lpa", lambda: tmp_path / "lpa.safetensors")
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "cache"))
    assert models.runnable_methods() == ["uniform", "apa"]
    assert any("LPA" in sentence for sentence in models.absences())
    (tmp_path / "lpa.safetensors").touch()
    assert models.runnable_methods() == ["uniform", "apa", "lpa"]
    assert "opt-cwm" not in models.runnable_worlds()
    (tmp_path / "cache" / "opt-cwm").mkdir(parents=True)
    assert models.absences() == []


def test_points_are_drawn_where_they_were_clicked(session):
    plain = np.asarray(numbered(session.clip, 0, ()))
    point = clicked(session, 20.0, 30.0, 0).points[0]
    drawn = np.asarray(numbered(session.clip, 0, (point,)))
    scale = drawn.shape[1] // 80
    assert tuple(drawn[30 * scale, 20 * scale]) == ink(point) == PALETTE[0]
    assert np.array_equal(numbered(session.clip, 1, (point,)), numbered(session.clip, 1, ()))
    assert plain.shape == drawn.shape


def test_panels_stand_side_by_side(session):
    point = clicked(session, 20.0, 30.0, 0).points
    tracks = Tracks(torch.full((1, 4, 2), 20.0), torch.ones(1, 4, dtype=torch.bool))
    one, two = (
        list(side_by_side(CLIP, dict.fromkeys(names, tracks), point, widest=600)) for names in (["A"], ["A", "B"])
    )
    assert len(one) == len(two) == 4
    assert one[0].shape[2] == 600
    assert two[0].shape[2] == 600
    assert torch.equal(two[0][:, 40:, :296], two[0][:, 40:, 304:])


def test_heat_rises_with_the_value():
    gray = torch.full((3, 8, 8), 0.5)
    ramp = torch.linspace(0, 1, 64).view(8, 8)
    light = np.asarray(heat(ramp, gray)).astype(float).sum(-1).ravel()
    assert light[-1] == light.max()
    assert tuple(np.asarray(heat(torch.zeros(8, 8), gray))[0, 0]) == (76, 76, 76)
    nearly_even = torch.full((8, 8), 1 / 64)
    nearly_even[3, 4] += 1e-4
    share = logarithmic(nearly_even / nearly_even.sum())
    assert share[3, 4] == 1
    assert share.median() == pytest.approx(0, abs=1e-4)


def question(session, method="uniform", target=3):
    return why.Question(session.clip, clicked(session, 30.0, 20.0, 0).points, 0, target, method, "toy")


def test_the_explanation_is_the_trackers_answer_in_two_looks(session):
    asked = question(session)
    first, second = (why.asked(asked, first_look=look) for look in (True, False))
    tracks = registry.load("uniform", "toy").track(CLIP, queries(asked.points))
    glance = registry.load("uniform", "toy", TrackerConfig(passes=0)).track(CLIP, queries(asked.points))
    assert torch.equal(second.answer.xy[0], tracks.xy[0, 3])
    assert torch.equal(first.answer.xy[0], glance.xy[0, 3])
    assert second.visible == bool(tracks.visible[0, 3])


def test_the_view_ranks_all_candidates(session):
    asked = question(session, "apa")
    explained = why.asked(asked)
    page = why.panel(asked, explained, settled=True)
    weights = [float(text) for text in re.findall(r"<b>([\d.]+)%</b>", page)]
    assert len(weights) == TrackerConfig().masks
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(100, abs=1)
    assert page.count("<img") == 2 + TrackerConfig().masks + 1 + 3
    assert f"{explained.answer.strength[0]:.3f}" in page
    assert "pending" in why.panel(asked, explained, settled=False)


def test_only_later_frames_can_be_explained(session):
    with pytest.raises(InputError, match="after it"):
        why.asked(question(session, target=0))


PAGE = """
import sys
from pathlib import Path

import gradio

from lpa_cwm.page import models
from lpa_cwm.page.desk import Desk
from lpa_cwm.page.page import Page, present, sentences


def shown(mistake):
    try:
        with sentences():
            mistake()
    except gradio.Error as error:
        return str(error)


built = Page(Desk(Path(sys.argv[1])))
methods, world, method, said = built.offer()
assert [name for _, name in methods.choices] == models.runnable_methods()
assert method.value in models.runnable_methods()
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
    demo = COMMANDS["demo"]()
    assert (demo.host, demo.share) == ("127.0.0.1", False)
