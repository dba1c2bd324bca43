"""Official code of other trackers in a process of its own, for `peers.py`: with random weights, or with a checkpoint.

`lpa_cwm/baselines/worker_script.py` describes the messages. Accuracy is no matter here: queries and answers are not
converted between the conventions for pixel centers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from lpa_cwm.baselines.worker_script import Setup

Answer = Callable[[dict], dict]


def load(setup: Setup) -> Answer:
    """The tracker that the option `tracker` names, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return LOADERS[setup.options["tracker"]](setup)


def cotracker3(setup: Setup) -> Answer:
    """CoTracker3 (Karaev et al. 2024), offline; it resizes every video to its own 384 x 512, or here to 256 x 256."""
    settings: dict[str, Any] = {"source": "local", "trust_repo": True, "pretrained": False}
    predictor: Any = torch.hub.load(setup.checkout, "cotracker3_offline", **settings)
    fill(predictor.model, setup)
    if setup.options["tracker"] == "cotracker3-256":
        predictor.interp_shape = (256, 256)
    predictor = predictor.eval()

    def answer(question: dict) -> dict:
        video = torch.from_numpy(question["video"]).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            tracks, visible = predictor(video[None], queries=torch.from_numpy(question["queries"])[None])
        return {"tracks": tracks[0].transpose(0, 1).numpy(), "visible": visible[0].transpose(0, 1).numpy()}

    return answer


def tapir(setup: Setup) -> Answer:
    """TAPIR (Doersch et al. 2023) in torch, from the checkout of tapnet."""
    sys.path.insert(0, setup.checkout)
    network = importlib.import_module("tapnet.torch.tapir_model").TAPIR(pyramid_level=0, extra_convs=False)
    return of_deepmind(network, setup)


def bootstapir(setup: Setup) -> Answer:
    """BootsTAPIR (Doersch et al. 2024): TAPIR with another pyramid level and further convolutions."""
    sys.path.insert(0, setup.checkout)
    network = importlib.import_module("tapnet.torch.tapir_model").TAPIR(pyramid_level=1, extra_convs=True)
    return of_deepmind(network, setup)


def locotrack(setup: Setup) -> Answer:
    """LocoTrack-B (Cho et al. 2024), from the folder `locotrack_pytorch` of its checkout."""
    sys.path.insert(0, setup.checkout + "/locotrack_pytorch")
    return of_deepmind(importlib.import_module("models.locotrack_model").LocoTrack(), setup)


def of_deepmind(network: torch.nn.Module, setup: Setup) -> Answer:
    """A network with the arguments of TAPIR: channels last from -1 to 1, queries (t, y, x)."""
    fill(network, setup)
    network = network.eval()

    def answer(question: dict) -> dict:
        video = torch.from_numpy(question["video"]).float() / 127.5 - 1
        queries = torch.from_numpy(np.ascontiguousarray(question["queries"][:, [0, 2, 1]]))
        with torch.no_grad():
            found = network(video[None], queries[None])
        return {"tracks": found["tracks"][0].numpy(), "visible": (found["occlusion"][0] < 0).numpy()}

    return answer


def fill(network: torch.nn.Module, setup: Setup) -> None:
    """Load the checkpoint, if one was given."""
    if setup.options["weights"] == "real":
        state = setup.read()
        network.load_state_dict(state.get("model", state))


LOADERS: dict[str, Callable[[Any], Answer]] = {
    "cotracker3": cotracker3,
    "cotracker3-256": cotracker3,
    "tapir": tapir,
    "bootstapir": bootstapir,
    "locotrack": locotrack,
}
