"""The program: parse, check and run one command, with exit codes and shell completion."""

import ctypes
import difflib
import io
import os
import re
import signal
import sys
import threading
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import FrameType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Protocol, runtime_checkable

import tyro

from lpa_cwm import __version__
from lpa_cwm.cli import data, doctor, evaluate, track, train
from lpa_cwm.cli.options import AdjudicatorOptions
from lpa_cwm.cli.values import check
from lpa_cwm.errors import InputError
from lpa_cwm.jobs import Shard

BASH = """_lpa_cwm() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} offered=""
    local command=${COMP_WORDS[1]}
    case $command in %(groups)s) [[ $COMP_CWORD -gt 2 ]] && command="$command ${COMP_WORDS[2]}";; esac
    [[ $COMP_CWORD -eq 1 ]] && command=""
    case "$command $before" in
%(choices)s
    *) case $command in
%(options)s
    esac;;
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$word"))
    [[ ${#COMPREPLY[@]} -eq 0 && $word != -* ]] && COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _lpa_cwm lpa-cwm
"""
ZSH = "#compdef lpa-cwm\nautoload -U +X bashcompinit && bashcompinit\n" + BASH


def completion_script(shell: str, commands: Mapping[str, type[Any]]) -> str:
    """The script for bash, zsh (through its emulation of bash) or fish."""
    options = {name: dict(options_of(kind)) for name, kind in commands.items()}
    if shell == "fish":
        return "\n".join(fish_lines(options)) + "\n"
    groups = dict.fromkeys(name.split()[0] for name in commands if " " in name)
    inner = {group: [name.split()[1] for name in commands if name.startswith(f"{group} ")] for group in groups}
    first = " ".join(dict.fromkeys(name.split()[0] for name in commands))
    words = {"": f"{first} --help --version", **{group: " ".join([*inner[group], "--help"]) for group in groups}}
    for name, given in options.items():
        words[name] = " ".join([*given.pop("", ()), *sorted(given), "--help"])
    chosen = {f"{name} {option}": names for name, given in options.items() for option, names in given.items()}
    parts = {
        "groups": "|".join(groups),
        "options": "\n".join(f'    "{name}") offered="{text}";;' for name, text in words.items()),
        "choices": "\n".join(f'    "{key}") offered="{" ".join(names)}";;' for key, names in chosen.items() if names),
    }
    return (ZSH if shell == "zsh" else BASH) % parts


def fish_lines(options: Mapping[str, Mapping[str, tuple[str, ...]]]) -> Iterator[str]:
    """One `complete` command for each word that fish may offer."""
    for name, given in options.items():
        first, _, second = name.partition(" ")
        # The command comes directly after the program.
        yield f"complete -c lpa-cwm -f -n '__fish_is_first_arg' -a {first}"
        known = f"__fish_seen_subcommand_from {first}"
        if second:
            yield f"complete -c lpa-cwm -f -n '{known}; and test (count (commandline -opc)) -eq 2' -a {second}"
            known += f"; and __fish_seen_subcommand_from {second}"
        if given.get(""):
            yield f"complete -c lpa-cwm -f -n '{known}' -a '{' '.join(given[''])}'"
        for option, names in given.items():
            if not option:
                continue
            values = f" -x -a '{' '.join(names)}'" if names else ""
            yield f"complete -c lpa-cwm -n '{known}' -l {option.removeprefix('--')}{values}"


def options_of(kind: type[Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Options of a command, those of its groups too, each with its choices; "" is the positional argument."""
    types = typing.get_type_hints(kind, include_extras=True)
    for entry in fields(kind):
        hint = types[entry.name]
        if is_dataclass(hint) and isinstance(hint, type) and not issubclass(hint, Shard):
            yield from options_of(hint)
        elif "Positional" in repr(hint):
            yield "", tuple(dict.fromkeys(choices_of(hint)))
        else:
            option = f"--{entry.name.replace('_', '-')}"
            yield option, tuple(dict.fromkeys(choices_of(hint)))
            if hint is bool or bool in typing.get_args(hint):
                yield f"--no-{option.removeprefix('--')}", ()


def choices_of(hint: Any) -> Iterator[str]:
    """Names that a type admits: of a Literal, or in the braces of the value's description."""
    if typing.get_origin(hint) is Literal:
        yield from map(str, typing.get_args(hint))
        return
    for part in (*getattr(hint, "__metadata__", ()), *typing.get_args(hint)):
        described = getattr(part, "metavar", "")
        if described.startswith("{"):
            yield from described.strip("{}").split(",")
        elif described == "" and not isinstance(part, str):
            yield from choices_of(part)


FAILED, BAD_INPUT, INTERRUPTED, NO_READER, TERMINATED = 1, 2, 130, 141, 143
"""Exit codes other than 0; the parser itself ends with 2, an unexpected error with 1 and a traceback."""
MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.DisallowNone)
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
BOX_LINE = re.compile("[\u2500-\u257f]|-{5,}")
"""Box lines that the parser draws around errors."""
NO_DEFAULT = re.compile(r"\s*\(default:\s*(None)?\)")
REPEATED = re.compile(r"\[{1,2}(?P<name>[^\s\[\]]+) \[(?P=name) \.\.\.\]{2,3}")
"""How the parser writes an option that takes any number of values."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Names of glibc's <malloc.h>."""


@runtime_checkable
class Command(Protocol):
    """Options as fields, an example for the help, work in `run`."""

    EXAMPLE: ClassVar[str]

    def run(self) -> None: ...


@dataclass(frozen=True)
class Completion:
    """Print a script for a shell that completes commands and options."""

    EXAMPLE: ClassVar[str] = 'eval "$(lpa-cwm completion bash)"'
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Shell that reads the script."""

    def run(self) -> None:
        """Print the script."""
        print(completion_script(self.shell, COMMANDS), end="")


COMMANDS: dict[str, type[Command]] = {
    "track": track.Track,
    "explain": track.Explain,
    "page": track.ServePage,
    "eval predict": evaluate.Predict,
    "eval score": evaluate.Score,
    "eval report": evaluate.Report,
    "eval compare": evaluate.Compare,
    "eval ablate": evaluate.Ablate,
    "eval sweep": evaluate.Sweep,
    "eval audit": evaluate.Audit,
    "eval world": evaluate.EvaluateWorld,
    "paper": evaluate.Paper,
    "train lpa": train.TrainLpa,
    "train score": train.TrainScore,
    "train world": train.TrainWorld,
    "train confidence": train.TrainConfidence,
    "data simulate": data.Simulate,
    "data annotate": data.Annotate,
    "data pairs": data.Pairs,
    "data cache": data.Cache,
    "data fetch": data.Fetch,
    "data convert": data.Convert,
    "data list": data.ListData,
    "doctor": doctor.Doctor,
    "list-trackers": doctor.ListTrackers,
    "completion": Completion,
}
GROUPS = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS if " " in name))
RENAMED_COMMANDS = {"demo": "page", "methods": "list-trackers"}
"""Former names of commands, for the error message."""
RENAMED_OPTIONS = {"--plan": "--dry-run", "--method": "--adjudicator or --tracker"}
"""Former names of options, for the error message."""
ABOUT = """Track points through video with a counterfactual world model, and evaluate any tracker.

usage: lpa-cwm COMMAND [OPTIONS]
       lpa-cwm COMMAND --help
       lpa-cwm --version
"""
CODES = "Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. Results go to stdout, everything else to stderr."


def parse(arguments: list[str] | None = None) -> Command:
    """Parse and check a command line, by default `sys.argv`."""
    words = sys.argv[1:] if arguments is None else arguments
    for count in (1, 2):
        name = " ".join(words[:count])
        if name in COMMANDS and len(words) >= count:
            command = parse_options(name, words[count:])
            check(command)
            model = getattr(command, "model", None)
            if isinstance(model, AdjudicatorOptions):
                model.refuse_ignored(options_in(words[count:]))
            return command
    if words == ["--version"]:
        print(f"lpa-cwm {__version__}")
        sys.exit(0)
    group = words[0] if words and words[0] in GROUPS else ""
    rest = words[1:] if group else words
    if rest and rest[0] in ("-h", "--help"):
        print(command_overview(group))
        sys.exit(0)
    if not rest:
        print(command_overview(group), file=sys.stderr)
        sys.exit(BAD_INPUT)
    raise InputError(no_command(group, rest[0]))


def options_in(words: list[str]) -> set[str]:
    """Names of the fields that the given options set."""
    options = (word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--"))
    return {option.removeprefix("no-").replace("-", "_") for option in options}


def parse_options(name: str, words: list[str]) -> Command:
    """Parse the options of one command; help ends with an example."""
    kind, prog = COMMANDS[name], f"lpa-cwm {name}"
    if not {"-h", "--help"} & set(words):
        said = io.StringIO()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                return tyro.cli(kind, prog=prog, args=words, config=MARKERS)
        except SystemExit as stopped:
            raise InputError(misparsed(name, words, said.getvalue())) from stopped
    shown = REPEATED.sub(shorten, NO_DEFAULT.sub("", help_of(name)).replace("{[", "[").replace("]]}", "]]"))
    text = "\n".join(line.rstrip() for line in shown.splitlines())
    print(f"{text.rstrip()}\n\nExample:\n  {kind.EXAMPLE}")
    sys.exit(0)


def shorten(match: re.Match[str]) -> str:
    """`[PATH ...]` for `[[PATH [PATH ...]]]`, as wide as before, so that the columns stay."""
    return f"[{match['name']} ...]".ljust(len(match[0]))


@cache
def help_of(name: str) -> str:
    """Help text of a command."""
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        tyro.cli(COMMANDS[name], prog=f"lpa-cwm {name}", args=["--help"], config=MARKERS)
    return shown.getvalue()


def misparsed(name: str, words: list[str], box: str) -> str:
    """One sentence instead of the parser's box: the unknown option, or another error."""
    known = set(OPTION.findall(help_of(name)))
    for word in words:
        option = word.partition("=")[0]
        if word.startswith("--") and option.replace("_", "-") not in known:
            near = [RENAMED_OPTIONS[option]] if option in RENAMED_OPTIONS else []
            near = near or difflib.get_close_matches(option, known, 1, 0.7)
            meant = f"did you mean {near[0]}?" if near else f"`lpa-cwm {name} --help` lists the options."
            return f"`lpa-cwm {name}` has no option {option}; {meant}"
    lines = [BOX_LINE.sub("", line).rstrip() for line in box.partition("For full helptext")[0].splitlines()]
    # Names of missing options stand alone, their descriptions are indented further.
    missing = [line.strip() for line in lines if re.fullmatch(r" {4,7}(--|[A-Z]).*", line)]
    if missing and "issing from" in box:
        return f"`lpa-cwm {name}` lacks {', '.join(missing)}; `lpa-cwm {name} --help` shows an example."
    text = " ".join(" ".join(lines[1:]).split()).rstrip(" .")
    return f"{text[:1].upper()}{text[1:]}; `lpa-cwm {name} --help` lists the options."


def command_overview(group: str = "") -> str:
    """A line for each command, or for each command of a group."""
    names = [name for name in COMMANDS if not group or name.split()[0] == group]
    wide = max(map(len, names)) + 2
    lines = [f"  {name:{wide}}{(COMMANDS[name].__doc__ or '').partition('.')[0].partition(';')[0]}." for name in names]
    return "\n".join(["" if group else ABOUT, "commands:", *lines, "", CODES]).lstrip()


def no_command(group: str, word: str) -> str:
    """An unknown command, and the known one that was probably meant."""
    given = f"{group} {word}".strip()
    last = (
        {name.split()[-1]: name for name in reversed(COMMANDS)} | {name: name for name in COMMANDS} | RENAMED_COMMANDS
    )
    near = difflib.get_close_matches(given, last, 1) or difflib.get_close_matches(word, last, 1)
    meant = f"did you mean `lpa-cwm {last[near[0]]}`?" if near else "`lpa-cwm --help` lists the commands."
    return f"There is no command {given!r}; {meant}"


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is handled like an interrupt."""


@contextmanager
def cleanup_on_sigterm() -> Iterator[None]:
    """Let SIGTERM leave all `with` blocks, as SIGINT does, so that no temporary file remains."""
    if threading.current_thread() is not threading.main_thread():
        # Python sets signal handlers in the main thread only.
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Answer SIGTERM once: `timeout` sends it twice, and the second must not interrupt the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def keep_freed_memory() -> None:
    """Tell glibc's allocator not to return freed blocks to the system: large tensors of equal size come and go.

    Threads share two arenas: otherwise each of the page's threads would keep freed blocks of its own.
    """
    with suppress(OSError, AttributeError, ValueError, TypeError):
        if (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            libc = ctypes.CDLL(None)
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(M_ARENA_MAX, 2)


def main(arguments: list[str] | None = None) -> None:
    """Run one command; foreseeable failures are one sentence on stderr."""
    try:
        with cleanup_on_sigterm():
            command = parse(arguments)
            keep_freed_memory()
            command.run()
            sys.stdout.flush()
    except InputError as error:
        stop(BAD_INPUT, str(error))
    except Terminated:
        stop(TERMINATED, f"terminated; {after_interrupt(arguments)}.")
    except KeyboardInterrupt:
        stop(INTERRUPTED, f"stopped; {after_interrupt(arguments)}.")
    except BrokenPipeError:
        # As when piped into `head`: Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(NO_READER)
    except OSError as error:
        stop(FAILED, f"the system says: {error}.")


def after_interrupt(arguments: list[str] | None) -> str:
    """What an interrupt leaves: long commands resume; `track` says itself which frames it has written."""
    words = sys.argv[1:] if arguments is None else arguments
    resumes = words[:1] == ["paper"] or (words[:1] and words[0] in GROUPS)
    return "run the same command again to resume" if resumes else "nothing was written"


def stop(code: int, sentence: str) -> None:
    """Say why, and end; characters that no encoding has, such as halves of surrogate pairs, are shown as escapes."""
    print(f"lpa-cwm: {sentence}".encode(errors="backslashreplace").decode(), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
