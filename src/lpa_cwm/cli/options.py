"""Options that several commands share; each is declared once."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class TrackerOptions:
    """Settings of the tracker; those that are not given are the world model's own."""

    masks: int | None = None
    """Masks, and so candidate responses, per query and target (M)."""
    passes: int | None = None
    """Re-evaluations after the first localization (R)."""
    windows: int | None = None
    """Gaussian windows before the maximum of the response distribution is taken; 0 takes it at once."""
    sharpness: float | None = None
    """Inverse temperature of the response distribution (beta)."""
    visibility_threshold: float | None = None
    """Response strength from which a point counts as visible."""
    mask_sharing: Literal["pair", "query"] | None = None
    """First masks shared by all queries of a frame pair, or drawn for each query."""
    reevaluation: Literal["query", "joint"] | None = None
    """Masks of the re-evaluation: edited for each query, or for 32 queries at once."""
    subpixel: bool | None = None
    """Refine the endpoint between pixels; the paper answers with a pixel's center."""
    batch: int | None = None
    """Queries whose responses are in memory at once."""

    def given(self) -> dict[str, Any]:
        """The settings that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}
