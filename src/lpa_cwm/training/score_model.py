"""Training of the compact score model: predict the noise that was added to crops of photographs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, UInt8
from safetensors.torch import save_file
from torch import Tensor

from lpa_cwm.adjudicators.apa import FILE, SIGMA, NoisePredictor, to_score_frame
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.geometry import resize_frame, unit_range
from lpa_cwm.io.video import read_rgb
from lpa_cwm.protocols import ScoreModel
from lpa_cwm.rng import generator, seed_of
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.training.loop import StepLoss, TrainingLoop

SHORT_SIDE = 320
"""Short side in pixels of the photographs in memory."""
MAX_SHRINK = 1.6
"""Crops are reduced by up to this factor, so that detail of every scale is seen."""
WORKING_SIDE = 256
"""Held-out photographs are resized like a frame: to the working size, then to the score model's."""


@dataclass(frozen=True)
class ScoreTraining:
    """All settings of a training."""

    steps: int = 2_500
    batch: int = 16
    """Crops per update."""
    crop: int = 48
    """Side of a crop in pixels; an even number."""
    rate: float = 2e-3
    """Highest learning rate; it rises for 2 % of the steps, then falls as a cosine."""
    save_every: int = 100
    """Updates between checkpoints."""

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.save_every) < 1 or self.crop < 2 or self.crop % 2 or not self.rate > 0:
            raise InputError(f"{self} cannot be run; counts must be positive, crops even, the rate above zero.")

    def rate_factor(self, step: int) -> float:
        """Linear warm-up over 2 % of the steps, then a cosine to zero (Loshchilov and Hutter, 2017)."""
        warm_up = 50 * (step + 1) / self.steps
        return min(warm_up, 0.5 + 0.5 * math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class DenoisingGain:
    """Peak signal-to-noise ratios of held-out photographs, in decibels."""

    noisy: list[float]
    denoised: list[float]

    def __str__(self) -> str:
        gains = np.subtract(self.denoised, self.noisy)
        return (
            f"{len(gains)} held-out photographs: {np.mean(self.noisy):.2f} -> {np.mean(self.denoised):.2f} dB, "
            f"gain {gains.mean():.2f} dB (smallest {gains.min():.2f}, largest {gains.max():.2f})"
        )


def train_score_model(folder: Path, out: Path, training: ScoreTraining) -> Path:
    """Train, from the checkpoint in `out` if there is one, and write the weights."""
    files = ImagePool.of(folder, "train").files
    photos = [read_photo(path, training.crop) for path in files]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("score", "weights"))
        network = NoisePredictor()
    loop = TrainingLoop(
        network,
        torch.optim.Adam(network.parameters(), lr=training.rate, betas=(0.9, 0.99)),
        out,
        asdict(training) | {"photographs": seed_of(*(path.name for path in files))},
        training.steps,
        training.save_every,
        training.rate_factor,
        max_norm=1.0,
    )

    def loss_of(step: int, batch: int) -> StepLoss:
        loss = denoising_loss(network, photos, step, training)
        return StepLoss(loss, {"loss": loss.item()})

    loop.run(range, loss_of)
    with atomic_write(out / FILE) as temporary:
        save_file(network.state_dict(), temporary)
    return out / FILE


def denoising_loss(
    network: NoisePredictor, photos: Sequence[UInt8[Tensor, "3 _ _"]], step: int, training: ScoreTraining
) -> Float[Tensor, ""]:
    """Denoising score matching (Vincent, 2011): variance of the remaining noise, relative to the added noise."""
    draw = generator("score", "step", step)
    crops = torch.stack([denoising_crop(photos, training.crop, draw) for _ in range(training.batch)])
    noise = torch.randn(crops.shape, generator=draw)
    return F.mse_loss(network(crops + SIGMA * noise), noise)


def denoising_crop(
    photos: Sequence[UInt8[Tensor, "3 _ _"]], size: int, draw: torch.Generator
) -> Float[Tensor, "3 {size} {size}"]:
    """A square of a photograph in [-1, 1], reduced by a random factor, randomly flipped and transposed."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=draw))

    photo = photos[below(len(photos))]
    height, width = photo.shape[1:]
    side = min(size + below(int(size * (MAX_SHRINK - 1)) + 1), height, width)
    y, x = below(height - side + 1), below(width - side + 1)
    part = unit_range(photo[:, y : y + side, x : x + side])[None]
    part = F.interpolate(part, size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    part = part.flip(-1) if below(2) else part
    return 2 * (part.mT if below(2) else part) - 1


@torch.no_grad()
def denoising_gain(folder: Path, score: ScoreModel) -> DenoisingGain:
    """Gain of Tweedie's estimate on the held-out photographs."""
    gain = DenoisingGain([], [])
    for path in ImagePool.of(folder, "val").files:
        clean = to_score_frame(unit_range(resize_frame(center_crop(read_photo(path)), (WORKING_SIDE, WORKING_SIDE))))
        noisy = clean + SIGMA * torch.randn(clean.shape, generator=generator("score", "held out", path.name))
        denoised = noisy + SIGMA**2 * score(noisy[None])[0]
        gain.noisy.append(psnr(noisy, clean))
        gain.denoised.append(psnr(denoised, clean))
    return gain


def psnr(frame: Float[Tensor, "3 h w"], clean: Float[Tensor, "3 h w"]) -> float:
    """Peak signal-to-noise ratio in decibels, for frames in [-1, 1]."""
    return 10 * math.log10(4 / F.mse_loss(frame, clean).item())


def read_photo(path: Path, least: int = 1) -> UInt8[Tensor, "3 h w"]:
    """A photograph, its short side reduced to `SHORT_SIDE`; one smaller than `least` is refused."""
    photo = rearrange(torch.from_numpy(read_rgb(path, str(path))), "h w c -> c h w")
    height, width = photo.shape[1:]
    if min(height, width) < least:
        raise InputError(f"{path} has {width}x{height} pixels; crops of {least} were asked for; remove it.")
    ratio = min(SHORT_SIDE / min(height, width), 1)
    return resize_frame(photo, (round(height * ratio), round(width * ratio)))


def center_crop(photo: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 s s"]:
    """The largest central square."""
    height, width = photo.shape[1:]
    side = min(height, width)
    y, x = (height - side) // 2, (width - side) // 2
    return photo[:, y : y + side, x : x + side]
