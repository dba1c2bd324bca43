"""The layered-motion network and the world model around it; its weights ship in the package."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.config import TrackerConfig
from lpa_cwm.geometry import HW, patch_centers
from lpa_cwm.masks import mask_of, mask_pixels
from lpa_cwm.responses import Responses
from lpa_cwm.sampling import gather_patches
from lpa_cwm.worlds.layered.densify import CellMotions, Densifier
from lpa_cwm.worlds.layered.matching import PATCH, MatchingFeatures, PatchMatches, match_patches
from lpa_cwm.worlds.layered.networks import MatchReliability, SourceEncoder, normalize_groups
from lpa_cwm.worlds.layered.ransac import add_hypotheses
from lpa_cwm.worlds.layered.render import GaussianBump, MixtureRenderer, WarpMixture, render, warp_bump
from lpa_cwm.worlds.perturbed import PerturbedPredictor, load_network, total_effect

FILE = "world-compact.safetensors"
DEFAULTS = TrackerConfig(passes=0)
"""A re-evaluation does not improve this world model (`benchmarks/passes.py`)."""


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of the network; the defaults are those of the bundled weights."""

    groups: int = 4
    """Groups of channels in which features are compared."""
    compared: int = 32
    """Coarse channels that are compared."""
    plain: int = 8
    """Coarse channels that are read as they are."""
    fine: int = 16
    """Fine channels that are compared."""
    motions: int = 4
    """Motions per cell."""
    hypotheses: int = 5
    """Hypotheses per visible patch."""
    kept_ratio: float = 1.25
    """Hypotheses that are densified, per visible patch."""
    top_k: int = 40
    """Matches that each cell attends to."""


@dataclass(frozen=True, slots=True)
class SourceEncoding:
    """The source, its learned features, and what matching reads of it."""

    image: Float[Tensor, "b 3 h w"]
    fine: Float[Tensor, "b f h2 w2"]
    coarse: Float[Tensor, "b c h4 w4"]
    matching: MatchingFeatures


class LayeredMotionNetwork(nn.Module, PyTorchModelHubMixin, library_name="lpa-cwm", license="apache-2.0"):
    """From the source and the visible target patches to the warp mixture of the whole target."""

    def __init__(self, sizes: NetworkSizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes = sizes or NetworkSizes()
        described = sizes.compared + sizes.plain
        self.encoder = SourceEncoder(sizes.fine + 4, described)
        self.reliability = MatchReliability(sizes.compared)
        self.densifier = Densifier(sizes.groups, sizes.compared, sizes.plain, sizes.motions, sizes.top_k)
        self.renderer = MixtureRenderer(sizes.groups, sizes.fine, sizes.motions, described)

    def encode(self, source: Float[Tensor, "b 3 h w"]) -> SourceEncoding:
        """Features of the source."""
        fine, coarse = self.encoder(source)
        compared, plain = coarse.split((self.sizes.compared, self.sizes.plain), dim=1)
        coarse = torch.cat((normalize_groups(compared, self.sizes.groups), plain), dim=1)
        return SourceEncoding(source, fine, coarse, MatchingFeatures.of(source))

    def infer(
        self,
        source: SourceEncoding,
        matches: PatchMatches,
        target: Float[Tensor, "b 3 h w"],
        visible: Int[Tensor, "b n"],
    ) -> WarpMixture:
        """The warp mixture, from the matches of the visible patches; only visible target pixels are used."""
        hw = (target.shape[-2], target.shape[-1])
        centers = patch_centers(hw, PATCH, target.device)[visible]
        hypotheses = add_hypotheses(matches, source.matching.layers, gather_patches(target, visible, PATCH), centers)
        reliable = self.reliability(hypotheses, matches.variance, centers, source.coarse, self.sizes.kept_ratio)
        motions = self.densifier(reliable, hw, source.coarse)
        shown = visible_pixels(visible, hw).to(target.dtype)[:, None]
        return self.renderer(source.image, torch.cat((target * shown, shown), dim=1), motions, source.fine)

    def forward(
        self, source: Float[Tensor, "b 3 h w"], target: Float[Tensor, "b 3 h w"], visible: Int[Tensor, "b n"]
    ) -> WarpMixture:
        """The warp mixture from frames and the raster numbers of the visible patches."""
        encoding = self.encode(source)
        matches = match_patches(encoding.matching, target, visible, self.sizes.hypotheses)
        return self.infer(encoding, matches, target, visible)


def visible_pixels(visible: Int[Tensor, "b n"], hw: HW) -> Bool[Tensor, "b h w"]:
    """True at the pixels of the given patches."""
    columns = hw[1] // PATCH
    return mask_pixels(mask_of(visible, (hw[0] // PATCH) * columns), columns, PATCH)


@dataclass(frozen=True, slots=True)
class LayeredMotionScene:
    """A target frame, the encoded source, and the matches of all target patches."""

    target: Float[Tensor, "1 3 h w"]
    source: SourceEncoding
    matches: PatchMatches


@dataclass(frozen=True, slots=True)
class LayeredMotionFactual:
    """The warp mixture under each mask."""

    hidden: Bool[Tensor, "m p"]
    mixture: WarpMixture

    @property
    def hidden_pixels(self) -> Bool[Tensor, "m h w"]:
        """True at the pixels of hidden patches."""
        return mask_pixels(self.hidden, self.mixture.hw[1] // PATCH, PATCH)


@dataclass
class LayeredMotionFrame:
    """A frame; it is encoded when it first serves as a source."""

    network: LayeredMotionNetwork
    image: Float[Tensor, "3 h w"]

    @cached_property
    def encoding(self) -> SourceEncoding:
        return self.network.encode(self.image[None])


@dataclass
class LayeredMotionWorld:
    """The compact world model; its response is the bump carried by the inferred motion, which is held fixed."""

    network: LayeredMotionNetwork
    bump: GaussianBump = field(default_factory=GaussianBump)
    size: int = 256
    patch: int = PATCH
    defaults: TrackerConfig = DEFAULTS

    @property
    def response_sigma(self) -> float:
        """Standard deviation of a response in pixels, which the training of LPA needs."""
        return self.bump.sigma

    @classmethod
    def load(cls, weights: Path | None = None) -> "LayeredMotionWorld":
        """The world model of a weight file; of the bundled one if none is given.

        Args:
            weights: The weight file; by default the bundled one.
        """
        return cls(load_network(LayeredMotionNetwork(), weights, FILE, "compact"))

    def describe(self, frame: Float[Tensor, "3 h w"]) -> LayeredMotionFrame:
        """Prepare a frame as source or target."""
        self.network.to(frame.device)
        return LayeredMotionFrame(self.network, frame)

    @torch.no_grad()
    def observe(self, source: LayeredMotionFrame, target: LayeredMotionFrame) -> LayeredMotionScene:
        """Match every target patch by itself to the source."""
        encoding, image = source.encoding, target.image[None]
        patches = torch.arange((image.shape[-2] // PATCH) * (image.shape[-1] // PATCH), device=image.device)
        matches = match_patches(encoding.matching, image, patches[None], self.network.sizes.hypotheses)
        return LayeredMotionScene(image, encoding, matches)

    @torch.no_grad()
    def imagine(self, scene: LayeredMotionScene, hidden: Bool[Tensor, "m p"]) -> LayeredMotionFactual:
        """Infer the warp mixture under each mask from the visible patches alone."""
        mixtures = []
        for mask in hidden:
            visible = (~mask).nonzero()[:, 0][None]
            mixtures.append(self.network.infer(scene.source, scene.matches.select(visible), scene.target, visible))
        return LayeredMotionFactual(hidden, concat_mixtures(mixtures))

    @torch.no_grad()
    def predict(self, scene: LayeredMotionScene, factual: LayeredMotionFactual) -> Float[Tensor, "m 3 h w"]:
        """The predicted target under each mask; visible patches are copied from the target."""
        source = scene.source.image.expand(len(factual.hidden), -1, -1, -1)
        rendered = render(source, factual.mixture)
        return torch.where(factual.hidden_pixels[:, None], rendered, scene.target)

    @torch.no_grad()
    def intervene(
        self, scene: LayeredMotionScene, factual: LayeredMotionFactual, xy: Float[Tensor, "n 2"]
    ) -> Responses:
        """The bump at each point, carried by the factual warps and mixture weights (controlled direct effect)."""
        return warp_bump(self.bump, factual.mixture, factual.hidden, xy)

    def total_effect(self) -> PerturbedPredictor:
        """The same network with Eq. 1 literally: the perturbed source is encoded, matched and rendered again."""
        return total_effect(self)


def concat_mixtures(mixtures: list[WarpMixture]) -> WarpMixture:
    """Several mixtures as one batch."""
    motions = [mixture.motions for mixture in mixtures]
    joined = {part.name: torch.cat([getattr(one, part.name) for one in motions]) for part in fields(CellMotions)}
    return WarpMixture(
        motions=CellMotions(**joined),
        weight=torch.cat([mixture.weight for mixture in mixtures]),
        inpainting=torch.cat([mixture.inpainting for mixture in mixtures]),
    )
