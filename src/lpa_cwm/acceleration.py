"""Acceleration on GPUs: batch size from the free memory, half precision, compiled networks."""

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError

Acceleration = Literal["bfloat16", "compile"]
"""Networks in half precision, which moves endpoints by a fraction of a pixel; or compiled networks."""
MAX_QUERIES = 4096
"""Largest batch of queries; larger ones are not faster."""
MEMORY_SHARE = 0.5
"""Share of the free memory for the responses of one batch of queries."""
TEMPORARIES = 5
"""Number of tensors of the size of dense responses that exist at the same time."""


def queries_at_once(config: TrackerConfig, size: int, device: str) -> int:
    """Number of queries whose responses, taken as dense, fit into the free memory of a CUDA device.

    Args:
        config: Settings, which determine the number of responses per query.
        size: Side of the world model's frames in pixels.
        device: The CUDA device.
    """
    free, _ = torch.cuda.mem_get_info(device)
    responses = config.masks + len(config.gaps) * config.gap_masks
    each = responses * TEMPORARIES * 3 * size**2 * torch.finfo(torch.float32).bits // 8
    return max(1, min(int(MEMORY_SHARE * free) // each, MAX_QUERIES))


def accelerate(parts: Iterable[Any], device: str, kinds: Collection[Acceleration]) -> None:
    """Run the networks of a world model and an adjudicator in half precision, or compile them, in place.

    A part lists in `networks` those that tolerate rounding. Everything else stays in float32.

    Args:
        parts: World model and adjudicator.
        device: Where they compute.
        kinds: `bfloat16` computes under autocast, results are float32 again; `compile` takes minutes at first.
    """
    if not kinds:
        return
    known = get_args(Acceleration)
    if unknown := sorted(set(kinds) - set(known)):
        raise InputError(f"{unknown[0]!r} is not a known acceleration; choose among {', '.join(known)}.")
    networks = [network for part in parts for network in getattr(part, "networks", ())]
    if not networks:
        raise InputError(
            f"{' and '.join(kinds)} was asked for, but neither the world model nor the adjudicator has networks; "
            "leave out `accelerate`."
        )
    for network in networks:
        if "bfloat16" in kinds:
            network.forward = in_bfloat16(network.forward, torch.device(device).type)
        if "compile" in kinds:
            compile_network(network)


def in_bfloat16(forward: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """The same function under autocast, with results in float32."""

    @wraps(forward)
    def lower(*given: Any, **named: Any) -> Any:
        with torch.autocast(device_type, torch.bfloat16):
            result = forward(*given, **named)
        return tree_map(lambda value: value.float() if isinstance(value, Tensor) else value, result)

    return lower


def compile_network(network: nn.Module) -> None:
    """Compile a network for any number of queries."""
    network.compile(dynamic=True)
