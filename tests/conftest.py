"""Settings of the test suite."""

import pytest
from hypothesis import settings

# Deadlines measure the machine, not the code.
settings.register_profile("lpa-cwm", deadline=None)
settings.load_profile("lpa-cwm")


LONGEST = [
    "worker",
    "track_command",
    "page",
    "lpa_training",
    "page_security",
    "ablate",
    "cli",
    "docs",
    "predict",
    "safe_load",
    "examples",
    "durability",
    "download",
    "reproduction",
    "python_api",
    "features",
    "rollouts",
    "ray",
    "native_size",
    "score_model_adm",
    "sweep",
    "layered",
]
"""Files that take longest, which begin first: otherwise one process works on the last of them alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order is stable otherwise, and `--no-loadscope-reorder` keeps it."""
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
