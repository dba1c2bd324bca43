"""Sharing work that comes in numbered pieces: among machines by a rule, among the workers of one by an executor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from lpa_cwm.errors import InputError

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Shard:
    """Every `count`-th piece, beginning with the `number`-th; numbers begin at 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `2/8`."""
        number, _, count = text.partition("/")
        if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
            raise InputError(f"The shard is {text!r}; expected i/n with 1 <= i <= n, for example 2/8.")
        return cls(int(number), int(count))

    def of(self, total: int) -> range:
        """The indices of its pieces."""
        return range(self.number - 1, total, self.count)


@runtime_checkable
class Work(Protocol[Result_co]):
    """Pieces by number, whose results do not depend on who does them or in which order."""

    def begin(self) -> Callable[[int], Result_co]:
        """Make what all pieces need, once in each worker, and return what does one of them."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Does pieces of work and yields each with its number, in any order."""

    def __call__(self, work: Work[Result], pieces: list[int], /) -> Iterator[tuple[int, Result]]: ...


def in_this_process(work: Work[Result], pieces: list[int]) -> Iterator[tuple[int, Result]]:
    """One piece after the other."""
    do = work.begin()
    for piece in pieces:
        yield piece, do(piece)
