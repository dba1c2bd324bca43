"""One scene seen otherwise: mirrored, transposed, in other colors; what an adjudicator believes should not change."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lpa_cwm.rng import KeyPart, generator


@dataclass(frozen=True, slots=True)
class Turn:
    """Upside down, left to right, axes exchanged, colors permuted."""

    down: bool = False
    across: bool = False
    swap: bool = False
    colors: tuple[int, ...] = (0, 1, 2)

    @classmethod
    def drawn(cls, *identity: KeyPart) -> "Turn":
        """One of the 48, keyed."""
        draw = generator(*identity)
        down, across, swap = (torch.rand(3, generator=draw) < 0.5).tolist()
        return cls(down, across, swap, tuple(torch.randperm(3, generator=draw).tolist()))

    def __call__(
        self,
        local: Float[Tensor, "g m 10 i j"],
        response: Float[Tensor, "g m 1 k l"],
        context: Float[Tensor, "g 6 u v"],
        statistics: Float[Tensor, "g m 16"],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The evidence that the turned scene would have given."""
        local = torch.cat((*(self.recolored(local, start) for start in (0, 3, 6)), local[:, :, 9:]), dim=2)
        context = torch.cat([self.recolored(context, start) for start in (0, 3)], dim=-3)
        return self.image(local), self.image(response), self.image(context), self.moved(statistics)

    def recolored(self, image: Float[Tensor, "*b c h w"], start: int) -> Float[Tensor, "*b 3 h w"]:
        """The color planes from one channel on, permuted."""
        return image[..., [start + color for color in self.colors], :, :]

    def image(self, image: Float[Tensor, "*b h w"]) -> Float[Tensor, "*b y x"]:
        """Planes as the turned scene shows them."""
        axes = [axis for axis, flipped in ((-2, self.down), (-1, self.across)) if flipped]
        image = image.flip(axes)
        return image.mT if self.swap else image

    def moved(self, statistics: Float[Tensor, "*b 16"]) -> Float[Tensor, "*b 16"]:
        """The first two statistics are the displacement, down and across; the others know no direction."""
        down, across = statistics[..., :1], statistics[..., 1:2]
        move = (-down if self.down else down, -across if self.across else across)
        return torch.cat((*(reversed(move) if self.swap else move), statistics[..., 2:]), dim=-1)
