"""The command line as machines and shells meet it: exit codes, ranges, JSON alone on stdout, completion, quick help."""

import dataclasses
import inspect
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from tyro.constructors import PrimitiveConstructorSpec

from bad_invocations import BAD_INVOCATIONS
from lpa_cwm.cli import values
from lpa_cwm.cli.main import COMMANDS, GROUPS, main, options_of, parse

PROGRAM = [sys.executable, "-m", "lpa_cwm.cli.main"]
SILENT = {"train lpa", "train score", "train world", "eval ablate", "eval compare", "data simulate", "data convert"}
SILENT |= {"page", "completion", "data annotate", "data pairs"}
"""Commands that make files, not data; they print where these are."""
MAX_OPTIONS = 150
INFINITE = {"clip", "max_oracle_error"}
"""Options whose help admits inf."""


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
        (KeyboardInterrupt(), 130, "stopped; nothing was written"),
        (OSError(28, "No space left on device", "out.mp4"), 1, "No space left on device"),
    ],
)
def test_foreseen_failures_have_a_code_and_a_sentence(monkeypatch, capsys, error, code, said):
    monkeypatch.setattr("lpa_cwm.cli.main.parse", lambda arguments: Stand(error))
    assert ended("track") == code
    assert said in capsys.readouterr().err


def test_long_commands_say_that_they_resume(monkeypatch, capsys):
    monkeypatch.setattr("lpa_cwm.cli.main.parse", lambda arguments: Stand(KeyboardInterrupt()))
    assert ended("eval", "predict") == 130
    assert "run the same command again to resume" in capsys.readouterr().err


def test_the_unforeseen_is_not_hidden(monkeypatch):
    monkeypatch.setattr("lpa_cwm.cli.main.parse", lambda arguments: Stand(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        main(["track"])


@pytest.mark.parametrize(
    "words", [[], ["eval"], ["nonsense"], ["track", "--nonsense"], ["track", "--masks", "x"], ["eval", "score"]]
)
def test_what_cannot_be_parsed_ends_with_2(words, capsys):
    assert ended(*words) == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("trak", "lpa-cwm track"),
        ("predict x.pkl", "lpa-cwm eval predict"),
        ("eval predct", "lpa-cwm eval predict"),
        ("methods", "lpa-cwm list-trackers"),
        ("demo", "lpa-cwm page"),
        ("track --maks 3", "--masks"),
    ],
)
def test_misspelt_words_are_recognized(words, meant, capsys):
    assert ended(*words.split()) == 2
    assert meant in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert ended("--version") == 0
    assert capsys.readouterr().out == "lpa-cwm 0.1.0\n"


def test_a_reader_that_goes_away_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run([*PROGRAM, "completion", "bash"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert result.stderr == b""
    assert result.returncode == 141


# --- Help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "most"),
    [(["--version"], 0.3), (["--help"], 1), (["completion", "bash"], 1)],
    ids=lambda value: str(value),
)
def test_what_needs_no_model_is_quick(words, most):
    """Processor time of the program and its parts, for the machine may be busy with others; half of it if idle."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "lpa_cwm", *words], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < most


def test_the_overview_lists_all_commands(capsys):
    assert ended("--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_help_and_completion_import_neither_numpy_nor_torch():
    code = (
        "import sys\nfrom lpa_cwm.cli.main import main\n"
        "for words in (['--help'], ['track', '--help'], ['completion', 'bash']):\n"
        "    try: main(words)\n    except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group, capsys):
    assert ended(group, "--help") == 0
    shown = capsys.readouterr().out
    assert all((name in shown) == (name.split()[0] == group) for name in COMMANDS if " " in name)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_plain_and_ends_with_an_example(name, capsys):
    assert ended(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert "None" not in shown
    assert "(default: )" not in shown
    assert "...]]" not in shown
    assert shown.endswith(f"Example:\n  {COMMANDS[name].EXAMPLE}\n")


def test_help_of_all_commands_imports_no_torch():
    code = (
        "import sys\nfrom lpa_cwm.cli.main import COMMANDS, main\n"
        "for name in COMMANDS:\n    try: main([*name.split(), '--help'])\n    except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_tracking_imports_no_baseline(tmp_path):
    code = (
        "import sys\nfrom lpa_cwm.cli.main import main\nimport lpa_cwm\nlpa_cwm.load()\n"
        "main('track --world toy --adjudicator uniform --masks 1 --points 9,9@22 --save t.csv'.split())\n"
        "loaded = [name for name in sys.modules if name.startswith('lpa_cwm.')]\n"
        "print(len(loaded))\nsys.exit(any('baselines' in name for name in loaded))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) <= 66


# --- Options ----------------------------------------------------------------------------------------------------------


def declared(kind):
    """The options of a command: (class that declares it, name, type), those of groups too."""
    types = typing.get_type_hints(kind, include_extras=True)
    for entry in dataclasses.fields(kind):
        owner = next(one for one in reversed(kind.__mro__) if entry.name in inspect.get_annotations(one))
        plain = typing.get_type_hints(kind)[entry.name]
        if dataclasses.is_dataclass(plain) and not issubclass(plain, values.Shard):
            yield from declared(plain)
        else:
            yield owner, entry.name, types[entry.name]


def is_positional(kind):
    return "Positional" in repr(kind)


def test_there_are_not_too_many_options():
    every = {(owner.__name__, name) for kind in COMMANDS.values() for owner, name, of in declared(kind)
             if not is_positional(of)}  # fmt: skip
    print(f"{len(every)} options")
    assert len(every) <= MAX_OPTIONS


def test_every_command_that_tells_something_tells_it_to_machines():
    names = {name: {option for _, option, _ in declared(kind)} for name, kind in COMMANDS.items()}
    assert {name for name, has in names.items() if "json" not in has} <= SILENT


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    for owner, option, _ in declared(COMMANDS[name]):
        source = Path(sys.modules[owner.__module__].__file__).read_text().split(f"\nclass {owner.__name__}")[1]
        after = source.split(f"\n    {option}: ")[1].split("\n")[1]
        assert after.strip().startswith('"""'), f"{owner.__name__}.{option} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_and_text_has_its_range_in_its_type(name):
    """No option is a bare int, float, str or Path, whose values nobody checks."""
    for owner, option, kind in declared(COMMANDS[name]):
        inner = [one for one in typing.get_args(kind) or (kind,) if one is not type(None)]
        bare = [one for one in (kind, *inner) if one in (int, float, str, Path)]
        checked = "PrimitiveConstructorSpec" in repr(kind) or "Literal" in repr(kind)
        assert checked or not bare, f"{owner.__name__}.{option} is {kind}"


BAD = ["0", "-1", "nan", "inf", "-inf", str(10**18), "1e999", "", " ", "٣", "½", "ünï", "--", "1/0", "0x10"]
BAD += ["a\nb", "\ud800", "x" * 5000]
UNFIT = {"", " ", "a\nb", "\ud800", "x" * 5000}
"""What is neither a path nor a name; the others may be the names of files."""


@pytest.mark.parametrize("name", COMMANDS)
def test_no_value_is_a_traceback(name, tmp_path, monkeypatch, capsys):
    """All options at once with each bad value, so that each is read: accepted, or refused before any work."""
    monkeypatch.chdir(tmp_path)
    words = example_of(name)
    known = [(option, kind) for _, option, kind in declared(COMMANDS[name]) if "PrimitiveConstructorSpec" in repr(kind)]
    for text in BAD:
        given = []
        for option, kind in known:
            if not is_positional(kind):
                given += [f"--{option.replace('_', '-')}", *[text] * (2 if "MIN MAX" in repr(kind) else 1)]
        monkeypatch.setattr(COMMANDS[name], "run", lambda self: None)
        assert ended(*name.split(), *words, *given) in (0, 2), (name, text)
        assert "Traceback" not in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def example_of(name):
    """The words after a command's name in its example."""
    return [word for word in COMMANDS[name].EXAMPLE.split()[1 + len(name.split()) :] if word != '"$(lpa-cwm']


@pytest.mark.parametrize("name", COMMANDS)
def test_no_value_out_of_range_is_accepted(name):
    """Each option alone: what is not refused is a finite number (inf where help says so), a name or a path."""
    for _, option, kind in declared(COMMANDS[name]):
        for spec in specs(kind):
            for text in BAD:
                value = spec.instance_from_str([text] * spec.nargs)
                if isinstance(value, values.Invalid):
                    continue
                if spec.metavar in ("N", "X"):
                    assert abs(value) < 1e10 or option in INFINITE, (option, text)
                else:
                    assert spec.metavar in ("PATH", "FOLDER", "FILE", "TEXT", "NAME"), (option, text)
                    assert text not in UNFIT or (spec.metavar in ("TEXT", "NAME") and len(text) > 3), (option, text)


def choices(name):
    """Options of a command that are a choice or a switch."""
    for _, option, kind in declared(COMMANDS[name]):
        if not list(specs(kind)) and not is_positional(kind):
            assert "Literal" in repr(kind) or "bool" in repr(kind), (option, kind)
            yield option


@pytest.mark.parametrize("name", COMMANDS)
def test_choices_and_switches_take_nothing_else(name, capsys):
    for option in choices(name):
        for text in ("nan", ""):
            assert ended(*name.split(), *example_of(name), f"--{option.replace('_', '-')}={text}") == 2, (option, text)
            error = capsys.readouterr().err
            assert len(error.splitlines()) == 1, error


@pytest.mark.slow
def test_every_option_of_every_command_alone_with_every_bad_value(tmp_path, monkeypatch, capsys):
    """Through the parser; prints how many options and values were walked."""
    monkeypatch.chdir(tmp_path)
    walked, refused, options = 0, 0, 0
    for name, kind in COMMANDS.items():
        monkeypatch.setattr(kind, "run", lambda self: None)
        for _, option, of in declared(kind):
            options += 1
            for text in BAD:
                values_of = [text] * (2 if "MIN MAX" in repr(of) else 1)
                given = values_of if is_positional(of) else [f"--{option.replace('_', '-')}", *values_of]
                code = ended(*name.split(), *example_of(name), *given)
                error = capsys.readouterr().err
                assert code in (0, 2), (name, option, text)
                assert len(error.splitlines()) == (code == 2), error
                walked, refused = walked + 1, refused + (code == 2)
    with capsys.disabled():
        print(f"\n{options} options of {len(COMMANDS)} commands, {walked} values: {refused} refused, 0 tracebacks")
    assert not any(tmp_path.iterdir())


def specs(kind):
    """The parsers inside a type."""
    for one in [*getattr(kind, "__metadata__", ()), *typing.get_args(kind)]:
        if isinstance(one, PrimitiveConstructorSpec):
            yield one
        elif typing.get_args(one):
            yield from specs(one)


INPUTS = [(name, option, is_positional(kind)) for name, command in COMMANDS.items()
          for _, option, kind in declared(command)
          if any(spec.metavar == "PATH" for spec in specs(kind))]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "positional"), INPUTS, ids=lambda part: str(part))
def test_inputs_that_are_no_data_are_refused(name, option, positional, tmp_path, monkeypatch, capsys):
    """Each path that is read, as a pipe that never ends, a device, a text and a name that is too long."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("text").write_text("hello\n")
    for text in ("pipe", "/dev/zero", "text", "x" * 300):
        if positional:
            # Positional words come first in all examples.
            words = [text, *itertools.dropwhile(lambda word: not word.startswith("--"), example_of(name))]
        else:
            words = [*example_of(name), f"--{option.replace('_', '-')}", text]
        code = ended(*name.split(), *words)
        error = capsys.readouterr().err
        assert code == 2, (text, error)
        assert len(error.splitlines()) == 1, error
    assert {path.name for path in tmp_path.iterdir()} <= {"pipe", "text"}


UNWRITABLE = ("track --save /proc/x/t.csv", "cannot be written to")


@pytest.mark.parametrize(("words", "said"), [*BAD_INVOCATIONS, UNWRITABLE])
def test_bad_values_are_refused_before_any_work(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith("/proc"))
    assert ended(*words.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"here"}


# --- Machines and shells ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["list-trackers"], ["data", "list"], ["doctor"], ["explain", "--world", "toy", "--masks", "2"]],
    ids=lambda words: words[-1],
)
def test_stdout_is_json_alone(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended(*words, "--json")
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tr", {"track", "train"}),
        ("track --ad", {"--adjudicator"}),
        ("track --no-sub", {"--no-subpixel"}),
        ("track --world le", {"learned", "learned-total"}),
        ("track clip.mp4 --color-by c", {"confidence"}),
        ("eval pr", {"predict"}),
        ("eval score --da", {"--dataset"}),
        ("completion z", {"zsh"}),
    ],
)
def test_bash_completes_commands_and_options(typed, offered, tmp_path, monkeypatch, capsys):
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
    said = capsys.readouterr().out
    assert all(name in said for name in ("lpa-cwm", "track", "color-by", "confidence"))
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=said, text=True).returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_the_completion_knows_the_options_that_help_shows(name, capsys):
    assert ended(*name.split(), "--help") == 0
    shown = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out.split("Example:")[0])) - {"--help"}
    offered = {option for option, _ in options_of(COMMANDS[name]) if option}
    assert {option for option in shown if option.removeprefix("--no-") in {o[2:] for o in offered}} <= offered
    assert {option for option in offered if not option.startswith("--no-")} <= shown


def test_commands_are_parsed_into_their_dataclass():
    assert parse(["track", "clip.mp4", "--points", "1,2@3"]).points == ("1,2@3",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("track --grdi 5", "`lpa-cwm track` has no option --grdi; did you mean --grid?"),
        ("track --x=3", "`lpa-cwm track` has no option --x; `lpa-cwm track --help` lists the options."),
        ("eval predict", "`lpa-cwm eval predict` lacks PATH, --out FOLDER;"),
        ("data simulate --form zzz", "Invalid choice 'zzz' for argument '--form'. Expected one of ('movi', 'tapvid');"),
        ("track --grid", "Missing value for argument '--grid'."),
    ],
)
def test_words_that_do_not_parse_get_one_sentence(capsys, words, said):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lpa-cwm: {said}")
    assert error.count("\n") == 1
