"""Score a tracker of your own under CMC: read TAP-Vid videos, write one .npz per video, run `lpa-cwm eval score`.

The tracker here follows the brightest pixel. It does not use this package, and yours need not use it either.
"""

import pickle
import tempfile
from pathlib import Path

import numpy as np

from lpa_cwm.cli.main import main as lpa_cwm

RASTER = 256


def brightest(video, start):
    """Positions of the brightest pixel from the query's frame on, in pixels of the 256 x 256 raster."""
    frames, height, width, _ = video.shape
    xy = np.full((1, frames, 2), np.nan)
    for frame in range(start, frames):
        row, column = divmod(int(video[frame].sum(axis=-1).argmax()), width)
        xy[0, frame] = (column + 0.5) * RASTER / width, (row + 0.5) * RASTER / height
    return xy


def write_predictions(data, out):
    """The part that a tracker in any language has to do."""
    out.mkdir(parents=True)
    for name, annotated in pickle.loads(data.read_bytes()).items():
        start = int((~annotated["occluded"][0]).argmax())
        xy = brightest(annotated["video"], start)
        np.savez(out / f"{name}.npz", xy=xy, visible=np.isfinite(xy[..., 0]))


def make_data(path, videos=3, frames=8, side=64):
    """Synthetic data in the format of tapvid_davis.pkl: a bright pixel drifts over a dark, noisy background."""
    rng = np.random.default_rng(0)
    content = {}
    for index in range(videos):
        place = rng.integers(8, 24, 2) + np.arange(frames)[:, None] * rng.integers(1, 4, 2)
        video = rng.integers(0, 60, (frames, side, side, 3), dtype=np.uint8)
        video[np.arange(frames), place[:, 1], place[:, 0]] = 255
        points = ((place + 0.5) / side)[None].astype(np.float32)
        content[f"dot{index}"] = {"video": video, "points": points, "occluded": np.zeros((1, frames), bool)}
    path.write_bytes(pickle.dumps(content))


def main(folder=None):
    folder = Path(folder or tempfile.mkdtemp())
    make_data(folder / "dots.pkl")
    write_predictions(folder / "dots.pkl", folder / "runs/brightest")
    lpa_cwm(["eval", "score", str(folder / "runs/brightest"), "--dataset", str(folder / "dots.pkl")])


if __name__ == "__main__":
    main()
