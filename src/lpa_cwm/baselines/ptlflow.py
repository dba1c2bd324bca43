"""Networks of the `ptlflow` package as flow estimators; here SEA-RAFT, which it holds without its authors' checkout."""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor

from lpa_cwm.errors import InputError, need


@dataclass(frozen=True, slots=True)
class PtlflowFlow:
    """A `pairwise.Flow`; frames go in as blue, green, red from 0 to 1, as that package has them."""

    network: Any

    @torch.no_grad()
    def __call__(self, before: UInt8[Tensor, "b 3 h w"], after: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 2 h w"]:
        """The network fills up the sides by itself."""
        images = torch.stack((before, after), dim=1).flip(2).float() / 255
        flows = self.network.to(images.device)({"images": images})["flows"]
        return rearrange(flows, "b 1 d h w -> b d h w")


def load_ptlflow(name: str, checkpoint: str) -> PtlflowFlow:
    """A network by ptlflow's name for it, with a file, or with one of ptlflow's own checkpoints, which it downloads."""
    ptlflow = need("ptlflow", extra="ptlflow")
    try:
        network = ptlflow.get_model(name, ckpt_path=checkpoint)
    except Exception as error:  # Whatever a foreign package may raise.
        raise InputError(f"ptlflow could not load {name} with the checkpoint {checkpoint!r}: {error}") from error
    return PtlflowFlow(network.eval())
