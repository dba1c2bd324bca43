"""Trackers for `torch.hub.load`: `torch.hub.load("path/to/lpa-cwm", "lpa", source="local")`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "src"))
dependencies = ["torch", "av", "einops", "huggingface_hub", "jaxtyping", "numpy", "PIL", "rich", "safetensors"]


def lpa(**settings: Any) -> Any:
    """Our tracker with learned adjudication; settings are those of `lpa_cwm.load`."""
    return tracker("lpa", **settings)


def apa(**settings: Any) -> Any:
    """Our tracker with analytic adjudication."""
    return tracker("apa", **settings)


def uniform(**settings: Any) -> Any:
    """Our tracker with equal weights of all candidates."""
    return tracker("uniform", **settings)


def tracker(method: str = "lpa", **settings: Any) -> Any:
    """Any method by its name, baselines too; `tracker.track(clip, queries)` gives tracks."""
    import lpa_cwm

    return lpa_cwm.load(method, **settings)
