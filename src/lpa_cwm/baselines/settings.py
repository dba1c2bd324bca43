"""Where the user says which checkout, checkpoint and interpreter a method runs with."""

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lpa_cwm.errors import InputError
from lpa_cwm.files import cache_dir


def settings_file() -> Path:
    """One table per method: `[cotracker3]`, then `checkout = "..."` and so on."""
    return cache_dir() / "methods.toml"


def variable(method: str, field: str) -> str:
    """The environment variable of a setting."""
    return f"LPA_CWM_{method}_{field}".upper().replace("-", "_")


def settings(method: str, fields: Collection[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, or else is in the environment, or else in the settings file."""
    unknown = sorted(given.keys() - set(fields))
    if unknown:
        raise InputError(f"{method} has no setting {unknown[0]!r}; it has {', '.join(fields)}.")
    named = {field: os.environ[variable(method, field)] for field in fields if variable(method, field) in os.environ}
    return {**from_file(method, fields), **named, **{key: value for key, value in given.items() if value is not None}}


def from_file(method: str, fields: Collection[str]) -> dict[str, Any]:
    """The method's table in the settings file."""
    path = settings_file()
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text()).get(method, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML ({error}); correct or remove it.") from error
    unknown = sorted(set(table) - set(fields)) if isinstance(table, dict) else ["a value"]
    if unknown:
        raise InputError(f"{path} gives {method} {unknown[0]!r}; expected a table with {', '.join(fields)}.")
    return table
