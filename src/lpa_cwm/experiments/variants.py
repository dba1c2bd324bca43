"""The paper's ablations as a list of named configurations; standard library only."""

from dataclasses import dataclass, field
from typing import Literal

from lpa_cwm.config import Method

Block = Literal["architecture", "objective", "localisation"]


@dataclass(frozen=True)
class Variant:
    """One row of the ablation table."""

    name: str
    block: Block
    method: str = "lpa"
    training: dict[str, bool | float] = field(default_factory=dict)
    """Options of the training that differ from the full ones."""
    numbers: Method = field(default_factory=Method)


STANDARD = Method(localise="standard")

VARIANTS = (
    Variant("uniform-windowed", "localisation", "uniform"),
    Variant("apa-windowed", "localisation", "apa"),
    Variant("lpa-windowed", "localisation"),
    Variant("uniform-standard", "localisation", "uniform", numbers=STANDARD),
    Variant("apa-standard", "localisation", "apa", numbers=STANDARD),
    Variant("lpa-standard", "localisation", numbers=STANDARD),
    Variant("no-interaction", "architecture", training={"interaction": False}),
    Variant("response-and-scalars", "architecture", training={"visual": False}),
    Variant("no-sight", "architecture", training={"sight": False}),
    Variant("kl-only", "objective", training={"coordinate": 0.0, "best": 0.0, "visibility": 0.0, "answer": 0.0}),
    Variant("kl-and-coordinate", "objective", training={"best": 0.0, "visibility": 0.0, "answer": 0.0}),
    Variant("kl-and-best", "objective", training={"coordinate": 0.0, "visibility": 0.0, "answer": 0.0}),
    Variant("no-answer", "objective", training={"answer": 0.0}),
    Variant("paper-objective", "objective", training={"visibility": 0.0, "answer": 0.0}),
)
"""`uniform-windowed` is the architecture block's reference, `lpa-windowed` the full model of all three blocks."""
