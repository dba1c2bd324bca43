"""Which part of a data set is used; standard library only, so that `--help` stays instant."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from lpa_cwm.errors import InputError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Selection:
    """Videos, tracks, frames and queries of a data set; the default is everything."""

    videos: tuple[str, ...] = ()
    """Names or patterns such as badja/*, or one number: so many videos, evenly spread."""
    max_tracks: int | None = None
    """At most so many tracks of each video, evenly spread over those that are ever visible."""
    frames: int | None = None
    """At most so many frames of each video, from its first on."""
    queries: Literal["first", "strided"] = "first"
    """Query each track where it is first visible, or at every fifth frame where it is."""

    def __post_init__(self) -> None:
        for name, least in (("max_tracks", 1), ("frames", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; expected {least} or more.")

    def of_names(self, names: Sequence[str]) -> list[str]:
        """The chosen videos, in the data set's own order."""
        if not self.videos:
            return list(names)
        if len(self.videos) == 1 and self.videos[0].isdigit() and self.videos[0] not in names:
            return _number(names, int(self.videos[0]))
        chosen = set()
        for pattern in self.videos:
            matching = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
            if not matching:
                few = ", ".join(names[:3])
                raise InputError(f"No video is called {pattern!r}; the {len(names)} of this set are {few} and so on.")
            chosen |= matching
        return [name for name in names if name in chosen]


def _number(names: Sequence[str], number: int) -> list[str]:
    if not 1 <= number <= len(names):
        raise InputError(f"--videos asks for {number} videos; expected 1 to {len(names)}, which is all of them.")
    return spread(names, number)


def spread(items: Sequence[Item], number: int) -> list[Item]:
    """So many items, at even distances, or all if there are fewer."""
    number = min(number, len(items))
    return [items[index * len(items) // number] for index in range(number)]
