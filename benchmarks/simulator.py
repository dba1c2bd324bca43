"""Cost of simulated clips, accuracy of their ground truth, and quantiles of their motion.

python benchmarks/simulator.py --assets DIR [--clips 8]
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro

from lpa_cwm.simulator.assets import Assets, load_scan
from lpa_cwm.simulator.clip import SimulatedPairs, movi_record, simulate_clip
from lpa_cwm.simulator.render import Camera, RenderSettings, raster_centers
from lpa_cwm.simulator.scene import SCENE_CONFIGS

QUANTILES = (0.1, 0.5, 0.9, 0.99)
PARTS = ("scene", "pictures", "flow and visibility", "256 tracks", "record, not counted")


@dataclass(frozen=True)
class Simulator:
    """Time by the processor's clock, on one thread, with the assets in memory."""

    assets: Path | None = None
    clips: int = 8

    def run(self):
        torch.set_num_threads(1)
        assets = Assets.of(self.assets, "train")
        for path in assets.objects:
            _ = load_scan(path).rays
        for recipe in SCENE_CONFIGS:
            for number in range(self.clips):
                simulate_clip(("speed", number), recipe, assets, RenderSettings(32)).picture(0)
            self.speed(recipe, assets)
            self.truth(recipe, assets)
            self.motion(recipe, assets)

    def speed(self, recipe, assets):
        """Frames per second and core with everything on, and where the time goes."""
        for settings in (RenderSettings(128), RenderSettings(256), RenderSettings(256, samples=1)):
            spent = np.sum([cost(number, recipe, assets, settings) for number in range(self.clips)], axis=0)
            each = 1000 * spent / (self.clips * SCENE_CONFIGS[recipe].frames)
            parts = ", ".join(f"{name} {value:.1f}" for name, value in zip(PARTS, each, strict=True))
            print(
                f"{recipe} {settings.size} px, {settings.samples} samples: {1000 / each[:4].sum():.1f} fps ({parts} ms)"
            )
        source = SimulatedPairs(SCENE_CONFIGS[recipe], assets)
        start = time.process_time()
        for number in range(30):
            source.pair(number, 256)
        print(f"{recipe} pairs at 256: {30 / (time.process_time() - start):.1f} a second")

    def truth(self, recipe, assets):
        """Photometric error after warping, forward-backward error, and tracks against chained flow."""
        warped, unwarped, returns, drift = [], [], [], []
        for number in range(self.clips):
            clip = simulate_clip(("truth", number), recipe, assets, RenderSettings(256))
            for frame in range(0, len(clip) - 1, 3):
                flow = clip.flow(frame, frame + 1)
                now, later = clip.picture(frame).astype(np.float32), clip.picture(frame + 1).astype(np.float32)
                guess = read(later, (raster_centers(256) + flat(flow.offset)).T).reshape(256, 256, 3)
                warped.append(np.abs(guess - now)[flow.visible].mean())
                unwarped.append(np.abs(later - now)[flow.visible].mean())
                returns.append(there_and_back(clip, frame, flow))
            drift.append(chained(clip))
        back, off = np.concatenate(returns), np.concatenate(drift)
        print(
            f"{recipe}: photometric error {np.mean(warped):.2f} warped, {np.mean(unwarped):.2f} unwarped, ratio "
            f"{np.mean(warped) / np.mean(unwarped):.3f}; there and back {quantiles(back)} px, "
            f"{(back < 0.05).mean():.4%} below 0.05; tracks against chained flow over half the clip {quantiles(off)} px"
        )

    def motion(self, recipe, assets):
        """Quantiles of the motion of pixels at 256, and the share that stays visible."""
        clips = [
            simulate_clip(("motion", number), recipe, assets, RenderSettings(256)) for number in range(2 * self.clips)
        ]
        for gap in (1, 4, 12):
            flows = [clip.flow(frame, frame + gap) for clip in clips for frame in range(0, len(clip) - gap, 6)]
            every = np.concatenate([np.linalg.norm(flow.offset, axis=-1).ravel() for flow in flows])
            seen = np.mean([flow.visible.mean() for flow in flows])
            print(f"{recipe} gap {gap}: motion {quantiles(every)} px, visible {seen:.3f}")


def cost(number, recipe, assets, settings):
    """Seconds for each part of one clip."""
    clock = [time.process_time()]
    clip = simulate_clip(("speed", number), recipe, assets, settings)
    clock.append(time.process_time())
    for frame in range(len(clip)):
        clip.picture(frame)
        clip.body(frame)
    clock.append(time.process_time())
    for frame in range(len(clip)):
        clip.flow(frame, frame + 1)
        clip.flow(frame, frame - 1)
    clock.append(time.process_time())
    clip.tracks(256)
    clock.append(time.process_time())
    movi_record(clip)
    clock.append(time.process_time())
    return np.diff(clock)


def flat(offset):
    return offset.reshape(-1, 2).T


def quantiles(values):
    found = np.nanquantile(values, QUANTILES)
    return ", ".join(f"{share:.0%} {value:.3g}" for share, value in zip(QUANTILES, found, strict=True))


def read(image, xy, mode="bicubic"):
    """Values of an image [h w c] at points [n 2]."""
    grid = torch.from_numpy(2 * np.nan_to_num(xy) / len(image) - 1).float()[None, None]
    stack = torch.from_numpy(image).permute(2, 0, 1)[None]
    return F.grid_sample(stack, grid, mode=mode, padding_mode="border", align_corners=False)[0, :, 0].numpy().T


def there_and_back(clip, frame, flow):
    """Forward-backward error: distance of a visible pixel's center from the end of its round trip."""
    seen = flow.visible.ravel()
    center = raster_centers(256)[:, seen]
    eye, scene = Camera(clip.scene, 256), clip.scene
    hits = eye.cast(scene.moment(frame + 1), center + flat(flow.offset)[:, seen])
    back, _ = eye.project_visible(scene.moment(frame), scene.place(hits.local, hits.body, scene.moment(frame)))
    return np.linalg.norm(back - center, axis=0)


def chained(clip):
    """Distance of tracks from chained interpolated flow after half a clip, for tracks that are visible all the time."""
    tracks, half = clip.tracks(256), len(clip) // 2
    kept = tracks.visible[:, : half + 1].all(1)
    xy = tracks.xy[kept, 0]
    for frame in range(half):
        xy = xy + read(clip.flow(frame, frame + 1).offset, xy, "bilinear")
    return np.linalg.norm(xy - tracks.xy[kept, half], axis=-1)


if __name__ == "__main__":
    tyro.cli(Simulator).run()
