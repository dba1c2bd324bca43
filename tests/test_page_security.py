"""The page as its command serves it, under requests that no browser tab of its own would send."""

import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from lpa_cwm.errors import InputError
from lpa_cwm.io.video import write
from lpa_cwm.page.guard import Limits, accept_upload, path_inside
from lpa_cwm.page.server import PageServer
from lpa_cwm.worlds.toy import ToyMotion, toy_clip

if importlib.util.find_spec("gradio") is None:
    pytest.skip('the page needs gradio: pip install "lpa-cwm[demo]"', allow_module_level=True)

from lpa_cwm.page.guard import UPLOAD_LIFETIME, Guard, Hosts

CLIP = toy_clip(ToyMotion(shift=(0.02, 0.01)), 4, (60, 80), name="toy")
PATIENCE = 180
HOSTILE = ["/absolute", "..", ".", "", "a/../../..", "a\0b", "x" * 65, "\ud800"]


class Server:
    """The running command, spoken to without a client that would tidy up what is sent."""

    def __init__(self, scratch):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        code = "from lpa_cwm.cli.main import main; main()"
        command = [sys.executable, "-c", code, "page", "--port", str(self.port), "--no-show"]
        self.log = scratch / "page.log"
        with self.log.open("wb") as log:
            environment = os.environ | {"TMPDIR": str(scratch)}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE
        while not self.is_up():
            assert self.process.poll() is None, "the page ended before it was up"
            assert time.monotonic() < deadline, "the page does not come up"
            time.sleep(0.5)

    def is_up(self):
        try:
            return self.ask("GET", "/")[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body=None, **headers):
        """Status and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def post(self, path, content, **headers):
        return self.ask("POST", path, json.dumps(content), **{"Content-Type": "application/json"}, **headers)

    def upload(self, path):
        """Send a file as the page does; returns where Gradio put it."""
        head = f'--B\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'
        body = head.encode() + path.read_bytes() + b"\r\n--B--\r\n"
        status, text = self.ask(
            "POST", "/gradio_api/upload", body, **{"Content-Type": "multipart/form-data; boundary=B"}
        )
        assert status == 200, text
        return json.loads(text)[0]

    def memory(self):
        """Resident memory in megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def call(self, name, data, tab, event_data=None):
        """Run a function through the queue; returns whether it succeeded, and all that was said."""
        functions = json.loads(self.ask("GET", "/config")[1])["dependencies"]
        number = next(entry["id"] for entry in functions if entry["api_name"] == name)
        joined = {"data": data, "fn_index": number, "session_hash": tab, "event_data": event_data, "trigger_id": None}
        status, text = self.post("/gradio_api/queue/join", joined)
        assert status == 200, text
        said = self.ask("GET", f"/gradio_api/queue/data?{urlencode({'session_hash': tab})}")[1]
        messages = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]
        return next(entry["success"] for entry in messages if entry["msg"] == "process_completed"), said

    def listen(self, path):
        """Open a stream as the page's heartbeat does, and leave."""
        with socket.create_connection(("127.0.0.1", self.port)) as line:
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
            line.settimeout(60)
            assert line.recv(100).startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(scope="module")
def server(scratch):
    running = Server(scratch)
    yield running
    running.process.terminate()
    running.process.wait(60)
    assert list(scratch.glob("lpa-cwm-*")) == []


@pytest.fixture
def victim(tmp_path):
    """A folder with a file and a folder in it, which must stay as it is."""
    folder = tmp_path / "victim"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "precious").write_text("data")
    yield folder
    assert [path.name for path in sorted(folder.rglob("*"))] == ["sub", "precious"]


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "mine.mp4"
    write(path, CLIP.frames, 12.0)
    return path


def uploads_in(scratch):
    return list(scratch.glob("lpa-cwm-*/uploads/*/*/*.mp4"))


def file_data(path):
    return {"path": path, "meta": {"_type": "gradio.FileData"}, "orig_name": "mine.mp4"}


def test_an_upload_of_a_tab_is_admitted_and_goes_with_the_tab(server, scratch, video):
    succeeded, said = server.call("take_upload", [file_data(server.upload(video))], "tab1")
    assert succeeded, said
    assert len(uploads_in(scratch)) == 1
    server.listen("/gradio_api/heartbeat/tab1")
    deadline = time.monotonic() + 60
    while uploads_in(scratch):
        assert time.monotonic() < deadline, "the heartbeat's end does not close the tab"
        time.sleep(0.2)


def test_no_session_hash_deletes_a_folder(server, victim):
    for tab in (str(victim), f"../../../../../../../..{victim}"):
        assert not server.call("leave", [], tab)[0]
        assert server.post("/gradio_api/run/leave", {"data": [], "session_hash": tab})[0] >= 400
        assert not server.call("halt", [], tab)[0]
    assert server.post("/gradio_api/run/leave", {"data": []})[0] >= 400


def test_no_heartbeat_deletes_the_files_of_others(server, scratch, video, victim):
    succeeded, said = server.call("take_upload", [file_data(server.upload(video))], "tab2")
    assert succeeded, said
    for tab in ("..", ".", "%2e%2e", quote(str(victim), safe="")):
        try:
            server.listen(f"/gradio_api/heartbeat/{tab}")
        except AssertionError:
            continue  # Not even routed.
    server.post("/gradio_api/run/leave", {"data": [], "session_hash": ".."})
    time.sleep(1)
    assert len(uploads_in(scratch)) == 1


def test_no_upload_is_written_elsewhere(server, video, victim):
    succeeded, said = server.call("take_upload", [file_data(server.upload(video))], str(victim))
    assert not succeeded
    assert "tab of this page" in said


def test_no_file_from_elsewhere_is_moved(server, video):
    assert not server.call("take_upload", [file_data(str(video))], "tab3")[0]
    assert video.exists()


@pytest.fixture
def visited():
    """The paths that are asked of a server of somebody else, which also tells its address."""
    paths = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{other.server_port}", paths
        other.shutdown()
        thread.join()


def test_no_other_address_is_asked(server, visited):
    address, paths = visited
    for data in (file_data(f"{address}/a.mp4"), {**file_data("a.mp4"), "url": f"{address}/b.mp4"}):
        assert not server.call("take_upload", [data], "tab4")[0]
    assert (
        "none from other addresses" in server.call("take_upload", [file_data("https://example.org/a.mp4")], "tab4")[1]
    )
    assert server.ask("GET", f"/gradio_api/proxy={address}/c")[0] == 404
    assert server.ask("GET", f"/gradio_api/file={address}/d")[0] == 403
    assert paths == []


def test_no_file_of_the_machine_is_served(server, victim):
    secret = victim / "sub" / "precious"
    for place in ("gradio_api/file=", "gradio_api/file/", "static/../../../../../../..", "svelte/..%2f..%2f..%2f.."):
        assert server.ask("GET", f"/{place}{secret}")[0] in (403, 404), place
    assert server.ask("GET", f"/assets/{quote('../' * 8 + str(secret), safe='')}")[0] in (403, 404)


def test_only_what_the_page_uses_is_answered(server, scratch):
    """Gradio also takes recordings, which it leaves on the disk, and messages of any length."""
    before = sorted(scratch.iterdir())
    form = {"Content-Type": "multipart/form-data; boundary=B"}
    body = b'--B\r\nContent-Disposition: form-data; name="video"; filename="x.mp4"\r\n\r\nxxxx\r\n--B--\r\n'
    for name in ("process_recording", "component_server", "vibe-edit", "stream/x", "call/leave", "run-history/connect"):
        assert server.ask("POST", f"/gradio_api/{name}", body, **form)[0] == 404, name
    for name in ("gradio_api/deep_link?session_hash=a", "monitoring", "gradio_api/runs"):
        assert server.ask("GET", f"/{name}")[0] == 404, name
    assert server.post("/gradio_api/queue/join", {"data": ["x" * 1_000_000]})[0] == 413
    chunks = (part for part in [b"{"])
    assert server.ask("POST", "/gradio_api/queue/join", chunks)[0] == 413
    assert sorted(scratch.iterdir()) == before


JUNK = [None, [], {}, "x", -1, 1e300, [[]], {"path": "/etc/passwd"}, "../..", "\u0000", ["lpa"] * 1000, True]


def test_junk_for_handlers_is_refused_without_a_traceback(server):
    functions = json.loads(server.ask("GET", "/config")[1])["dependencies"]
    names = [entry["api_name"] for entry in functions if entry["backend_fn"]]
    assert {"click", "run", "why", "scrub", "show_tracks", "take_bundled", "fill_grid"} <= set(names)
    for entry in functions:
        if entry["backend_fn"]:
            for number, junk in enumerate(JUNK):
                body = {"data": [junk] * len(entry["inputs"]), "fn_index": entry["id"], "session_hash": f"junk{number}"}
                server.post("/gradio_api/queue/join", body | {"event_data": junk, "trigger_id": None})
            server.post("/gradio_api/run/" + entry["api_name"], {"data": JUNK, "session_hash": "junk"})
            server.ask("POST", "/gradio_api/queue/join", b"{", **{"Content-Type": "application/json"})
    for number in range(len(JUNK)):
        server.ask("GET", f"/gradio_api/queue/data?{urlencode({'session_hash': f'junk{number}'})}")
    assert server.ask("GET", "/config")[0] == 200
    log = server.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 200 :][:6000]


@pytest.mark.parametrize("tabs", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_many_tabs_at_once_in_bounded_memory(tabs, server, scratch):
    """Every tab opens a clip, adds points, tracks them and leaves; nothing of a tab stays."""

    def use(tab):
        assert server.call("offer", [], tab)[0]
        assert server.call("take_bundled", ["toy"], tab)[0]
        assert server.call("fill_grid", [None, 0, False], tab)[0]
        succeeded, said = server.call("run", [None, [], ["static"], "toy", 3, False, "track"], tab)
        assert succeeded, said
        assert "toy_static.csv" in said
        server.listen(f"/gradio_api/heartbeat/{tab}")

    use("first")
    before = server.memory()
    with ThreadPoolExecutor(tabs) as pool:
        for done in [pool.submit(use, f"client{number}") for number in range(tabs)]:
            done.result()
    assert server.memory() - before < 400
    deadline = time.monotonic() + 120
    while list(scratch.glob("lpa-cwm-*/results/*/*")):
        assert time.monotonic() < deadline, "results of tabs that left are still there"
        time.sleep(0.5)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1@evil"])
def test_other_hosts_are_refused(server, host):
    assert server.ask("GET", "/config", Host=host)[0] in (400, 421)
    assert server.post("/gradio_api/run/leave", {"data": [], "session_hash": "tab"}, Host=host)[0] in (400, 421)


def test_other_origins_are_refused(server):
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}", "http://localhost"):
        body = {"data": [], "session_hash": "tab"}
        assert server.post("/gradio_api/run/leave", body, Origin=origin)[0] == 403
        assert server.ask("POST", "/gradio_api/upload", b"", Origin=origin)[0] == 403
    assert server.ask("GET", "/config", Origin=f"http://127.0.0.1:{server.port}")[0] == 200
    assert server.ask("GET", "/config", Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("tab", HOSTILE)
def test_a_desk_knows_no_hostile_tab(tmp_path, video, victim, tab):
    demo = PageServer(tmp_path / "demo")
    for act in (demo.close, lambda tab: demo.open_upload(video, tab), lambda tab: demo.folder_of(demo.results, tab)):
        with pytest.raises(InputError, match="tab of this page"):
            act(tab)
    assert video.exists()


def test_folders_have_names_that_nobody_can_guess(tmp_path):
    first, second = PageServer(tmp_path), PageServer(tmp_path)
    assert first.folder_of(first.uploads, "a") == first.folder_of(first.uploads, "a")
    assert first.folder_of(first.uploads, "a") != second.folder_of(second.uploads, "a")


def test_links_do_not_lead_outside(tmp_path, victim):
    demo = PageServer(tmp_path / "demo")
    demo.uploads.mkdir(parents=True)
    demo.folder_of(demo.uploads, "a").symlink_to(victim)
    with pytest.raises(InputError, match="own folder"):
        demo.close("a")
    with pytest.raises(InputError, match="own folder"):
        path_inside(tmp_path, tmp_path)
    with pytest.raises(InputError, match="own folder"):
        accept_upload(tmp_path / "..", tmp_path / "tab", Limits())


def test_a_tab_sends_so_many_videos_and_no_more(tmp_path):
    demo = PageServer(tmp_path / "demo", Limits(uploads_of_tab=2))
    for number in range(3):
        path = tmp_path / f"{number}.mp4"
        write(path, CLIP.frames, 12.0)
        if number < 2:
            demo.open_upload(path, "a")
    with pytest.raises(InputError, match="2 videos"):
        demo.open_upload(path, "a")
    demo.open_upload(path, "b")


def test_all_tabs_together_send_so_many_videos_and_no_more(monkeypatch):
    guard = Guard(lambda *_: None, Hosts("127.0.0.1"), Limits(megabytes=1, uploads=2))
    now = [0.0]
    monkeypatch.setattr("lpa_cwm.page.guard.time.monotonic", lambda: now[0])
    assert [guard.upload_refusal("1000") for _ in range(2)] == [None, None]
    assert guard.upload_refusal("1000").status_code == 429
    now[0] = UPLOAD_LIFETIME + 1
    assert guard.upload_refusal("1000") is None
    assert [guard.upload_refusal(length).status_code for length in ("", "-1", "2000000", "9" * 5000)] == [413] * 4


def test_the_hosts_of_other_bindings():
    assert Hosts("page.lab").admit("page.lab:7860")
    assert not Hosts("page.lab").admit("other.lab:7860")
    assert Hosts("0.0.0.0").admit("192.168.1.5:7860")
    assert Hosts("0.0.0.0").admit(f"{socket.gethostname()}:7860")
    assert not Hosts("0.0.0.0").admit("evil.example:7860")
    assert not Hosts("127.0.0.1").admit("192.168.1.5:7860")
    assert Hosts("::1").admit("[::1]:7860")
    assert Hosts("127.0.0.1", share=True).admit("abc.gradio.live")
    assert Hosts("127.0.0.1", share=True).admit_origin("https://abc.gradio.live", "127.0.0.1:7860")
    assert not Hosts("127.0.0.1").admit("abc.gradio.live")
