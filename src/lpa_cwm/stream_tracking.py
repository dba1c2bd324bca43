"""Points of a stream, tracked while its frames arrive; memory holds the estimates, not the frames."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from lpa_cwm.io.export import write_video
from lpa_cwm.io.overlay import OverlayStyle, draw_tracks
from lpa_cwm.io.streams import FrameStream
from lpa_cwm.io.tracks import TrackSource, save, table
from lpa_cwm.online import FrameEstimate
from lpa_cwm.tracker import CwmTracker, stack_estimates
from lpa_cwm.types import Queries, Tracks

DEFAULT_RATE = 24.0
"""Frames per second of an overlay if the stream does not tell."""


@dataclass
class StreamJob:
    """A stream with its points and the files to write."""

    stream: FrameStream
    queries: Queries
    end: int | None = None
    """Frames after which to stop."""
    out: Path | None = None
    """Video with the tracks drawn on it, encoded while frames arrive."""
    save: Path | None = None
    """Table or arrays, written at the end."""
    form: str | None = None
    style: OverlayStyle = field(default_factory=OverlayStyle)
    on_row: Callable[[dict[str, Any]], None] = lambda row: None
    """Called with each row of the table as soon as it is known."""
    done: list[FrameEstimate] = field(default_factory=list)
    interrupted: bool = False

    def run(self, tracker: CwmTracker) -> Tracks:
        """Track until the stream ends or Ctrl-C, and write the files."""
        frames = self.frames(tracker)
        if self.out:
            write_video(self.out, self.drawn(frames), self.stream.fps or DEFAULT_RATE)
        else:
            for _ in frames:
                pass
        tracks = stack_estimates(self.done, len(self.done))
        if self.save:
            height, width = self.stream.first.shape[1:]
            source = TrackSource(fps=self.stream.fps, hw=(height, width), name=self.stream.name)
            save(tracks, self.save, source, self.form)
        return tracks

    def frames(self, tracker: CwmTracker) -> Iterator[UInt8[Tensor, "3 h w"]]:
        """The frames that were tracked; an interrupt ends them."""
        latest: list[Tensor] = []

        def arriving() -> Iterator[Tensor]:
            for index, frame in enumerate(self.stream.frames):
                if index == self.end:
                    return
                latest[:] = [frame]
                yield frame

        try:
            for estimate in tracker.stream(arriving(), self.queries, self.stream.name):
                self.done.append(estimate)
                for row in table(stack_estimates([estimate], 1), TrackSource([len(self.done) - 1], self.stream.fps)):
                    self.on_row(row)
                yield latest[0]
        except KeyboardInterrupt:
            self.interrupted = True
            if not self.done:
                raise

    def drawn(self, frames: Iterator[UInt8[Tensor, "3 h w"]]) -> Iterator[UInt8[Tensor, "3 h2 w2"]]:
        """Frames with the tracks drawn on them."""
        for frame in frames:
            recent = self.done[-self.style.tail - 1 :]
            tracks = stack_estimates(recent, len(recent))
            marked = draw_tracks(frame, tracks.xy, tracks.visible, style=self.style)
            plain = draw_tracks(frame, tracks.xy[:0], tracks.visible[:0], style=self.style)
            yield torch.cat([plain, marked], dim=2) if self.style.side_by_side else marked
