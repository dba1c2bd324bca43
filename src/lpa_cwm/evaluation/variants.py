"""The paper's ablations as a list of named configurations; standard library only."""

from dataclasses import dataclass, field
from typing import Literal

Block = Literal["architecture", "objective", "localization"]


@dataclass(frozen=True)
class Variant:
    """One row of the ablation table."""

    name: str
    block: Block
    method: str = "lpa"
    training: dict[str, bool | float] = field(default_factory=dict)
    """Options of the training that differ from the full ones."""
    settings: dict[str, int] = field(default_factory=dict)
    """Settings of the tracker that differ from the default ones."""


STANDARD = {"windows": 0}
NOT_IN_PAPER = {"visibility": 0.0, "decoded_weight": 0.0}

VARIANTS = (
    Variant("uniform-windowed", "localization", "uniform"),
    Variant("apa-windowed", "localization", "apa"),
    Variant("lpa-windowed", "localization"),
    Variant("uniform-standard", "localization", "uniform", settings=STANDARD),
    Variant("apa-standard", "localization", "apa", settings=STANDARD),
    Variant("lpa-standard", "localization", settings=STANDARD),
    Variant("no-interaction", "architecture", training={"interaction": False}),
    Variant("response-and-scalars", "architecture", training={"visual": False}),
    Variant("no-sight", "architecture", training={"visibility_head": False}),
    Variant("kl-only", "objective", training={"coordinate": 0.0, "rank_weight": 0.0, **NOT_IN_PAPER}),
    Variant("kl-and-coordinate", "objective", training={"rank_weight": 0.0, **NOT_IN_PAPER}),
    Variant("kl-and-best", "objective", training={"coordinate": 0.0, **NOT_IN_PAPER}),
    Variant("no-answer", "objective", training={"decoded_weight": 0.0}),
    Variant("paper-objective", "objective", training={**NOT_IN_PAPER}),
)
"""`uniform-windowed` is the architecture block's reference, `lpa-windowed` the full model of all three blocks."""
