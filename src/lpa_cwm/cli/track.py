"""`lpa-cwm track`, `explain` and `page`: tracks of points in the user's videos."""

import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import Positional

from lpa_cwm.cli.options import AdjudicatorOptions, ExpertOptions, JsonOption, MethodOptions
from lpa_cwm.cli.values import Figure, Frame, InPath, Port, Text, integer, out_file, real
from lpa_cwm.errors import InputError, require

if TYPE_CHECKING:
    from lpa_cwm.explain import Explanation
    from lpa_cwm.protocols import Tracker
    from lpa_cwm.types import Tracks
    from lpa_cwm.video_tracking import PointOptions, VideoJob


@dataclass(frozen=True, kw_only=True)
class OverlayOptions:
    """How tracks are drawn."""

    dot_size: Annotated[float, real(1.0, 1000.0)] | None = None
    """Diameter of a dot, in pixels of the clip; by default from the frame's size."""
    tail: Annotated[int, integer(0, 100_000)] = 12
    """Frames that a tail reaches back."""
    numbers: bool = False
    """Write each track's number beside its dot."""
    color_by: Literal["track", "confidence"] = "track"
    """A color for each track, or from red (unsure) to green (sure)."""
    side_by_side: bool = False
    """Show the clip itself to the left."""
    scale: Annotated[int, integer(1, 8)] = 1
    """Enlargement of the clip's own size."""


@dataclass(frozen=True, kw_only=True)
class Track(JsonOption):
    """Track points through videos and save the tracks."""

    EXAMPLE: ClassVar[str] = "lpa-cwm track clip.mp4 --points 120,80@0 200,140@12 --out overlay.mp4 --save tracks.csv"
    clips: Annotated[tuple[InPath, ...], Positional] = ()
    """Video files, folders of videos or of pictures, - for a video on standard input, camera:0 for a camera; without \
any, the bundled clip."""
    points: tuple[Text, ...] = ()
    """Points such as 120,80@0: x,y@frame in the clip's pixels; or .csv and .json files with x, y and frame. \
Without a frame, in the first one used. Further positions of a track correct it: 140,90@20#7 (or a column track) is \
where track 7 is in frame 20."""
    grid: Annotated[int, integer(1, 300)] | None = None
    """A grid of this many points a side; 8 if nothing is given."""
    spacing: Annotated[float, real(1.0, 1e5)] | None = None
    """A grid with this distance between points, in pixels."""
    object: Text | None = None
    """Only the grid's points on an object: a box x0,y0,x1,y1, or a mask of the clip's size, as SAM makes it: a picture,
    or an array [h w] in an .npy file."""
    frame: Frame | None = None
    """Frame of the grid; the first one used if not given."""
    backward: bool = False
    """Track also from each point to the first frame."""
    start: Frame = 0
    """First frame used."""
    end: Frame | None = None
    """Frame before which to stop."""
    stride: Annotated[int, integer(1, 100_000)] = 1
    """Use every N-th frame."""
    out: Annotated[Path, out_file(".mp4", ".mkv", ".mov", ".webm", ".gif")] | None = None
    """Write the video with the tracks drawn on it; sound is kept, except in .gif. In the name, {clip} is the name of \
each clip."""
    save: Annotated[Path, out_file(".csv", ".json", ".npz", ".h5", ".xml", ".rrd")] | None = None
    """Write the tracks: .csv, .json, .npz, .h5 (DeepLabCut), .xml (CVAT), or a recording for rerun (.rrd); {clip} as \
in --out."""
    format: Literal["tapvid", "coco", "cvat", "deeplabcut"] | None = None
    """Format of `save` if the suffix is not enough: tapvid (.npz), coco keypoints (.json), cvat for video (.xml), \
deeplabcut (.csv, .h5)."""
    workers: Annotated[int, integer(1, 256)] | None = None
    """Threads that share the points of a frame; on a CPU, by default as many as it has cores."""
    accelerate: tuple[Literal["bfloat16", "compile"], ...] = ()
    """For GPUs: networks in half precision, which moves endpoints by a fraction of a pixel, or compiled, which takes \
minutes at the first frames."""
    dry_run: bool = False
    """Print predictions, seconds on this machine and memory, and stop; the first frames are tracked to time them."""
    overlay: OverlayOptions = field(default_factory=OverlayOptions)
    """How tracks are drawn."""
    model: MethodOptions = field(default_factory=MethodOptions)
    """World model, adjudicator and device."""
    expert: ExpertOptions = field(default_factory=ExpertOptions)
    """Settings of our tracker; the defaults are the world model's own."""

    def run(self) -> None:
        """Check everything, then track and write one clip after the other."""
        name, device = self.model.method(), self.model.on()
        self.check_outputs()
        if self.streams():
            self.track_stream(name, device)
            return
        jobs = self.jobs()
        tracker = self.load(name, device)
        for job in jobs:
            if self.dry_run:
                self.print_cost(tracker, job)
            else:
                self.track(tracker, job)
        if not (self.out or self.save or self.dry_run):
            print("lpa-cwm: neither --out nor --save was given; these files were chosen.", file=sys.stderr)

    def check_outputs(self) -> None:
        """Refuse formats that cannot be written here."""
        from lpa_cwm.io.tracks import require_hdf5, writer_of

        if self.format and not self.save:
            raise InputError("--format says how --save is written, which was not given.")
        if self.save and self.save.suffix.lower() == ".rrd":
            if self.format:
                raise InputError(f"Recordings have no format {self.format}; leave out --format.")
            require("rerun", extra="rerun")
        elif self.save:
            writer_of(self.save, self.format)
        if self.save and self.save.suffix.lower() == ".h5":
            require_hdf5()

    def streams(self) -> bool:
        """Whether a camera or standard input is tracked; options that need the whole clip are then refused."""
        from lpa_cwm.io.video import is_stream

        if not any(is_stream(str(clip)) for clip in self.clips):
            return False
        if len(self.clips) > 1:
            raise InputError(f"{len(self.clips)} clips were given; a stream is tracked alone.")
        if self.model.tracker is not None:
            raise InputError(f"{self.model.tracker} needs the whole clip; streams are tracked by our tracker.")
        given = {"start": self.start, "stride": self.stride - 1, "backward": self.backward, "dry-run": self.dry_run}
        given["save as .rrd"] = self.save is not None and self.save.suffix.lower() == ".rrd"
        for option, value in given.items():
            if value:
                raise InputError(f"--{option} is for clips; a stream is tracked as its frames arrive.")
        return True

    def track_stream(self, name: str, device: str) -> None:
        """Track while frames arrive; without files, rows go to stdout."""
        from lpa_cwm import registry
        from lpa_cwm.io.tracks import RowPrinter
        from lpa_cwm.io.video import open_stream
        from lpa_cwm.io.visualization import OverlayStyle
        from lpa_cwm.tracker import validate_queries
        from lpa_cwm.video_tracking import StreamJob

        stream = open_stream(str(self.clips[0]))
        points = self.point_options().queries(stream.stand_in())
        queries = replace(points, queries=validate_queries(stream.stand_in(), points.queries))
        style, files = OverlayStyle(**asdict(self.overlay)), [path for path in (self.save, self.out) if path]
        job = StreamJob(stream, queries, self.end, self.out, self.save, self.format, style)
        if not files:
            job.on_row = RowPrinter(self.json)
        job.run(registry.load_cwm(name, device=device, **self.settings()))
        if files:
            print("\n".join(str(path) for path in files))
        if job.interrupted:
            print(f"lpa-cwm: stopped after {len(job.done)} frames.", file=sys.stderr)
            raise SystemExit(130)

    def point_options(self) -> "PointOptions":
        """Which points, and in which frames."""
        from lpa_cwm.video_tracking import PointOptions

        names = ("points", "grid", "spacing", "frame", "start", "end", "stride")
        return PointOptions(**{name: getattr(self, name) for name in names}, region=self.object)

    def jobs(self) -> "list[VideoJob]":
        """All clips with their points; every one is opened before any is tracked."""
        from lpa_cwm.io.visualization import OverlayStyle
        from lpa_cwm.video_tracking import check_targets, clip_paths, default_outputs, fill_name, prepare_job

        options = self.point_options()
        paths = clip_paths(self.clips) or [None]
        style = OverlayStyle(**asdict(self.overlay))
        jobs = []
        for path in paths:
            job = prepare_job(path, options, self.model.world)
            named = (fill_name(self.out, job.clip.name), fill_name(self.save, job.clip.name))
            out, save = named if any(named) else default_outputs(path, job.clip.name)
            jobs.append(replace(job, out=out, save=save, form=self.format, style=style))
        check_targets(jobs)
        return jobs

    def load(self, name: str, device: str) -> "Tracker":
        """Our tracker or a baseline."""
        from lpa_cwm import registry

        if self.model.tracker is None:
            return registry.load(name, device=device, **self.settings())
        given = {"workers": self.workers, "accelerate": self.accelerate}
        for option, value in given.items():
            if value:
                raise InputError(f"--{option} was given, but {name} has no such choice; leave it out.")
        return registry.load(name, device=device)

    def settings(self) -> dict[str, Any]:
        """Arguments of `registry.load` for our tracker."""
        how = {"workers": self.workers, "accelerate": self.accelerate}
        return {**self.model.names(), **self.expert.given(), **how}

    def track(self, tracker: "Tracker", job: "VideoJob") -> None:
        """Track one clip and write its files; after Ctrl-C what was tracked is written."""
        from lpa_cwm.tracker import track_clip

        result = track_clip(tracker, job.clip, job.queries, backward=self.backward, quiet=self.json)
        written = job.write(result.tracks)
        self.report(job, result.tracks, written)
        if not result.complete:
            files = " and ".join(str(path) for path in written)
            said = f"stopped after {result.done} of {result.total} frames; they are in {files}."
            print(f"lpa-cwm: {said}", file=sys.stderr)
            raise SystemExit(130)

    def print_cost(self, tracker: "Tracker", job: "VideoJob") -> None:
        """Print the cost of a clip."""
        from lpa_cwm.video_tracking import estimate_cost

        cost = estimate_cost(tracker, job.clip, job.queries, self.backward)
        print(json.dumps(asdict(cost)) if self.json else cost.text())

    def report(self, job: "VideoJob", tracks: "Tracks", written: list[Path]) -> None:
        """Print a summary and the paths of the files."""
        seen = tracks.visible.sum().item() / max(1, (~tracks.xy[..., 0].isnan()).sum().item())
        count, frames, files = len(tracks.xy), len(job.clip), [str(path) for path in written]
        if self.json:
            print(json.dumps({"tracks": count, "frames": frames, "visible": seen, "written": files}))
            return
        points = "1 point" if count == 1 else f"{count} points"
        print(f"{points} through {frames} frames of {job.clip.name}, visible {seen:.0%} of the time")
        print("\n".join(files))


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
        """Explain the point, draw the figure, print its path."""
        from lpa_cwm import registry
        from lpa_cwm.explain import draw_explanation, explain
        from lpa_cwm.io.inputs import read_points
        from lpa_cwm.io.video import read
        from lpa_cwm.registry import bundled_clip

        name, device = self.model.adjudicator_name(), self.model.on()
        require("matplotlib", "report")
        clip = read(self.clip) if self.clip else bundled_clip(self.model.world)
        query = read_points((self.point,)).queries
        if not int(query.frame[0]) < self.target < len(clip):
            raise InputError(
                f"The target frame is {self.target}; it must come after the point's frame {int(query.frame[0])} "
                f"and before frame {len(clip)}, the end of {clip.name}."
            )
        tracker = registry.load_cwm(name, device=device, **self.model.names(), **self.expert.given())
        explanation = explain(tracker, clip, query, self.target)
        draw_explanation(explanation, self.out, clip.hw)
        print(
            json.dumps(explanation_values(explanation, clip.hw) | {"written": str(self.out)}) if self.json else self.out
        )


def explanation_values(explanation: "Explanation", hw: tuple[int, int]) -> dict[str, Any]:
    """Weights, candidates and result as numbers, points in the clip's pixels."""
    from lpa_cwm.geometry import Crop

    view = Crop.full(hw, explanation.source.shape[-1])
    result = explanation.result
    return {
        "weights": explanation.weights.tolist(),
        "source_frames": explanation.frame.tolist(),
        "candidates": view.to_frame(explanation.peak).tolist(),
        "first": view.to_frame(explanation.first).tolist(),
        "end": result.xy[0].tolist(),
        "visible": explanation.visible,
        "confidence": None if result.confidence.isnan().any() else result.confidence[0].item(),
        "strength": result.strength[0].item(),
        "support": result.support[0].item(),
        "spread": result.spread[0].item(),
    }


@dataclass(frozen=True, kw_only=True)
class ServePage:
    """Open a local page: click points, track them, see the candidates and their weights."""

    EXAMPLE: ClassVar[str] = "lpa-cwm page --port 7860"
    host: Text = "127.0.0.1"
    """Address to listen on; by default only this machine can connect."""
    port: Port | None = None
    """Port to listen on; by default the first free one from 7860 on."""
    share: bool = False
    """Make the page public through a tunnel of Gradio."""
    show: bool = True
    """Open the browser."""

    def run(self) -> None:
        """Serve until interrupted; uploads and results are then deleted."""
        # Service managers stop the page with this signal; the folder must be removed then, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with tempfile.TemporaryDirectory(prefix="lpa-cwm-") as folder:
            # Gradio reads both when it is imported.
            os.environ["GRADIO_TEMP_DIR"] = str(Path(folder) / "cache")
            os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
            require("gradio", "demo")
            from lpa_cwm.page.app import serve
            from lpa_cwm.page.server import PageServer

            serve(PageServer(Path(folder)), self.host, self.port, self.share, self.show)
