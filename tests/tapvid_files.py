"""Small data sets in TAP-Vid's formats, for tests and benchmarks."""

import io
import pickle

import numpy as np
from PIL import Image


def entry(seed=0, n=3, t=6, hw=(20, 30), jpeg=False):
    """A noisy video with tracks of which the last is hidden at first."""
    rng = np.random.default_rng(seed)
    video = rng.integers(0, 256, (t, *hw, 3), dtype=np.uint8)
    points = rng.uniform(0.05, 0.95, (n, t, 2)).astype(np.float32)
    occluded = rng.random((n, t)) < 0.2
    occluded[:, 1] = False
    occluded[-1, 0] = True
    return {"video": jpegs(video) if jpeg else video, "points": points, "occluded": occluded}


def jpegs(video):
    files = []
    for frame in video:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def entries(count, **settings):
    return {f"set/{'abcdefghij'[index % 10]}{index}": entry(index, **settings) for index in range(count)}


def save(path, content):
    path.write_bytes(pickle.dumps(content))
    return path
