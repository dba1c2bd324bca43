"""Every reader of the package: its good files, how they are damaged, and what is done with a damaged one."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import mutations as damage
import seeds


@dataclass(frozen=True)
class Reader:
    """Reads a damaged file as the commands do, further than its first value."""

    seeds: Callable
    damage: Callable
    read: Callable
    share: float = 1.0
    """Inputs relative to other readers; large files get fewer."""


def prediction(path):
    from lpa_cwm.io.predictions import configuration_of, frame_count, read_prediction

    read_prediction(path, 3, 6)
    frame_count(path)
    configuration_of(path)


def seconds(path):
    from lpa_cwm.io.predictions import _seconds

    _seconds(path.parents[1] / f"{path.stem}.npz")


def run_file(path):
    import json

    from lpa_cwm.evaluation.predict import load_run

    run = load_run(path.parent)
    json.dumps(run.hash)
    run.manifest.check(run.manifest)
    run.create(path.parent)


def scores(path):
    from lpa_cwm.report.page import write_report

    write_report([path.parent], path.parent / "report")


def sweep(path):
    from lpa_cwm.report.page import sweep_charts
    from lpa_cwm.report.results import read_cells, sweep_conclusion, sweep_table

    if read_cells(path.parent):
        sweep_table(path.parent)
        sweep_conclusion(path.parent)
        sweep_charts(path.parent)


def settings(path):
    from lpa_cwm.files import pin_settings

    pin_settings(path, {"masks": 10, "names": ["a", "b"], "nested": {"x": 1.5}})


def log(path):
    from lpa_cwm.training.loop import TrainingLog

    TrainingLog(path, 20).write({"step": 21})


def checkpoint(path):
    seeds.training_loop(path.parent).run(range, lambda step, batch: None)


def feature_cache(path):
    from lpa_cwm.training.feature_cache import count_sets, read_cache

    count_sets(path)
    read_cache(path.parent)


def lpa(path):
    from lpa_cwm.adjudicators.lpa import load_lpa

    load_lpa(path)


def learned_world(path):
    from lpa_cwm.worlds.learned.world import LearnedWorld

    LearnedWorld.load(path)


def score_model(path):
    from lpa_cwm.adjudicators.apa import load_compact_score

    load_compact_score(path)


def opt_cwm(path):
    from lpa_cwm.worlds.opt_cwm import load_converted

    load_converted(path)


def opt_cwm_published(path):
    from lpa_cwm.worlds.opt_cwm import load_published
    from lpa_cwm.worlds.opt_cwm_networks import Architecture

    architecture = Architecture(size=16, dim=12, depth=1, heads=3)
    load_published(path.parent / "base.pt", path.parent / "generator.pt", architecture)


def raft(path):
    from lpa_cwm.baselines.raft import load_raft

    load_raft(path)


def mesh(path):
    from lpa_cwm.simulator.assets import load_scan

    body = load_scan(path)
    assert body.radius < 10


def image(path):
    from lpa_cwm.io.video import read_rgb, shown_size

    shown_size(path, path.name)
    read_rgb(path, path.name, upright=True)


def clip(path):
    from lpa_cwm.io import video

    found = video.read(path)
    for frame in range(min(len(found), 12)):
        _ = found[frame]
    _ = found[len(found) - 1]


def records(path):
    from lpa_cwm.datasets.movif import check_flow_sign, entries_of, open_records, read_clip

    for entry in entries_of(path):
        found = read_clip(open_records(path), entry.number)
        check_flow_sign(found, "here")
        for frame in range(len(found)):
            found.frame(frame)


def tapvid(path):
    from lpa_cwm.datasets.tapvid import load_dataset
    from lpa_cwm.evaluation.predict import manifest_of
    from lpa_cwm.evaluation.score import truth_of
    from lpa_cwm.io.predictions import prediction_path

    dataset = load_dataset(path)
    manifest_of(dataset)
    for index, name in enumerate(dataset.names):
        prediction_path(path.parent, name)
        truth_of(dataset[index])
        clip = dataset[index].clip
        for frame in range(min(len(clip), 12)):
            _ = clip[frame]


def kinetics(path):
    from lpa_cwm.datasets.tapvid import read_tracks

    read_tracks(path)


def points(path):
    from lpa_cwm.io.inputs import read_points

    read_points([str(path)])


def decoded_clip(path):
    from lpa_cwm.synth.pairs import memmap, read_shots

    memmap.cache_clear()
    read_shots(path.with_suffix(".npy"))


def toml(path):
    from lpa_cwm.baselines.registry import read_settings

    os.environ["LPA_CWM_CACHE"] = str(path.parent)
    read_settings("cotracker3", ("checkout", "checkpoint"), {})


def saved_tracks(path):
    from lpa_cwm.types import Tracks

    Tracks.load(path)


def pair_shard(path):
    from lpa_cwm.synth import pair_shards

    # As the seeds have them; real shards have 50 MB.
    pair_shards.SHARD_PAIRS, pair_shards.SIZE = 2, 32
    shards = pair_shards.PairShards.of(path.parents[1])
    for index in range(len(shards)):
        _ = shards[index]


def stdin_clip(path):
    from unittest.mock import patch

    from lpa_cwm.io.video import open_stream

    with path.open("rb") as file, patch("sys.stdin", SimpleNamespace(buffer=file)):
        for _ in zip(range(12), open_stream("-").frames, strict=False):
            pass


def upload(path):
    from lpa_cwm.page.guard import Limits, accept_upload

    clip = accept_upload(path, path.parent / "tab", Limits())
    for frame in range(min(len(clip), 12)):
        _ = clip[frame]


def worker_answer(path):
    from lpa_cwm.baselines.worker import send_receive
    from lpa_cwm.errors import InputError

    with path.open("rb") as file:
        if send_receive(Mock(spec=subprocess.Popen, stdin=None, stdout=file), None) is None:
            raise InputError("The worker stopped without an answer.")


def region(path):
    from lpa_cwm.io.inputs import read_region

    read_region(str(path), (24, 32))


def recorded_hash(path):
    from lpa_cwm.datasets.download import matches_hash

    matches_hash(path.with_suffix(""), None)


def estimates(path):
    from lpa_cwm.evaluation.calibration import read_estimates

    read_estimates(path)


def part(path):
    from lpa_cwm.reproduction.parts import PARTS, finished

    finished(path.parents[1], PARTS[0])


SAFETENSORS = damage.damage_safetensors
READERS = {
    "prediction .npz": Reader(seeds.predictions, damage.damage_npz, prediction, 3),
    "seconds .json": Reader(seeds.seconds, damage.damage_json, seconds),
    "run.json": Reader(seeds.run_file, damage.damage_json, run_file, 2),
    "scores.json": Reader(seeds.scores, damage.damage_json, scores, 0.5),
    "sweep.json": Reader(seeds.sweep, damage.damage_json, sweep, 2),
    "settings .json": Reader(seeds.settings, damage.damage_json, settings),
    "training log": Reader(seeds.log, damage.damage_json, log, 2),
    "training checkpoint": Reader(seeds.checkpoint, damage.damage_torch, checkpoint, 3),
    "feature cache": Reader(seeds.feature_cache, SAFETENSORS, feature_cache, 2),
    "LPA weights": Reader(seeds.bundled("lpa.safetensors"), SAFETENSORS, lpa, 0.5),
    "learned world weights": Reader(seeds.bundled("world-learned.safetensors"), SAFETENSORS, learned_world, 0.5),
    "score model weights": Reader(seeds.bundled("score-compact.safetensors"), SAFETENSORS, score_model, 0.5),
    "Opt-CWM converted": Reader(seeds.opt_cwm, SAFETENSORS, opt_cwm, 2),
    "Opt-CWM published": Reader(seeds.opt_cwm_published, damage.damage_torch, opt_cwm_published, 3),
    "RAFT .pth": Reader(seeds.raft, damage.damage_torch, raft, 0.5),
    "SMURF .npz": Reader(seeds.smurf, damage.damage_npz, raft, 1),
    "scanned object": Reader(seeds.mesh, damage.damage_npz, mesh, 3),
    "picture": Reader(seeds.images, damage.damage_png, image, 3),
    "video": Reader(seeds.clips, damage.damage_bytes, clip, 3),
    "MOVi-F records": Reader(seeds.records, damage.damage_records, records, 3),
    "TAP-Vid pickle": Reader(seeds.tapvid, damage.damage_pickle, tapvid, 4),
    "Kinetics csv": Reader(seeds.kinetics, damage.damage_csv, kinetics),
    "points csv or json": Reader(seeds.points, lambda rng, data: one_of(rng, data), points, 2),
    "decoded clip": Reader(seeds.decoded_clip, lambda rng, data: one_of(rng, data), decoded_clip),
    "saved tracks": Reader(seeds.saved_tracks, lambda rng, data: one_of(rng, data), saved_tracks, 3),
    "shard of frame pairs": Reader(seeds.pair_shard, damage.damage_npy, pair_shard, 1),
    "video on stdin": Reader(seeds.stdin_clips, damage.damage_bytes, stdin_clip, 2),
    "upload to the page": Reader(seeds.clips, damage.damage_bytes, upload, 2),
    "answer of a worker": Reader(seeds.worker_answer, damage.damage_message, worker_answer, 1),
    "mask picture": Reader(seeds.images, damage.damage_png, region, 1),
    "mask array": Reader(seeds.mask_array, damage.damage_npy, region, 1),
    "recorded hash": Reader(seeds.recorded_hash, damage.damage_bytes, recorded_hash, 0.5),
    "estimates": Reader(seeds.estimates, damage.damage_npz, estimates, 1),
    "part of the paper": Reader(seeds.part, damage.damage_json, part, 1),
    "methods.toml": Reader(seeds.toml, damage.damage_bytes, toml),
}


def one_of(rng, data):
    """JSON, a table or an archive by what it looks like."""
    if data[:2] == b"PK":
        return damage.damage_npz(rng, data)
    if data[:1] in (b"[", b"{"):
        return damage.damage_json(rng, data)
    return damage.damage_csv(rng, data) if data[:1] in b"xt" else damage.damage_bytes(rng, data)


def damaged(name: str, number: int, seed: int, folder: Path, to: Path) -> Path:
    """Write input `number` of a reader: a copy of its good files of which one is damaged."""
    import random
    import shutil

    rng = random.Random(f"{seed}/{name}/{number}")
    good = folder / name.replace("/", " ")
    shutil.copytree(good, to)
    paths = [to / line for line in (folder / f"{name.replace('/', ' ')}.txt").read_text().splitlines()]
    path = rng.choice(paths)
    data = path.read_bytes()
    try:
        changed = READERS[name].damage(rng, data)
    except Exception:
        # Some strange values cannot be written at all.
        changed = damage.damage_bytes(rng, data)
    path.write_bytes(changed)
    return path


def write_seeds(folder: Path, names) -> None:
    """Write the good files of the readers, and for each reader a list of the files that are damaged."""
    for name in names:
        good = folder / name.replace("/", " ")
        good.mkdir(parents=True)
        paths = READERS[name].seeds(good)
        (folder / f"{name.replace('/', ' ')}.txt").write_text("\n".join(str(path.relative_to(good)) for path in paths))
