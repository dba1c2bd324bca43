"""The world model around the learned network; its weights ship in the package."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.config import Calibration, TrackerConfig
from lpa_cwm.files import bundled_weights
from lpa_cwm.geometry import HW, constant
from lpa_cwm.io.safe_load import load_weights
from lpa_cwm.masks import mask_pixels
from lpa_cwm.protocols import PerturbedPredictor
from lpa_cwm.responses import Responses
from lpa_cwm.worlds.learned.densify import CellList, Motions
from lpa_cwm.worlds.learned.matching import PATCH, Description
from lpa_cwm.worlds.learned.network import LearnedNetwork, LearnedScene
from lpa_cwm.worlds.learned.render import CarriedModes, RadialBump, render, splat, splat_pairs

FILE = "world-learned.safetensors"
CALIBRATION = Calibration(weights=(1.3255, -0.9228, -0.7197, 2.9911), threshold=0.2)
"""Fitted on simulated clips and on annotated natural video by `lpa-cwm train confidence`; the threshold was chosen on
real video."""
DEFAULTS = TrackerConfig(
    hidden_share=0.8, gaps=(1, 4), passes=1, reevaluation="native", sharpness=500.0, calibration=CALIBRATION, batch=32
)
"""Through time, then in native crops. The sharpness was chosen on layered validation pairs: windows then act on peaks,
not on noise."""

CROP_HYPOTHESES = 2
"""Matches of a patch that are kept in crops, which hold fewer places that look alike than frames do."""
SEARCH_CELLS = 5
"""Side, in cells, of the square in which a crop's point is searched; the other cells only help to infer its motion."""


@dataclass(frozen=True, slots=True)
class LearnedFactual:
    """The motions of the target under each mask."""

    hidden: Bool[Tensor, "m p"]
    motions: Motions
    """Of all cells under each mask, or a list of those that points can reach."""
    carried: CarriedModes
    """Those of the motions that can move something into hidden cells."""


@dataclass
class LearnedWorld:
    """The learned world model; its response is the bump carried by the inferred motions, which are held fixed."""

    network: LearnedNetwork
    bump: RadialBump = field(default_factory=RadialBump)
    size: int = 256
    patch: int = PATCH
    defaults: TrackerConfig = DEFAULTS

    @property
    def response_sigma(self) -> float:
        """Standard deviation of a response in pixels, which the training of LPA needs."""
        return self.bump.sigma

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """Networks that may compute in half precision; the others compute places."""
        return self.network.descriptor, self.network.encoder

    @classmethod
    def load(cls, weights: Path | None = None) -> "LearnedWorld":
        """The world model of a weight file; of the bundled one if none is given.

        Args:
            weights: A safetensors file; the bundled one by default.
        """
        network = LearnedNetwork()
        path = bundled_weights(FILE) if weights is None else weights
        load_weights(network, path, "a file of weights of the learned world model", "give a file that is")
        network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return cls(network.eval())

    @torch.no_grad()
    def describe(self, frame: Float[Tensor, "3 h w"]) -> Description:
        """Descriptors and context of a frame, which serve it as source and as target.

        Args:
            frame: Colors in [0, 1].
        """
        return self.network.to(frame.device).describe(frame[None])

    @torch.no_grad()
    def observe(self, source: Description, target: Description) -> LearnedScene:
        """Match each target patch to the source, independently of the others.

        Args:
            source: The described source frame.
            target: The described target frame.
        """
        return self.network.observe(source, target)

    @torch.no_grad()
    def imagine(self, scene: LearnedScene, hidden: Bool[Tensor, "m p"]) -> LearnedFactual:
        """Infer the motions under each mask from the visible patches alone.

        Args:
            scene: What `observe` returned.
            hidden: For each mask, the patches of the target that are hidden.
        """
        motions = self.network.imagine(scene, hidden[None]).motions
        every = torch.arange(hidden.shape[1], device=hidden.device).expand(len(hidden), -1)
        carried = CarriedModes.of(motions, CellList.of(every), hidden.flatten(), scene.source.hw)
        return LearnedFactual(hidden, motions, carried)

    @torch.no_grad()
    def observe_shown(self, source: Description, target: Description, hidden: Bool[Tensor, "m p"]) -> LearnedScene:
        """Match only the target patches that some mask shows.

        Args:
            source: The described source frame.
            target: The described target frame.
            hidden: All masks under which the scene will be imagined.
        """
        return self.network.observe_shown(source, target, hidden)

    @torch.no_grad()
    def imagine_near(
        self, scene: LearnedScene, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"]
    ) -> LearnedFactual:
        """Infer the motions only where something at a point of the source may have moved to.

        Args:
            scene: What `observe` or `observe_shown` returned.
            hidden: For each mask, the patches of the target that are hidden.
            xy: All points that will be perturbed.
        """
        motions, cells = self.network.imagine_near(scene, hidden, xy, self.bump.radius)
        shown = torch.ones_like(cells.cell, dtype=torch.bool)
        return LearnedFactual(hidden, motions, CarriedModes.of(motions, cells, shown, scene.source.hw))

    @torch.no_grad()
    def predict(self, scene: LearnedScene, factual: LearnedFactual) -> Float[Tensor, "m 3 h w"]:
        """The predicted target under each mask; visible patches are copied from the target.

        Args:
            scene: What `observe` returned.
            factual: What `imagine` returned.
        """
        hidden = mask_pixels(factual.hidden, scene.source.hw[1] // PATCH, PATCH)
        rendered = render(scene.source.frame.expand(len(hidden), -1, -1, -1), factual.motions)
        return torch.where(hidden[:, None], rendered, scene.target.frame)

    @torch.no_grad()
    def intervene(self, scene: LearnedScene, factual: LearnedFactual, xy: Float[Tensor, "n 2"]) -> Responses:
        """The bump at each point, carried by the factual motions and weights (controlled direct effect).

        Args:
            scene: What `observe` returned.
            factual: What `imagine` returned.
            xy: Points of the source.
        """
        return splat(self.bump, factual.carried, xy, len(factual.hidden), scene.source.hw)

    @torch.no_grad()
    def describe_crops(self, crops: Float[Tensor, "n 3 s s"], context: bool = True) -> list[Description]:
        """Descriptions of single crops, made in one batch.

        Args:
            crops: Colors in [0, 1].
            context: Whether they can be sources; without it they can only be targets.
        """
        return self.network.to(crops.device).describe(crops, context).single()

    @torch.no_grad()
    def respond(
        self,
        source: Sequence[Description],
        target: Sequence[Description],
        xy: Float[Tensor, "n 2"],
        near: Float[Tensor, "n 2"],
        hidden: Bool[Tensor, "m p"],
    ) -> Responses:
        """Responses of n points, each in its own pair of crops, in one batch.

        Only the cells around `near`, where each point is looked for, are imagined.

        Args:
            source: What `describe_crops` returned for the crops around the points.
            target: What it returned for the target crops.
            xy: The points in their source crops.
            near: Where in its target crop each point is looked for.
            hidden: Masks; they are the same for all points.
        """
        masks = len(hidden)
        here, there = Description.join(source), Description.join(target)
        scene = self.network.observe(here, there, hypotheses=CROP_HYPOTHESES)
        of_pairs = hidden.expand(len(xy), -1, -1)
        cells = cells_around(near, scene.source.hw).repeat_interleave(masks, dim=0)
        motions = self.network.imagine(scene, of_pairs, cells).motions
        places = xy[:, None].expand(-1, masks, -1)
        return splat_pairs(self.bump, motions, of_pairs, places, scene.source.hw, cells)

    def total_effect(self) -> PerturbedPredictor:
        """The same network with Eq. 1 literally: the perturbed source is described, matched and rendered again."""

        def predict(source: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
            scene = self.observe(self.describe(source), self.describe(target))
            return self.predict(scene, self.imagine(scene, hidden))

        def perturb(source: Tensor, xy: Tensor) -> Tensor:
            return source + self.bump.image(xy[None], (source.shape[-2], source.shape[-1]))[0]

        # Native crops need `respond`; what is calibrated is the strength of responses with fixed motions.
        defaults = replace(self.defaults, passes=0, reevaluation="joint", calibration=None)
        return PerturbedPredictor(predict, perturb, self.size, self.patch, defaults, self.response_sigma)


def cells_around(xy: Float[Tensor, "n 2"], hw: HW) -> Int[Tensor, "n c"]:
    """The cells of a square around each point, shifted to stay inside the frame."""
    rows, columns = hw[0] // PATCH, hw[1] // PATCH
    room = constant((max(columns - SEARCH_CELLS, 0), max(rows - SEARCH_CELLS, 0)), xy.dtype, xy.device)
    left, up = torch.minimum((xy / PATCH - SEARCH_CELLS / 2).round().clamp(min=0), room).long()[..., None].unbind(1)
    across, down = (torch.arange(min(SEARCH_CELLS, count), device=xy.device) for count in (columns, rows))
    return ((up + down)[:, :, None] * columns + (left + across)[:, None]).flatten(1)
