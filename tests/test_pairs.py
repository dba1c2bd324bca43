"""Mixtures and streams are functions of the number alone."""

from dataclasses import dataclass

import pytest
import torch

from lpa_cwm.errors import InputError
from lpa_cwm.synth.pairs import Example, Mixture, PairSource, Stream


@dataclass(frozen=True)
class Numbered:
    """Frames that carry their own number."""

    name: str

    def pair(self, index: int, size: int) -> Example:
        frame = torch.full((3, size, size), index % 256, dtype=torch.uint8)
        return Example(frame, frame)


MIXTURE = Mixture((Numbered("a"), Numbered("b")), (3.0, 1.0), seed=5)


def test_a_mixture_is_itself_a_source():
    assert isinstance(MIXTURE, PairSource)


def test_sources_are_drawn_by_weight_and_independently_of_order():
    names = [MIXTURE.source_of(index).name for index in range(2000)]
    assert names.count("a") / len(names) == pytest.approx(0.75, abs=0.03)
    assert [MIXTURE.source_of(index).name for index in reversed(range(2000))] == names[::-1]
    other = Mixture(MIXTURE.sources, MIXTURE.weights, seed=6)
    assert names != [other.source_of(index).name for index in range(2000)]


def test_a_source_of_weight_zero_is_never_drawn():
    mixture = Mixture((Numbered("a"), Numbered("b"), Numbered("c")), (0.0, 1.0, 0.0))
    assert {mixture.source_of(index).name for index in range(300)} == {"b"}


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0), (0.0, 0.0)])
def test_bad_weights_are_refused(weights):
    with pytest.raises(InputError, match="weight"):
        Mixture(MIXTURE.sources, weights)


def numbers(batches):
    return [batch.source[:, 0, 0, 0].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_starts_anywhere_with_any_number_of_workers(workers):
    stream = Stream(MIXTURE, size=4, batch=3, workers=workers)
    assert numbers(stream.batches(2, 7)) == [[3 * k, 3 * k + 1, 3 * k + 2] for k in range(2, 7)]


def test_a_stream_has_no_end_and_leaves_global_randomness_alone():
    state = torch.get_rng_state()
    endless = Stream(MIXTURE, size=2, batch=1).batches(80)
    assert [next(endless).source[0, 0, 0, 0].item() for _ in range(3)] == [80, 81, 82]
    assert torch.equal(state, torch.get_rng_state())
