"""Cost and motion of training pairs: pairs per second and core, and quantiles of the motion.

python benchmarks/pairs.py [--photos DIR] [--videos DIR --cache DIR] [--records DIR]
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lpa_cwm.datasets.movif import MoviClips
from lpa_cwm.synth.layered import LayeredPairs
from lpa_cwm.synth.pairs import PairSource, VideoPairs
from lpa_cwm.training.flow_pairs import prefetch
from lpa_cwm.training.pair_sampling import PointPairSampler

QUANTILES = (0.1, 0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Sized:
    """The pairs of a source at one size, by their number."""

    source: PairSource
    size: int

    def __getitem__(self, index):
        pair = self.source.pair(index, self.size)
        return pair.source, pair.target


@dataclass(frozen=True)
class Pairs:
    """Time each source by the processor's clock, on one thread, after its caches have filled."""

    photos: Path | None = None
    videos: Path | None = None
    cache: Path = Path("cache/natural")
    records: Path | None = None
    count: int = 100
    warm: int = 1200

    def sources(self):
        yield LayeredPairs.of(self.photos, "train")
        if self.videos:
            yield VideoPairs.of(self.videos, self.cache, "train")

    def speed(self, source, size):
        for index in range(self.warm):
            source.pair(index, 32)
        start = time.process_time()
        examples = [source.pair(self.warm + index, size) for index in range(self.count)]
        rate = self.count / (time.process_time() - start)
        print(f"{source.name:<15} {size:>4} px  {rate:7.1f} pairs/s/core", motion(examples, 256 / size))

    def stream(self, source, workers):
        pairs = prefetch(Sized(source, 128), range(2**62), workers)
        next(pairs)
        start = time.perf_counter()
        count = sum(1 for _ in itertools.islice(pairs, 160))
        print(f"{source.name:<15}  128 px  {count / (time.perf_counter() - start):7.1f} pairs/s with {workers} workers")

    def run(self):
        torch.set_num_threads(1)
        for source in self.sources():
            for size in (128, 256):
                self.speed(source, size)
            self.stream(source, workers=2)
        if self.records:
            print(filtered(self.records))


def motion(examples, scale):
    """Quantiles of the motion in pixels at 256, of all pixels with known flow."""
    known = [one.flow.norm(dim=0)[one.visible] for one in examples if one.flow is not None]
    if not known:
        return ""
    lengths = (torch.cat(known) * scale).numpy()
    ordered = sorted(lengths[:: max(1, len(lengths) // 200_000)])
    values = (f"{100 * q:g} %: {ordered[int(q * (len(ordered) - 1))]:.1f}" for q in QUANTILES)
    return f"  mean motion at 256 px {lengths.mean():.1f}, " + ", ".join(values)


def filtered(records):
    """What the correspondence filter keeps of all records."""
    clips, sampler = MoviClips.of(records, "train"), PointPairSampler(16)
    counts = [sampler(clips[i], t)[1] for i in range(len(clips)) for t in range(len(clips[i]) - 1)]
    return "\n".join((f"correspondences of {len(counts)} frame pairs:", str(sum(counts[1:], counts[0]))))


if __name__ == "__main__":
    tyro.cli(Pairs).run()
