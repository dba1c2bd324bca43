"""`lpa-cwm audit`: which candidates uniform, APA and LPA believe."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional


@dataclass(frozen=True)
class Audit:
    """Compare adjudicators on cached candidates whose true endpoints are known."""

    cache: Annotated[Path, Positional]
    """Evidence of videos that the training never saw, from `lpa-cwm cache`."""
    weights: Path | None = None
    """LPA weights other than the shipped ones."""
    within: float | None = None
    """Only groups in which a candidate comes within so many pixels: whom to believe is a question there."""
    out: Path | None = None
    """Write the figure here (.png, .pdf or .svg)."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        """Weigh, summarize, draw."""
        import torch

        from lpa_cwm.adjudicators.lpa import load_lpa
        from lpa_cwm.errors import InputError
        from lpa_cwm.evaluation.audit import audit, counts_of_right
        from lpa_cwm.files import figure_path
        from lpa_cwm.metrics.measures import plain
        from lpa_cwm.registry import bundled_lpa
        from lpa_cwm.report.audit import choice, draw, table
        from lpa_cwm.training.feature_cache import read
        from lpa_cwm.training.lpa import weigh
        from lpa_cwm.types import Judgement

        figure = figure_path(self.out) if self.out else None
        groups, videos = read(self.cache)
        seen = groups.seen
        rows = seen if self.within is None else seen[groups.least[seen] <= self.within]
        if not len(rows):
            raise InputError(f"No group of {self.cache} can be audited; give visible points, or a wider --within.")
        groups, videos = groups.at(rows), [videos[row] for row in rows.tolist()]
        given = {
            "uniform": Judgement.of(torch.ones_like(groups.analytic)),
            "apa": Judgement.of(groups.analytic),
            "lpa": weigh(load_lpa(self.weights or bundled_lpa()), groups, torch.arange(len(groups))),
        }
        beliefs, right = audit(groups, videos, given), counts_of_right(groups)
        if figure:
            draw(beliefs, figure)
        if self.json:
            counted = {"groups": len(groups), "videos": len(set(videos)), "right": right}
            counted["written"] = self.out and str(self.out)
            print(json.dumps(counted | {"beliefs": {name: plain(asdict(belief)) for name, belief in beliefs.items()}}))
            return
        print(f"{len(groups)} groups of {len(set(videos))} videos")
        print(table(beliefs))
        print(choice(right))
        if self.out:
            print(self.out)
