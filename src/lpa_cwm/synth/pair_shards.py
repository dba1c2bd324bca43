"""Frame pairs with backward flow, made before training and kept on disk in shards.

A shard is a folder of numpy arrays of a hundred pairs of 256 x 256 pixels, which processes share by memory map. The
flow leads from the target to the source and is known at the centers of squares of four pixels.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_folder, data_files, share_pieces
from lpa_cwm.geometry import HW, pixel_centers
from lpa_cwm.synth.images import ImagePool, PhotometricJitter
from lpa_cwm.synth.layered import LayeredConfig, LayeredPairs
from lpa_cwm.synth.pairs import PairSource
from lpa_cwm.validation import check_array, file_size, reading

SIZE = 256
"""Side of the frames in pixels."""
FLOW_STRIDE = 4
"""Distance between points of known flow, in pixels."""
SHARD_PAIRS = 100
FILES = {"frames": "frames.npy", "flow": "flow.npy", "visible": "shown.npy"}
"""Files of a shard."""
SETTINGS = "pairs.json"
"""File of the settings that all shards of a folder have."""


def flow_grid(hw: HW) -> Float[Tensor, "2 h4 w4"]:
    """The target points at which backward flow is known."""
    centers = pixel_centers((hw[0] // FLOW_STRIDE, hw[1] // FLOW_STRIDE)) * FLOW_STRIDE
    return rearrange(centers, "h w d -> d h w").contiguous()


@dataclass(frozen=True, slots=True)
class FlowPair:
    """A source and a target frame, and where points of the target come from."""

    frames: UInt8[Tensor, "2 3 s s"]
    flow: Float[Tensor, "2 h4 w4"]
    """(dx, dy) from a target point to its position in the source; NaN where nothing is known of the point."""
    visible: Bool[Tensor, "h4 w4"]
    """Whether that position is inside the source and not occluded."""


FlowSource = Callable[[int], FlowPair]
"""An infinite sequence of pairs: a function of their index."""


@dataclass(frozen=True)
class LayeredFlow:
    """Layered scenes with backward flow."""

    pairs: LayeredPairs

    def __call__(self, index: int) -> FlowPair:
        """Pair `index`."""
        scene, rng = self.pairs.scene(index, SIZE)
        pictures = scene.draw("source")[0], scene.draw("target")[0]
        grid = flow_grid((SIZE, SIZE))
        origin, visible = scene.source_positions(grid)
        frames = torch.stack(self.pairs.config.jitter.apply(pictures, rng))
        return FlowPair(frames, origin - grid, visible)


@dataclass(frozen=True)
class ReversedFlow:
    """Pairs of a source in which pairs 2k and 2k + 1 are the same two frames in both orders, as simulated ones are.

    The backward flow of a pair is the forward flow of the other.
    """

    pairs: PairSource

    def __call__(self, index: int) -> FlowPair:
        """Pair `index`."""
        example, other = (self.pairs.pair(number, SIZE) for number in (index, index ^ 1))
        assert other.flow is not None
        assert other.visible is not None
        middle = slice(FLOW_STRIDE // 2, None, FLOW_STRIDE)
        flow = other.flow[:, middle, middle]
        visible = other.visible[middle, middle] & flow.isfinite().all(0)
        return FlowPair(torch.stack((example.source, example.target)), flow.nan_to_num(0), visible)


LAYERED_KINDS = ("hard", "plain")
SIMULATED_KINDS = ("simhard", "sim")
VIDEO_KINDS = ("videofar", "video")
"""Kinds of pairs by which shards are named; the first of each has larger motion and twice as many shards."""


def layered_sources(photographs: ImagePool) -> dict[str, FlowSource]:
    """Sources of the layered kinds of pairs."""
    configs = LayeredConfig.hard(), LayeredConfig(jitter=PhotometricJitter.strong())
    sources = [LayeredFlow(LayeredPairs(photographs, config, seed)) for seed, config in enumerate(configs, 2)]
    return dict(zip(LAYERED_KINDS, sources, strict=True))


def shard_name(number: int, kind: str) -> str:
    """Name of a shard: its number and the kind of its pairs."""
    return f"{number:05}_{kind}"


def kind_of(path: Path) -> str:
    """Kind of the pairs of a shard."""
    return path.name.partition("_")[2]


def write_shard(path: Path, source: FlowSource, first: int) -> None:
    """Make the pairs `first`, `first + 1`, ...; the folder appears under its name when it is complete."""
    pairs = [source(index) for index in range(first, first + SHARD_PAIRS)]
    # Another process may have made the same shard meanwhile.
    if is_shard(path):
        return
    with atomic_folder(path) as temporary:
        for name, file in FILES.items():
            values = torch.stack([getattr(pair, name) for pair in pairs])
            np.save(temporary / file, (values.half() if name == "flow" else values).numpy())


def write_shards(out: Path, sources: dict[str, FlowSource], numbers: Iterable[int]) -> Iterator[Path]:
    """Make the shards with these numbers that are missing: two of the first kind, one of the second, and so on.

    Processes that do the same share the work by locks on the file of the settings, if there is one.
    """
    first, second = sources
    kinds = {number: (first, first, second)[number % 3] for number in numbers}
    paths = {number: out / shard_name(number, kind) for number, kind in kinds.items()}
    yield from (path for path in paths.values() if is_shard(path))
    missing = [number for number, path in paths.items() if not is_shard(path)]
    claims = out / SETTINGS
    if claims.exists():
        missing = share_pieces(claims, missing, lambda number: is_shard(paths[number]))
    for number in missing:
        write_shard(paths[number], sources[kinds[number]], number * SHARD_PAIRS)
        yield paths[number]


def is_shard(path: Path) -> bool:
    """Whether a path is a complete shard; one that was cut short is not."""
    try:
        return all(shard_array(path, name) is not None for name in FILES)
    except InputError:
        return False


def shard_array(path: Path, name: str) -> np.ndarray:
    """One of the arrays of a shard as a memory map."""
    side = SIZE // FLOW_STRIDE
    parts = {"frames": ("u", (2, 3, SIZE, SIZE)), "flow": ("f", (2, side, side)), "visible": ("b", (side, side))}
    kind, shape = parts[name]
    with reading(path / FILES[name], "an array of frame pairs", "remove its folder and make it again"):
        file_size(path / FILES[name])
        found = np.load(path / FILES[name], mmap_mode="r", allow_pickle=False)
        check_array(found, (SHARD_PAIRS, *shape), kind, "the array", finite=False)
        if not found.dtype.isnative:
            raise ValueError(f"the array has the byte order of {found.dtype}")
        return found


def holds_shards(folder: Path) -> bool:
    """Whether a path is a folder of shards."""
    return folder.is_dir() and any(is_shard(path) for path in data_files(folder))


@dataclass(frozen=True)
class PairShards:
    """Shards of pairs as one sequence."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, *folders: Path) -> "PairShards":
        """The complete shards that some folders hold now."""
        found: list[Path] = []
        for folder in folders:
            own = [path for path in data_files(folder) if is_shard(path)]
            if not own:
                raise InputError(f"{folder} holds no shards of frame pairs; make some with `lpa-cwm data pairs`.")
            found += own
        return cls(tuple(found))

    def kinds(self) -> tuple[str, ...]:
        """The kinds of pairs that there are, in the order in which they come first."""
        return tuple(dict.fromkeys(kind_of(path) for path in self.paths))

    def of_kinds(self, *kinds: str) -> "PairShards":
        """The shards of some kinds."""
        return PairShards(tuple(path for path in self.paths if kind_of(path) in kinds))

    def __len__(self) -> int:
        return SHARD_PAIRS * len(self.paths)

    def __getitem__(self, index: int) -> FlowPair:
        path, row = self.paths[index // SHARD_PAIRS], index % SHARD_PAIRS
        arrays = (shard_array(path, name)[row].copy() for name in FILES)
        frames, flow, visible = map(torch.from_numpy, arrays)
        return FlowPair(frames, flow.float(), visible)
