"""GMRW from its authors' checkout: adjacent frames linked by their tracking utility, which also judges visibility."""

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
    from lpa_cwm.baselines.workers.serve import Place

UPSAMPLE = "2"
"""How many times the frames are enlarged unless told: 2 in the authors' plain recipe, 4 in their best."""
ONLY_IMPORTED = ("flash_attn", "wandb", "dominate", "dominate.tags", "dgl", "fire")
"""What the checkout imports and inference never calls."""


class Absent(ModuleType):
    """Stands in for a package that is not installed: everything can be imported from it, nothing called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*arguments: Any, **settings: Any) -> None:
            raise ImportError(f"{self.__name__} is not installed, but {name} was called")

        return refuse


def stand_in() -> None:
    """Let the checkout be imported without what it does not use."""
    absent = [name for name in ONLY_IMPORTED if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: Absent(name) for name in absent})


def build(place: Place) -> Any:
    """The network with the settings of the authors' evaluation."""
    import arguments
    from models import GMRW
    from utils import utils

    options = arguments.train_args("")
    options.eval_only, options.no_of_frames, options.device = True, 2, torch.device(place.device)
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
    network.load_state_dict(utils.trim_statedict_keys(place.read()["model"]))
    return network.to(place.device).eval()


def load(place: Place) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The network, and the utility that makes tracks of its affinities."""
    stand_in()
    sys.path.insert(0, place.checkout)
    network = build(place)
    from utils import tracking_utils, utils

    device, factor = torch.device(place.device), int(place.options.get("upsample", UPSAMPLE))

    def flow(pair: torch.Tensor, height: int, width: int) -> torch.Tensor:
        affinity = network.compute_correspondence(pair)
        return utils.compute_flow_from_affinity(
            affinity, H=height, W=width, weight_method="weighted_sum", device=device
        )

    def answer(question: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        height, width = question["video"].shape[1:3]
        # The authors' points are (t, y, x), and TAP-Vid's as they are: the utility's border is at 0 and at the side.
        queries = torch.from_numpy(question["queries"])[:, [0, 2, 1]]
        with torch.no_grad():
            video = enlarged(torch.from_numpy(question["video"]), factor).to(device)
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


def enlarged(video: torch.Tensor, factor: int) -> torch.Tensor:
    """[t h w 3] to [1 t 3 h w], larger by a factor; still from 0 to 255, as the network was trained."""
    frames = video.permute(0, 3, 1, 2).float()
    size = (factor * frames.shape[-2], factor * frames.shape[-1])
    return F.interpolate(frames, size=size, mode="bilinear", align_corners=True)[None]
