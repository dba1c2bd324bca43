"""Settings of the test suite."""

import pytest
from hypothesis import settings

# Deadlines measure the machine, not the code.
settings.register_profile("lpa-cwm", deadline=None)
settings.load_profile("lpa-cwm")


LONGEST = ("test_ablate", "test_lpa_training", "test_demo", "test_docs", "test_reproduction")
"""Files that take longest, which begin first: otherwise one process works on the last of them alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order is stable otherwise."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
