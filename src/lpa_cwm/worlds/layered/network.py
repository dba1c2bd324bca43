"""The compact predictor as one module: source, visible patches of the target -> drawing of the whole target."""

from dataclasses import dataclass

import torch
from einops import repeat
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.worlds.layered.densify import Propagator
from lpa_cwm.worlds.layered.encoder import Context, unit_groups
from lpa_cwm.worlds.layered.patches import PATCH, patch_centers, pixels_in
from lpa_cwm.worlds.layered.ransac import follow
from lpa_cwm.worlds.layered.refine import Ground, Looks, match
from lpa_cwm.worlds.layered.reliability import Reader
from lpa_cwm.worlds.layered.render import Drawing, Renderer


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults are those of the weights in the package."""

    groups: int = 4
    compared: int = 32
    plain: int = 8
    fine: int = 16
    motions: int = 4
    hypotheses: int = 5
    voices: float = 1.25
    """Hypotheses that may vote, per visible patch."""
    heard: int = 40
    """Voters that each cell listens to."""


@dataclass(frozen=True, slots=True)
class SourceEncoding:
    """The source as the network sees it."""

    source: Float[Tensor, "b 3 h w"]
    fine: Float[Tensor, "b f h2 w2"]
    coarse: Float[Tensor, "b c h4 w4"]
    ground: Ground


class Network(nn.Module, PyTorchModelHubMixin, library_name="lpa-cwm", license="apache-2.0"):
    """Describes the source, reads the visible patches, propagates their motions and plans the picture."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape = shape or Shape()
        self.context = Context(shape.fine + 4, shape.compared + shape.plain)
        self.reader = Reader(shape.compared)
        self.propagator = Propagator(shape.groups, shape.compared, shape.plain, shape.motions, shape.heard)
        self.renderer = Renderer(shape.groups, shape.fine, shape.motions, shape.compared + shape.plain)

    def look(self, source: Float[Tensor, "b 3 h w"]) -> SourceEncoding:
        """Descriptions of the source."""
        fine, coarse = self.context(source)
        compared, plain = coarse.split((self.shape.compared, self.shape.plain), dim=1)
        coarse = torch.cat((unit_groups(compared, self.shape.groups), plain), dim=1)
        return SourceEncoding(source, fine, coarse, Ground.of(source))

    def infer(
        self, view: SourceEncoding, looks: Looks, target: Float[Tensor, "b 3 h w"], visible: Int[Tensor, "b n"]
    ) -> Drawing:
        """How the target is drawn, given the looks of its visible patches; only visible pixels of it are used."""
        hw = (target.shape[-2], target.shape[-1])
        centers = patch_centers(hw, target.device)[visible]
        matches = follow(looks, view.ground.layers, pixels_in(visible, target), centers)
        voters = self.reader(matches, looks.detail, centers, view.coarse, self.shape.voices)
        motions = self.propagator(voters, hw, view.coarse)
        shown = pixels_of(patch_mask(visible, hw), hw).to(target.dtype)[:, None]
        return self.renderer(view.source, torch.cat((target * shown, shown), dim=1), motions, view.fine)

    def forward(
        self, source: Float[Tensor, "b 3 h w"], target: Float[Tensor, "b 3 h w"], visible: Int[Tensor, "b n"]
    ) -> Drawing:
        """The drawing from frames and the numbers of the visible patches."""
        view = self.look(source)
        looks = match(view.ground, target, visible, self.shape.hypotheses)
        return self.infer(view, looks, target, visible)


def patch_mask(patches: Int[Tensor, "b n"], hw: tuple[int, int]) -> Bool[Tensor, "b p"]:
    """True at the given patches."""
    count = (hw[0] // PATCH) * (hw[1] // PATCH)
    return torch.zeros(len(patches), count, dtype=torch.bool, device=patches.device).scatter(1, patches, True)


def pixels_of(patches: Bool[Tensor, "b p"], hw: tuple[int, int]) -> Bool[Tensor, "b h w"]:
    """A value per patch as a value per pixel."""
    return repeat(patches, "b (r c) -> b (r i) (c j)", c=hw[1] // PATCH, i=PATCH, j=PATCH)
