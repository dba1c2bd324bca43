"""Opt-CWM behind the three verbs: what queries, masks and targets have in common is computed once."""

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import index_of
from lpa_cwm.world.opt_cwm.generator import Generator, place
from lpa_cwm.world.opt_cwm.predictor import Layout, Predictor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Scene:
    """Tokens, with positions, of both frames."""

    source: Float[Tensor, "p d"]
    target: Float[Tensor, "p d"]


@dataclass(slots=True)
class Factual:
    """What the encoder made of the scene under each mask; the first intervention adds the prediction."""

    layout: Layout
    states: Float[Tensor, "m l d"]
    prediction: Float[Tensor, "m 3 h w"] | None = None


class OptCwm(nn.Module):
    """The published world model; `batch` predictions are computed at a time, which bounds the memory."""

    mean: Tensor
    std: Tensor

    def __init__(self, predictor: Predictor, generator: Generator, batch: int = 8) -> None:
        super().__init__()
        self.predictor = predictor
        self.generator = generator
        self.batch = batch
        self.size = predictor.architecture.size
        self.patch = predictor.architecture.patch
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)
        self._last_source: tuple[Tensor, Tensor] | None = None

    def compiled(self) -> "OptCwm":
        """The same world with both transformers compiled; the first call of each shape then takes minutes."""
        self.predictor.encoder.compile()
        self.predictor.decoder.compile()
        return self

    @torch.no_grad()
    def observe(self, source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"]) -> Scene:
        """Embed both frames; the source only when it is not the tensor of the last call."""
        for frame in (source, target):
            if frame.shape[1:] != (self.size, self.size):
                given = " x ".join(map(str, frame.shape[1:]))
                raise InputError(f"A frame has {given} pixels; this world model sees {self.size} x {self.size}.")
        self.to(source.device)
        return Scene(self._source_tokens(source), self._tokens(target, 1))

    def _tokens(self, frame: Float[Tensor, "3 h w"], place: int) -> Float[Tensor, "p d"]:
        return self.predictor.embed((frame - self.mean) / self.std, place)

    def _source_tokens(self, source: Float[Tensor, "3 h w"]) -> Float[Tensor, "p d"]:
        if self._last_source is None or self._last_source[0] is not source:
            self._last_source = source, self._tokens(source, 0)
        return self._last_source[1]

    @torch.no_grad()
    def imagine(self, scene: Scene, hidden: Bool[Tensor, "m p"]) -> Factual:
        """Encode the scene under each mask; the decoder waits for the interventions, to run with theirs."""
        layout = Layout.of(hidden)
        parts = torch.arange(len(hidden), device=hidden.device).split(self.batch)
        states = [
            self.predictor.encode(scene.source.expand(len(rows), -1, -1), scene.target, layout[rows]) for rows in parts
        ]
        return Factual(layout, torch.cat(states))

    def intervene(self, scene: Scene, factual: Factual, xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n m 3 h w"]:
        """Perturb each query under each mask, by itself."""
        return self.intervene_jointly(scene, factual, repeat(xy, "n d -> n m 1 d", m=len(factual.states)))

    @torch.no_grad()
    def intervene_jointly(
        self, scene: Scene, factual: Factual, xy: Float[Tensor, "g m k 2"]
    ) -> Float[Tensor, "g m 3 h w"]:
        """Perturb the k points of each group at once; a point that is NaN is absent."""
        groups, masks = xy.shape[:2]
        points = rearrange(xy, "g m k d -> (g m) k d")
        # Rows below zero are the factual predictions, unless they are known from an earlier call.
        first = 0 if factual.prediction is not None else -masks
        parts = torch.arange(first, len(points), device=xy.device).split(self.batch)
        predicted = torch.cat([self._predict(scene, factual, rows, points) for rows in parts])
        if factual.prediction is None:
            factual.prediction = predicted[:masks].clone()
        return predicted[-first:].view(groups, masks, *predicted.shape[1:]).sub_(factual.prediction)

    def _predict(
        self, scene: Scene, factual: Factual, rows: Int[Tensor, "b"], points: Float[Tensor, "r k 2"]
    ) -> Float[Tensor, "b 3 h w"]:
        """Predictions of a batch of rows: factual ones (negative numbers), then counterfactual ones."""
        mask = rows % len(factual.states)
        asked = rows >= 0
        states = factual.states[mask[~asked]]
        if asked.any():
            source = scene.source + self._change(factual, mask[asked], points[rows[asked]])
            perturbed = self.predictor.encode(source, scene.target, factual.layout[mask[asked]])
            states = torch.cat((states, perturbed))
        return self.predictor.decode(states, factual.layout[mask])

    def _change(self, factual: Factual, mask: Int[Tensor, "b"], xy: Float[Tensor, "b k 2"]) -> Float[Tensor, "b p d"]:
        """What the interventions at the k points add to the source's tokens."""
        pixel = index_of(xy, (self.size, self.size))
        column, row = (pixel // self.patch).unbind(-1)
        states = factual.states[mask[:, None], row * self.predictor.architecture.side + column]
        blots = self.generator(states) * ~xy.isnan().any(-1)[..., None, None, None]
        placed = place(blots.flatten(0, 1), pixel.flatten(0, 1), self.size, self.predictor.architecture.scale)
        return self.predictor.embed_change(placed.unflatten(0, xy.shape[:2]).sum(1))
