"""The table of verbs: name on the command line -> frozen dataclass with `run()`."""

from typing import Protocol


class Command(Protocol):
    """Options as fields, work in `run`."""

    def run(self) -> None: ...


COMMANDS: dict[str, type[Command]] = {}
