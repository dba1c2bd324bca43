"""The predictor as one module: describe frames, observe pairs, infer the motions of a target under masks."""

from dataclasses import dataclass, replace

import torch
from einops import rearrange
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lpa_cwm.geometry import patch_centers
from lpa_cwm.worlds.learned.densify import CellList, Motions, PointDistance, VoteDensifier
from lpa_cwm.worlds.learned.matching import (
    PATCH,
    ContextEncoder,
    Correlation,
    Description,
    MatchHypotheses,
    PatchDescriptor,
    match,
)
from lpa_cwm.worlds.learned.reliability import Nodes, Reliability, gather_rows


@dataclass(frozen=True)
class LearnedSizes:
    """Sizes of the network; the defaults are those of the bundled weights."""

    descriptor: int = 64
    context: int = 24
    groups: int = 4
    coarse: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4
    features: int = 4
    hypotheses: int = 4
    nearest: int = 10
    modes: int = 4


@dataclass(frozen=True, slots=True)
class LearnedScene:
    """What is known of frame pairs before a mask is chosen."""

    source: Description
    target: Description
    centers: Float[Tensor, "b p 2"]
    color: Float[Tensor, "b p 3"]
    """Mean colors of the target patches."""
    matches: MatchHypotheses
    tokens: Float[Tensor, "b p k w"]
    row: Int[Tensor, "p"] | None = None
    """For every patch its row among those that were matched; None if all were."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a mask lets the network read: logits of the matches of the visible patches, and the motions of all cells."""

    visible: Int[Tensor, "b m n"]
    logit: Float[Tensor, "bm n k"]
    motions: Motions


class LearnedNetwork(nn.Module, PyTorchModelHubMixin, library_name="lpa-cwm", license="apache-2.0"):
    """Describes, matches, judges matches, and propagates their motions."""

    def __init__(self, sizes: LearnedSizes | None = None) -> None:
        super().__init__()
        self.sizes = s = sizes or LearnedSizes()
        self.descriptor = PatchDescriptor(s.descriptor)
        self.encoder = ContextEncoder(s.context, s.coarse, s.groups)
        self.correlation = Correlation()
        self.reliability = Reliability(s.descriptor, s.coarse, s.width, s.layers, s.heads, s.features)
        self.densifier = VoteDensifier(s.context, s.groups, s.features, s.nearest, s.modes)

    def describe(self, frames: Float[Tensor, "b 3 h w"], context: bool = True) -> Description:
        """Everything about single frames; without context they can only be targets."""
        frames = frames.contiguous(memory_format=torch.channels_last)
        if not context:
            empty = frames.new_zeros(len(frames), 0, 0, 0)
            return Description(frames, self.descriptor(frames, PATCH), empty, empty)
        return Description(frames, self.descriptor(frames), *self.encoder(frames))

    def observe(
        self,
        source: Description,
        target: Description,
        logits: Float[Tensor, "b p s"] | None = None,
        patches: Int[Tensor, "b u"] | None = None,
        hypotheses: int | None = None,
    ) -> LearnedScene:
        """Everything about pairs of frames, or about these target patches alone; training gives the correlation.

        Fewer hypotheses than the network's own may be kept.
        """
        centers = patch_centers(source.hw, PATCH, target.frame.device).expand(len(target.frame), -1, -1)
        pixels = rearrange(target.frame, "b c (i u) (j v) -> b (i j) c u v", u=PATCH, v=PATCH)
        known = target.aligned
        if patches is not None:
            centers, pixels, known = (gather_rows(x, patches[:, None]) for x in (centers, pixels, known))
            logits = None if logits is None else gather_rows(logits, patches[:, None])
        if logits is None:
            logits = self.correlation(source, target, patches)
        assert logits is not None
        matches = match(logits, source.frame, pixels, centers, hypotheses or self.sizes.hypotheses)
        tokens = self.reliability.tokens(source, known, centers, matches)
        return LearnedScene(source, target, centers, pixels.mean((-2, -1)), matches, tokens)

    def observe_shown(self, source: Description, target: Description, hidden: Bool[Tensor, "m p"]) -> LearnedScene:
        """A frame pair as far as any of these masks shows it."""
        # The masks are on the host: nothing waits for a GPU.
        patches = (~hidden).any(0).nonzero()[:, 0].to(source.frame.device)
        row = patches.new_zeros(hidden.shape[1]).scatter(0, patches, torch.arange(len(patches), device=patches.device))
        return replace(self.observe(source, target, patches=patches[None]), row=row)

    def imagine(
        self, scene: LearnedScene, hidden: Bool[Tensor, "b m p"], cells: Int[Tensor, "bm c"] | None = None
    ) -> Reading:
        """The motions of all cells, or of those given, under masks; hidden patches are not looked at."""
        return self.read(scene, *visible_patches(hidden), cells)

    def read(
        self,
        scene: LearnedScene,
        rows: Int[Tensor, "b m n"],
        valid: Bool[Tensor, "b m n"],
        cells: Int[Tensor, "bm c"] | None = None,
    ) -> Reading:
        """The motions under masks, given the rows of the scene that each mask shows."""
        nodes, color = nodes_of(scene, rows, valid)
        logit, precision, features = self.reliability(nodes)
        return Reading(rows, logit, self.densifier(scene.source, nodes, logit, precision, features, color, cells))

    def imagine_near(
        self, scene: LearnedScene, hidden: Bool[Tensor, "m p"], xy: Float[Tensor, "n 2"], radius: float
    ) -> tuple[Motions, CellList]:
        """The motions of the hidden cells into which something within the radius of a point can move."""
        rows, valid = visible_patches(hidden[None])
        nodes, color = nodes_of(scene, rows if scene.row is None else scene.row[rows], valid)
        logit, precision, features = self.reliability(nodes)
        matches = self.densifier.affine(scene.source, nodes, logit, precision, features, color)
        points = PointDistance.of(xy, scene.source.hw)
        return self.densifier.densify_near(scene.source, matches, nodes, hidden, points, radius)


def nodes_of(
    scene: LearnedScene, rows: Int[Tensor, "b m n"], valid: Bool[Tensor, "b m n"]
) -> tuple[Nodes, Float[Tensor, "bm n 3"]]:
    """The matches of the rows of the scene that each mask shows, and the colors of their patches."""
    place, offset, tokens, color = (
        gather_rows(values, rows) for values in (scene.centers, scene.matches.offset, scene.tokens, scene.color)
    )
    return Nodes(place, offset, tokens, valid.flatten(0, 1), filled=not bool(valid.all())), color


def visible_patches(hidden: Bool[Tensor, "b m p"]) -> tuple[Int[Tensor, "b m n"], Bool[Tensor, "b m n"]]:
    """Numbers of the visible patches of every mask, filled up to equal length, and which of them are no filling."""
    order = hidden.to(torch.uint8).argsort(dim=-1, stable=True)
    visible = order[..., : int((~hidden).sum(-1).max())]
    return visible, ~hidden.gather(-1, visible)
