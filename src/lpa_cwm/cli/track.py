"""`lpa-cwm track`, `explain` and `page`: points of one's own videos."""

import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional

from lpa_cwm.cli.options import (
    AdjudicatorOptions,
    ExpertOptions,
    Figure,
    Frame,
    InPath,
    JsonOption,
    MethodOptions,
    Port,
    Text,
    integer,
    out_file,
)
from lpa_cwm.errors import InputError, require

if TYPE_CHECKING:
    from lpa_cwm.explain import Explanation
    from lpa_cwm.protocols import Tracker
    from lpa_cwm.types import Clip, Queries, Tracks

FALLBACK_GRID = 8


@dataclass(frozen=True, kw_only=True)
class Track(JsonOption):
    """Follow points through a video and save where they went."""

    EXAMPLE: ClassVar[str] = "lpa-cwm track clip.mp4 --points 120,80@0 200,140@12 --out overlay.mp4 --save tracks.csv"
    clip: Annotated[InPath | None, Positional] = None
    """A video file or a folder of pictures; without it, the bundled clip."""
    points: tuple[Text, ...] = ()
    """Points to follow, each x,y@frame in the clip's pixels, for example 120,80@0."""
    grid: Annotated[int, integer(1, 1000)] | None = None
    """Follow a grid of this many points a side, from the first frame on."""
    out: Annotated[Path, out_file(".mp4", ".mkv", ".mov")] | None = None
    """Write the video with the tracks drawn on it."""
    save: Annotated[Path, out_file(".csv", ".npz", ".rrd")] | None = None
    """Write the tracks as .csv, .npz, or a recording for the rerun viewer (.rrd)."""
    dry_run: bool = False
    """Print what it would cost, and stop."""
    model: MethodOptions = field(default_factory=MethodOptions)
    """World model, adjudicator and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our tracker; the defaults are the world model's own."""

    def run(self) -> None:
        """Read, track, write."""
        if self.save and self.save.suffix == ".rrd":
            require("rerun", extra="rerun")
        name, device = self.model.method(), self.model.on()
        self.model.refuse_ignored(self.expert.given())
        clip = self.read()
        queries = self.queries(clip)
        tracker = self.load(name, device)
        if self.dry_run:
            self.print_cost(tracker, clip, queries)
            return
        tracks = tracker.track(clip, queries)
        self.write(clip, tracks)
        self.report(clip, tracks)

    def read(self) -> "Clip":
        from lpa_cwm.bundled import bundled_clip
        from lpa_cwm.io.video import read

        return read(self.clip) if self.clip else bundled_clip(self.model.world)

    def queries(self, clip: "Clip") -> "Queries":
        """Points as given, or a grid."""
        from lpa_cwm.tracker import validate_queries
        from lpa_cwm.types import Grid

        if self.points and self.grid is not None:
            raise InputError("Both --points and --grid were given; give one of them.")
        if self.points:
            return validate_queries(clip, parse_points(self.points))
        return validate_queries(clip, Grid(FALLBACK_GRID if self.grid is None else self.grid))

    def load(self, name: str, device: str) -> "Tracker":
        from lpa_cwm import registry

        if self.model.tracker is not None:
            return registry.load(name, device=device)
        names = self.model.names()
        return registry.load(name, quiet=self.json, device=device, **names, **self.expert.given())

    def write(self, clip: "Clip", tracks: "Tracks") -> None:
        from lpa_cwm.io import rerun
        from lpa_cwm.io.video import write

        if self.save and self.save.suffix == ".rrd":
            rerun.save(self.save, clip, tracks)
        elif self.save:
            tracks.save(self.save)
        if self.out:
            write(self.out, tracks.overlay(clip), clip.fps)

    def print_cost(self, tracker: "Tracker", clip: "Clip", queries: "Queries") -> None:
        from lpa_cwm.cost import estimate_cost

        cost = estimate_cost(tracker, clip, queries)
        print(json.dumps(asdict(cost)) if self.json else cost.text())

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


@dataclass(frozen=True, kw_only=True)
class Explain(JsonOption):
    """Show how one point was found: the candidates, their weights, and the decoded endpoint."""

    EXAMPLE: ClassVar[str] = "lpa-cwm explain clip.mp4 --point 120,80@0 --target 9 --out explained.png"
    clip: Annotated[InPath | None, Positional] = None
    """A video file or a folder of pictures; without it, the bundled clip."""
    point: Text = "128,128@0"
    """The point as x,y@frame in the clip's pixels."""
    target: Frame = 1
    """Frame to look for it in."""
    out: Figure = Path("explained.png")
    """The figure (.png, .pdf or .svg)."""
    model: AdjudicatorOptions = field(default_factory=AdjudicatorOptions)
    """World model, adjudicator and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our tracker; the defaults are the world model's own."""

    def run(self) -> None:
        """Ask, draw, print where it is."""
        from lpa_cwm import registry
        from lpa_cwm.bundled import bundled_clip
        from lpa_cwm.explain import explain
        from lpa_cwm.io.video import read
        from lpa_cwm.report.explain import draw_explanation

        name, device = self.model.adjudicator_name(), self.model.on()
        require("matplotlib", "report")
        clip = read(self.clip) if self.clip else bundled_clip(self.model.world)
        query = parse_points((self.point,))
        if not int(query.frame[0]) < self.target < len(clip):
            raise InputError(
                f"The target frame is {self.target}; it must come after the point's frame {int(query.frame[0])} "
                f"and before frame {len(clip)}, the end of {clip.name}."
            )
        tracker = registry.load_cwm(name, device=device, **self.model.names(), **self.expert.given())
        explanation = explain(tracker, clip, query, self.target)
        draw_explanation(explanation, self.out)
        print(json.dumps(plain(explanation, clip.hw) | {"written": str(self.out)}) if self.json else self.out)


def plain(explanation: "Explanation", hw: tuple[int, int]) -> dict[str, Any]:
    """Weights, candidates and answer as numbers, points in the clip's pixels."""
    from lpa_cwm.geometry import Crop

    view = Crop.full(hw, explanation.source.shape[-1])
    answer = explanation.result
    return {
        "weights": explanation.weights.tolist(),
        "candidates": view.to_frame(explanation.peak).tolist(),
        "first": view.to_frame(explanation.first).tolist(),
        "end": answer.xy[0].tolist(),
        "strength": answer.strength[0].item(),
        "support": answer.support[0].item(),
        "spread": answer.spread[0].item(),
    }


@dataclass(frozen=True, kw_only=True)
class ServePage:
    """Open a local page: click points, follow them, see the candidates and their weights."""

    EXAMPLE: ClassVar[str] = "lpa-cwm page --port 7860"
    host: Text = "127.0.0.1"
    """Address to serve; the default is this machine alone."""
    port: Port | None = None
    """Port to serve; without it, the first free one from 7860 on."""
    share: bool = False
    """Make the page reachable from everywhere through a tunnel of Gradio's makers."""
    show: bool = True
    """Open the browser."""

    def run(self) -> None:
        """Serve until interrupted; uploads and results are gone afterwards."""
        # A service manager ends the page with this signal; the folder must go then, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with tempfile.TemporaryDirectory(prefix="lpa-cwm-") as folder:
            # Gradio reads both when it is imported.
            os.environ["GRADIO_TEMP_DIR"] = str(Path(folder) / "cache")
            os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
            require("gradio", "demo")
            from lpa_cwm.page.app import serve
            from lpa_cwm.page.server import DemoServer

            serve(DemoServer(Path(folder)), self.host, self.port, self.share, self.show)
