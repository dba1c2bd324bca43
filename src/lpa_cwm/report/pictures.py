"""The worst videos as pictures: truth, prediction, and the way from one to the other."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw

from lpa_cwm.config import Selection
from lpa_cwm.datasets.tapvid import load_dataset
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import rescale
from lpa_cwm.io.overlay import draw_head
from lpa_cwm.io.predictions import prediction_path, read_prediction
from lpa_cwm.metrics import Scores
from lpa_cwm.metrics.comparison import SIZE
from lpa_cwm.protocols import Dataset
from lpa_cwm.sampling import resize_frame
from lpa_cwm.types import Sample

WORST = 4
FRAMES = 3
ENLARGED = 2
RADIUS = 6.0
TRUTH, PREDICTED = (46, 204, 113), (255, 87, 34)


@dataclass(frozen=True)
class Picture:
    """One frame of one video as a data address, and what it shows."""

    source: str
    caption: str


def worst_videos(scores: Scores, number: int = WORST) -> list[str]:
    """The videos with the lowest DCA, where it is defined."""
    known = {name: video["dca_avg"] for name, video in scores.videos.items() if video["dca_avg"] == video["dca_avg"]}
    return sorted(known, key=lambda name: known[name])[:number]


def open_dataset(scores: Scores) -> Dataset | None:
    """The data set that was scored, if it is still where it was."""
    where, chosen = scores.notes.get("dataset"), scores.notes.get("selection")
    if not where or chosen is None or not Path(where).exists():
        return None
    return load_dataset(where, Selection(**chosen | {"videos": tuple(chosen["videos"])}))


def pictures(folder: Path, dataset: Dataset, video: str) -> Iterator[Picture]:
    """A few frames of a video with truth and prediction drawn on them."""
    if video not in dataset.names:
        return
    sample = dataset[dataset.names.index(video)]
    tracks, frames = sample.truth.visible.shape
    try:
        prediction = read_prediction(prediction_path(folder, video), tracks, frames)
    except InputError:
        # A run scored with missing videos counted as failures has nothing to show for them.
        return
    first = int(sample.queries.frame.min())
    for frame in np.linspace(first, frames - 1, FRAMES + 1).round().astype(int)[1:].tolist():
        drawn = draw(sample, prediction.xy[:, frame], prediction.visible[:, frame], frame)
        yield Picture(data_address(drawn), f"frame {frame}")


def draw(sample: Sample, xy: Float[np.ndarray, "n 2"], visible: Bool[np.ndarray, "n"], frame: int) -> Image.Image:
    """One frame: where the truth is visible a green ring, the prediction as everywhere, a line between them."""
    pixels = rearrange(resize_frame(sample.clip[frame], (SIZE, SIZE)), "c h w -> h w c").cpu().numpy()
    truth = rescale(sample.truth.xy[:, frame], sample.clip.hw, (SIZE, SIZE))
    picture = Image.fromarray(pixels).resize((ENLARGED * pixels.shape[1], ENLARGED * pixels.shape[0]))
    pen = ImageDraw.Draw(picture, "RGBA")
    asked = (sample.queries.frame < frame) & sample.truth.visible[:, frame]
    for track in asked.nonzero()[:, 0].tolist():
        place, guess = (truth[track] * ENLARGED).tolist(), (xy[track] * ENLARGED).tolist()
        if np.isfinite(guess).all():
            pen.line((*place, *guess), fill=(*PREDICTED, 170), width=2)
            draw_head(pen, guess, bool(visible[track]), PREDICTED, RADIUS)
        pen.ellipse((*(at - RADIUS for at in place), *(at + RADIUS for at in place)), outline=TRUTH, width=3)
    return picture


def data_address(picture: Image.Image) -> str:
    """A picture inside a page."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
