"""The doctor finds what is there, names what is missing, and notices a damaged file."""

import json
import shutil

import pytest

from lpa_cwm.cli import doctor
from lpa_cwm.cli.main import main
from lpa_cwm.datasets.download import DOWNLOADS


@pytest.fixture
def examined(monkeypatch, tmp_path, capsys):
    """Findings by section and name, and the exit code, with an empty cache."""
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path / "cache"))

    tried = doctor.trials

    def examine(*words, trials=lambda: iter(())):
        monkeypatch.setattr(doctor, "trials", trials or tried)
        with pytest.raises(SystemExit) as end:
            main(["doctor", "--json", *words])
        said = json.loads(capsys.readouterr().out)
        assert said["healthy"] == (end.value.code == 0)
        return {(one["section"], one["name"]): one for one in said["findings"]}, end.value.code

    return examine


def test_here_all_that_the_default_needs_is_there(examined):
    found, code = examined(trials=None)
    assert code == 0
    assert found["software", "torch"]["state"] == "ok"
    assert found["trials", "decoding"]["what"].startswith("frame of 256x256")
    assert "the center point went to" in found["trials", "tracking"]["what"]
    for name in ("world-learned.safetensors", "score-compact.safetensors"):
        assert "hash verified" in found["bundled weights", name]["what"]


def test_a_program_that_cannot_decode_is_not_healthy(examined, monkeypatch):
    def fail(path):
        raise TypeError("open() got an unexpected keyword argument")

    monkeypatch.setattr("lpa_cwm.io.video.read", fail)
    found, code = examined(trials=None)
    assert found["trials", "decoding"]["state"] == "wrong"
    assert code == 1


def test_what_is_missing_comes_with_the_command_that_gets_it(examined):
    found, _ = examined()
    missing = [one for one in found.values() if one["state"] == "missing" and one["section"] != "trackers"]
    assert missing
    assert all(one["remedy"] for one in missing)
    for parcel in DOWNLOADS.values():
        for name in parcel.paths():
            assert found["fetched weights", name]["remedy"] == f"lpa-cwm data fetch {parcel.name}"


def test_data_are_found_two_levels_down(examined, tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/tapvid_davis.pkl").touch()
    found, _ = examined("--data", str(tmp_path))
    assert found["data", "TAP-Vid DAVIS"]["state"] == "ok"
    assert "robotap.zip" in found["data", "RoboTAP"]["remedy"]


def test_a_damaged_file_is_noticed(examined, tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    shutil.copytree(doctor_weights(), folder)
    with (folder / "world-learned.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    monkeypatch.setattr("lpa_cwm.files.bundled_weights", lambda name: folder / name)
    found, code = examined()
    assert found["bundled weights", "world-learned.safetensors"]["state"] == "wrong"
    assert code == 1


def doctor_weights():
    from lpa_cwm.files import bundled_weights

    return bundled_weights("")


def test_text_has_a_line_for_each_finding_and_each_remedy():
    found = [
        doctor.Finding("extras", "sim", "missing", "lacks mujoco", 'pip install "lpa-cwm[sim]"'),
        doctor.Finding("data", "bundled clip", "ok", "clip.mp4"),
    ]
    lines = doctor.text(found).splitlines()
    assert next(line for line in lines if line) == "Extras"
    assert sum("→" in line for line in lines) == 1
    assert sum("✓" in line for line in lines) == 1
