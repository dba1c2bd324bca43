"""Train an adjudicator on a toy world in a minute: candidates, training, audit, predictions, scores, report.

Each step is one command of `lpa-cwm`. With a data set of your own and `--world learned` the same steps train an
adjudicator for real videos: see docs/tutorials/train_my_adjudicator.md.
"""

import pickle
import tempfile
from pathlib import Path

import torch

import lpa_cwm as lc
from lpa_cwm.cli.main import main as lpa_cwm
from lpa_cwm.rng import generator
from lpa_cwm.worlds.toy import ToyMotion, toy_clip, toy_truth


def write_videos(path, names, tracks=6, frames=3):
    """Videos of a moving plane with exact tracks, in TAP-Vid's format."""
    content = {}
    for name in names:
        draw = generator(name)
        x, y = (0.1 * torch.rand(2, generator=draw) - 0.05).tolist()
        motion = ToyMotion(shift=(x, y), turn=0.02)
        clip = toy_clip(motion, frames)
        queries = lc.Queries(40 + 176 * torch.rand(tracks, 2, generator=draw), torch.zeros(tracks).long())
        truth = toy_truth(motion, queries, frames, clip.hw)
        content[name] = {
            "video": torch.stack([clip[frame] for frame in range(frames)]).permute(0, 2, 3, 1).numpy(),
            "points": (truth.xy / 256).numpy(),
            "occluded": (~truth.visible).numpy(),
        }
    path.write_bytes(pickle.dumps(content))
    return str(path)


def main(folder=None, videos=12, steps=60):
    folder = Path(folder or tempfile.mkdtemp())
    cache, weights, runs = (str(folder / name) for name in ("cache", "lpa", "runs"))
    train = write_videos(folder / "train.pkl", [f"toy{index}" for index in range(17, 17 + videos)])
    test = write_videos(folder / "test.pkl", ["other"], tracks=3)

    toy = "--world toy --pairs 1 --queries 3 --gaps 1 2"
    lpa_cwm(["data", "cache", train, "--out", cache, *toy.split()])
    lpa_cwm(["train", "lpa", cache, "--out", weights, "--steps", str(steps), "--save-every", "20", "--batch", "8"])
    learned = f"{weights}/lpa.safetensors"
    lpa_cwm(["eval", "audit", cache, "--weights", learned])
    for method in ("uniform", "lpa"):
        out = f"{runs}/{method}"
        # A re-evaluation averages fresh responses uniformly. In the toy world it finds the point whatever the
        # adjudicator said, and both runs would be the same.
        chosen = ["--adjudicator", method, "--passes", "0", *(["--weights", learned] if method == "lpa" else [])]
        lpa_cwm(["eval", "predict", test, "--out", out, "--world", "toy", *chosen])
        lpa_cwm(["eval", "score", out])
    lpa_cwm(["eval", "report", f"{runs}/uniform", f"{runs}/lpa", "--out", str(folder / "report")])
    return folder


if __name__ == "__main__":
    main()
