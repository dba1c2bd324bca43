"""One progress line with an estimate of the time left, for everything long."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")


def progress(items: Iterable[T], total: int, label: str, quiet: bool = False) -> Iterator[T]:
    """Iterate with a progress line on stderr (none when stderr is not a terminal or `quiet`)."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)
    if quiet or not console.is_terminal:
        yield from items
        return
    with bar:
        yield from bar.track(items, total=total, description=label)
