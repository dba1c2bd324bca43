"""Training of the compact score field: predict the noise that was added to crops of photographs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from lpa_cwm.adjudicators.apa import to_score_frame
from lpa_cwm.adjudicators.score_models.compact import FILE, SIGMA, NoisePredictor
from lpa_cwm.errors import InputError
from lpa_cwm.files import atomic_write
from lpa_cwm.progress import progress
from lpa_cwm.protocols import ScoreModel
from lpa_cwm.rng import generator, seed_of
from lpa_cwm.sampling import resize_frame, unit_range
from lpa_cwm.synth.images import ImagePool
from lpa_cwm.training import checkpoint
from lpa_cwm.training.log import Log

SHORT_SIDE = 320
"""Photographs are kept in memory with their short side reduced to this."""
SHRINK = 1.6
"""Crops are up to this much larger before they are reduced, so that detail of every fineness is seen."""
WORKING_SIDE = 256
"""Held-out photographs take the way of a frame: to the working size, then to the score's."""


@dataclass(frozen=True)
class Schedule:
    """How long, on how much at a time and how fast."""

    steps: int
    batch: int
    crop: int
    rate: float
    every: int

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.every) < 1 or self.crop < 2 or self.crop % 2 or not self.rate > 0:
            raise InputError(f"{self} cannot be run; counts must be positive, crops even, the rate above zero.")

    def rate_at(self, step: int) -> float:
        """Linear rise over the first fiftieth, cosine down to zero."""
        rise = 50 * (step + 1) / self.steps
        return self.rate * min(rise, 0.5 + 0.5 * math.cos(math.pi * step / self.steps))


@dataclass
class Run:
    """All that changes during training, and so all that a checkpoint must hold."""

    network: NoisePredictor
    optimizer: torch.optim.Adam
    step: int = 0

    @classmethod
    def begin(cls) -> "Run":
        """Fresh weights, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("score", "weights"))
            network = NoisePredictor()
        return cls(network, torch.optim.Adam(network.parameters(), betas=(0.9, 0.99)))

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


@dataclass(frozen=True)
class Gain:
    """Peak signal-to-noise ratios of held-out photographs, in decibels."""

    noisy: list[float]
    denoised: list[float]

    def __str__(self) -> str:
        gains = np.subtract(self.denoised, self.noisy)
        return (
            f"{len(gains)} held-out photographs: {np.mean(self.noisy):.2f} -> {np.mean(self.denoised):.2f} dB, "
            f"gain {gains.mean():.2f} dB (smallest {gains.min():.2f}, largest {gains.max():.2f})"
        )


def fit(folder: Path, out: Path, schedule: Schedule) -> Path:
    """Train, going on from the checkpoint in `out` if there is one, and write the weights."""
    files = ImagePool.of(folder, "train").files
    identity = asdict(schedule) | {"photographs": seed_of(*(path.name for path in files))}
    run = Run.begin()
    state = checkpoint.load(out / "checkpoint.pt", identity)
    if state is not None:
        run.restore(state)
    photos = [read(path, schedule.crop) for path in files]
    log = Log(out / "log.jsonl", run.step)
    losses = []
    for step in progress(range(run.step, schedule.steps), schedule.steps - run.step, "score"):
        losses.append(update(run, photos, schedule))
        if run.step % schedule.every == 0 or run.step == schedule.steps:
            log.write({"step": run.step, "loss": sum(losses) / len(losses), "rate": schedule.rate_at(step)})
            losses.clear()
            checkpoint.save(out / "checkpoint.pt", identity, run.state())
    with atomic_write(out / FILE) as aside:
        save_file(run.network.state_dict(), aside)
    return out / FILE


def update(run: Run, photos: Sequence[UInt8[Tensor, "3 _ _"]], schedule: Schedule) -> float:
    """One step; the loss is the variance of the noise left over, relative to that added."""
    draw = generator("score", "step", run.step)
    crops = torch.stack([random_crop(photos, schedule.crop, draw) for _ in range(schedule.batch)])
    noise = torch.randn(crops.shape, generator=draw)
    loss = F.mse_loss(run.network(crops + SIGMA * noise), noise)
    for group in run.optimizer.param_groups:
        group["lr"] = schedule.rate_at(run.step)
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.network.parameters(), 1.0)
    run.optimizer.step()
    run.step += 1
    return loss.item()


def random_crop(
    photos: Sequence[UInt8[Tensor, "3 _ _"]], size: int, draw: torch.Generator
) -> Float[Tensor, "3 {size} {size}"]:
    """A square of a photograph, reduced by a random factor, perhaps mirrored and transposed, in [-1, 1]."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=draw))

    photo = photos[below(len(photos))]
    height, width = photo.shape[1:]
    side = min(size + below(int(size * (SHRINK - 1)) + 1), height, width)
    y, x = below(height - side + 1), below(width - side + 1)
    part = unit_range(photo[:, y : y + side, x : x + side])[None]
    part = F.interpolate(part, size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    part = part.flip(-1) if below(2) else part
    return 2 * (part.mT if below(2) else part) - 1


@torch.no_grad()
def evaluate(folder: Path, score: ScoreModel) -> Gain:
    """How much Tweedie's estimate denoises the held-out photographs."""
    gain = Gain([], [])
    for path in ImagePool.of(folder, "val").files:
        clean = to_score_frame(unit_range(resize_frame(central_square(read(path)), (WORKING_SIDE, WORKING_SIDE))))
        noisy = clean + SIGMA * torch.randn(clean.shape, generator=generator("score", "held out", path.name))
        denoised = noisy + SIGMA**2 * score(noisy[None])[0]
        gain.noisy.append(fidelity(noisy, clean))
        gain.denoised.append(fidelity(denoised, clean))
    return gain


def fidelity(frame: Float[Tensor, "3 h w"], clean: Float[Tensor, "3 h w"]) -> float:
    """Peak signal-to-noise ratio in decibels, for frames in [-1, 1]."""
    return 10 * math.log10(4 / F.mse_loss(frame, clean).item())


def read(path: Path, least: int = 1) -> UInt8[Tensor, "3 h w"]:
    """A photograph, its short side reduced to what is kept in memory."""
    try:
        with Image.open(path) as picture:
            pixels = np.array(picture.convert("RGB"))
    except OSError as error:
        raise InputError(f"{path} is not a picture that can be read; remove it from the folder.") from error
    photo = rearrange(torch.from_numpy(pixels), "h w c -> c h w")
    height, width = photo.shape[1:]
    if min(height, width) < least:
        raise InputError(f"{path} has {width}x{height} pixels; crops of {least} were asked for; remove it.")
    ratio = min(SHORT_SIDE / min(height, width), 1)
    return resize_frame(photo, (round(height * ratio), round(width * ratio)))


def central_square(photo: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 s s"]:
    """The largest square in the middle."""
    height, width = photo.shape[1:]
    side = min(height, width)
    y, x = (height - side) // 2, (width - side) // 2
    return photo[:, y : y + side, x : x + side]
