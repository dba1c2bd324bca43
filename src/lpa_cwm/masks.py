"""Which target patches are hidden: nested random masks, masks edited around a point, and the queries that use them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import patch_of
from lpa_cwm.rng import KeyPart, generator

HIDDEN_SHARE = TrackerConfig.hidden_share
"""The share of the paper: of 1024 patches int(0.9 * 1024) = 921 are hidden."""


def random_masks(
    count: int, patches: int, *identity: KeyPart, hidden_share: float = HIDDEN_SHARE
) -> Bool[Tensor, "count p"]:
    """Keyed random masks, True where hidden; fewer masks are a prefix of more."""
    orders = [torch.randperm(patches, generator=generator("mask", *identity, index)) for index in range(count)]
    return torch.stack(orders) < int(hidden_share * patches)


def balanced_masks(count: int, patches: int, *identity: KeyPart, hidden_share: float) -> Bool[Tensor, "count p"]:
    """Keyed masks, True where hidden, that hide all patches equally often, up to rounding.

    Responses exist only where patches are hidden. If one patch is hidden more often than the next, the mean response
    has a step between them, and its maximum is drawn across.
    """
    rank = torch.randperm(patches, generator=generator("balanced mask", *identity))
    start = torch.arange(count)[:, None] * patches // count
    return (rank - start) % patches < int(hidden_share * patches)


def mask_pixels(masks: Bool[Tensor, "m p"], columns: int, patch: int) -> Bool[Tensor, "m h w"]:
    """A value per patch as a value per pixel; `columns` patches make a row."""
    return repeat(masks, "m (r c) -> m (r i) (c j)", c=columns, i=patch, j=patch)


def neighborhood(xy: Float[Tensor, "n 2"], size: int, patch: int) -> Bool[Tensor, "n p"]:
    """The 3 x 3 patches around each point, clipped at the border."""
    side = size // patch
    axis = torch.arange(side, device=xy.device)
    near = (axis - patch_of(xy, (size, size), patch)[..., None]).abs() <= 1
    return (near[:, 1, :, None] & near[:, 0, None, :]).flatten(1)


def hide(
    masks: Bool[Tensor, "m p"], around: Bool[Tensor, "p"], reveal: Literal["random", "raster"], *identity: KeyPart
) -> Bool[Tensor, "m p"]:
    """Hide `around` in every mask and reveal as many other patches, so that the number hidden stays the same.

    `random` reveals hidden patches outside `around`; `raster` follows the official code of Opt-CWM, which reveals the
    first hidden patches in raster order.
    """
    edited = masks.clone()
    if int(around.sum()) > int(masks[0].sum()):
        raise InputError(
            f"The endpoints' neighborhoods cover {int(around.sum())} patches but a mask hides {int(masks[0].sum())}; "
            "use larger frames or the re-evaluation query by query."
        )
    for index, mask in enumerate(masks):
        exposed = int((around & ~mask).sum())
        if reveal == "raster":
            chosen = mask.nonzero()[:exposed, 0]
        else:
            order = torch.randperm(len(mask), generator=generator("reveal", *identity, index)).to(mask.device)
            chosen = order[(mask & ~around)[order]][:exposed]
        edited[index] |= around
        edited[index, chosen] = False
    return edited


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Masks of one frame pair, and which queries use which of them."""

    hidden: Bool[Tensor, "k p"]
    used: Bool[Tensor, "n k"]

    def groups(self) -> Iterator[tuple[Int[Tensor, "masks"], Int[Tensor, "users"]]]:
        """Groups of masks and of the queries that use them: each mask is predicted once for all its queries."""
        columns, member = torch.unique(self.used.T, dim=0, return_inverse=True)
        for group, column in enumerate(columns):
            if column.any():
                yield (member == group).nonzero()[:, 0], column.nonzero()[:, 0]


def shared_plan(masks: Bool[Tensor, "k p"], queries: int) -> MaskPlan:
    """Every query uses every mask."""
    return MaskPlan(masks, torch.ones(queries, len(masks), dtype=torch.bool))


def joint_group_size(patches: int) -> int:
    """Queries that share masks in a re-evaluation, 32 for 1024 patches: they hide at most a third of a mask."""
    return max(1, patches // 32)


def joint_plan(
    around: Bool[Tensor, "n p"],
    count: int,
    reveal: Literal["random", "raster"],
    *identity: KeyPart,
    hidden_share: float = HIDDEN_SHARE,
) -> MaskPlan:
    """Masks for groups of consecutive queries; the masks of a group hide the neighborhoods of all its queries."""
    masks, used = [], torch.zeros(len(around), 0, dtype=torch.bool)
    for number, group in enumerate(torch.arange(len(around)).split(joint_group_size(around.shape[1]))):
        own = (*identity, "group", number)
        drawn = random_masks(count, around.shape[1], *own, hidden_share=hidden_share)
        masks.append(hide(drawn, around[group].any(0), reveal, *own))
        member = torch.isin(torch.arange(len(around)), group)
        used = torch.cat((used, member[:, None].expand(-1, count)), dim=1)
    return MaskPlan(torch.cat(masks), used)


def per_query_plan(masks: list[Bool[Tensor, "m p"]]) -> MaskPlan:
    """Every query has masks of its own."""
    owner = torch.arange(len(masks)).repeat_interleave(len(masks[0]))
    return MaskPlan(torch.cat(masks), owner == torch.arange(len(masks))[:, None])
