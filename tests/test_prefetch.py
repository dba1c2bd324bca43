"""Batches made ahead by background processes are those of their steps."""

from dataclasses import dataclass

import pytest
import torch

from lpa_cwm.training.flow_pairs import prefetch


@dataclass(frozen=True)
class Numbered:
    """Batches that carry their own number."""

    def __getitem__(self, step):
        return torch.full((3,), step)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_from_any_step_with_any_number_of_workers(workers):
    assert [batch.tolist() for batch in prefetch(Numbered(), range(2, 7), workers)] == [[k] * 3 for k in range(2, 7)]


def test_prefetching_leaves_global_randomness_alone():
    state = torch.get_rng_state()
    assert next(prefetch(Numbered(), range(80, 2**62), 0)).tolist() == [80] * 3
    assert torch.equal(state, torch.get_rng_state())
