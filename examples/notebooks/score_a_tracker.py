# %% [markdown]
# # Score a tracker
#
# Any tracker is scored from files: one `.npz` per video with `xy [n t 2]` and `visible [n t]`, in pixels of a
# 256 x 256 raster. Here a bright pixel drifts over noise, and the tracker takes the brightest pixel.

# %%
import pickle
from pathlib import Path

import numpy as np

from lpa_cwm.cli.main import main as lpa_cwm

rng = np.random.default_rng(0)
content = {}
for index in range(5):
    place = rng.integers(8, 24, 2) + np.arange(8)[:, None] * rng.integers(1, 4, 2)
    video = rng.integers(0, 60, (8, 64, 64, 3), dtype=np.uint8)
    video[np.arange(8), place[:, 1], place[:, 0]] = 255
    points = ((place + 0.5) / 64)[None].astype(np.float32)
    content[f"dot{index}"] = {"video": video, "points": points, "occluded": np.zeros((1, 8), bool)}
with open("dots.pkl", "wb") as file:
    pickle.dump(content, file)

# %% [markdown]
# The tracker. It loses the point in the last two frames of every video.

# %%
Path("mine").mkdir()
for name, annotated in content.items():
    flat = annotated["video"].sum(axis=-1).reshape(8, -1).argmax(axis=1)
    xy = (np.stack([flat % 64, flat // 64], axis=-1)[None] + 0.5) * 256 / 64
    np.savez(f"mine/{name}.npz", xy=xy, visible=np.arange(8)[None] < 6)

# %% [markdown]
# Scores of the tracker beside trivial predictors; `scores.json` is written beside the predictions, and
# `lpa-cwm eval report mine` makes a page of it.

# %%
lpa_cwm(["eval", "score", "mine", "--dataset", "dots.pkl"])

# %% [markdown]
# A wrong convention is recognized at the query frame: here x and y are exchanged.

# %%
for path in Path("mine").glob("*.npz"):
    with np.load(path) as held:
        xy, visible = held["xy"], held["visible"]
    np.savez(path, xy=xy[..., ::-1], visible=visible)
lpa_cwm(["eval", "score", "mine", "--dataset", "dots.pkl"])
