"""Tracks as a recording for the rerun viewer: frames, points, tails and confidences on one time line; extra `rerun`."""

from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from jaxtyping import Float

from lpa_cwm.errors import require
from lpa_cwm.files import atomic_write
from lpa_cwm.io.overlay import color
from lpa_cwm.types import Clip, Tracks

TAIL = 12
"""Length of a tail in frames."""
HIDDEN_ALPHA = 70


def save(path: Path | str, clip: Clip, tracks: Tracks) -> None:
    """Write an .rrd file; open it with `rerun FILE`.

    Args:
        path: The file to write.
        clip: The clip that was tracked.
        tracks: Its tracks.
    """
    rr = require("rerun", extra="rerun")
    with atomic_write(path) as aside:
        recording = rr.RecordingStream("lpa-cwm", recording_id=clip.name)
        recording.save(str(aside))
        for frame in range(len(clip)):
            recording.set_time("frame", sequence=frame)
            recording.log("clip", picture(rr, clip, frame))
            for name, shown in marks(rr, tracks, frame).items():
                recording.log(f"clip/{name}", shown)
            for name, values in confidences(tracks, frame).items():
                recording.log(f"confidence/{name}", rr.Scalars(values))
        recording.flush()
        recording.disconnect()


def picture(rr: Any, clip: Clip, frame: int) -> Any:
    """A compressed frame."""
    return rr.Image(rearrange(clip[frame], "c h w -> h w c").cpu().numpy()).compress(jpeg_quality=90)


def marks(rr: Any, tracks: Tracks, frame: int) -> dict[str, Any]:
    """Points, with hidden points faint, and tails of the visible points."""
    count = len(tracks.xy)
    known = (~tracks.xy[:, frame, 0].isnan()).nonzero()[:, 0].tolist()
    seen = [row for row in known if tracks.visible[row, frame]]
    inks = [(*color(row, count), 255 if row in seen else HIDDEN_ALPHA) for row in known]
    tails = [tracks.xy[row, max(0, frame - TAIL) : frame + 1] for row in seen]
    return {
        "points": rr.Points2D(tracks.xy[known, frame].cpu().numpy(), colors=inks, radii=2.5),
        "tails": rr.LineStrips2D(
            [tail[~tail[:, 0].isnan()].cpu().numpy() for tail in tails], colors=[color(row, count) for row in seen]
        ),
    }


def confidences(tracks: Tracks, frame: int) -> dict[str, Float[np.ndarray, "n"]]:
    """Strength, support and spread of each point in one frame; NaN is a gap."""
    extras = {name: values for name, values in tracks.known().items() if name not in ("xy", "visible")}
    return {name: values[:, frame].cpu().numpy() for name, values in extras.items()}
