"""Small good files of every format that the package reads; the fuzzer damages them."""

import csv
import json
import pickle
import random
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

import movi_files
import tapvid_files
from lpa_cwm.io import video


def picture(seed=0, hw=(24, 32)):
    noise = np.random.default_rng(seed).integers(0, 256, (hw[0] // 4, hw[1] // 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize(hw[::-1]))


def predictions(folder):
    from lpa_cwm.io.predictions import write_prediction
    from lpa_cwm.metrics import Prediction

    rng = np.random.default_rng(0)
    made = Prediction(rng.random((3, 6, 2), "f4"), rng.random((3, 6)) < 0.5, rng.random((3, 6), "f4"), 1.5)
    write_prediction(folder, "clip", made, "0" * 32)
    return [folder / "clip.npz"]


def seconds(folder):
    predictions(folder)
    return [folder / "seconds" / "clip.json"]


def run_file(folder):
    from lpa_cwm.config import Selection
    from lpa_cwm.evaluation.predict import EvaluationRun, Manifest, VideoDigest

    videos = {"set/a": VideoDigest(3, 6, "ab", "cd"), "set/b": VideoDigest(1, 4, "ef", "01")}
    settings = {"masks": 10, "world": "learned", "nested": {"x": [1, 2.5, None]}}
    EvaluationRun("lpa", settings, "/data/x.pkl", Selection(), Manifest(videos), {"torch": "2"}).create(folder)
    return [folder / "run.json"]


def scores(folder):
    from lpa_cwm.metrics import Prediction, Scores, Truth, dump_scores, measure, sweep_thresholds

    rng = np.random.default_rng(1)
    videos, thresholds = {}, [0.2, 0.6]
    for name in ("a", "b"):
        truth = Truth(256 * rng.random((4, 8, 2)), rng.random((4, 8)) < 0.8, np.zeros(4, int))
        guess = Prediction(truth.xy + rng.normal(size=(4, 8, 2)), truth.visible, rng.random((4, 8)))
        videos[name] = measure(guess, truth, thresholds=thresholds)
    assert sweep_thresholds([rng.random(9)])
    one = Scores("davis", "lpa", videos, manifest="m", thresholds=thresholds, notes={"settings": {"masks": 3}})
    (folder / "scores.json").write_text(dump_scores([one]))
    return [folder / "scores.json"]


def sweep(folder):
    from lpa_cwm.report.results import SweepCell, write_cells

    write_cells([SweepCell(m, r, 2.5, 0.1, 40, [1.0, 4.0]) for m in (5, 10) for r in (0, 1)], folder)
    return [folder / "sweep.json"]


def settings(folder):
    from lpa_cwm.files import pin_settings

    pin_settings(folder / "settings.json", {"masks": 10, "names": ["a", "b"], "nested": {"x": 1.5}})
    return [folder / "settings.json"]


def log(folder):
    lines = [{"step": 10 * i, "loss": 1 / (i + 1), "kind": "x", "rate": 0.1} for i in range(4)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [folder / "log.jsonl"]


def training_loop(out):
    from lpa_cwm.training.loop import TrainingLoop

    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    return TrainingLoop(network, optimizer, out, {}, 6, 2, lambda step: 1.0, 1.0, ema_rate=0.01)


def checkpoint(folder):
    from lpa_cwm.training.loop import StepLoss

    loop = training_loop(folder)

    def loss_of(step, batch):
        loss = loop.network(torch.ones(2, 3)).square().mean()
        return StepLoss(loss, {"loss": loss.item()})

    loop.run(range, loss_of)
    return [folder / "checkpoint.pt"]


def feature_cache(folder):
    from lpa_cwm.adjudicators.features import STATISTICS
    from lpa_cwm.training.feature_cache import CandidateSets, write_sets

    g, m = 2, 2
    images = {"source": (g, 3), "target": (g, m, 3), "local_response": (g, m), "response": (g, m)}
    sets = CandidateSets(
        **{name: torch.rand(*lead, 32, 32).half() for name, lead in images.items()},
        context=torch.rand(1, 6, 64, 64).half(),
        pair=torch.zeros(g, dtype=torch.long),
        statistics=torch.rand(g, m, STATISTICS),
        peak=torch.rand(g, m, 2),
        end=torch.rand(g, 2),
        apa_weights=torch.rand(g, m),
        response_sigma=torch.ones(g),
    )
    write_sets(folder / "000000.safetensors", sets, "a")
    write_sets(folder / "000001.safetensors", None, "b")
    return [folder / "000000.safetensors", folder / "000001.safetensors"]


def bundled(name):
    def copy(folder):
        from lpa_cwm.files import bundled_weights

        (folder / name).write_bytes(bundled_weights(name).read_bytes())
        return [folder / name]

    return copy


def tiny_opt_cwm():
    from lpa_cwm.worlds.opt_cwm import build_meta
    from lpa_cwm.worlds.opt_cwm_networks import Architecture

    world = build_meta(Architecture(size=16, dim=12, depth=1, heads=3)).to_empty(device="cpu")
    for parameter in world.state_dict().values():
        parameter.zero_()
    return world


def opt_cwm(folder):
    from lpa_cwm.worlds.opt_cwm import save_converted

    return [save_converted(tiny_opt_cwm(), folder / "opt_cwm.safetensors")]


PUBLISHED_NAMES = (
    ("enc_to_dec.", "encoder_to_decoder."),
    ("embedding.", "encoder.patch_embed.proj."),
    ("encoder_positions", "encoder.pos_embed"),
    ("decoder_positions", "pos_embed"),
    (".attention.output.", ".attn.proj."),
    (".mlp.0.", ".mlp.fc1."),
    (".mlp.2.", ".mlp.fc2."),
)


def opt_cwm_published(folder):
    """A tiny predictor and generator under the published names, in one file."""
    from lpa_cwm.worlds.opt_cwm import GENERATOR_PREFIX

    world = tiny_opt_cwm()
    ours, state = world.predictor.state_dict(), {}
    for name, tensor in ours.items():
        block, _, part = name.rpartition(".attention.")
        if part == "query.weight":
            state[f"{block}.attn.qkv.weight"] = torch.cat((tensor, ours[f"{block}.attention.key_value.weight"]))
        elif part == "query.bias":
            state[f"{block}.attn.q_bias"] = tensor
        elif part == "key_value.bias":
            state[f"{block}.attn.k_bias"], state[f"{block}.attn.v_bias"] = (half.clone() for half in tensor.chunk(2))
        elif part != "key_value.weight":
            for mine, theirs in PUBLISHED_NAMES:
                name = name.replace(mine, theirs) if not name.startswith("head.") else f"decoder.{name}"
            state[name] = tensor
    generator = {f"{GENERATOR_PREFIX}{name}": tensor for name, tensor in world.generator.state_dict().items()}
    torch.save({"model": state}, folder / "base.pt")
    torch.save({"model": generator}, folder / "generator.pt")
    return [folder / "base.pt", folder / "generator.pt"]


def raft(folder):
    from lpa_cwm.baselines.raft import SMALL, Raft

    torch.save(Raft(SMALL).state_dict(), folder / "raft.pth")
    return [folder / "raft.pth"]


def smurf(folder):
    ending = "/.ATTRIBUTES/VARIABLE_VALUE"
    kernel = np.zeros((3, 3, 4, 8), "f4")
    np.savez(folder / "smurf.npz", **{f"flow_model/fnet/conv1/{k}{ending}": kernel for k in ("kernel", "bias")})
    return [folder / "smurf.npz"]


def mesh(folder):
    from lpa_cwm.simulator.assets import hull_of, random_solid

    solid = random_solid(np.random.default_rng(3))
    texture = np.frombuffer(tapvid_files.jpegs(picture()[None])[0], np.uint8)
    hull = hull_of(solid.vertices)
    arrays = {"vertices": solid.vertices, "faces": solid.faces, "uv": solid.uv, "texture": texture, "hull": hull}
    np.savez(folder / "body.npz", **arrays)
    return [folder / "body.npz"]


def images(folder):
    kinds = ("jpg", "png", "webp", "tif", "bmp", "ppm")
    for kind in kinds:
        Image.fromarray(picture()).save(folder / f"picture.{kind}")
    return [folder / f"picture.{kind}" for kind in kinds]


def clips(folder):
    import av

    frames = [torch.from_numpy(picture(i, (32, 48)).copy()).permute(2, 0, 1) for i in range(6)]
    video.write(folder / "clip.mp4", frames, 10.0)
    for name, codec, pixels in (("clip.avi", "mjpeg", "yuvj420p"), ("clip.webm", "libvpx-vp9", "yuv420p")):
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream(codec, rate=10)
            stream.width, stream.height, stream.pix_fmt = 48, 32, pixels
            for frame in frames:
                container.mux(stream.encode(video.even_frame(frame)))
            container.mux(stream.encode())
    return [folder / name for name in ("clip.mp4", "clip.avi", "clip.webm")]


def records(folder):
    path = folder / "movi_f-train.tfrecord-00000-of-00001"
    return [movi_files.write(path, movi_files.drift((1, 2), side=16, frames=3), movi_files.drift((0, 1), 16, 3))]


def tapvid(folder):
    held = tapvid_files.entries(2), [tapvid_files.entry(1, jpeg=True)]
    for number, content in enumerate(held):
        (folder / f"{number}.pkl").write_bytes(pickle.dumps(content, protocol=4))
    return [folder / "0.pkl", folder / "1.pkl"]


def kinetics(folder):
    rng = random.Random(0)
    with (folder / "tracks.csv").open("w", newline="") as file:
        for name in ("aaa", "aaa", "bbb"):
            frames = [value for _ in range(4) for value in (rng.random(), rng.random(), 0)]
            csv.writer(file).writerow([name, 1, 11, *frames])
    return [folder / "tracks.csv"]


def points(folder):
    (folder / "points.csv").write_text("x,y,frame\n1,2,0\n3.5,4,1\n")
    (folder / "points.json").write_text(json.dumps([{"x": 1, "y": 2.5, "frame": 0}, [3, 4], [5, 6, 1]]))
    return [folder / "points.csv", folder / "points.json"]


def decoded_clip(folder):
    np.save(folder / "clip.npy", np.zeros((6, 8, 8, 3), np.uint8))
    (folder / "clip.json").write_text("[[0, 3], [3, 6]]")
    return [folder / "clip.npy", folder / "clip.json"]


def toml(folder):
    (folder / "methods.toml").write_text('[cotracker3]\ncheckout = "/x"\ncheckpoint = "y"\n')
    return [folder / "methods.toml"]


def saved_tracks(folder):
    from lpa_cwm.types import Tracks

    xy = 30 * torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(0))
    xy[1, :2] = torch.nan
    for suffix in (".npz", ".csv", ".json"):
        Tracks(xy, xy[..., 0] > 9, xy[..., 1]).save(folder / f"tracks{suffix}")
    return [folder / f"tracks{suffix}" for suffix in (".npz", ".csv", ".json")]


def mask_array(folder):
    np.save(folder / "mask.npy", np.eye(24, 32) > 0)
    return [folder / "mask.npy"]


def pair_shard(folder):
    shard = folder / "00000_hard"
    shard.mkdir()
    np.save(shard / "frames.npy", np.zeros((2, 2, 3, 32, 32), np.uint8))
    np.save(shard / "flow.npy", np.zeros((2, 2, 8, 8), np.float16))
    np.save(shard / "shown.npy", np.ones((2, 8, 8), bool))
    return [shard / name for name in ("frames.npy", "flow.npy", "shown.npy")]


def stdin_clips(folder):
    import av

    frames = [torch.from_numpy(picture(i, (32, 48)).copy()).permute(2, 0, 1) for i in range(6)]
    for name in ("clip.mkv", "clip.ts"):
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            for frame in frames:
                container.mux(stream.encode(video.even_frame(frame)))
            container.mux(stream.encode())
    return [folder / name for name in ("clip.mkv", "clip.ts")]


def worker_answer(folder):
    from lpa_cwm.baselines.worker_script import send

    with (folder / "answer").open("wb") as file:
        send(file, {"tracks": np.zeros((3, 4, 2), "f4"), "visible": np.ones((3, 4), bool)})
    return [folder / "answer"]


def recorded_hash(folder):
    (folder / "weights.pt").write_bytes(b"weights")
    (folder / "weights.pt.sha256").write_text(f"{'0' * 64}  weights.pt\n")
    return [folder / "weights.pt.sha256"]


def estimates(folder):
    arrays = {"evidence": np.ones((6, 4), "f4"), "spread": np.ones(6, "f4"), "visible": np.ones(6, bool)}
    np.savez(folder / "00000.npz", **arrays, error=np.full(6, np.inf, "f4"))
    return [folder / "00000.npz"]


def part(folder):
    from lpa_cwm.reproduction.parts import PARTS

    (folder / "parts").mkdir()
    about = {"name": PARTS[0].name, "paper": "Table 1", "title": "x", "files": ["a.md", "b/c.csv"], "seconds": 1.5}
    path = folder / "parts" / f"{PARTS[0].name}.json"
    path.write_text(json.dumps(about))
    return [path]
