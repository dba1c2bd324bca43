"""World models, adjudicators, score models, trackers, devices and clips by name; each is imported when it is loaded."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD, TrackerConfig
from lpa_cwm.errors import InputError, name_hint
from lpa_cwm.files import bundled_weights, cache_dir

if TYPE_CHECKING:
    from lpa_cwm.acceleration import Acceleration
    from lpa_cwm.protocols import Adjudicator, ScoreModel, Tracker, WorldModel
    from lpa_cwm.tracker import CwmTracker
    from lpa_cwm.types import Clip


LPA_FILE = "lpa.safetensors"


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of the registry."""

    load: Callable[..., Any]
    weights: tuple[str, ...] = ()
    """Bundled files that its results depend on."""
    version: str = ""
    """Changed when the same weights give other results, so that runs of both versions are kept apart."""
    missing: Callable[[], str | None] = lambda: None
    """What is needed to run it here, as a sentence."""


def load(
    adjudicator: "str | Adjudicator" = ADJUDICATOR,
    world: "str | WorldModel" = WORLD,
    config: TrackerConfig | None = None,
    *,
    score_model: str = "compact",
    weights: Path | str | None = None,
    device: str = "cpu",
    quiet: bool = True,
    workers: int | None = None,
    accelerate: "Collection[Acceleration]" = (),
    **settings: Any,
) -> "Tracker":
    """Load a tracker by the names of its adjudicator and world model, or from such objects; or a baseline by its name.

    `settings` override fields of the world model's default `TrackerConfig`.

    Args:
        adjudicator: `uniform`, `apa`, `lpa`, an object that is an `Adjudicator`, or the name of a baseline.
        world: Name of a world model, or an object that is a `WorldModel`.
        config: All settings at once; by default those of the world model.
        score_model: Score model of `apa`: `compact`, or `adm`.
        weights: File of LPA weights; by default the bundled one.
        device: Where to compute: `cpu`, `cuda`, `cuda:1`, `mps`.
        quiet: Whether to show no progress line.
        workers: Threads that share the frame pairs and the points of a frame; on a CPU, by default as many as torch
            uses.
        accelerate: For GPUs: `bfloat16` computes networks in half precision, `compile` compiles them.
        settings: Fields of `TrackerConfig` that replace those of the configuration.

    Examples:
        >>> load("uniform", "toy", masks=4).config.masks
        4
        >>> type(load("static")).__name__
        'StaticPoint'
    """
    if isinstance(adjudicator, str) and adjudicator not in ADJUDICATORS:
        ours = {"config": config, "weights": weights, "accelerate": accelerate}
        return _load_baseline(adjudicator, device, [*settings, *(name for name, value in ours.items() if value)])
    from lpa_cwm import acceleration
    from lpa_cwm.tracker import CwmTracker

    world = load_world(world) if isinstance(world, str) else world
    if isinstance(adjudicator, str):
        adjudicator = load_adjudicator(adjudicator, score_model, weights, device)
    acceleration.accelerate((world, adjudicator), device, accelerate)
    chosen = (config or world.defaults).changed(settings)
    if device.partition(":")[0] == "cuda" and config is None and "batch" not in settings:
        chosen = chosen.changed({"batch": acceleration.queries_at_once(chosen, world.size, device)})
    return CwmTracker(world, adjudicator, chosen, device, quiet, workers)


def load_cwm(
    adjudicator: "str | Adjudicator" = ADJUDICATOR,
    world: "str | WorldModel" = WORLD,
    config: TrackerConfig | None = None,
    **settings: Any,
) -> "CwmTracker":
    """`load` of our tracker; the name of a baseline is refused."""
    if isinstance(adjudicator, str):
        _check_adjudicator(adjudicator)
    return cast("CwmTracker", load(adjudicator, world, config, **settings))


def _load_baseline(name: str, device: str, given: list[str]) -> "Tracker":
    """A baseline; settings that only our tracker has are refused."""
    from lpa_cwm.baselines.registry import get_baseline

    baseline = get_baseline(name)
    if given:
        raise InputError(f"{name} does not take {', '.join(given)}; leave out what only our tracker has.")
    return baseline.load(device=device)


def load_world(name: str) -> "WorldModel":
    """A world model by name."""
    return _find(WORLDS, name, "world model").load()


def load_adjudicator(
    name: str, score_model: str = "compact", weights: Path | str | None = None, device: str = "cpu"
) -> "Adjudicator":
    """An adjudicator by name."""
    _check_adjudicator(name)
    if name == "uniform":
        from lpa_cwm.adjudicators.apa import uniform

        return uniform
    if name == "apa":
        from lpa_cwm.adjudicators.apa import APA

        return APA(load_score_model(score_model, device))
    from lpa_cwm.adjudicators.lpa import load_lpa

    return load_lpa(Path(weights) if weights else bundled_lpa()).to(device)


def _check_adjudicator(name: str) -> None:
    if name not in ADJUDICATORS:
        raise InputError(f"{name!r} is not a known adjudicator; choose one of {', '.join(ADJUDICATORS)}.")


def load_score_model(name: str, device: str = "cpu") -> "ScoreModel":
    """A score model by name; ADM in half precision on a GPU, as in the paper."""
    return _find(SCORE_MODELS, name, "score model").load(device)


def bundled_lpa() -> Path:
    """The bundled weights of LPA."""
    return bundled_weights(LPA_FILE)


def fingerprint(world: str = "", score_model: str = "", adjudicator: str = "") -> str:
    """A hash of the bundled weights that a result depends on, and of how they are used."""
    entries = [WORLDS[world]] if world else []
    entries += [SCORE_MODELS[score_model]] if score_model else []
    files = [name for entry in entries for name in entry.weights] + [LPA_FILE] * (adjudicator == "lpa")
    version = "".join(entry.version for entry in entries)
    return fingerprint_of([bundled_weights(name) for name in files], version)


def fingerprint_of(files: list[Path], version: str = "") -> str:
    """A hash of the content of some files, and of how they are used."""
    whole = blake2b(version.encode(), digest_size=16)
    for path in files:
        try:
            whole.update(blake2b(path.read_bytes()).digest())
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); expected a file of weights.") from error
    return whole.hexdigest()


def _find(entries: dict[str, Entry], name: str, kind: str) -> Entry:
    if name not in entries:
        raise InputError(f"{name!r} is not a known {kind}; {name_hint(name, list(entries))}.")
    return entries[name]


def _toy() -> "WorldModel":
    from lpa_cwm.worlds.toy import ToyWorld

    return ToyWorld(error=6.0, wrong=0.4)


def _learned() -> "WorldModel":
    from lpa_cwm.worlds.learned.world import LearnedWorld

    return LearnedWorld.load()


def _learned_total() -> "WorldModel":
    from lpa_cwm.worlds.learned.world import LearnedWorld

    return LearnedWorld.load().total_effect()


def _opt_cwm(size: int) -> "WorldModel":
    from lpa_cwm.worlds.opt_cwm import load_folder

    return load_folder(cache_dir() / "opt-cwm", size)


def _opt_cwm_missing() -> str | None:
    here = (cache_dir() / "opt-cwm").is_dir()
    return None if here else "The published weights of Opt-CWM are not here: run `lpa-cwm data fetch opt-cwm`."


def _compact_score(device: str) -> "ScoreModel":
    from lpa_cwm.adjudicators.apa import load_compact_score

    return load_compact_score()


def _adm(device: str) -> "ScoreModel":
    import torch

    from lpa_cwm.adjudicators.apa import load_adm
    from lpa_cwm.datasets.download import ADM

    return load_adm(ADM.path(next(iter(ADM.paths()))), half=torch.device(device).type != "cpu")


_LEARNED = {"weights": ("world-learned.safetensors",), "version": "3"}
WORLDS = {
    "toy": Entry(_toy),
    "learned": Entry(_learned, **_LEARNED),
    "learned-total": Entry(_learned_total, **_LEARNED),
    "opt-cwm": Entry(lambda: _opt_cwm(256), missing=_opt_cwm_missing),
    "opt-cwm-512": Entry(lambda: _opt_cwm(512), missing=_opt_cwm_missing),
}
SCORE_MODELS = {"compact": Entry(_compact_score, ("score-compact.safetensors",)), "adm": Entry(_adm)}


def resolve_device(name: str = "auto") -> str:
    """A device of this machine in torch's words; auto takes CUDA, else MPS, else the CPU.

    Examples:
        >>> resolve_device("cpu")
        'cpu'
    """
    import torch

    cuda, mps = torch.cuda.device_count(), torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    kind, _, index = name.partition(":")
    here = {"cpu": not index, "cuda": int(index or 0) < cuda, "mps": mps and not index}
    if not here.get(kind, False):
        devices = ["cpu", *(f"cuda:{number}" for number in range(cuda)), *["mps"] * mps]
        raise InputError(f"This machine has no device {name}; choose auto or one of {', '.join(devices)}.")
    return name


DEMO_CLIP = Path(__file__).parent / "clips" / "bodies.mp4"
"""The first sixteen frames of a clip of the simulator's `movi` recipe with invented shapes and pictures."""

GALLERY = {"bodies": DEMO_CLIP} | {name: DEMO_CLIP.with_name(f"{name}.mp4") for name in ("tiles", "ball")}
"""Clips of the page; all three are made by the simulator from procedural shapes and pictures."""


def bundled_clip(world: str) -> "Clip":
    """The bundled clip; the toy world needs a clip of its own."""
    from lpa_cwm.io.video import read
    from lpa_cwm.worlds.toy import ToyMotion, toy_clip

    if world == "toy":
        motion = ToyMotion(shift=(0.006, -0.004), turn=0.012, zoom=1.004, disc=(0.68, 0.42, 0.1))
        return toy_clip(motion, 24, name="toy")
    return read(DEMO_CLIP)
