"""Rollouts: what is recorded is what the tracker adjudicated, and LPA reads paths."""

from dataclasses import replace
from pathlib import Path

import torch

from lpa_cwm.adjudicators.apa import APA, uniform
from lpa_cwm.adjudicators.features import STATISTICS, extract
from lpa_cwm.adjudicators.lpa import LPA, load_lpa, save_lpa
from lpa_cwm.config import Selection, TrackerConfig
from lpa_cwm.tracker import track_many
from lpa_cwm.training.feature_cache import FeatureRecorder, RolloutJob, RolloutRecorder, fill_cache, read_cache
from lpa_cwm.training.lpa import LpaTraining, add_path_encoder, keep_sources, train_lpa
from lpa_cwm.types import Queries, Sample
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth

SIZE, FRAMES = 64, 9
CONFIG = TrackerConfig(masks=4, gap_masks=2, gaps=(1, 3), passes=0, visibility_threshold=0.5)
WORLD = ToyWorld(error=6.0, wrong=0.4, size=SIZE, sigma=2.0)


class ToyRollouts:
    """Clips of the toy world; points are queried in the first frame."""

    name, path, selection = "toy", Path("toy"), Selection()
    names = tuple(f"toy{index}" for index in range(12, 24))

    def fingerprint(self, index: int) -> str:
        return str(index)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Sample:
        motion = ToyMotion(shift=(0.01, 0.004 * index), turn=0.01)
        queries = Queries(torch.tensor([[20.0, 30.0], [40.5, 25.0], [30.0, 44.0]]), torch.zeros(3).long())
        clip = toy_clip(motion, FRAMES, (SIZE, SIZE), self.names[index])
        return Sample(clip, queries, toy_truth(motion, queries, FRAMES, (SIZE, SIZE)))


def recorder() -> RolloutRecorder:
    features = FeatureRecorder(WORLD, APA(lambda frames: frames))
    return RolloutRecorder(features, uniform, CONFIG, queries=3, stride=2)


def test_recorded_sets_are_those_the_tracker_meets():
    sample = ToyRollouts()[3]
    met = []

    def watch(pair, candidates):
        if candidates.strength.shape[1] == 8:
            met.append((extract(pair, candidates), candidates.peak))
        return uniform(pair, candidates)

    track_many(WORLD, {"watch": watch}, sample.clip, sample.queries, config=CONFIG)
    sets = recorder().record(sample, sample.clip.name)
    assert sets is not None
    # Complete sets begin in frame 4; every second one is kept.
    kept = met[::2]
    assert torch.equal(sets.peak, torch.cat([peak for _, peak in kept]))
    assert torch.equal(sets.statistics, torch.cat([features.statistics for features, _ in kept]))
    gap, belief, given, step, age = sets.statistics[..., STATISTICS:].unbind(-1)
    assert given[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert gap[0].exp2().round().tolist() == [4, 4, 4, 4, 1, 1, 3, 3]
    assert (belief[given.bool()] == 1).all()
    assert (step >= 0).all()
    assert (age == age[:, :1]).all()


def test_sources_of_gaps_are_the_trackers_own_estimates():
    sample = ToyRollouts()[3]
    sets = recorder().record(sample, "toy3")
    assert sets is not None
    # With this much error of the world model, later candidates start from drifted places.
    assert not torch.equal(sets.peak[:, 4], sets.end.round())


def test_candidates_of_a_gap_are_left_out_together():
    sets = recorder().record(ToyRollouts()[0], "toy0")
    assert sets is not None
    seen = set()
    for step in range(64):
        keep = keep_sources(sets.statistics[0], step, LpaTraining(source_dropout=0.5))
        assert keep[:4].all()
        assert keep[4] == keep[5]
        assert keep[6] == keep[7]
        seen.add(tuple(keep.tolist()))
    assert len(seen) == 4
    assert keep_sources(sets.statistics[0], 0, LpaTraining(source_dropout=0.0)).all()


def test_an_added_path_encoder_changes_nothing_at_first(tmp_path):
    network = LPA().eval()
    sample = ToyRollouts()[0]
    found = []

    def judge(pair, candidates):
        found.append((pair, candidates))
        return uniform(pair, candidates)

    track_many(WORLD, {"judge": judge}, sample.clip, sample.queries, config=CONFIG)
    before = network(*found[-1]).weights
    add_path_encoder(network, LpaTraining(path=True))
    assert torch.equal(network(*found[-1]).weights, before)
    assert network.path_encoder is not None
    assert sum(p.numel() for p in network.path_encoder.parameters()) == 1536
    torch.nn.init.normal_(network.path_encoder.weight)
    after = network(*found[-1]).weights
    assert not torch.allclose(after, before)
    save_lpa(tmp_path / "lpa.safetensors", network.architecture, network.state_dict(), {})
    assert torch.equal(load_lpa(tmp_path / "lpa.safetensors")(*found[-1]).weights, after)


def test_lpa_trains_on_rollouts(tmp_path):
    job = RolloutJob(ToyRollouts(), recorder)
    counts = dict(fill_cache(job, tmp_path / "cache"))
    sets, _ = read_cache(tmp_path / "cache")
    assert sum(counts.values()) == len(sets) > 0
    training = LpaTraining(steps=3, batch=4, save_every=3, path=True, source_dropout=0.5, max_oracle_error=64.0)
    path = train_lpa([tmp_path / "cache"], tmp_path / "out", training)
    assert load_lpa(path).architecture["path"]
    plain = train_lpa([tmp_path / "cache"], tmp_path / "plain", replace(training, path=False))
    assert "path" not in load_lpa(plain).architecture
