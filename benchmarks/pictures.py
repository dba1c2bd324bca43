"""The pictures of the documentation, made with the default settings.

    python benchmarks/pictures.py --out docs/images

`tracking.webp`: the clips of the page's gallery with a grid of points, tracked by `lpa-cwm track`'s defaults.
`explained.webp`: `lpa-cwm explain --point 108,128@0 --target 9`.
`audit.webp`: `lpa-cwm eval audit` of simulated validation clips (`--audit`, needs the extra `sim`; minutes).
The pictures of the page are made by the browser test: `LPA_CWM_PICTURES=docs/images make test-browser`.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from einops import rearrange
from PIL import Image

import lpa_cwm as lc
from lpa_cwm.cli.main import main as lpa_cwm
from lpa_cwm.io.visualization import OverlayStyle, overlay
from lpa_cwm.registry import GALLERY

PANEL, GAP = 320, 6
"""Side of a panel of the moving picture, and the gap between panels, in pixels."""


def tracking(path: Path, side: int) -> None:
    """The gallery side by side, every clip with its tracks, as a moving picture."""
    tracker, panels = lc.load(), []
    for file in GALLERY.values():
        clip = lc.read(file)
        tracks = tracker.track(clip, lc.grid(side).on(clip.hw))
        drawn = overlay(tracks, clip, OverlayStyle(scale=2, tail=8))
        frames = [Image.fromarray(rearrange(frame, "c h w -> h w c").numpy()) for frame in drawn]
        panels.append([frame.resize((PANEL, PANEL), Image.Resampling.LANCZOS) for frame in frames])
        print(f"{clip.name}: {tracks}", flush=True)
    whole = []
    for shown in zip(*panels, strict=True):
        gap = np.full((PANEL, GAP, 3), 255, np.uint8)
        parts = [part for panel in shown for part in (np.asarray(panel), gap)][:-1]
        whole.append(Image.fromarray(np.concatenate(parts, axis=1)))
    whole[0].save(path, save_all=True, append_images=whole[1:], duration=120, loop=0, quality=72, method=6)


def explained(path: Path) -> None:
    """One point of the bundled clip explained."""
    with tempfile.TemporaryDirectory() as folder:
        figure = Path(folder) / "explained.png"
        lpa_cwm(["explain", "--point", "108,128@0", "--target", "9", "--out", str(figure)])
        save_figure(figure, path)


def audit(path: Path, clips: int) -> None:
    """Adjudicators on candidates of simulated validation clips with procedural bodies."""
    with tempfile.TemporaryDirectory() as folder:
        data, cache, figure = (str(Path(folder) / name) for name in ("clips", "cache", "audit.png"))
        simulate = "data simulate --form tapvid --recipe mixed --split val --tracks 64 --per-file 1"
        lpa_cwm([*simulate.split(), "--clips", str(clips), "--out", data])
        lpa_cwm(["data", "cache", data, "--gaps", "1", "16", "--out", cache])
        lpa_cwm(["eval", "audit", cache, "--out", figure])
        save_figure(Path(figure), path)


def save_figure(png: Path, webp: Path) -> None:
    """A figure in fewer bytes."""
    Image.open(png).convert("RGB").save(webp, quality=85, method=6)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", choices=["tracking", "explained", "audit"])
    parser.add_argument("--audit", action="store_true", help="also the audit")
    parser.add_argument("--grid", type=int, default=6, help="points a side of the moving picture")
    parser.add_argument("--clips", type=int, default=16, help="simulated clips of the audit")
    given = parser.parse_args()
    if given.only in (None, "tracking"):
        tracking(given.out / "tracking.webp", given.grid)
    if given.only in (None, "explained"):
        explained(given.out / "explained.webp")
    if given.audit or given.only == "audit":
        audit(given.out / "audit.webp", given.clips)


if __name__ == "__main__":
    main()
