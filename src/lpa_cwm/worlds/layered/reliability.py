"""Which of its hypotheses each visible patch follows: its own evidence, then rounds of consent with the others."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lpa_cwm.sampling import read
from lpa_cwm.worlds.layered.affine import local_linear
from lpa_cwm.worlds.layered.block_matching import FLOOR
from lpa_cwm.worlds.layered.encoder import COARSE_STRIDE, mlp
from lpa_cwm.worlds.layered.patches import PATCH
from lpa_cwm.worlds.layered.refine import COLOUR, Matches

ROUNDS = 2
LEAST = 25.0
"""Negative logarithms of weights are at most this."""
REACHES = (2.0, 5.0)
"""Distances, in patches, within which others are asked for consent."""


@dataclass(frozen=True, slots=True)
class Voters:
    """Hypotheses of visible patches that take part in the prediction, each with its reliability."""

    center: Float[Tensor, "b v 2"]
    offset: Float[Tensor, "b v 2"]
    linear: Float[Tensor, "b v 2 2"]
    """How the offset changes around the voter."""
    log_belief: Float[Tensor, "b v"]
    light: Float[Tensor, "b v 3"]
    information: Float[Tensor, "b v 3"]
    evidence: Float[Tensor, "b v e"]
    place: Float[Tensor, "b v c"]
    """Description of the source at the place the patch comes from."""


def evidence_of(matches: Matches, detail: Float[Tensor, "b n"]) -> Float[Tensor, "b n k e"]:
    """What is known of each hypothesis by itself, as numbers of order one."""
    detail = detail[..., None].expand_as(matches.shape_error)
    xx, xy, yy = matches.information.unbind(-1)
    trace = xx + yy
    least = trace / 2 - torch.sqrt(((xx - yy) / 2).square() + xy.square())
    logs = [
        torch.log(value.clamp(min=0) + 1e-5) + 6
        for value in (matches.shape_error, matches.color_error, detail, trace, least)
    ]
    best = logs[0].amin(-1, keepdim=True)
    far = torch.log1p(matches.away)
    return torch.stack((*logs, logs[0] - best, far), dim=-1) / 2


OWN_EVIDENCE = 7
EVIDENCE = OWN_EVIDENCE + len(REACHES)


def kinship(
    offset: Float[Tensor, "b v 2"],
    linear: Float[Tensor, "b v 2 2"],
    center: Float[Tensor, "b v 2"],
    slack: Tensor,
    stretch: Tensor,
) -> Float[Tensor, "b v v"]:
    """How far the motion of one hypothesis (row) foretells another: within `slack` pixels plus `stretch` per pixel."""
    apart = torch.cdist(center, center)
    start = offset - torch.einsum("bvde,bve->bvd", linear, center)
    told = start[:, :, None] + torch.einsum("bvde,bwe->bvwd", linear, center)
    differ = (told - offset[:, None]).square().sum(-1)
    # Bounded, because products of smaller numbers are denormal, and those are slow.
    return torch.exp(-(0.5 * differ / (slack.square() + (stretch * apart).square())).clamp(max=LEAST))


class Reader(nn.Module):
    """Beliefs over the hypotheses of the visible patches."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.unary = mlp(OWN_EVIDENCE, 32, 1)
        self.trust = nn.Parameter(torch.tensor(2.0))
        self.consent = nn.Parameter(torch.full((ROUNDS, len(REACHES)), 0.3))
        self.likeness = nn.Parameter(torch.full((ROUNDS,), 0.3))
        self.rest = nn.Parameter(torch.tensor(0.25))
        self.loner = nn.Parameter(torch.tensor(0.25))
        self.slack = nn.Parameter(torch.tensor(1.0))
        self.stretch = nn.Parameter(torch.tensor(0.12))
        self.channels = channels

    def forward(
        self,
        matches: Matches,
        detail: Float[Tensor, "b n"],
        centers: Float[Tensor, "b n 2"],
        context: Float[Tensor, "b c h w"],
        voices: float,
    ) -> Voters:
        """The most believed hypotheses, `voices` times as many as there are patches."""
        n, k = matches.shape_error.shape[1:]
        evidence = evidence_of(matches, detail)
        cost = matches.shape_error + COLOUR * matches.color_error
        unary = self.unary(evidence)[..., 0] - self.trust * torch.log(cost + FLOOR) - self.rest * evidence[..., -1]
        center = centers.repeat_interleave(k, dim=1)
        offset, linear = matches.offset.flatten(1, 2), matches.linear.flatten(1, 2)
        place = read(context, (center + offset) / COARSE_STRIDE)
        logits, consent = self.consult(unary, center, offset, linear, place[..., : self.channels])
        log_belief = logits.log_softmax(-1) + self.loner * consent.mean(-1)
        log_belief, best = log_belief.flatten(1).topk(min(round(voices * n), n * k))

        def chosen(values: Float[Tensor, "b v f"]) -> Float[Tensor, "b w f"]:
            return values.gather(1, best[..., None].expand(-1, -1, values.shape[-1]))

        own = chosen(linear.flatten(2)).unflatten(-1, (2, 2))
        return Voters(
            center=chosen(center),
            offset=chosen(offset),
            linear=local_linear(chosen(center), chosen(offset), own, log_belief),
            log_belief=log_belief,
            light=chosen(matches.light.flatten(1, 2)),
            information=chosen(matches.information.flatten(1, 2)),
            evidence=chosen(torch.cat((evidence, consent), dim=-1).flatten(1, 2)),
            place=chosen(place),
        )

    def consult(
        self,
        unary: Float[Tensor, "b n k"],
        center: Float[Tensor, "b v 2"],
        offset: Float[Tensor, "b v 2"],
        linear: Float[Tensor, "b v 2 2"],
        place: Float[Tensor, "b v c"],
    ) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n k r"]]:
        """Logits after each hypothesis has gained by the belief others hold in the same motion nearby, and the gain."""
        n, k = unary.shape[1:]
        kin = kinship(offset, linear, center, self.slack, self.stretch)
        apart = torch.cdist(center, center) / PATCH
        alike = place @ place.transpose(1, 2)
        other = 1 - torch.eye(n, device=unary.device).repeat_interleave(k, 0).repeat_interleave(k, 1)
        logits, gain = unary, unary[..., None]
        for i in range(ROUNDS):
            belief = logits.softmax(-1).flatten(1)
            gains = []
            for reach in REACHES:
                ask = torch.exp(self.likeness[i] * alike - apart / reach) * other
                support = ((ask * kin) @ belief[..., None])[..., 0]
                asked = (ask @ belief[..., None])[..., 0]
                gains.append(torch.log((support + 0.02) / (asked + 0.1)).unflatten(-1, (n, k)))
            gain = torch.stack(gains, dim=-1)
            logits = unary + gain @ self.consent[i]
        return logits, gain
