"""Feature cache and LPA training on toy videos: equal candidates, exact resumption, and that it learns."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.adjudicators.features import STATISTICS, extract
from lpa_cwm.adjudicators.lpa import LPA, load_lpa, save_lpa
from lpa_cwm.cli.main import main
from lpa_cwm.config import Selection
from lpa_cwm.datasets.movif import MoviClips
from lpa_cwm.errors import InputError
from lpa_cwm.io.safe_load import load_safetensors
from lpa_cwm.jobs import Shard
from lpa_cwm.probe import first_pass, observe_pair
from lpa_cwm.rng import generator
from lpa_cwm.simulator.clip import write_records
from lpa_cwm.tracker import track_many
from lpa_cwm.training import lpa
from lpa_cwm.training.feature_cache import FORMAT, FeatureRecorder, RecordingJob, fill_cache, read_cache
from lpa_cwm.training.loop import StepLoss
from lpa_cwm.training.lpa import Objective, endpoint_error
from lpa_cwm.training.pair_sampling import FlowPairSampler, TrackPairSampler
from lpa_cwm.types import Judgement, Queries, Sample
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth
from movi_files import drift

SIZE = 64
WORLD = ToyWorld(error=9.0, wrong=0.6, size=SIZE, sigma=2.0)


class ToyVideos:
    """Videos of the toy world with random motion and random tracks."""

    name, path, selection = "toy", Path("toy"), Selection()

    def __init__(self, count):
        self.count = count

    @property
    def names(self):
        return [f"toy{index}" for index in range(self.count)]

    def fingerprint(self, index):
        return str(index)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draw = generator("toy video", index)
        shift = (torch.rand(2, generator=draw) * 0.06 - 0.03).tolist()
        motion = ToyMotion(shift=(shift[0], shift[1]), turn=0.02)
        queries = Queries(8 + 48 * torch.rand(12, 2, generator=draw), torch.zeros(12).long())
        hw = (SIZE, SIZE)
        return Sample(toy_clip(motion, 5, hw, f"toy{index}"), queries, toy_truth(motion, queries, 5, hw))


def edges(frames):
    """A stand-in score model."""
    return frames - frames.mean((2, 3), keepdim=True)


def correspondences(videos, **options):
    return TrackPairSampler(ToyVideos(videos), [f"toy{i}" for i in range(videos)], gaps=(1, 4), **options)


RECORDER = FeatureRecorder(WORLD, APA(edges), {"masks": 5}, batch=3)


def job():
    return RecordingJob(correspondences(24, pairs=1, queries=4), lambda: RECORDER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("cache")
    counts = dict(fill_cache(job(), out))
    assert sum(counts.values()) > 60
    return out


def test_cached_inputs_are_what_the_adjudicator_sees(folder):
    groups, videos = read_cache(folder)
    source = correspondences(24, pairs=1, queries=4)
    first = next(source.pairs_of(0))
    config = replace(WORLD.defaults, masks=5)
    observed = observe_pair(WORLD, first.source, first.target, ("clip", *first.identity), config, "cpu")
    _, pair, candidates = next(first_pass(observed, first.xy))
    features = extract(pair, candidates)
    rows = torch.arange(len(first.xy))
    local, response, context, statistics = groups.inputs(rows)
    torch.testing.assert_close(local, features.local, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(response, features.response, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(context[0], features.context, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(statistics, features.statistics)
    torch.testing.assert_close(groups.strength[rows], candidates.strength)
    assert videos[: len(rows)] == ["toy0"] * len(rows)
    torch.testing.assert_close(groups.apa_weights.sum(1), torch.ones(len(groups)))
    assert groups.response_sigma.unique().tolist() == [WORLD.sigma]


def test_training_and_tracking_see_the_same_candidates():
    """What is recorded of a frame pair is what `track_many` shows an adjudicator for the same frames and points."""
    sampler = correspondences(3, pairs=2, queries=4)
    recorder = FeatureRecorder(WORLD, APA(edges))
    for video in range(3):
        clip = sampler.dataset[video].clip
        for pair in sampler.pairs_of(video):
            _, source, target = pair.identity
            seen = {}

            def spy(observed, candidates, seen=seen):
                seen.setdefault(len(seen), (observed, candidates))
                return Judgement.of(torch.ones_like(candidates.peak[..., 0]))

            queries = Queries(pair.xy, torch.full((len(pair.xy),), source))
            track_many(WORLD, {"spy": spy}, clip, queries)
            observed, candidates = seen[target - source - 1]
            recorded, features = recorder.record(pair), extract(observed, candidates)
            assert torch.equal(recorded.peak, candidates.peak)
            assert torch.equal(recorded.statistics, features.statistics)
            assert torch.equal(recorded.target, features.local[:, :, 3:6].half())
            assert torch.equal(recorded.response, features.response[:, :, 0].half())


def test_a_cache_of_other_features_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMAT, "statistics", FORMAT["statistics"][:-1])
    with pytest.raises(InputError, match="holds other features"):
        read_cache(folder)


def test_training_without_a_cache_is_explained(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "lpa", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "cache" in capsys.readouterr().err


def test_shards_together_are_the_whole(folder, tmp_path):
    for index in range(2):
        list(fill_cache(job(), tmp_path, shard=Shard(index + 1, 2)))
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_a_second_run_asks_the_world_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    list(fill_cache(job(), folder))
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_videos_are_on_one_side_of_the_split(folder):
    groups, videos = read_cache(folder)
    train, held = lpa.split_train_val(videos)
    assert len(train) + len(held) == len(groups)
    assert not {videos[row] for row in train.tolist()} & {videos[row] for row in held.tolist()}


def test_statistics_of_the_training_split_become_standard(folder):
    groups, videos = read_cache(folder)
    train, _ = lpa.split_train_val(videos)
    network = LPA()
    lpa.standardize(network, groups, train)
    rows = (lpa.compress(groups.statistics[train, :, :STATISTICS]).flatten(0, 1) - network.mean) / network.std
    varied = network.std > 1e-3
    assert varied.sum() >= 12
    torch.testing.assert_close(rows.mean(0)[varied], torch.zeros(int(varied.sum())), atol=1e-3, rtol=0)
    torch.testing.assert_close(rows.std(0, correction=0)[varied], torch.ones(int(varied.sum())), atol=1e-3, rtol=0)


def test_an_interrupted_training_ends_like_an_uninterrupted_one(folder, tmp_path, monkeypatch):
    training = lpa.LpaTraining(steps=6, batch=4, save_every=2)
    whole = lpa.train_lpa([folder], tmp_path / "whole", training)
    step_loss, calls = lpa.step_loss, []

    def dying(*arguments):
        calls.append(1)
        if len(calls) in (4, 7):
            raise KeyboardInterrupt
        return step_loss(*arguments)

    monkeypatch.setattr(lpa, "step_loss", dying)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            lpa.train_lpa([folder], tmp_path / "parts", training)
    parts = lpa.train_lpa([folder], tmp_path / "parts", training)
    assert whole.read_bytes() == parts.read_bytes()
    assert (tmp_path / "whole/log.jsonl").read_text() == (tmp_path / "parts/log.jsonl").read_text()


def test_other_settings_are_not_mixed_in(folder, tmp_path):
    training = lpa.LpaTraining(steps=2, batch=4, save_every=2)
    lpa.train_lpa([folder], tmp_path, training)
    with pytest.raises(InputError, match="rate"):
        lpa.train_lpa([folder], tmp_path, replace(training, rate=1e-3))


def test_it_learns_to_tell_right_candidates_from_wrong_ones(folder, tmp_path):
    path = lpa.train_lpa([folder], tmp_path, lpa.LpaTraining(steps=24, batch=16, save_every=12, rate=1e-3))
    groups, videos = read_cache(folder)
    _, held = lpa.split_train_val(videos)
    weights = lpa.predict_sets(load_lpa(path), groups, held).weights
    learned = endpoint_error(weights, groups.peak[held], groups.end[held]).mean()
    uniform = endpoint_error(torch.full((len(held), 5), 0.2), groups.peak[held], groups.end[held]).mean()
    assert learned < 0.6 * uniform
    errors = [json.loads(line)["val_error"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    # What is written has half precision.
    assert min(errors) == pytest.approx(learned.item(), rel=5e-3)


def test_the_best_or_the_last_weights_are_kept(folder, tmp_path, monkeypatch):
    """The held-out error is made to rise, so that the best weights are the first ones."""
    errors = iter(range(100))
    monkeypatch.setattr(lpa, "val_error", lambda *_: float(next(errors)))
    kept = {}
    for keep in ("best", "last"):
        training = lpa.LpaTraining(steps=2, batch=4, save_every=1, rate=1e-2, keep=keep)
        kept[keep] = lpa.train_lpa([folder], tmp_path / keep, training)
        provenance = json.loads(load_safetensors(kept[keep])[1]["about"])
        assert provenance["val_error"] == (0.0 if keep == "best" else 3.0)
    first, last = (load_lpa(kept[keep]).state_dict()["token.0.weight"] for keep in ("best", "last"))
    assert not torch.equal(first, last)


def test_a_training_begins_where_it_is_told(folder, tmp_path):
    """With no update left to make, what is written is what it began with, statistics included."""
    first = lpa.train_lpa([folder], tmp_path / "first", lpa.LpaTraining(steps=2, batch=4, save_every=1))
    start = load_lpa(first)
    start.mean.add_(1.0)
    again = lpa.train_lpa(
        [folder], tmp_path / "again", lpa.LpaTraining(steps=1, batch=4, rate=0.0, init="first"), init=start
    )
    weights, before = load_lpa(again).state_dict(), load_lpa(first).state_dict()
    assert all(torch.equal(weights[name], before[name] + (name == "mean")) for name in before)
    with pytest.raises(InputError, match="init"):
        lpa.train_lpa([folder], tmp_path / "again", lpa.LpaTraining(steps=1, batch=4, rate=0.0))


def test_weights_of_another_network_are_no_start(folder, tmp_path, capsys):
    first = lpa.train_lpa([folder], tmp_path / "first", lpa.LpaTraining(steps=1, batch=4, visual=False))
    with pytest.raises(SystemExit):
        main(["train", "lpa", str(folder), "--init", str(first), "--out", str(tmp_path / "other")])
    assert "visual False" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_visibility_is_learned_only_where_points_are_hidden(folder):
    groups, _ = read_cache(folder)
    direct = replace(lpa.LpaTraining(), path=False)
    without = replace(direct, objective=Objective(visibility=0.0), visibility_head=False)
    assert lpa.disable_unused_terms(lpa.LpaTraining(), groups) == without
    end = groups.end.clone()
    end[0] = torch.nan
    some = replace(groups, end=end)
    assert lpa.disable_unused_terms(lpa.LpaTraining(), some) == direct
    assert lpa.disable_unused_terms(replace(lpa.LpaTraining(), objective=Objective(visibility=0.0)), some) == without


def updates(network, groups, rows, training, count=1):
    """Some updates on the same candidate sets; the losses."""
    loop = lpa.make_loop(network, Path("unused"), training, groups)

    def loss_of(step, rows):
        loss = lpa.step_loss(network, groups, rows, step, training)
        return StepLoss(loss, {"loss": loss.item()})

    return [loop.update(rows, loss_of)["loss"] for _ in range(count)]


def test_a_visibility_head_is_added_to_a_network_without_one_and_learns(folder):
    groups, videos = read_cache(folder)
    train, _ = lpa.split_train_val(videos)
    groups = replace(groups, end=groups.end.clone(), target=groups.target.clone())
    groups.end[train[1::2]] = torch.nan
    groups.target[train[1::2]] = 0
    network = lpa.init_network(lpa.LpaTraining(), groups, train)
    before = lpa.predict_sets(network, groups, train)
    assert lpa.add_visibility_head(network, lpa.LpaTraining(visibility_head=False)).visibility_head is None
    network = lpa.add_visibility_head(network, lpa.LpaTraining())
    after = lpa.predict_sets(network, groups, train)
    assert torch.equal(after.weights, before.weights)
    assert torch.equal(after.visibility, before.visibility)
    updates(network.train(), groups, train[:16], lpa.LpaTraining(rate=1e-3, augment=False), 20)
    visibility = lpa.predict_sets(network, groups, train[:16]).visibility
    assert visibility[0::2].mean() > 1.2 * visibility[1::2].mean()


def test_a_network_with_a_visibility_head_is_no_start_for_one_without(folder, tmp_path, capsys):
    start, network = tmp_path / "start.safetensors", LPA(visibility_head=True)
    save_lpa(start, network.architecture, network.state_dict(), {})
    with pytest.raises(SystemExit):
        main(
            [
                "train",
                "lpa",
                str(folder),
                "--init",
                str(start),
                "--no-visibility-head",
                "--out",
                str(tmp_path / "other"),
            ]
        )
    assert "visibility head True" in capsys.readouterr().err


def test_no_gradient_is_longer_than_the_clip(folder):
    """However far apart the candidates of a set lie."""
    groups, videos = read_cache(folder)
    train, _ = lpa.split_train_val(videos)
    groups = replace(groups, peak=groups.peak * 1000)
    network = LPA()
    updates(network, groups, train[:4], lpa.LpaTraining(clip=0.5))
    gradients = [parameter.grad.norm() for parameter in network.parameters() if parameter.grad is not None]
    assert torch.stack(gradients).norm().item() == pytest.approx(0.5, rel=1e-3)


def test_bfloat16_hardly_changes_an_update(folder):
    """Weights stay in full precision; only what flows through the network is rounded."""
    groups, videos = read_cache(folder)
    train, _ = lpa.split_train_val(videos)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = LPA()
    losses = {}
    for autocast in (False, True):
        network = copy.deepcopy(start)
        losses[autocast] = updates(network, groups, train[:4], lpa.LpaTraining(autocast=autocast))[0]
        assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


def test_sets_whose_candidates_disagree_are_shown_more_often(folder):
    groups, _ = read_cache(folder)
    agree = groups.peak.clone()
    agree[::2] = agree[::2, :1] + torch.rand(len(agree[::2]), 5, 2)
    agree[1::2, 0] = agree[1::2, 1] + 20
    groups, rows = replace(groups, peak=agree), torch.arange(len(groups))
    assert lpa.oversample_ambiguous(groups, rows, 3).bincount().tolist() == [1 if row % 2 == 0 else 3 for row in rows]
    assert lpa.oversample_ambiguous(groups, rows, 1).sort().values.equal(rows)
    with pytest.raises(InputError, match="--oversample 1"):
        lpa.oversample_ambiguous(groups, rows, 0)


def test_too_few_videos_are_refused(tmp_path):
    with pytest.raises(InputError, match="no candidate sets"):
        read_cache(tmp_path)
    with pytest.raises(InputError, match="cache more"):
        lpa.split_train_val(["one"] * 5)


def test_records_give_adjacent_frames_and_endpoints_by_their_flow(tmp_path):
    write_records(
        tmp_path / "movi_f-train.tfrecord-00000-of-00001", iter([drift((3, -2), name=str(i)) for i in range(4)])
    )
    source = FlowPairSampler(MoviClips.of(tmp_path, "train"), pairs=2, queries=5)
    assert len(source.videos) > 0
    found = list(source.pairs_of(0))
    assert len(found) == 2
    for one in found:
        assert one.identity[2] == one.identity[1] + 1
        assert one.source.shape == (3, 256, 256)
        torch.testing.assert_close(one.end - one.xy, torch.tensor([6.0, -4.0]).expand(5, 2), atol=0.01, rtol=0)


def test_two_caches_are_read_as_one(folder):
    groups, videos = read_cache(folder)
    twice, names = read_cache(folder, folder)
    assert names == videos * 2
    rows = torch.arange(len(groups))
    for one, first, second in zip(
        groups.inputs(rows), twice.inputs(rows), twice.inputs(rows + len(groups)), strict=True
    ):
        assert torch.equal(one, first)
        assert torch.equal(one, second)


class Fast(ToyVideos):
    """Videos whose points leave the frame."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        motion = ToyMotion(shift=(0.12, 0.05))
        return replace(sample, truth=toy_truth(motion, sample.queries, 5, (SIZE, SIZE)))


def test_lost_points_are_kept_without_an_end():
    def drawn(**options):
        source = TrackPairSampler(Fast(8), [f"toy{i}" for i in range(8)], pairs=2, gaps=(1, 4), **options)
        return {one.identity: one for video in range(8) for one in source.pairs_of(video)}

    both, seen, lost = drawn(queries=4, occluded=3), drawn(queries=4), list(drawn(queries=0, occluded=3).values())
    for identity, other in seen.items():
        known = both[identity].end.isfinite().all(1)
        assert torch.equal(both[identity].xy[known], other.xy)
        assert torch.equal(both[identity].end[known], other.end)
    assert lost
    assert all(one.end.isnan().all() and len(one.xy) <= 3 for one in lost)
    groups = RECORDER.record(lost[0])
    assert len(groups.visible_rows) == 0
    assert len(lpa.solvable_rows(groups, torch.arange(len(groups)), 8.0)) == len(groups)


def test_weights_are_selected_where_a_candidate_is_near(folder):
    groups, _ = read_cache(folder)
    end = groups.end.clone()
    end[0], end[1] = torch.nan, groups.peak[1, 0] + 500
    groups, rows = replace(groups, end=end), torch.arange(len(groups))
    judged = lpa.selection_set(groups, rows, 8.0)
    assert not {0, 1} & set(judged.tolist())
    assert (groups.min_error[judged] <= 8.0).all()
    assert set(lpa.selection_set(groups, rows, math.inf).tolist()) == set(rows[1:].tolist())
    with pytest.raises(InputError, match="better world model"):
        lpa.selection_set(groups, rows[:2], 8.0)


def test_the_least_error_is_that_of_the_best_candidate(folder):
    groups, _ = read_cache(folder)
    one = min((peak - groups.end[3]).norm().item() for peak in groups.peak[3])
    assert groups.min_error[3].item() == pytest.approx(one)


def test_an_audit_may_keep_to_groups_that_can_be_answered(folder, capsys):
    groups, _ = read_cache(folder)
    middle = groups.min_error.median().item()
    main(["eval", "audit", str(folder), "--json"])
    main(["eval", "audit", str(folder), "--json", "--within", str(middle)])
    whole, part = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert whole["sets"] == len(groups)
    assert part["sets"] == (groups.min_error <= middle).sum().item()
    with pytest.raises(SystemExit):
        main(["eval", "audit", str(folder), "--within", "0"])
    assert "wider --within" in capsys.readouterr().err
