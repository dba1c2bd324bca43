# %% [markdown]
# # Track a video
#
# Points of a clip, tracked by the bundled world model with learned adjudication. The clip is part of the package; give
# your own path instead.

# %%
import lpa_cwm as lc
from lpa_cwm.io.inputs import select_frames
from lpa_cwm.registry import DEMO_CLIP

clip = select_frames(lc.read(DEMO_CLIP), range(6))
print(len(clip), "frames of", clip.hw)

# %% [markdown]
# Rows (x, y) in pixels of the clip, in the frame given by `frame`.

# %%
tracks = lc.track(clip, [[100, 120], [150, 150], [60, 200]], frame=0)
tracks.play(clip)

# %% [markdown]
# A dot is a visible point, a ring a hidden one. `xy` and `visible` are tensors; the rest says how sure the answer is.

# %%
assert tracks.confidence is not None  # World models without a calibration have none.
for number, (x, y) in enumerate(tracks.xy[:, -1].tolist()):
    state = "visible" if tracks.visible[number, -1] else "hidden"
    print(f"point {number} ends at {x:.1f}, {y:.1f}, {state}, confidence {tracks.confidence[number, -1]:.2f}")

# %% [markdown]
# Save and load, or draw an overlay.

# %%
tracks.save("tracks.csv", clip=clip)
lc.write("overlay.mp4", tracks.overlay(clip), clip.fps)
lc.Tracks.load("tracks.csv")
