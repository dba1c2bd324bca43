"""Point motion from counterfactual world models.

Names are imported on first use, so that `lpa_cwm.metrics` works with numpy alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpa_cwm import metrics as metrics

__version__ = "0.1.0"

_HOMES = {
    "Clip": "types",
    "InputError": "errors",
    "Queries": "types",
    "Tracks": "types",
    "metrics": "",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lpa_cwm' has no attribute {name!r}")
    if not _HOMES[name]:
        return importlib.import_module(f"lpa_cwm.{name}")
    return getattr(importlib.import_module(f"lpa_cwm.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
