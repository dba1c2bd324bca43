"""The list of methods, as users and programs read it."""

import json

from lpa_cwm.baselines.registry import BASELINES
from lpa_cwm.cli.main import main
from lpa_cwm.config import ADJUDICATORS


def test_every_method_is_listed_with_what_it_lacks(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path))
    main(["list-trackers", "--json"])
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(entries) == [*ADJUDICATORS, *BASELINES]
    assert entries["static"]["missing"] is None
    assert entries["uniform"]["missing"] is None
    assert entries["raft"]["missing"] == "raft-sintel.pth has not been fetched yet: run `lpa-cwm data fetch raft`."
    assert "NC" in entries["cotracker3"]["license"]
    for name in ("smurf", "sea-raft", "gmrw", "doduo", "cotracker3"):
        assert f"[{name}] of {tmp_path / 'methods.toml'}" in entries[name]["missing"]


def test_the_list_for_people(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LPA_CWM_CACHE", str(tmp_path))
    main(["list-trackers"])
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("static "))
    assert lines[place].split(maxsplit=1)[1] == BASELINES["static"].what
    assert lines[place + 2].strip() == "Runs here."
