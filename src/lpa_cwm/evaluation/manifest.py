"""What exactly was tracked: a hash over the content of videos, tracks and frames.

Two selections have the same hash if and only if they hold the same videos with the same frames, queries and truth; the
order of the videos and the name of the file do not matter, the order of the tracks does, for predictions follow it.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from lpa_cwm.errors import InputError
from lpa_cwm.protocols import Dataset
from lpa_cwm.types import Sample


@dataclass(frozen=True)
class Identity:
    """One video: how much of it, and hashes of its queries with their truth and of its frames."""

    tracks: int
    frames: int
    truth: str
    pixels: str


@dataclass(frozen=True)
class Manifest:
    """The videos of a selection by name."""

    videos: dict[str, Identity]

    @cached_property
    def hash(self) -> str:
        """Equal for equal content."""
        return digest(self.to_dict())

    def check(self, other: "Manifest") -> None:
        """Refuse another selection, saying where it differs first."""
        if self.hash == other.hash:
            return
        absent, added = self.videos.keys() - other.videos.keys(), other.videos.keys() - self.videos.keys()
        if absent or added:
            some = ", ".join(sorted(absent or added)[:3])
            what = f"lacks {len(absent)} of its videos" if absent else f"has {len(added)} other videos"
            raise mismatch(f"{what}, such as {some}")
        name = min(name for name, identity in self.videos.items() if identity != other.videos[name])
        mine, theirs = asdict(self.videos[name]), asdict(other.videos[name])
        raise mismatch(f"has other {next(part for part in mine if mine[part] != theirs[part])} in the video {name}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of names."""
        return {name: asdict(self.videos[name]) for name in sorted(self.videos)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Manifest":
        """The inverse of `to_dict`."""
        return cls({name: Identity(**identity) for name, identity in plain.items()})


def mismatch(what: str) -> InputError:
    """A sentence about data that are not those of the run."""
    return InputError(f"The data set {what}; the run was made from other data; give the same file and selection.")


def manifest_of(dataset: Dataset) -> Manifest:
    """Read every video once; so bad ones are found before any work begins."""
    return Manifest({name: _identity(dataset, index) for index, name in enumerate(dataset.names)})


def _identity(dataset: Dataset, index: int) -> Identity:
    sample = dataset[index]
    return Identity(len(sample.queries), len(sample.clip), _truth(sample), dataset.fingerprint(index))


def _truth(sample: Sample) -> str:
    """Hash queries and truth; where a point is hidden its position says nothing."""
    visible = sample.truth.visible
    known = sample.truth.xy.where(visible[..., None], 0)
    whole = blake2b(repr(tuple(visible.shape)).encode(), digest_size=16)
    for part in (sample.queries.xy, sample.queries.frame, visible, known):
        whole.update(part.contiguous().numpy().tobytes())
    return whole.hexdigest()


def digest(plain: dict[str, Any]) -> str:
    """A hash of plain values, whatever the order of their names."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
