"""Evidence cache and LPA training on toy videos: equal evidence, exact resumption, and that it learns."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from lpa_cwm.adjudicators.apa import APA
from lpa_cwm.adjudicators.features import gather
from lpa_cwm.adjudicators.lpa import LPA
from lpa_cwm.cli.main import main
from lpa_cwm.datasets.movif import MoviClips
from lpa_cwm.errors import InputError
from lpa_cwm.masks import random_masks, shared
from lpa_cwm.probe import Probe, magnitude
from lpa_cwm.registry import load_lpa
from lpa_cwm.rng import generator
from lpa_cwm.sampling import unit_range
from lpa_cwm.sharding import Shard
from lpa_cwm.simulator.write import write_records
from lpa_cwm.training import lpa
from lpa_cwm.training.feature_cache import FeatureRecorder, Job, cache, read
from lpa_cwm.training.objective import Objective, endpoint_error
from lpa_cwm.training.pair_sampling import RecordCorrespondences, TrackCorrespondences
from lpa_cwm.types import Pair, Queries, Sample
from lpa_cwm.worlds.toy import ToyMotion, ToyWorld, toy_clip, toy_truth
from movi_files import drift

SIZE = 64
WORLD = ToyWorld(error=9.0, wrong=0.6, size=SIZE, sigma=2.0)


class ToyVideos:
    """Videos of the toy world with random motion and random tracks."""

    name = "toy"

    def __init__(self, count):
        self.count = count

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
    """A stand-in score field."""
    return frames - frames.mean((2, 3), keepdim=True)


def correspondences(videos, **options):
    return TrackCorrespondences(ToyVideos(videos), [f"toy{i}" for i in range(videos)], gaps=(1, 4), **options)


RECORDER = FeatureRecorder(WORLD, APA(edges), masks=5, batch=3)


def job():
    return Job(correspondences(24, pairs=1, queries=4), lambda: RECORDER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("cache")
    counts = dict(cache(job(), out))
    assert sum(counts.values()) > 60
    return out


def test_cached_inputs_are_what_the_adjudicator_sees(folder):
    groups, videos = read(folder)
    source = correspondences(24, pairs=1, queries=4)
    first = next(source.of(0))
    frames = unit_range(first.source), unit_range(first.target)
    plan = shared(random_masks(5, 64, "cache", *first.identity), len(first.xy))
    probe = Probe(WORLD, WORLD.observe(*frames), plan, first.xy, 64)
    _, candidates = next(probe.candidates())
    evidence = gather(Pair(*frames, first.xy), candidates)
    rows = torch.arange(len(first.xy))
    local, response, context, statistics = groups.inputs(rows)
    torch.testing.assert_close(local, evidence.local, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(response, evidence.response, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(context[0], evidence.context, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(statistics, evidence.statistics)
    torch.testing.assert_close(groups.strength[rows], magnitude(candidates.response).amax((-2, -1)))
    assert videos[: len(rows)] == ["toy0"] * len(rows)
    torch.testing.assert_close(groups.analytic.sum(1), torch.ones(len(groups)))


def test_shards_together_are_the_whole(folder, tmp_path):
    for index in range(2):
        list(cache(job(), tmp_path, shard=Shard(index + 1, 2)))
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_a_second_run_asks_the_world_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    list(cache(job(), folder))
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_videos_are_on_one_side_of_the_split(folder):
    groups, videos = read(folder)
    train, held = lpa.held_out(videos)
    assert len(train) + len(held) == len(groups)
    assert not {videos[row] for row in train.tolist()} & {videos[row] for row in held.tolist()}


def test_statistics_of_the_training_split_become_standard(folder):
    groups, videos = read(folder)
    train, _ = lpa.held_out(videos)
    network = LPA()
    lpa.standardize(network, groups, train)
    rows = (lpa.compress(groups.statistics[train]).flatten(0, 1) - network.mean) / network.std
    varied = network.std > 1e-3
    assert varied.sum() >= 12
    torch.testing.assert_close(rows.mean(0)[varied], torch.zeros(int(varied.sum())), atol=1e-3, rtol=0)
    torch.testing.assert_close(rows.std(0, correction=0)[varied], torch.ones(int(varied.sum())), atol=1e-3, rtol=0)


def test_an_interrupted_training_ends_like_an_uninterrupted_one(folder, tmp_path, monkeypatch):
    recipe = lpa.Recipe(steps=6, batch=4, every=2)
    whole = lpa.fit([folder], tmp_path / "whole", recipe)
    learn, calls = lpa.learn, []

    def dying(*arguments):
        calls.append(1)
        if len(calls) in (4, 7):
            raise KeyboardInterrupt
        return learn(*arguments)

    monkeypatch.setattr(lpa, "learn", dying)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            lpa.fit([folder], tmp_path / "parts", recipe)
    parts = lpa.fit([folder], tmp_path / "parts", recipe)
    assert whole.read_bytes() == parts.read_bytes()
    assert (tmp_path / "whole/log.jsonl").read_text() == (tmp_path / "parts/log.jsonl").read_text()


def test_another_recipe_is_not_mixed_in(folder, tmp_path):
    recipe = lpa.Recipe(steps=2, batch=4, every=2)
    lpa.fit([folder], tmp_path, recipe)
    with pytest.raises(InputError, match="rate"):
        lpa.fit([folder], tmp_path, replace(recipe, rate=1e-3))


def test_it_learns_to_tell_right_candidates_from_wrong_ones(folder, tmp_path):
    path = lpa.fit([folder], tmp_path, lpa.Recipe(steps=40, batch=16, every=20, rate=1e-3))
    groups, videos = read(folder)
    _, held = lpa.held_out(videos)
    weights = lpa.weigh(load_lpa(path), groups, held)
    learned = endpoint_error(weights, groups.peak[held], groups.end[held]).mean()
    uniform = endpoint_error(torch.full((len(held), 5), 0.2), groups.peak[held], groups.end[held]).mean()
    assert learned < 0.6 * uniform
    errors = [json.loads(line)["held_error"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    # What is written has half precision.
    assert min(errors) == pytest.approx(learned.item(), rel=5e-3)


def test_a_training_begins_where_it_is_told(folder, tmp_path):
    """With no update left to make, what is written is what it began with, statistics included."""
    first = lpa.fit([folder], tmp_path / "first", lpa.Recipe(steps=2, batch=4, every=1))
    start = load_lpa(first)
    start.mean.add_(1.0)
    again = lpa.fit([folder], tmp_path / "again", lpa.Recipe(steps=1, batch=4, rate=0.0, start="first"), start=start)
    weights, before = load_lpa(again).state_dict(), load_lpa(first).state_dict()
    assert all(torch.equal(weights[name], before[name] + (name == "mean")) for name in before)
    with pytest.raises(InputError, match="start"):
        lpa.fit([folder], tmp_path / "again", lpa.Recipe(steps=1, batch=4, rate=0.0))


def test_weights_of_another_network_are_no_start(folder, tmp_path, capsys):
    first = lpa.fit([folder], tmp_path / "first", lpa.Recipe(steps=1, batch=4, visual=False))
    with pytest.raises(SystemExit):
        main(["train", "lpa", str(folder), "--init", str(first), "--out", str(tmp_path / "other")])
    assert "visual False" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_visibility_is_learned_only_where_points_are_hidden(folder):
    groups, _ = read(folder)
    without = replace(lpa.Recipe(), objective=Objective(visibility=0.0), sight=False)
    assert lpa.feasible(lpa.Recipe(), groups) == without
    end = groups.end.clone()
    end[0] = torch.nan
    some = replace(groups, end=end)
    assert lpa.feasible(lpa.Recipe(), some) == lpa.Recipe()
    assert lpa.feasible(replace(lpa.Recipe(), objective=Objective(visibility=0.0)), some) == without


def test_sight_is_added_to_a_network_without_it_and_learns(folder):
    groups, videos = read(folder)
    train, _ = lpa.held_out(videos)
    groups = replace(groups, end=groups.end.clone(), target=groups.target.clone())
    groups.end[train[1::2]] = torch.nan
    groups.target[train[1::2]] = 0
    network = lpa.fresh(lpa.Recipe(), groups, train)
    before = lpa.weigh(network, groups, train)
    assert lpa.sighted(network, lpa.Recipe(sight=False)).sight is None
    network = lpa.sighted(network, lpa.Recipe())
    assert torch.equal(lpa.weigh(network, groups, train), before)
    state = lpa.State.begin(network.train(), 1e-3)
    for state.step in range(30):
        lpa.learn(state, groups, train[:16], lpa.Recipe(turned=False))
    total = lpa.weigh(network, groups, train[:16]).sum(1)
    assert total[0::2].mean() > 1.2 * total[1::2].mean()


def test_a_network_with_sight_is_no_start_for_one_without(folder, tmp_path, capsys):
    save_file(LPA(sight=True).state_dict(), tmp_path / "start.safetensors")
    with pytest.raises(SystemExit):
        main(
            [
                "train",
                "lpa",
                str(folder),
                "--init",
                str(tmp_path / "start.safetensors"),
                "--no-visibility-head",
                "--out",
                str(tmp_path / "other"),
            ]
        )
    assert "visibility head True" in capsys.readouterr().err


def test_no_gradient_is_longer_than_the_clip(folder):
    """However far apart the candidates of a set lie."""
    groups, videos = read(folder)
    train, _ = lpa.held_out(videos)
    groups = replace(groups, peak=groups.peak * 1000)
    network = LPA()
    state = lpa.State.begin(network, 3e-4)
    lpa.learn(state, groups, train[:4], lpa.Recipe(clip=0.5))
    gradients = [parameter.grad.norm() for parameter in network.parameters() if parameter.grad is not None]
    assert torch.stack(gradients).norm().item() == pytest.approx(0.5, rel=1e-3)


def test_bfloat16_hardly_changes_an_update(folder):
    """Weights stay in full precision; only what flows through the network is rounded."""
    groups, videos = read(folder)
    train, _ = lpa.held_out(videos)
    start = LPA()
    losses = {}
    for autocast in (False, True):
        state = lpa.State.begin(copy.deepcopy(start), 3e-4)
        losses[autocast] = lpa.learn(state, groups, train[:4], lpa.Recipe(autocast=autocast))
        assert all(parameter.dtype == torch.float32 for parameter in state.network.parameters())
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


def test_sets_whose_candidates_disagree_are_shown_more_often(folder):
    groups, _ = read(folder)
    agree = groups.peak.clone()
    agree[::2] = agree[::2, :1] + torch.rand(len(agree[::2]), 5, 2)
    agree[1::2, 0] = agree[1::2, 1] + 20
    groups, rows = replace(groups, peak=agree), torch.arange(len(groups))
    assert lpa.emphasized(groups, rows, 3).bincount().tolist() == [1 if row % 2 == 0 else 3 for row in rows]
    assert lpa.emphasized(groups, rows, 1).sort().values.equal(rows)
    with pytest.raises(InputError, match="--oversample 1"):
        lpa.emphasized(groups, rows, 0)


def test_too_few_videos_are_refused(tmp_path):
    with pytest.raises(InputError, match="no evidence"):
        read(tmp_path)
    with pytest.raises(InputError, match="cache some more"):
        lpa.held_out(["one"] * 5)


def test_records_give_adjacent_frames_and_endpoints_by_their_flow(tmp_path):
    write_records(
        tmp_path / "movi_f-train.tfrecord-00000-of-00001", iter([drift((3, -2), name=str(i)) for i in range(4)])
    )
    source = RecordCorrespondences(MoviClips.of(tmp_path, "train"), pairs=2, queries=5)
    assert len(source.videos) > 0
    found = list(source.of(0))
    assert len(found) == 2
    for one in found:
        assert one.identity[2] == one.identity[1] + 1
        assert one.source.shape == (3, 256, 256)
        torch.testing.assert_close(one.end - one.xy, torch.tensor([6.0, -4.0]).expand(5, 2), atol=0.01, rtol=0)


def test_two_caches_are_read_as_one(folder):
    groups, videos = read(folder)
    twice, names = read(folder, folder)
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
        source = TrackCorrespondences(Fast(8), [f"toy{i}" for i in range(8)], pairs=2, gaps=(1, 4), **options)
        return {one.identity: one for video in range(8) for one in source.of(video)}

    both, seen, lost = drawn(queries=4, hidden=3), drawn(queries=4), list(drawn(queries=0, hidden=3).values())
    for identity, other in seen.items():
        known = both[identity].end.isfinite().all(1)
        assert torch.equal(both[identity].xy[known], other.xy)
        assert torch.equal(both[identity].end[known], other.end)
    assert lost
    assert all(one.end.isnan().all() and len(one.xy) <= 3 for one in lost)
    groups = RECORDER.record(lost[0])
    assert len(groups.seen) == 0
    assert len(lpa.reachable(groups, torch.arange(len(groups)))) == len(groups)


def test_weights_are_selected_where_a_candidate_is_near(folder):
    groups, _ = read(folder)
    end = groups.end.clone()
    end[0], end[1] = torch.nan, groups.peak[1, 0] + 500
    groups, rows = replace(groups, end=end), torch.arange(len(groups))
    judged = lpa.judged_by(groups, rows)
    assert not {0, 1} & set(judged.tolist())
    assert (groups.least[judged] <= lpa.REACHABLE).all()
    with pytest.raises(InputError, match="better world model"):
        lpa.judged_by(groups, rows[:2])


def test_the_least_error_is_that_of_the_best_candidate(folder):
    groups, _ = read(folder)
    one = min((peak - groups.end[3]).norm().item() for peak in groups.peak[3])
    assert groups.least[3].item() == pytest.approx(one)


def test_an_audit_may_keep_to_groups_that_can_be_answered(folder, capsys):
    groups, _ = read(folder)
    middle = groups.least.median().item()
    main(["eval", "audit", str(folder), "--json"])
    main(["eval", "audit", str(folder), "--json", "--within", str(middle)])
    whole, part = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert whole["groups"] == len(groups)
    assert part["groups"] == (groups.least <= middle).sum().item()
    with pytest.raises(SystemExit):
        main(["eval", "audit", str(folder), "--within", "-1"])
    assert "wider --within" in capsys.readouterr().err
