"""LPA: the paper's size, its symmetry, its files."""

import pytest
import torch
from safetensors.torch import save_file

from dense_candidates import dense_candidates
from lpa_cwm.adjudicators.apa import uniform
from lpa_cwm.adjudicators.features import STATISTICS
from lpa_cwm.adjudicators.lpa import LPA, load_lpa, save_lpa, zero_init_head
from lpa_cwm.errors import InputError
from lpa_cwm.types import Pair


def example(n=2, m=5, size=48, seed=0):
    draw = torch.Generator().manual_seed(seed)
    frames = torch.rand(2, 3, size, size, generator=draw)
    response = torch.randn(n, m, 3, size, size, generator=draw)
    peak = torch.rand(n, m, 2, generator=draw) * size
    return Pair(frames[0], frames[1], torch.rand(n, 2, generator=draw) * size), dense_candidates(response, peak)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return LPA().eval()


def test_it_has_the_papers_3_000_257_parameters(network):
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_000_257


def test_the_visibility_head_is_one_more_head():
    assert sum(parameter.numel() for parameter in LPA(visibility_head=True).parameters()) == 3_000_257 + 33_537


def test_there_is_no_position_anywhere(network):
    assert not [name for name, _ in network.named_parameters() if "pos" in name]


@pytest.mark.parametrize("ablation", [{}, {"interaction": False}, {"visual": False}])
def test_weights_are_a_distribution_and_follow_permutations(ablation):
    torch.manual_seed(1)
    adjudicator = LPA(**ablation).eval()
    pair, candidates = example()
    weights = adjudicator(pair, candidates).weights
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    order = torch.randperm(5)
    permuted = adjudicator(
        pair, dense_candidates(candidates.response.dense()[:, order], candidates.peak[:, order])
    ).weights
    torch.testing.assert_close(permuted, weights[:, order], atol=1e-5, rtol=1e-4)


@pytest.fixture
def seeing():
    """A network whose visibility head is not as it was initialized."""
    torch.manual_seed(4)
    network = LPA(visibility_head=True).eval()
    torch.nn.init.normal_(network.visibility_head[-1].weight)
    return network


def assert_same(one, other):
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.visibility, other.visibility)


def save(network, path):
    save_lpa(path, network.architecture, network.state_dict(), {})


def test_the_visibility_head_does_not_change_the_weights(seeing):
    pair, candidates = example()
    given = seeing(pair, candidates)
    head, seeing.visibility_head = seeing.visibility_head, None
    without = seeing(pair, candidates)
    torch.testing.assert_close(given.weights, without.weights)
    assert torch.equal(without.visibility, torch.ones(2))
    assert ((given.visibility - 1).abs() > 0.05).all()
    seeing.visibility_head = head
    order = torch.randperm(5)
    permuted = seeing(pair, dense_candidates(candidates.response.dense()[:, order], candidates.peak[:, order]))
    torch.testing.assert_close(permuted.weights, given.weights[:, order], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(permuted.visibility, given.visibility, atol=1e-5, rtol=1e-4)


def test_the_visibility_factor_starts_at_one(network):
    pair, candidates = example()
    before = network(pair, candidates)
    network.visibility_head = zero_init_head()
    assert_same(network(pair, candidates), before)


def test_the_visibility_head_travels_with_the_weights(seeing, tmp_path):
    save(seeing, tmp_path / "lpa.safetensors")
    assert_same(load_lpa(tmp_path / "lpa.safetensors")(*example()), seeing(*example()))


def test_without_interaction_a_candidates_score_ignores_the_others():
    torch.manual_seed(2)
    adjudicator = LPA(interaction=False).eval()
    pair, candidates = example()
    full = adjudicator(pair, candidates).weights.log()
    part = adjudicator(pair, dense_candidates(candidates.response.dense()[:, :2], candidates.peak[:, :2])).weights.log()
    torch.testing.assert_close(full[:, 0] - full[:, 1], part[:, 0] - part[:, 1], atol=1e-4, rtol=1e-4)


def test_without_visual_cues_the_frames_matter_only_through_statistics():
    torch.manual_seed(3)
    adjudicator = LPA(visual=False).eval()
    pair, candidates = example()
    # A constant added to both frames changes no difference and no edge.
    lighter = Pair(pair.source + 0.1, pair.target + 0.1, pair.xy)
    lit, unlit = (adjudicator(one, candidates).weights for one in (lighter, pair))
    torch.testing.assert_close(lit, unlit, atol=1e-5, rtol=1e-4)


def test_queries_do_not_influence_each_other(network):
    pair, candidates = example(n=3)
    together = network(pair, candidates).weights
    for row in range(3):
        one = slice(row, row + 1)
        alone = network(
            Pair(pair.source, pair.target, pair.xy[one]),
            dense_candidates(candidates.response.dense()[one], candidates.peak[one]),
        )
        torch.testing.assert_close(alone.weights, together[one], atol=1e-5, rtol=1e-4)


def test_normalization_travels_with_the_weights(network, tmp_path):
    network.mean += 2
    network.std *= 3
    save(network, tmp_path / "lpa.safetensors")
    loaded = load_lpa(tmp_path / "lpa.safetensors")
    pair, candidates = example()
    assert_same(loaded(pair, candidates), network(pair, candidates))
    assert torch.equal(loaded.mean, torch.full((STATISTICS,), 2.0))


def test_wrong_weights_get_a_sentence(network, tmp_path):
    path = tmp_path / "lpa.safetensors"
    with pytest.raises(InputError, match="no LPA weights"):
        load_lpa(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="is not a file of weights"):
        load_lpa(path)
    save_file(network.state_dict(), path)
    with pytest.raises(InputError, match="is not a file of weights"):
        load_lpa(path)
    state = network.state_dict()
    del state["mean"]
    save_lpa(path, network.architecture, state, {})
    with pytest.raises(InputError, match="is not a file of weights"):
        load_lpa(path)
    save_lpa(path, network.architecture, {**network.state_dict(), "mean": torch.zeros(3)}, {})
    with pytest.raises(InputError, match="is not a file of weights"):
        load_lpa(path)


def test_uniform_is_uniform():
    weights = uniform(*example(m=4)).weights
    assert torch.equal(weights, torch.full((2, 4), 0.25))
