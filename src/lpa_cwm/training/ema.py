"""A slow copy of a network that follows its weights: single updates are noise, their average is what was learned."""

import torch
from torch import nn


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, step: int, least: float) -> None:
    """Move the copy towards the network, faster at the beginning, never by a smaller share than the least."""
    share = max(least, 1 / (step + 1) ** 0.75)
    for slow, fast in zip(average.parameters(), network.parameters(), strict=True):
        slow.lerp_(fast.detach(), share)
