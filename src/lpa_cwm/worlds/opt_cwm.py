"""Opt-CWM as a world model, and its published checkpoints: read as they are, or converted to safetensors.

What queries, masks and targets have in common is computed once.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from lpa_cwm.config import TrackerConfig
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write, cache_dir
from lpa_cwm.geometry import index_of
from lpa_cwm.io.safe_load import check_state_dict, load_safetensors, load_state_dict
from lpa_cwm.jobs import computed_once
from lpa_cwm.validation import parse_json, reading, structure
from lpa_cwm.worlds.opt_cwm_networks import Architecture, PerturbationGenerator, Predictor, TokenLayout, paste

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

    @computed_once
    def as_source(self) -> Float[Tensor, "p d"]:
        return self.predictor.embed(self.frame, 0)

    @computed_once
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

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """Networks that may compute in half precision; the generator and the head may not."""
        return self.predictor.encoder, self.predictor.decoder

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


PUBLISHED = {
    256: ("base_cwm_256_ckpt.pt", Architecture()),
    512: ("base_cwm_512_ckpt.pt", Architecture(size=512, scale=2)),
}
"""The two published predictors by the size of the frames they see."""
PUBLISHED_GENERATOR = "opt_cwm_ckpt.pt"
LARGEST = {"size": 4096, "scale": 16, "patch": 64, "dim": 8192, "depth": 128, "heads": 256}
"""Largest sizes of an architecture that is read from a file."""
EXPECTED = "an Opt-CWM checkpoint for this size of frames"
CONVERTED = "opt_cwm_{size}.safetensors"
GENERATOR_PREFIX = "flow_predictor.perturber.nn."
RENAMED = (
    (r"^encoder\.patch_embed\.proj\.", "embedding."),
    (r"^encoder\.pos_embed$", "encoder_positions"),
    (r"^pos_embed$", "decoder_positions"),
    (r"^encoder_to_decoder\.", "enc_to_dec."),
    (r"^decoder\.head\.", "head."),
    (r"\.attn\.proj\.", ".attention.output."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.2."),
)


@dataclass(frozen=True, slots=True)
class UnusedKeys:
    """Number of checkpoint entries that were not used, by the first two parts of their names."""

    counts: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{name}.* ({count})" for name, count in sorted(self.counts.items())) or "nothing"


def published_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a published file."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; `lpa-cwm data fetch opt-cwm` brings the published files.")
    return load_state_dict(path, EXPECTED, within="model")


def rename_state(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The predictor's tensors under our names; query, key and value of each block are separated."""
    state: dict[str, Tensor] = {}
    for name, tensor in published.items():
        block, _, part = name.rpartition(".attn.")
        if part == "qkv.weight":
            state[f"{block}.attention.query.weight"], *rest = tensor.chunk(3)
            state[f"{block}.attention.key_value.weight"] = torch.cat(rest)
        elif part == "q_bias":
            state[f"{block}.attention.query.bias"] = tensor
        elif part == "k_bias":
            # Strict loading reports a block whose value bias is missing.
            value = published.get(f"{block}.attn.v_bias", tensor[:0])
            state[f"{block}.attention.key_value.bias"] = torch.cat((tensor, value))
        elif part != "v_bias":
            for pattern, ours in RENAMED:
                name = re.sub(pattern, ours, name)
            state[name] = tensor
    return state


def reshape_state(state: dict[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The published shapes as ours: embedding, mask token and positions flattened, positions resized."""
    shaped = dict(state)
    for name, tensor in state.items():
        if name == "embedding.weight":
            shaped[name] = tensor.flatten(1)
        elif name == "mask_token":
            shaped[name] = tensor.flatten()
        elif name.endswith("_positions"):
            shaped[name] = resize_positions(tensor.flatten(0, -2), architecture)
    return shaped


def resize_positions(table: Float[Tensor, "q d"], architecture: Architecture) -> Float[Tensor, "q2 d"]:
    """Position embeddings of both frames, interpolated bicubically if the frames are larger than in training."""
    side = architecture.side // architecture.scale
    if architecture.scale == 1 or len(table) != 2 * side**2:
        return table
    grid = rearrange(table, "(t y x) d -> t d y x", t=2, y=side)
    larger = F.interpolate(grid.float(), size=architecture.side, mode="bicubic", align_corners=False)
    return rearrange(larger, "t d y x -> (t y x) d")


def load_strict(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load every parameter; an error names the first that does not fit."""
    check_state_dict(state, module, path, EXPECTED)
    module.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    module.requires_grad_(False)


def load_published(
    base: Path, generator: Path, architecture: Architecture | None = None, batch: int = 8
) -> tuple[OptCwm, UnusedKeys]:
    """The world model from `base_cwm_*_ckpt.pt` and `opt_cwm_ckpt.pt`, and the unused entries of the second file.

    Only the generator is taken from the second file: a predictor in it must not replace the base.
    """
    architecture = architecture or Architecture()
    world = build_meta(architecture, batch)
    with reading(base, EXPECTED, "fetch it again"):
        load_strict(world.predictor, reshape_state(rename_state(published_state(base)), architecture), base)
    state = published_state(generator)
    taken = {name.removeprefix(GENERATOR_PREFIX): state.pop(name) for name in list(state) if GENERATOR_PREFIX in name}
    load_strict(world.generator, taken, generator)
    counts: dict[str, int] = {}
    for name in state:
        group = ".".join(name.split(".")[:2])
        counts[group] = counts.get(group, 0) + 1
    return world, UnusedKeys(counts)


def build_meta(architecture: Architecture, batch: int = 8) -> OptCwm:
    """A world model on the meta device: its weights take no memory until they are loaded."""
    with torch.device("meta"):
        predictor, generator = Predictor(architecture), PerturbationGenerator(architecture.dim)
    return OptCwm(predictor, generator, batch).eval()


def save_converted(world: OptCwm, path: Path) -> Path:
    """Write predictor and generator as one safetensors file with the architecture in its metadata."""
    metadata = {"architecture": json.dumps(asdict(world.predictor.architecture))}
    with atomic_write(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in world.state_dict().items()}, temporary, metadata)
    return path


def load_converted(path: Path, batch: int = 8) -> OptCwm:
    """The world model from a file that `save_converted` wrote."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; `lpa-cwm data convert` makes it from the published files.")
    with reading(path, "a converted Opt-CWM file", "`lpa-cwm data convert` makes one"):
        state, metadata = load_safetensors(path)
        architecture = structure(parse_json(metadata["architecture"]), Architecture, "architecture")
        check_architecture(architecture)
        world = build_meta(architecture, batch)
        load_strict(world, state, path)
    return world


def check_architecture(architecture: Architecture) -> None:
    """Refuse sizes that no such network has: a number of layers takes time before any weight is compared."""
    sizes = asdict(architecture)
    if not all(1 <= sizes[name] <= most for name, most in LARGEST.items()):
        raise ValueError(f"its architecture is {sizes}")
    if architecture.size % architecture.patch or architecture.dim % (2 * architecture.heads):
        raise ValueError(f"the sizes of its architecture {sizes} do not divide each other")


def load_folder(folder: Path, size: int, batch: int = 8) -> OptCwm:
    """The world model for frames of `size` pixels, from a folder with the converted or the published files."""
    if (converted := folder / CONVERTED.format(size=size)).is_file():
        return load_converted(converted, batch)
    base, architecture = PUBLISHED[size]
    return load_published(folder / base, folder / PUBLISHED_GENERATOR, architecture, batch)[0]


def convert(size: int = 256, folder: Path | None = None, out: Path | None = None) -> tuple[Path, UnusedKeys]:
    """Write the published files of a folder as one file, by default beside them; its path, and what is unused."""
    folder = folder or cache_dir() / "opt-cwm"
    base, architecture = PUBLISHED[size]
    world, unused = load_published(folder / base, folder / PUBLISHED_GENERATOR, architecture)
    return save_converted(world, out or folder / CONVERTED.format(size=size)), unused
