"""The figures of docs/reproduction_notes.md: what re-evaluation, windows, Eq. 3, weights and Eq. 1 do.

python benchmarks/notes.py DATA [--part reevaluation windows score gain total helps] [--page docs/reproduction_notes.md]

DATA is annotated videos in TAP-Vid's formats, or a folder of MOVi-F records. With --page the tables of the page, and
the sentences below them, are replaced by what is measured. The part `helps` also tracks simulated clips, which it makes
in --work. Run it again to resume: finished parts are kept in --work, which belongs to these settings and weights.
"""

import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro
from tyro.conf import Positional

from lpa_cwm import registry
from lpa_cwm.adjudicators.apa import APA, to_score_frame
from lpa_cwm.cli.main import main
from lpa_cwm.config import PAPER, Selection
from lpa_cwm.decode import localize
from lpa_cwm.evaluation.compare import choose_queries, compare, open_pairs
from lpa_cwm.evaluation.predict import Method
from lpa_cwm.files import atomic_write, pin_settings
from lpa_cwm.geometry import rescale
from lpa_cwm.masks import hide, neighborhood, random_masks
from lpa_cwm.metrics import difference, summarize
from lpa_cwm.metrics.comparison import THRESHOLDS
from lpa_cwm.pair_tracking import reevaluate, track_pair
from lpa_cwm.probe import ObservedPair, first_pass, observe_pair
from lpa_cwm.training.pair_sampling import Correspondence
from lpa_cwm.types import Candidates, Judgement, Pair

RIGHT, WRONG = 4.0, 8.0
"""A candidate within the first number of pixels of the truth is right, one beyond the second is wrong."""
SHARPNESS = (50.0, 200.0, 1000.0, 5000.0)
Name = Literal["reevaluation", "windows", "score", "gain", "total", "helps"]
SIZES = (256, 512)
"""Sides of the frames of simulated clips: as many pixels as the world model sees, and more."""
REEVALUATIONS = {
    "none (R = 0)": {"passes": 0},
    "whole frame": {"passes": 1, "reevaluation": "joint"},
    "native crops (the default)": {},
}
"""Settings of the default tracker that are compared by the part `helps`."""
METHODS = ("uniform", "apa", "lpa")


def worst_candidate(pair: Pair, candidates: Candidates) -> Judgement:
    """All weight on the candidate that is farthest from the others: an adjudicator that chooses badly on purpose."""
    far = torch.cdist(candidates.peak, candidates.peak).sum(-1)
    return Judgement.of(torch.nn.functional.one_hot(far.argmax(1), far.shape[1]).to(far))


def change_correlation(apa: APA, pair: Pair) -> float:
    """Spearman's rank correlation of the map P with the magnitude of the observed change, over the pixels of a pair."""
    change = (to_score_frame(pair.target) - to_score_frame(pair.source)).norm(dim=0)
    ranks = [values.flatten().argsort().argsort().double() for values in (apa.gradient(pair), change)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def with_interval(statistic, videos, *columns, form: str = ".2f") -> tuple[str, tuple[float, float]]:
    """A statistic of columns with its 95 % interval over resampled videos, and the ends of the interval."""
    rows = {video: np.flatnonzero(np.array(videos) == video) for video in dict.fromkeys(videos)}
    draws, found = np.random.default_rng(0), []
    for _ in range(1000):
        chosen = np.concatenate([rows[name] for name in draws.choice(list(rows), len(rows))])
        found.append(statistic(*(column[chosen] for column in columns)))
    low, high = np.quantile(found, (0.025, 0.975))
    return f"{statistic(*columns):{form}} ({low:{form}} … {high:{form}})", (low, high)


def verdict(estimate) -> str:
    """What a difference with its interval says."""
    return (
        "gains"
        if estimate.low > 0
        else "loses"
        if estimate.high < 0
        else "changes nothing that the interval tells apart"
    )


def table(*rows: tuple[object, ...]) -> list[str]:
    """A Markdown table; the first row is its head."""
    head, *body = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return [head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body]


def replace_table(page: Path, name: str, lines: list[str]) -> None:
    """Write lines between the two comments of a name."""
    begin, end = f"<!-- figures: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} lacks {begin} and {end}.")
    page.write_text("\n".join([before + begin, *lines, "", end]) + after)


@dataclass(frozen=True)
class Notes:
    """Print the figures of the notes on the same frame pairs and queries."""

    data: Annotated[Path, Positional]
    part: tuple[Name, ...] = ("reevaluation", "windows", "score", "gain", "total", "helps")
    videos: int = 20
    queries: int = 8
    """Queries of each video."""
    gaps: tuple[int, int] = (1, 12)
    """Fewest and most frames between source and target."""
    world: str = "learned"
    literal: str = "learned-total"
    """The same world model with the literal total effect."""
    points: int = 60
    """About as many queries for the total effect, which is slow; the same number of each frame pair."""
    tracks: int = 4
    """Tracks per video of the part `helps`."""
    frames: int = 12
    """Frames per video of the part `helps`."""
    work: Path = Path("runs/notes")
    """Folder of its simulated clips and runs."""
    page: Path | None = None
    """Page whose tables are replaced."""
    threads: int = 1

    def run(self):
        torch.set_num_threads(self.threads)
        names = ("queries", "videos", "gaps", "world", "literal", "points", "tracks", "frames")
        settings = {"data": self.data.name} | {name: getattr(self, name) for name in names}
        weights = registry.fingerprint(self.world, "compact", "lpa")
        pin_settings(self.work / "settings.json", settings | {"gaps": list(self.gaps), "weights": weights})
        for part in self.part:
            begin = time.perf_counter()
            lines = self.lines_of(part)
            print("\n".join(lines), f"\n[{part}: {time.perf_counter() - begin:.0f} s]", flush=True)
            if self.page:
                replace_table(self.page, part, lines)

    def lines_of(self, part: str) -> list[str]:
        """The table of a part with the sentences below it; measured once."""
        kept = self.work / "parts" / f"{part}.md"
        if not kept.exists():
            with torch.inference_mode():
                lines = ["", *getattr(self, part)(self.pairs)]
            lines += [] if part == "helps" else ["", f"{self.sample} (`--part {part}`)."]
            with atomic_write(kept) as aside:
                aside.write_text("\n".join(lines))
        return kept.read_text().split("\n")

    @cached_property
    def pairs(self) -> list[Correspondence]:
        """The frame pairs of all parts but the last."""
        source = open_pairs(self.data, self.queries, self.gaps)
        chosen = choose_queries(source, self.videos, self.videos * self.queries)
        return [pair for video in chosen for pair in video]

    @property
    def sample(self) -> str:
        """What was measured."""
        queries = sum(len(pair.xy) for pair in self.pairs)
        return f"{queries} queries in {len(self.pairs)} frame pairs of `{self.data.stem}`, world model `{self.world}`"

    def observed(self, pairs, name: str, **settings) -> Iterator[tuple[ObservedPair, Correspondence]]:
        world = registry.load_world(name)
        config = replace(world.defaults, **settings)
        for pair in pairs:
            yield observe_pair(world, pair.source, pair.target, ("clip", *pair.identity), config, "cpu"), pair

    def candidates(self, pairs, **settings) -> Iterator[tuple[ObservedPair, Pair, Candidates, torch.Tensor]]:
        """Candidates of the first pass with the true endpoints, in pixels of the world model."""
        for observed, pair in self.observed(pairs, self.world, passes=0, **settings):
            for rows, seen, candidates in first_pass(observed, pair.xy):
                yield observed, seen, candidates, observed.crop.to_crop(pair.end)[rows]

    def reevaluation(self, pairs):
        """How often different adjudicators end at the same place, before and after the paper's re-evaluation."""
        judges = {name: registry.load_adjudicator(name) for name in ("uniform", "lpa")} | {"worst": worst_candidate}
        first, last, revealed = {name: [] for name in judges}, {name: [] for name in judges}, []
        visible = 0
        for observed, pair in self.observed(pairs, self.world, **PAPER.tracker | {"passes": 0}):
            for name, result in track_pair(observed, judges, pair.xy).items():
                for places, one in ((first, result), (last, reevaluate(observed, pair.xy, result, 1))):
                    places[name].append(rescale(one.xy, observed.source.hw, (256, 256)))
            ends = rescale(first["lpa"][-1], (256, 256), (observed.world.size, observed.world.size))
            for near in neighborhood(ends, observed.world.size, observed.world.patch):
                masks = random_masks(observed.config.masks, observed.patches, *observed.identity, "pass", 1)
                revealed += (hide(masks, near, "raster") != masks).sum(1).div(2).tolist()
                visible = int((~masks[0]).sum())
        rows = [("adjudicator", "where uniform ends, R = 0", "where uniform ends, R = 1", "of those apart before")]
        for other in ("lpa", "worst"):
            before, after = (torch.cat(places[other]) - torch.cat(places["uniform"]) for places in (first, last))
            same = [int((gap.norm(dim=-1) < 0.5).sum()) for gap in (before, after)]
            moved = before.norm(dim=-1) >= 0.5
            kept = int((after[moved].norm(dim=-1) < 0.5).sum())
            of = len(before)
            rows.append((other, f"{same[0]} of {of}", f"{same[1]} of {of}", f"{kept} of {int(moved.sum())}"))
        changed = sum(revealed) / len(revealed)
        return [*table(*rows), "", f"The first endpoint changes {changed:.2f} of {visible} visible patches of a mask."]

    def windows(self, pairs):
        """Share of endpoints that two Gaussian windows move, by sharpness."""
        judges = {name: registry.load_adjudicator(name) for name in ("uniform", "lpa")}
        moved = {}
        for observed, seen, candidates, _ in self.candidates(pairs, subpixel=False):
            for name, judge in judges.items():
                response = candidates.response.aggregate(judge(seen, candidates).weights)
                for sharpness in SHARPNESS:
                    config = replace(observed.config, sharpness=sharpness)
                    ends = [localize(response, replace(config, windows=windows)) for windows in (0, 2)]
                    moved.setdefault((name, sharpness), []).append((ends[0] - ends[1]).norm(dim=-1) > 0.5)
        shares = {key: f"{torch.cat(flags).double().mean():.1%}" for key, flags in moved.items()}
        rows = [(f"{beta:g}", *(shares[name, beta] for name in judges)) for beta in SHARPNESS]
        most = max(torch.cat(flags).double().mean().item() for flags in moved.values())
        said = f"At most {most:.1%} of the endpoints move, at any sharpness."
        said += " The aggregates of this world model are nearly unimodal." if most < 0.05 else ""
        return [*table(("beta", *(f"moved by two windows, {name}" for name in judges)), *rows), "", said]

    def score(self, pairs):
        """Eq. 3 at right and wrong candidates, with the score model and with random vectors in its place."""
        real = registry.load_adjudicator("apa")
        assert isinstance(real, APA)
        draw = torch.Generator().manual_seed(0)
        noise = APA(lambda frames: torch.randn(frames.shape, generator=draw))
        found = {"the compact score model": [], "random vectors": []}
        errors, videos, correlations = [], [], {name: [] for name in found}
        for observed, seen, candidates, end in self.candidates(pairs):
            errors.append((candidates.peak - end[:, None]).norm(dim=-1))
            videos += [observed.identity[1]] * len(end)
            for name, apa in zip(found, (real, noise), strict=True):
                correlations[name].append(change_correlation(apa, seen))
                # Weights of one query sum to one, so that queries count alike.
                found[name].append(apa(seen, candidates).weights)
        error = torch.cat(errors)
        mixed = (error < RIGHT).any(1) & (error > WRONG).any(1)
        videos = [video for video, kept in zip(videos, mixed.tolist(), strict=True) if kept]
        head = (
            "in place of the score",
            "rank correlation of P and change",
            "weight of wrong candidates / of right ones",
        )
        rows: list[tuple[str, ...]] = [head]
        ranges = []
        for name, parts in found.items():
            weights, near = torch.cat(parts)[mixed], error[mixed]
            right = (weights * (near < RIGHT)).sum(1) / (near < RIGHT).sum(1)
            wrong = (weights * (near > WRONG)).sum(1) / (near > WRONG).sum(1)
            means = (wrong.numpy(), right.numpy())
            ratio, ends = with_interval(lambda one, other: one.mean() / other.mean(), videos, *means)
            rows.append((name, f"{np.mean(correlations[name]):.2f}", ratio))
            ranges.append(ends)
        said = f"{int(mixed.sum())} of {len(error)} sets have candidates within {RIGHT:g} px and beyond {WRONG:g} px. "
        for name, (low, high) in zip(found, ranges, strict=True):
            told = "wrong candidates weigh more" if low > 1 else "right candidates weigh more" if high < 1 else ""
            said += f"With {name}, {told or 'neither wrong nor right candidates weigh more beyond chance'}. "
        said = said.rstrip()
        return [*table(*rows), "", said]

    def gain(self, pairs):
        """How much of the gain over uniform weights is visibility and how much is choice."""
        judges = {name: registry.load_adjudicator(name) for name in METHODS}
        near, shown, videos = {name: [] for name in METHODS}, {name: [] for name in METHODS}, []
        for observed, pair in self.observed(pairs, self.world, passes=0):
            videos += [pair.identity[0]] * len(pair.xy)
            for name, result in track_pair(observed, judges, pair.xy).items():
                error = rescale(result.xy - pair.end, observed.source.hw, (256, 256)).norm(dim=-1)
                near[name].append((error[:, None] < torch.tensor(THRESHOLDS)).double().mean(1))
                shown[name].append((result.strength >= observed.config.visibility_threshold).double())
        rows = [("weights", "accuracy if all points are shown", "with its own visibility", "points shown")]
        alone, both, said = {}, {}, []
        for name in METHODS:
            accuracy, seen = torch.cat(near[name]).numpy(), torch.cat(shown[name]).numpy()
            alone[name], both[name] = 100 * accuracy, 100 * accuracy * seen
            rows.append((name, f"{alone[name].mean():.1f}", f"{both[name].mean():.1f}", f"{100 * seen.mean():.1f} %"))
        for name in ("lpa", "apa"):
            gains = (values[name] - values["uniform"] for values in (alone, both))
            choice, whole = (with_interval(np.mean, videos, gain, form="+.1f")[0] for gain in gains)
            said.append(f"{name.upper()} minus uniform: {choice} by choice alone, {whole} with visibility.")
        return [*table(*rows), "", " ".join(said)]

    def total(self, pairs):
        """Endpoint errors with motion held fixed, and with the literal total effect (Eq. 1); points of all pairs."""
        most = -(-self.points // len(pairs))
        few = [replace(pair, xy=pair.xy[:most], end=pair.end[:most]) for pair in pairs]
        videos = [pair.identity[0] for pair in few for _ in pair.xy]
        rows, found = [("world model", "mean error, px", "median, px", "points")], []
        for name in (self.world, self.literal):
            errors = []
            for observed, pair in self.observed(few, name, passes=0):
                xy = track_pair(observed, {"uniform": registry.load_adjudicator("uniform")}, pair.xy)["uniform"].xy
                errors.append(rescale(xy - pair.end, observed.source.hw, (256, 256)).norm(dim=-1))
            found.append(torch.cat(errors).numpy())
            rows.append((f"`{name}`", f"{found[-1].mean():.2f}", f"{np.median(found[-1]):.2f}", str(len(found[-1]))))
        gap, (low, high) = with_interval(np.mean, videos, found[1] - found[0], form="+.2f")
        told = "misses more" if low > 0 else "misses less" if high < 0 else "does not differ beyond chance"
        said = f"The literal response {told}: mean error {gap} px against motion held fixed."
        return [*table(*rows), "", said]

    def helps(self, pairs):
        """Tracks with and without re-evaluation, on the real videos and on simulated ones."""
        data = {self.data.stem: self.data}
        for size in SIZES:
            data[f"simulated, {size} px"] = self.work / f"simulated_{size}"
            words = (
                f"--form tapvid --recipe mixed --split val --clips 20 --per-file 5 --tracks 64 --seed 2 --size {size}"
            )
            with redirect_stdout(StringIO()):
                main(["data", "simulate", "--out", str(data[f"simulated, {size} px"]), *words.split()])
        rows, said = [("data", "re-evaluation", "DCA", "minus R = 0", "delta avg", "minus R = 0")], []
        for name, path in data.items():
            for label, cells, gap in self.with_and_without(path):
                rows.append((f"`{name}`" if path == self.data else name, label, *cells))
                said += [f"{name}, {label}: {verdict(gap)}."] if gap else []
        return [
            *table(*rows),
            "",
            f"LPA, {self.tracks} tracks per video, {self.frames} frames; differences on the same videos with 95 % "
            "intervals over resampled videos (`--part helps`).",
            "",
            *(f"- {sentence}" for sentence in said),
        ]

    def with_and_without(self, path: Path):
        """Each re-evaluation on a data set: its label, its cells, and its gain in DCA over none."""
        selection = Selection(max_tracks=self.tracks, frames=self.frames)
        methods = [Method("lpa", self.world, settings=own, label=label) for label, own in REEVALUATIONS.items()]
        result = compare(path, self.work / "runs" / path.stem, methods, selection=selection)
        base = result.scores["none (R = 0)"]
        for label in REEVALUATIONS:
            own, gaps = result.scores[label], difference(result.scores[label], base, ["dca_avg", "delta_avg"])
            cells = []
            for name in ("dca_avg", "delta_avg"):
                gap = gaps[name].estimate
                shown = f"{100 * gap.value:+.1f} ({100 * gap.low:.1f} … {100 * gap.high:.1f})"
                cells += [f"{100 * summarize(own, [name])[name].value:.1f}", "" if own is base else shown]
            yield label, cells, None if own is base else gaps["dca_avg"].estimate


if __name__ == "__main__":
    tyro.cli(Notes).run()
