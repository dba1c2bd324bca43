"""The command line as machines and shells meet it: exit codes, JSON alone on stdout, completion, quick help."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lpa_cwm.cli import COMMANDS, parse
from lpa_cwm.cli.main import main
from lpa_cwm.cli.train import SUBJECTS

PROGRAM = Path(sys.executable).parent / "lpa-cwm"
SILENT = {"train", "convert", "ablate", "compare", "simulate", "demo", "completion"}
"""Verbs that make files, not data; they print where these are."""


def ended(*words):
    """Exit code of a command run in this process."""
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return end.code or 0
    return 0


class Stand:
    """A command that fails in a chosen way."""

    def __init__(self, error):
        self.error = error

    def run(self):
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "run the same command again"),
        (OSError(28, "No space left on device", "out.mp4"), 1, "No space left on device"),
    ],
)
def test_foreseen_failures_have_a_code_and_a_sentence(monkeypatch, capsys, error, code, said):
    monkeypatch.setattr("lpa_cwm.cli.main.parse", lambda arguments: Stand(error))
    assert ended("track") == code
    assert said in capsys.readouterr().err


def test_the_unforeseen_is_not_hidden(monkeypatch):
    monkeypatch.setattr("lpa_cwm.cli.main.parse", lambda arguments: Stand(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        main(["track"])


@pytest.mark.parametrize("words", [[], ["nonsense"], ["track", "--nonsense"], ["track", "--masks", "x"], ["score"]])
def test_what_cannot_be_parsed_ends_with_2(words, capsys):
    assert ended(*words) == 2


def test_a_reader_that_goes_away_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run([PROGRAM, "completion", "bash"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert result.stderr == b""
    assert result.returncode == 141


def test_help_costs_less_than_a_second():
    """Processor time of the program and its parts, for the machine may be busy with others."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    assert all(verb in shown for verb in COMMANDS)


def test_every_verb_that_tells_something_tells_it_to_machines():
    fields = {verb: {field.name for field in dataclasses.fields(kind)} for verb, kind in COMMANDS.items()}
    assert {verb for verb, names in fields.items() if "json" not in names} <= SILENT


@pytest.mark.parametrize("kind", [*COMMANDS.values(), *SUBJECTS.values()], ids=lambda kind: kind.__name__)
def test_every_option_is_explained(kind):
    source = Path(sys.modules[kind.__module__].__file__).read_text()
    for field in dataclasses.fields(kind):
        if field.name != "subject":
            assert f"    {field.name}: " in source
            after = source.split(f"\n    {field.name}: ")[1].split("\n")[1]
            assert after.strip().startswith('"""'), f"{kind.__name__}.{field.name} has no help"


@pytest.mark.parametrize(
    "words",
    [["methods"], ["fetch"], ["doctor"], ["explain", "--world", "toy", "--masks", "2"]],
    ids=lambda words: words[0],
)
def test_stdout_is_json_alone(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended(*words, "--json")
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("typed", "offered"), [("tr", {"track", "train"}), ("track --me", {"--method"})])
def test_bash_completes_verbs_and_options(typed, offered, tmp_path, monkeypatch, capsys):
    assert ended("completion", "bash") == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    words = ["lpa-cwm", *typed.split()]
    lines = [
        "source ./script",
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}",
        "$(complete -p lpa-cwm | sed 's/.*-F \\([^ ]*\\).*/\\1/')",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    shown = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, cwd=tmp_path)
    assert set(shown.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_too(shell, capsys):
    assert ended("completion", shell) == 0
    assert "lpa-cwm" in capsys.readouterr().out


def test_commands_are_parsed_into_their_dataclass():
    assert parse(["track", "clip.mp4", "--points", "1,2@3"]).points == ("1,2@3",)
