"""Opt-CWM as a world model: what queries, masks and targets have in common is computed once."""

from dataclasses import dataclass
from functools import cached_property

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.geometry import index_of
from lpa_cwm.worlds.opt_cwm.networks import PerturbationGenerator, Predictor, TokenLayout, paste

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class OptCwmScene:
    """Tokens, with positions, of both frames."""

    source: Float[Tensor, "p d"]
    target: Float[Tensor, "p d"]


@dataclass(slots=True)
class OptCwmFactual:
    """Encoder states of the scene under each mask; the first intervention adds the prediction."""

    layout: TokenLayout
    states: Float[Tensor, "m l d"]
    prediction: Float[Tensor, "m 3 h w"] | None = None


@dataclass
class EmbeddedFrame:
    """A normalized frame and its tokens, which depend on whether it is the source or the target of a pair."""

    predictor: Predictor
    frame: Float[Tensor, "3 h w"]

    @cached_property
    def as_source(self) -> Float[Tensor, "p d"]:
        return self.predictor.embed(self.frame, 0)

    @cached_property
    def as_target(self) -> Float[Tensor, "p d"]:
        return self.predictor.embed(self.frame, 1)


class OptCwm(nn.Module):
    """The published world model; `batch` predictions are computed at a time, which bounds the memory."""

    mean: Tensor
    std: Tensor

    defaults = TrackerConfig()
    response_sigma = 2.0

    def __init__(self, predictor: Predictor, generator: PerturbationGenerator, batch: int = 8) -> None:
        super().__init__()
        self.predictor = predictor
        self.generator = generator
        self.batch = batch
        self.size = predictor.architecture.size
        self.patch = predictor.architecture.patch
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def describe(self, frame: Float[Tensor, "3 h w"]) -> EmbeddedFrame:
        """Check and normalize a frame; its tokens are made when a pair needs them."""
        if frame.shape[1:] != (self.size, self.size):
            given = " x ".join(map(str, frame.shape[1:]))
            raise InputError(f"A frame has {given} pixels; this world model sees {self.size} x {self.size}.")
        self.to(frame.device)
        return EmbeddedFrame(self.predictor, (frame - self.mean) / self.std)

    @torch.no_grad()
    def observe(self, source: EmbeddedFrame, target: EmbeddedFrame) -> OptCwmScene:
        """The tokens of both frames."""
        return OptCwmScene(source.as_source, target.as_target)

    @torch.no_grad()
    def imagine(self, scene: OptCwmScene, hidden: Bool[Tensor, "m p"]) -> OptCwmFactual:
        """Encode the scene under each mask; its decoder runs in the batch of the first interventions."""
        layout = TokenLayout.of(hidden)
        parts = torch.arange(len(hidden), device=hidden.device).split(self.batch)
        states = [
            self.predictor.encode(scene.source.expand(len(rows), -1, -1), scene.target, layout[rows]) for rows in parts
        ]
        return OptCwmFactual(layout, torch.cat(states))

    @torch.no_grad()
    def intervene(
        self, scene: OptCwmScene, factual: OptCwmFactual, xy: Float[Tensor, "n 2"]
    ) -> Float[Tensor, "n m 3 h w"]:
        """The response to each query's own perturbation under each mask (Eq. 1)."""
        masks = len(factual.states)
        points = repeat(xy, "n d -> (n m) d", m=masks)
        # Rows below zero are the factual predictions, unless they are known from an earlier call.
        first = 0 if factual.prediction is not None else -masks
        parts = torch.arange(first, len(points), device=xy.device).split(self.batch)
        predicted = torch.cat([self._predict(scene, factual, rows, points) for rows in parts])
        if factual.prediction is None:
            factual.prediction = predicted[:masks].clone()
        return predicted[-first:].view(len(xy), masks, *predicted.shape[1:]).sub_(factual.prediction)

    def _predict(
        self, scene: OptCwmScene, factual: OptCwmFactual, rows: Int[Tensor, "b"], points: Float[Tensor, "r 2"]
    ) -> Float[Tensor, "b 3 h w"]:
        """Predictions of a batch of rows: factual ones (negative numbers), then counterfactual ones."""
        mask = rows % len(factual.states)
        perturbed = rows >= 0
        states = factual.states[mask[~perturbed]]
        if perturbed.any():
            source = scene.source + self._change(factual, mask[perturbed], points[rows[perturbed]])
            encoded = self.predictor.encode(source, scene.target, factual.layout[mask[perturbed]])
            states = torch.cat((states, encoded))
        return self.predictor.decode(states, factual.layout[mask])

    def _change(
        self, factual: OptCwmFactual, mask: Int[Tensor, "b"], xy: Float[Tensor, "b 2"]
    ) -> Float[Tensor, "b p d"]:
        """What the interventions at the points add to the source's tokens."""
        pixel = index_of(xy, (self.size, self.size))
        column, row = (pixel // self.patch).unbind(-1)
        states = factual.states[mask, row * self.predictor.architecture.side + column]
        perturbation = paste(self.generator(states), pixel, self.size, self.predictor.architecture.scale)
        return self.predictor.embed_change(perturbation)
