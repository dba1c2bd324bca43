"""`lpa-cwm track`: a video and points in, tracks out."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.cli.options import TrackerOptions
from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD
from lpa_cwm.errors import InputError, need

if TYPE_CHECKING:
    from lpa_cwm.types import Clip, Queries, Tracks

FALLBACK_GRID = 8


@dataclass(frozen=True)
class Track:
    """Follow points through a video and save where they went."""

    clip: Annotated[Path | None, Positional] = None
    """A video file or a folder of pictures; without it, the bundled clip."""
    points: tuple[str, ...] = ()
    """Points to follow, each x,y@frame in the clip's pixels, for example 120,80@0."""
    grid: int | None = None
    """Follow a grid of so many points a side, from the first frame on."""
    method: str = ADJUDICATOR
    """How candidates are weighed: uniform, apa or lpa; or a rival (see `lpa-cwm methods`)."""
    world: str = WORLD
    """World model that is asked."""
    score: str = "compact"
    """Score field that apa asks: compact, or adm (the published network)."""
    weights: Path | None = None
    """LPA weights other than the shipped ones."""
    out: Path | None = None
    """Write the video with the tracks drawn on it."""
    save: Path | None = None
    """Write the tracks as .csv, .npz, or a recording for the rerun viewer (.rrd)."""
    plan: bool = False
    """Print what it would cost, and stop."""
    json: bool = False
    """Print a summary for machines."""
    device: str = "cpu"
    """Where to compute, for example cuda."""
    tracker: Annotated[TrackerOptions, OmitArgPrefixes] = field(default_factory=TrackerOptions)
    """Settings of the tracker."""

    def run(self) -> None:
        """Read, track, write."""
        for path, kinds in ((self.out, (".mp4", ".mkv", ".mov")), (self.save, (".csv", ".npz", ".rrd"))):
            if path is not None and path.suffix not in kinds:
                raise InputError(f"Cannot write {path}; the name must end in one of {', '.join(kinds)}.")
        if self.save and self.save.suffix == ".rrd":
            need("rerun", extra="rerun")
        clip = self.read()
        queries = self.queries(clip)
        if self.plan:
            self.print_plan(clip, queries)
            return
        tracks = self.track(clip, queries)
        self.write(clip, tracks)
        self.report(clip, tracks)

    def read(self) -> "Clip":
        from lpa_cwm.bundled import bundled_clip
        from lpa_cwm.io.video import read

        return read(self.clip) if self.clip else bundled_clip(self.world)

    def queries(self, clip: "Clip") -> "Queries":
        """Points as given, or a grid."""
        from lpa_cwm.tracker import validate_queries
        from lpa_cwm.types import Grid

        if self.points and self.grid is not None:
            raise InputError("Both --points and --grid were given; give one of them.")
        if self.points:
            return validate_queries(clip, parse_points(self.points))
        return validate_queries(clip, Grid(FALLBACK_GRID if self.grid is None else self.grid))

    def track(self, clip: "Clip", queries: "Queries") -> "Tracks":
        from lpa_cwm import registry

        if self.method in ADJUDICATORS:
            names = {"world": self.world, "score_model": self.score, "weights": self.weights, "device": self.device}
            settings = self.tracker.given()
            return registry.load(self.method, quiet=self.json, **names, **settings).track(clip, queries)
        return registry.load(self.method, device=self.device).track(clip, queries)

    def write(self, clip: "Clip", tracks: "Tracks") -> None:
        from lpa_cwm.io import rerun
        from lpa_cwm.io.video import write

        if self.save and self.save.suffix == ".rrd":
            rerun.save(self.save, clip, tracks)
        elif self.save:
            tracks.save(self.save)
        if self.out:
            write(self.out, tracks.overlay(clip), clip.fps)

    def print_plan(self, clip: "Clip", queries: "Queries") -> None:
        from lpa_cwm import registry
        from lpa_cwm.cost import cost

        config = replace(registry.load_world(self.world).defaults, **self.tracker.given())
        price = asdict(cost(clip, queries, config))
        if self.json:
            print(json.dumps(price))
            return
        print(
            f"{len(queries)} points, {len(clip)} frames: {price['targets']} answers from {price['pairs']} frame pairs"
        )
        print(f"predictor passes: about {price['factual']} factual and {price['counterfactual']} counterfactual")

    def report(self, clip: "Clip", tracks: "Tracks") -> None:
        """Say what was done and where it is."""
        seen = tracks.visible.sum().item() / max(1, (~tracks.xy[..., 0].isnan()).sum().item())
        written = [str(path) for path in (self.save, self.out) if path]
        if self.json:
            print(json.dumps({"tracks": len(tracks.xy), "frames": len(clip), "visible": seen, "written": written}))
            return
        print(f"{len(tracks.xy)} points through {len(clip)} frames of {clip.name}, visible {seen:.0%} of the time")
        for path in written:
            print(path)


def parse_points(points: tuple[str, ...]) -> "Queries":
    """x,y@frame (frame 0 when left out) to queries."""
    import torch

    from lpa_cwm.types import Queries

    xy, frames = [], []
    for point in points:
        place, _, frame = point.partition("@")
        try:
            x, y = (float(number) for number in place.split(","))
            frames.append(int(frame or 0))
        except ValueError as error:
            raise InputError(f"The point {point!r} is not of the form x,y@frame, for example 120,80@0.") from error
        xy.append((x, y))
    return Queries(torch.tensor(xy), torch.tensor(frames))
