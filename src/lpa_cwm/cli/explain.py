"""`lpa-cwm explain`: one point, one target frame, every step between as a figure."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional

from lpa_cwm.cli.options import TrackerOptions
from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD
from lpa_cwm.errors import InputError

if TYPE_CHECKING:
    from lpa_cwm.explain import Explanation


@dataclass(frozen=True)
class Explain:
    """Show how one point was found: the candidates, their weights, and why one was believed."""

    clip: Annotated[Path | None, Positional] = None
    """A video file or a folder of pictures; without it, the bundled clip."""
    point: str = "128,128@0"
    """The point as x,y@frame in the clip's pixels."""
    target: int = 1
    """Frame to look for it in."""
    method: str = ADJUDICATOR
    """How candidates are weighed: uniform, apa or lpa."""
    world: str = WORLD
    """World model that is asked."""
    weights: Path | None = None
    """LPA weights other than the shipped ones."""
    out: Path = Path("explained.png")
    """The figure (.png, .pdf or .svg)."""
    device: str = "cpu"
    """Where to compute."""
    json: bool = False
    """Print where each candidate points, its weight and the answer as JSON."""
    tracker: Annotated[TrackerOptions, OmitArgPrefixes] = field(default_factory=TrackerOptions)
    """Settings of the tracker."""

    def run(self) -> None:
        """Ask, draw, print where it is."""
        from lpa_cwm import registry
        from lpa_cwm.bundled import bundled_clip
        from lpa_cwm.cli.track import parse_points
        from lpa_cwm.explain import explain
        from lpa_cwm.files import figure_path
        from lpa_cwm.io.video import read
        from lpa_cwm.report.explain import draw

        if self.method not in ADJUDICATORS:
            raise InputError(f"{self.method!r} has no candidates to show; choose one of {', '.join(ADJUDICATORS)}.")
        figure = figure_path(self.out)
        clip = read(self.clip) if self.clip else bundled_clip(self.world)
        query = parse_points((self.point,))
        if not int(query.frame[0]) < self.target < len(clip):
            raise InputError(
                f"The target frame is {self.target}; it must come after the point's frame {int(query.frame[0])} "
                f"and before frame {len(clip)}, the end of {clip.name}."
            )
        tracker = registry.load_cwm(
            self.method, self.world, weights=self.weights, device=self.device, **self.tracker.given()
        )
        explanation = explain(tracker, clip, query, self.target)
        draw(explanation, figure)
        print(json.dumps(plain(explanation, clip.hw) | {"written": str(self.out)}) if self.json else self.out)


def plain(explanation: "Explanation", hw: tuple[int, int]) -> dict[str, Any]:
    """Weights, candidates and answer as numbers, points in the clip's pixels."""
    from lpa_cwm.geometry import Crop

    view = Crop.full(hw, explanation.source.shape[-1])
    answer = explanation.result
    return {
        "weights": explanation.weights.tolist(),
        "candidates": view.to_frame(explanation.peak).tolist(),
        "first": view.to_frame(explanation.first).tolist(),
        "end": answer.xy[0].tolist(),
        "strength": answer.strength[0].item(),
        "support": answer.support[0].item(),
        "spread": answer.spread[0].item(),
    }
