"""GMRW (Shrivastava & Owens 2024, arXiv:2409.16288) from its checkout: adjacent frames chained by its own utility."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from lpa_cwm.baselines.workers.serve import Setup

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


def build(setup: Setup) -> Any:
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


def load(setup: Setup) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Load the network and the utility that chains its affinities into tracks."""
    install_stubs()
    sys.path.insert(0, setup.checkout)
    network = build(setup)
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
