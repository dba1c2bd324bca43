"""Track three points through a video, save the tracks and draw them.

python examples/track_my_video.py clip.mp4
"""

import sys
from pathlib import Path

import torch

import lpa_cwm as lc
from lpa_cwm.registry import DEMO_CLIP


def main(path: str | Path = DEMO_CLIP):
    clip = lc.read(path)
    height, width = clip.hw
    points = torch.tensor([[0.3, 0.5], [0.5, 0.5], [0.7, 0.5]]) * torch.tensor([width, height])
    queries = lc.Queries(xy=points, frame=torch.zeros(3, dtype=torch.long))

    tracks = lc.load(quiet=False).track(clip, queries)

    tracks.save("tracks.csv")
    lc.write("overlay.mp4", tracks.overlay(clip), clip.fps)
    for number, (xy, visible) in enumerate(zip(tracks.xy[:, -1].tolist(), tracks.visible[:, -1], strict=True)):
        print(f"point {number} ends at {xy[0]:.1f}, {xy[1]:.1f}, {'visible' if visible else 'hidden'}")
    return tracks


if __name__ == "__main__":
    main(*sys.argv[1:])
