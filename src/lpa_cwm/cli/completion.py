"""Scripts that teach a shell to complete commands, options, choices and file names."""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

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
        # Nothing before the command but the program itself.
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
