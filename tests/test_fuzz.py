"""A short run of the fuzzer (`make fuzz` does a long one): no damaged file may cause more than a sentence."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))

from readers import READERS, write_seeds

import fuzz

LARGE = ("weights", "RAFT", "video", "checkpoint")
"""Readers that take long to import or to try."""


@pytest.mark.parametrize("name", [name for name in READERS if not any(part in name for part in LARGE)])
def test_damaged_files_are_read_or_refused(tmp_path, name):
    write_seeds(tmp_path / "seeds", [name])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    results = [fuzz.read_one(name, number, 0, tmp_path / "seeds", scratch) for number in range(12)]
    assert not [(number, why) for number, (result, why) in enumerate(results) if result not in ("ok", "refused")]
    assert "refused" in [result for result, _ in results]


@pytest.mark.slow
def test_children_that_die_or_hang_are_counted():
    """The fuzzer itself: a longer run over all readers, in child processes."""
    counts, bad = fuzz.run(600, seed=5)
    assert not bad, bad
    assert sum(found.total() for found in counts.values()) >= 590
