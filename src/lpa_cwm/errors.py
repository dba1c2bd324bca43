"""Errors that the user's input causes, each explained in one sentence."""

import importlib
from collections.abc import Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any


class InputError(ValueError):
    """Input that cannot be used; the message says what was given, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.

    Examples:
        >>> import lpa_cwm
        >>> try:
        ...     lpa_cwm.read("absent.mp4")
        ... except InputError as error:
        ...     print(error)
        There is no absent.mp4; expected a video file or a folder of pictures; check the path.
    """


class InterruptedTracking(KeyboardInterrupt):
    """An interrupt (Ctrl-C) that carries the tracks found before it."""

    def __init__(self, tracks: Any) -> None:
        super().__init__("tracking was interrupted")
        self.tracks = tracks


def name_hint(given: str, known: Sequence[str]) -> str:
    """The end of an error message about an unknown name: the most similar name, if any, and all names."""
    near = get_close_matches(given, known, 1)
    meant = f"did you mean {near[0]}? Choose" if near else "choose"
    return f"{meant} one of {', '.join(known)}"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise InputError(f'This needs {name}, which is not installed: pip install "lpa-cwm[{extra}]".') from error
