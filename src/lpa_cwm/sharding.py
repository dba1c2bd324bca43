"""Sharing work among machines: worker i of n does every n-th piece."""

from dataclasses import dataclass

from lpa_cwm.errors import InputError


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
