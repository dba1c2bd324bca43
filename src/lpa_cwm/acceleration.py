"""What makes a GPU fast: as many queries at once as its memory holds, half precision, and compiled networks."""

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError

Acceleration = Literal["bfloat16", "compile"]
"""Half precision of the networks, which moves answers by a fraction of a pixel; or their compilation."""
MOST_QUERIES = 4096
"""At once; more gain nothing."""
MEMORY_SHARE = 0.5
"""Of the free memory, for the responses of the queries of one batch."""
TEMPORARIES = 5
"""Tensors of the size of dense responses that exist at the same time."""


def queries_at_once(config: TrackerConfig, size: int, device: str) -> int:
    """Queries whose responses fit into the free memory of a CUDA device, even if the world model's are dense.

    Args:
        config: Settings; they say how many responses a query has.
        size: Side of the world model's frames in pixels.
        device: The CUDA device.
    """
    free, _ = torch.cuda.mem_get_info(device)
    responses = config.masks + len(config.gaps) * config.gap_masks
    each = responses * TEMPORARIES * 3 * size**2 * torch.finfo(torch.float32).bits // 8
    return max(1, min(int(MEMORY_SHARE * free) // each, MOST_QUERIES))


def accelerate(parts: Iterable[Any], device: str, ways: Collection[Acceleration]) -> None:
    """Let the networks of a world model and an adjudicator compute in half precision, or compile them, in place.

    A part names them in `networks`: those whose arithmetic bears rounding. Everything else stays in float32.

    Args:
        parts: World model and adjudicator.
        device: Where they compute.
        ways: `bfloat16` computes under autocast, results are float32 again; `compile` takes minutes at first.
    """
    if not ways:
        return
    if unknown := sorted(set(ways) - set(get_args(Acceleration))):
        raise InputError(f"{unknown[0]!r} is no acceleration; choose of {', '.join(get_args(Acceleration))}.")
    networks = [network for part in parts for network in getattr(part, "networks", ())]
    if not networks:
        raise InputError(
            f"{' and '.join(ways)} was asked for, but neither the world model nor the adjudicator has networks; "
            "leave out `accelerate`."
        )
    for network in networks:
        if "bfloat16" in ways:
            network.forward = in_bfloat16(network.forward, torch.device(device).type)
        if "compile" in ways:
            compile_network(network)


def in_bfloat16(forward: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """The same function under autocast, its results in float32."""

    @wraps(forward)
    def lower(*given: Any, **named: Any) -> Any:
        with torch.autocast(device_type, torch.bfloat16):
            result = forward(*given, **named)
        return tree_map(lambda value: value.float() if isinstance(value, Tensor) else value, result)

    return lower


def compile_network(network: nn.Module) -> None:
    """Compile for any number of queries."""
    network.compile(dynamic=True)
