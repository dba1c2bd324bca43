"""The program of a worker, run by the user's interpreter: the protocol, and four methods from their authors' checkouts.

It needs numpy and torch, runs under Python 3.8 and imports nothing of this package.

CoTracker3 (Karaev et al. 2024, arXiv:2410.11831): offline predictor with its own visibility.
DODUO (Jiang et al. 2023, arXiv:2309.15110): dense correspondence of frame pairs, as flow.
GMRW (Shrivastava & Owens 2024, arXiv:2409.16288): adjacent frames chained by its own utility.
SEA-RAFT (Wang et al. 2024, arXiv:2405.14793): flow of frame pairs.

A message is a length (eight bytes, little endian) followed by an `.npz` archive of that length. The worker sends
`protocol` when its network is loaded. After that every question gets one answer, until the pipe is closed:

    video uint8 [t h w 3], queries float32 [n 3] (t, x, y)  ->  tracks float32 [n t 2] (x, y), visible bool [n t]
    before uint8 [b h w 3], after uint8 [b h w 3]           ->  flow float32 [b 2 h w] (dx, dy)

Points are in pixels of the video, with pixel centers at +0.5. A worker whose code fails exits; the parent process reads
the reason from standard error.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F

PROTOCOL = 1


@dataclass(frozen=True)
class Setup:
    """Paths of the code and its weights, device and options."""

    checkout: str
    checkpoint: str
    device: str
    options: dict[str, str]

    def read(self) -> Any:
        """Load the checkpoint's tensors and plain options; code in it is not executed."""
        if hasattr(torch.serialization, "add_safe_globals"):
            torch.serialization.add_safe_globals([argparse.Namespace])
        return torch.load(self.checkpoint, map_location="cpu", weights_only=True)


def send(stream: BinaryIO, arrays: dict[str, np.ndarray]) -> None:
    """Write one message."""
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # pyright: ignore[reportArgumentType]
    stream.write(struct.pack("<Q", archive.tell()))
    stream.write(archive.getbuffer())
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, np.ndarray] | None:
    """Read one message; None at the end of the stream."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    (length,) = struct.unpack("<Q", header)
    content = stream.read(length)
    if len(content) < length:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take the pipes to the parent; the external code prints to standard error and reads an empty input."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return questions, answers


def load_cotracker3(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Build the predictor through `torch.hub`, without downloads."""
    settings: dict[str, Any] = {"source": "local", "trust_repo": True, "pretrained": False}
    predictor: Any = torch.hub.load(setup.checkout, "cotracker3_offline", **settings)
    state = setup.read()
    predictor.model.load_state_dict(state.get("model", state))
    predictor = predictor.to(setup.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        # The predictor resizes corner pixel to corner pixel: in its coordinates pixel centers are whole numbers.
        queries = torch.from_numpy(question["queries"]) - torch.tensor([0, 0.5, 0.5])
        video = torch.from_numpy(question["video"]).permute(0, 3, 1, 2).float()
        with torch.no_grad():
            tracks, visible = predictor(video[None].to(setup.device), queries=queries[None].to(setup.device))
        return {
            "tracks": (tracks[0].permute(1, 0, 2) + 0.5).cpu().numpy(),
            "visible": visible[0].permute(1, 0).cpu().numpy(),
        }

    return answer


MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
MULTIPLE = 16
"""Divisor of the sides of a frame: cells of 8 pixels in 2x2 windows."""


def load_doduo(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Build the network of the published configuration and load the checkpoint."""
    sys.path.insert(0, setup.checkout)
    from src.models.components import models_corr_seg_flow
    from src.models.components.unimatch.unimatch import UniMatch

    # The constructor would download DINO; the checkpoint contains it.
    models_corr_seg_flow.load_pretrained_weights = lambda *arguments: None
    network = models_corr_seg_flow.CorrSegFlowNet(
        unimatch=UniMatch(bilinear_upsample=True),
        dino_backbone=("vit_small", 8),
        dino_corr_mask_ratio=0.99,
        dino_corr_mask_binary=True,
    )
    network.load_state_dict(setup.read()["state_dict"])
    network = network.to(setup.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, after = (normalize(question[name]).to(setup.device) for name in ("before", "after"))
        height, width = question["before"].shape[1:3]
        with torch.no_grad():
            flows = [
                network({"frame_src": before[i : i + 1], "frame_dst": after[i : i + 1]})[1]["flow"]
                for i in range(len(before))
            ]
        return {"flow": torch.cat(flows)[..., :height, :width].cpu().numpy()}

    return answer


def normalize(frames: np.ndarray) -> torch.Tensor:
    """Frames normalized by ImageNet's statistics, padded below and to the right by repeating the border."""
    unit = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
    normal = (unit - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    height, width = normal.shape[-2:]
    return F.pad(normal, (0, -width % MULTIPLE, 0, -height % MULTIPLE), mode="replicate")


UPSAMPLE = "2"
"""Default upsampling of the frames: 2 in the plain published recipe, 4 in the best."""
UNUSED_IMPORTS = ("flash_attn", "wandb", "dominate", "dominate.tags", "dgl", "fire")
"""Packages that the checkout imports and inference does not use."""


class StubModule(ModuleType):
    """Replacement for a missing package: any name can be imported; calls raise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*arguments: Any, **settings: Any) -> None:
            raise ImportError(f"{self.__name__} is not installed, but {name} was called")

        return refuse


def install_stubs() -> None:
    """Make the checkout importable without its unused dependencies."""
    absent = [name for name in UNUSED_IMPORTS if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: StubModule(name) for name in absent})


def build_gmrw(setup: Setup) -> Any:
    """Build the network with the settings of the published evaluation."""
    import arguments
    from models import GMRW
    from utils import utils

    options = arguments.train_args("")
    options.eval_only, options.no_of_frames, options.device = True, 2, torch.device(setup.device)
    network = GMRW(
        args=options,
        num_scales=2,
        feature_channels=128,
        upsample_factor=8,
        num_head=1,
        attention_type="swin",
        ffn_dim_expansion=4,
        num_transformer_layers=6,
        norm=False,
    )
    network.load_state_dict(utils.trim_statedict_keys(setup.read()["model"]))
    return network.to(setup.device).eval()


def load_gmrw(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Load the network and the utility that chains its affinities into tracks."""
    install_stubs()
    sys.path.insert(0, setup.checkout)
    network = build_gmrw(setup)
    from utils import tracking_utils, utils

    device, factor = torch.device(setup.device), int(setup.options.get("upsample", UPSAMPLE))

    def flow(pair: torch.Tensor, height: int, width: int) -> torch.Tensor:
        affinity = network.compute_correspondence(pair)
        return utils.compute_flow_from_affinity(
            affinity, H=height, W=width, weight_method="weighted_sum", device=device
        )

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        height, width = question["video"].shape[1:3]
        # The utility takes (t, y, x) in raster coordinates, with borders at 0 and at the side.
        queries = torch.from_numpy(question["queries"])[:, [0, 2, 1]]
        with torch.no_grad():
            video = upsample(torch.from_numpy(question["video"]), factor).to(device)
            steps = range(video.shape[1] - 1)
            tracks, visible = tracking_utils.get_tracks_from_flows_query_points(
                query_points=queries[None].to(device),
                forward_flows=torch.cat([flow(video[:, [i, i + 1]], height, width) for i in steps], dim=1),
                backward_flows=torch.cat([flow(video[:, [i + 1, i]], height, width) for i in steps], dim=1),
                device=device,
            )
        return {
            "tracks": tracks[0].permute(1, 0, 2).cpu().numpy(),
            "visible": visible[0].permute(1, 0).cpu().numpy(),
        }

    return answer


def upsample(video: torch.Tensor, factor: int) -> torch.Tensor:
    """[t h w 3] to [1 t 3 h w], upsampled by a factor; values stay in 0 to 255."""
    frames = video.permute(0, 3, 1, 2).float()
    size = (factor * frames.shape[-2], factor * frames.shape[-1])
    return F.interpolate(frames, size=size, mode="bilinear", align_corners=True)[None]


CONFIG = "sintel-M"
"""Default file of `config/eval` in the checkout; it has to fit the checkpoint."""


def load_sea_raft(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Build the configured network and load the checkpoint."""
    sys.path[:0] = [os.path.join(setup.checkout, "core"), setup.checkout]
    # Modules of the checkout, not of this package.
    extractor, raft = (importlib.import_module(name) for name in ("extractor", "raft"))

    # The encoders would download ImageNet weights, which the checkpoint replaces.
    extractor.ResNetFPN._init_weights = lambda self, args: None
    name = setup.options.get("config", CONFIG) + ".json"
    with open(os.path.join(setup.checkout, "config", "eval", name)) as file:
        settings = argparse.Namespace(**json.load(file))
    network = raft.RAFT(settings)
    load_tensors(network, setup)
    network = network.to(setup.device).eval()

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, after = (to_tensor(question[name]).to(setup.device) for name in ("before", "after"))
        with torch.no_grad():
            return {"flow": scaled_flow(network, before, after, settings).cpu().numpy()}

    return answer


def load_tensors(network: torch.nn.Module, setup: Setup) -> None:
    """Load all tensors of the network; other tensors of the checkpoint are ignored."""
    if setup.checkpoint.endswith(".safetensors"):
        from safetensors.torch import load_file

        state = load_file(setup.checkpoint)
    else:
        state = setup.read()
    missing = network.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise ValueError(f"{setup.checkpoint} lacks {len(missing)} tensors, first {missing[0]}")


def to_tensor(frames: np.ndarray) -> torch.Tensor:
    """Channels-first RGB from 0 to 255."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2).float()


def scaled_flow(
    network: torch.nn.Module, before: torch.Tensor, after: torch.Tensor, settings: argparse.Namespace
) -> torch.Tensor:
    """Flow at the configured scale (a power of two), resized to the frames."""
    size = before.shape[-2:]
    if settings.scale:
        factor = 2.0**settings.scale
        before = F.interpolate(before, scale_factor=factor, mode="bilinear", align_corners=False)
        after = F.interpolate(after, scale_factor=factor, mode="bilinear", align_corners=False)
    found = network(before, after, iters=settings.iters, test_mode=True)["flow"][-1]
    if settings.scale:
        found = F.interpolate(found, size=size, mode="bilinear", align_corners=False) * 0.5**settings.scale
    return found


def loader(name: str) -> Callable[[Setup], Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]]:
    """`load_NAME` of this file, or `load` of a script; this folder must not shadow the checkout's modules."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    if os.path.basename(name) == name:
        return globals()["load_" + name]
    spec = importlib.util.spec_from_file_location("worker_" + name, name + ".py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load


def best_device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def parse_setup() -> tuple[str, Setup]:
    """The method and its setup, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method")
    for name in ("checkout", "checkpoint", "device"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--option", action="append", default=[])
    given = parser.parse_args()
    device = best_device() if given.device == "auto" else given.device
    options = dict(option.split("=", 1) for option in given.option)
    return given.method, Setup(given.checkout, given.checkpoint, device, options)


def main() -> None:
    """Load one method and answer until the pipe is closed."""
    questions, answers = private_streams()
    method, setup = parse_setup()
    answer = loader(method)(setup)
    send(answers, {"protocol": np.array(PROTOCOL)})
    while True:
        question = receive(questions)
        if question is None:
            return
        send(answers, answer(question))


if __name__ == "__main__":
    main()
