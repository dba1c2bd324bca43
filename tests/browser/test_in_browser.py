"""The page in a real browser.

Run by `make test-browser`; with LPA_CWM_PICTURES=FOLDER it leaves screenshots there.
"""

import csv
import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from lpa_cwm.io.video import write
from lpa_cwm.registry import bundled_clip

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="a browser is driven by playwright; see `make test-browser`"
)
pytestmark = pytest.mark.browser
PICTURES = os.environ.get("LPA_CWM_PICTURES")
PATIENCE = 300_000
"""Milliseconds to wait for anything: what is tested is that it comes, on whatever machine."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_up(address):
    try:
        # Without a proxy that the environment may name.
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The page's address, and the folder where it puts its temporary files."""
    scratch, port = tmp_path_factory.mktemp("tmp"), free_port()
    code = "from lpa_cwm.cli.main import main; main()"
    command = [sys.executable, "-c", code, "page", "--port", str(port), "--no-show"]
    server = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(scratch)})
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + PATIENCE / 1000
    while not is_up(address):
        assert server.poll() is None, "the page ended before it was up"
        assert time.monotonic() < deadline, "the page does not come up"
        time.sleep(0.5)
    yield address, scratch
    server.terminate()
    server.wait(60)
    assert list(scratch.glob("lpa-cwm-*")) == [], "uploads and results must go with the page"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(served, browser):
    """A fresh tab; whatever it asks of other machines is noted and refused."""
    tab = browser.new_page(viewport={"width": 1360, "height": 1000})
    tab.set_default_timeout(PATIENCE)
    elsewhere = []

    def judge(route):
        if route.request.url.startswith((served[0], "data:", "blob:")):
            return route.continue_()
        elsewhere.append(route.request.url)
        return route.abort()

    tab.route("**/*", judge)
    open_page(tab, served[0])
    yield tab
    tab.close()
    assert elsewhere == []


def open_page(tab, address):
    tab.goto(address)
    tab.wait_for_selector("#frame img")
    tab.wait_for_selector("#about b")
    settle(tab)


def click(tab, x, y, picture="#frame img", changes="#frame"):
    """Click at a place given in shares of a picture, and wait until a part of the page shows it."""
    tab.locator(picture).scroll_into_view_if_needed()
    before, box = tab.locator(changes).inner_html(), tab.locator(picture).bounding_box()
    tab.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    tab.wait_for_function("([part, before]) => document.querySelector(part).innerHTML != before", arg=[changes, before])
    settle(tab)


def track_to(tab, frame):
    """Track the points up to a frame and wait for the results."""
    tab.locator("#last input[type=number]").fill(str(frame))
    tab.keyboard.press("Tab")
    tab.click("#go")
    tab.wait_for_selector("#status .progress")
    tab.wait_for_selector("#tracks video")
    tab.wait_for_selector("#still img")
    settle(tab)


def download(tab, link, name=None):
    """Rows of the table behind a link."""
    with tab.expect_download() as download:
        tab.click(link)
    assert name in (None, download.value.suggested_filename)
    return list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))


def settle(tab):
    """Let the page finish drawing; its lasting connections never let the network be idle."""
    tab.wait_for_timeout(1000)


def points(tab):
    return tab.locator("#legend li").count()


def keep(tab, name, part=None):
    """A picture of the page, or of a part of it, if pictures are wanted."""
    if PICTURES:
        tab.wait_for_timeout(1500)
        tab.mouse.move(5, 5)
        loaded = "[...document.querySelectorAll('.card:not(.hide) img')].every(one => one.complete && one.naturalWidth)"
        tab.wait_for_function(loaded)
        taken = tab.locator(part).screenshot() if part else tab.screenshot(full_page=True)
        Image.open(io.BytesIO(taken)).convert("RGB").save(Path(PICTURES) / f"page_{name}.webp", quality=85, method=6)


def test_points_come_and_go(page):
    click(page, 0.25, 0.75)
    click(page, 0.5, 0.5)
    assert points(page) == 2
    assert page.locator("#legend li").first.inner_text().split()[:3] == ["0", "64,", "192"]
    click(page, 0.25, 0.75)
    assert points(page) == 1
    page.click("#grid")
    page.wait_for_function("document.querySelectorAll('#legend li').length > 20")
    page.click("#undo")
    page.wait_for_function("document.querySelectorAll('#legend li').length == 1")
    page.click("#undo")
    page.wait_for_function("document.querySelectorAll('#legend li').length == 2")
    page.click("#clear")
    page.wait_for_function("document.querySelectorAll('#legend li').length == 0")


def test_tabs_do_not_mix(page, served, browser):
    click(page, 0.25, 0.75)
    other = browser.new_page()
    open_page(other, served[0])
    assert points(other) == 0
    other.close()
    assert points(page) == 1


def test_follow_play_download_and_see_why(page):
    keep(page, "start")
    click(page, 0.42, 0.5)
    click(page, 0.58, 0.6)
    page.locator("#methods input").nth(1).check()
    # Two frame pairs are enough here; a picture shows more.
    last = 12 if PICTURES else 2
    track_to(page, last)
    page.wait_for_function("document.querySelector('#tracks video').readyState >= 3")
    shown = page.evaluate("(v => [v.videoWidth, v.error])(document.querySelector('#tracks video'))")
    assert shown == [1032, None]
    rows = download(page, "#csv-apa", "bodies_apa.csv")
    assert len(rows) == 2 * (last + 1)
    assert all(0 <= float(row["confidence"]) <= 1 for row in rows)
    start = {row["track"]: (float(row["x"]), float(row["y"])) for row in rows if row["frame"] == "0"}
    assert start["0"] == pytest.approx((0.42 * 256, 0.5 * 256), abs=1)
    assert start["1"] == pytest.approx((0.58 * 256, 0.6 * 256), abs=1)
    assert all(0 <= float(row["x"]) <= 256 and 0 <= float(row["y"]) <= 256 for row in rows)
    still = page.locator("#still img").get_attribute("src")
    page.locator("#color input").nth(1).check()
    page.wait_for_function("before => document.querySelector('#still img').src != before", arg=still)
    keep(page, "tracks", "#tracks")
    still = page.locator("#still img").get_attribute("src")
    page.locator("#timeline input[type=range]").focus()
    page.keyboard.press("Home")
    page.wait_for_function("before => document.querySelector('#still img').src != before", arg=still)
    page.locator("#method input").nth(1).check()
    page.wait_for_selector(".why-facts.settled")
    # The masks of the query's frame, and those of two recent frames.
    assert page.locator(".why-candidates img").count() == 20
    assert page.locator(".why-steps img").count() == 4
    keep(page, "why", "#why")
    page.locator("#gallery button").nth(2).click()
    page.wait_for_selector("#tracks", state="hidden")
    assert page.locator("#about b").inner_text() == "ball"


def test_a_track_is_corrected_by_two_clicks(page):
    click(page, 0.42, 0.5)
    track_to(page, 1)
    for place, said in (((0.42, 0.5), "is chosen"), ((0.6, 0.3), "is corrected in frame 1")):
        click(page, *place, "#still img", changes="#fix")
        assert said in page.locator("#fix").inner_text()
    first, second = (text.replace(",", "").split() for text in page.locator("#legend li").all_inner_texts())
    assert (first[0], second[0], second[-1]) == ("0", "0", "1")
    assert [float(place) for place in second[1:3]] == pytest.approx([0.6 * 256, 0.3 * 256], abs=1.5)
    page.click("#go")
    page.wait_for_selector("#status .progress")
    page.wait_for_function("document.querySelector('#fix').innerText.includes('A track is wrong?')")
    row = next(row for row in download(page, "#csv-lpa") if row["frame"] == "1")
    # The list of points shows whole pixels.
    assert [float(row["x"]), float(row["y"])] == pytest.approx([float(place) for place in second[1:3]], abs=0.51)
    assert row["confidence"] == "1"


def test_one_click_adds_the_points_of_an_object(page):
    page.locator("#gallery button").nth(1).click()
    page.wait_for_function("document.querySelector('#about b').innerText == 'tiles'")
    settle(page)
    page.locator("#mode input").nth(1).check()
    click(page, 0.3, 0.85)
    page.wait_for_function("document.querySelectorAll('#legend li').length > 5")
    keep(page, "object")


def test_zoom_makes_clicks_exact(page):
    """At four times the size, a click a tenth of the picture away from the middle is 6.4 px away."""
    click(page, 0.5, 0.5)
    before = page.locator("#frame img").get_attribute("src")
    page.locator("#zoom input").nth(2).check()
    page.wait_for_function("before => document.querySelector('#frame img').src != before", arg=before)
    settle(page)
    click(page, 0.6, 0.5)
    first, second = (float(text.split()[1].strip(",")) for text in page.locator("#legend li").all_inner_texts())
    assert second - first == pytest.approx(6.4, abs=1)
    keep(page, "zoom")


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("light", 1360, "light"), ("dark", 1360, "dark"), ("phone", 390, "light"), ("phone_dark", 390, "dark")],
)
def test_the_page_is_readable_in_the_dark_and_on_a_phone(served, browser, name, width, scheme):
    """Text contrasts with its background, and nothing is wider than the window."""
    tab = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab.set_default_timeout(PATIENCE)
    open_page(tab, served[0])
    light = "s => s.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3"
    card = tab.evaluate(f"({light})(getComputedStyle(document.querySelector('.card')).backgroundColor)")
    assert card < 60 if scheme == "dark" else card > 240
    for selector in ("h1", "#head p", "#about b", "#methods label span", "#tips p", "#absent p", "#legend p", ".blank"):
        color = tab.evaluate(f"({light})(getComputedStyle(document.querySelector('{selector}')).color)")
        assert abs(color - card) > 110, selector
    click(tab, 0.5, 0.6)
    track_to(tab, 6 if PICTURES else 1)
    for part in ("#gallery button >> nth=-1", ".scale", "#video", "#show"):
        box = tab.locator(part).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width, part
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    keep(tab, name)
    tab.close()


def test_a_run_can_be_stopped(page):
    click(page, 0.4, 0.4)
    page.click("#go")
    page.wait_for_selector("#status .progress")
    page.click("#stop")
    page.wait_for_selector("#status :text('Stopped')")
    page.wait_for_selector("#go")
    assert not page.locator("#tracks").is_visible()


def test_a_broken_upload_is_a_sentence(page, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"this is no video")
    page.locator("input[type=file]").set_input_files(broken)
    said = page.wait_for_selector(".toast-body").inner_text()
    assert "broken.mp4 is not a video" in said
    assert "Traceback" not in page.content()
    assert page.locator("#about b").inner_text() == "bodies"


def test_an_own_video_is_opened_and_asked_about(page, tmp_path):
    video = tmp_path / "my walk.mp4"
    clip = bundled_clip("learned")
    write(video, [clip[index] for index in range(4)], 12.0)
    page.locator("input[type=file]").set_input_files(video)
    page.wait_for_function("document.querySelector('#about b').innerText == 'my walk'")
    assert "4 frames" in page.locator("#about").inner_text()
    settle(page)
    click(page, 0.5, 0.5)
    page.click("#show")
    page.wait_for_selector(".why-facts.settled")


def test_without_points_nothing_is_followed(page):
    page.click("#go")
    assert "click on the frame" in page.wait_for_selector("#status .refused").inner_text()
    page.wait_for_selector("#go")
