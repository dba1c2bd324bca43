"""Training of the compact score field: predict the noise that was added to crops of photographs."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image, UnidentifiedImageError
from safetensors.torch import save_file
from torch import Tensor

from lpa_cwm.adjudicate.analytic import prepare
from lpa_cwm.adjudicate.score.compact import FILE, SIGMA, NoisePredictor
from lpa_cwm.errors import InputError
from lpa_cwm.files import written_aside
from lpa_cwm.interfaces import ScoreField
from lpa_cwm.keys import generator, key
from lpa_cwm.progress import progress
from lpa_cwm.sampling import resize_frame, unit_range

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
    optimiser: torch.optim.Adam
    identity: dict[str, int | float]
    """Options and photographs; a checkpoint of another identity is refused."""
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def begin(cls, identity: dict[str, int | float]) -> "Run":
        """Fresh weights, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key("score", "weights"))
            network = NoisePredictor()
        return cls(network, torch.optim.Adam(network.parameters(), betas=(0.9, 0.99)), identity)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, if there is one."""
        if not path.exists():
            return
        state: dict[str, Any] = torch.load(path, weights_only=True)
        if state["identity"] != self.identity:
            changed = [name for name, value in self.identity.items() if state["identity"].get(name) != value]
            raise InputError(
                f"{path} was begun with another {' and '.join(changed)}; give the same, or another --out to begin anew."
            )
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.history = state["step"], state["history"]

    def keep(self, path: Path) -> None:
        """Write the checkpoint, and its history as the log beside it."""
        state = {
            "identity": self.identity,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "history": self.history,
        }
        with written_aside(path) as aside:
            torch.save(state, aside)
        with written_aside(path.with_name("log.jsonl")) as aside:
            aside.write_text("".join(json.dumps(line) + "\n" for line in self.history))


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
    paths = [path for path in photographs(folder) if not held_out(path)]
    run = Run.begin(asdict(schedule) | {"photographs": key(*(path.name for path in paths))})
    run.resume(out / "checkpoint.pt")
    photos = [read(path, schedule.crop) for path in paths]
    losses = []
    for step in progress(range(run.step, schedule.steps), schedule.steps - run.step, "score"):
        losses.append(update(run, photos, schedule))
        if run.step % schedule.every == 0 or run.step == schedule.steps:
            loss = sum(losses) / len(losses)
            run.history.append({"step": run.step, "loss": loss, "rate": schedule.rate_at(step)})
            run.keep(out / "checkpoint.pt")
            losses = []
    with written_aside(out / FILE) as aside:
        save_file(run.network.state_dict(), aside)
    return out / FILE


def update(run: Run, photos: Sequence[UInt8[Tensor, "3 _ _"]], schedule: Schedule) -> float:
    """One step; the loss is the variance of the noise left over, relative to that added."""
    draw = generator("score", "step", run.step)
    crops = torch.stack([random_crop(photos, schedule.crop, draw) for _ in range(schedule.batch)])
    noise = torch.randn(crops.shape, generator=draw)
    loss = F.mse_loss(run.network(crops + SIGMA * noise), noise)
    for group in run.optimiser.param_groups:
        group["lr"] = schedule.rate_at(run.step)
    run.optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.network.parameters(), 1.0)
    run.optimiser.step()
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
def evaluate(folder: Path, score: ScoreField) -> Gain:
    """How much Tweedie's estimate denoises the held-out photographs."""
    gain = Gain([], [])
    for path in filter(held_out, photographs(folder)):
        clean = prepare(unit_range(resize_frame(central_square(read(path)), (WORKING_SIDE, WORKING_SIDE))))
        noisy = clean + SIGMA * torch.randn(clean.shape, generator=generator("score", "held out", path.name))
        denoised = noisy + SIGMA**2 * score(noisy[None])[0]
        gain.noisy.append(fidelity(noisy, clean))
        gain.denoised.append(fidelity(denoised, clean))
    if not gain.noisy:
        raise InputError(f"None of the photographs in {folder} is held out; give a folder with some dozens of them.")
    return gain


def fidelity(frame: Float[Tensor, "3 h w"], clean: Float[Tensor, "3 h w"]) -> float:
    """Peak signal-to-noise ratio in decibels, for frames in [-1, 1]."""
    return 10 * math.log10(4 / F.mse_loss(frame, clean).item())


def photographs(folder: Path) -> list[Path]:
    """The photographs in a folder, by name."""
    found = [path for path in folder.glob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"}]
    if not found:
        raise InputError(f"No photographs (jpg, png) in {folder}; give --photos a folder that has some.")
    return sorted(found)


def held_out(path: Path) -> bool:
    """Whether a photograph is kept for evaluation: a tenth of all, a matter of the name alone."""
    return key("score", "held out", path.name) % 10 == 0


def read(path: Path, least: int = 1) -> UInt8[Tensor, "3 h w"]:
    """A photograph, its short side reduced to what is kept in memory."""
    try:
        with Image.open(path) as picture:
            pixels = np.array(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
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
