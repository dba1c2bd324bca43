"""From names to working parts: world models, adjudicators, trackers."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from lpa_cwm.adjudicate.analytic import Analytic
from lpa_cwm.adjudicate.learned import Learned
from lpa_cwm.adjudicate.score import adm, compact
from lpa_cwm.adjudicate.uniform import uniform
from lpa_cwm.baselines.table import rival
from lpa_cwm.config import METHOD, METHODS, SCORES, WORLD, WORLDS, Method
from lpa_cwm.errors import InputError
from lpa_cwm.files import cache_dir, packaged_weights
from lpa_cwm.interfaces import Adjudicator, ScoreField, Tracker, WorldModel
from lpa_cwm.tracker import CwmTracker
from lpa_cwm.world.compact.world import CompactWorld
from lpa_cwm.world.multiplex import multiplex
from lpa_cwm.world.opt_cwm.checkpoint import load_folder
from lpa_cwm.world.toy import ToyWorld

LPA_FILE = "lpa.safetensors"


def load(
    method: str | Adjudicator = METHOD,
    world: str | WorldModel = WORLD,
    numbers: Method | None = None,
    *,
    score: str = "compact",
    weights: Path | str | None = None,
    device: str = "cpu",
    quiet: bool = True,
) -> CwmTracker:
    """A tracker from names, or from any world model with the three verbs and any callable as adjudicator.

    Examples:
        >>> load("uniform", "toy").method.masks
        10
    """
    world = load_world(world) if isinstance(world, str) else world
    method = load_adjudicator(method, score, weights, device) if isinstance(method, str) else method
    numbers = numbers or Method()
    if numbers.adaptive < 0 or (numbers.adaptive and numbers.mask_sharing != "pair"):
        raise InputError(
            f"adaptive is {numbers.adaptive:g} px with masks shared by {numbers.mask_sharing}; masks can be drawn "
            "until queries settle only if all queries of a pair share them: share by pair, or leave adaptive at 0."
        )
    tracker = CwmTracker(multiplex(world, numbers.per_pass), method, numbers, device, quiet)
    if numbers.per_pass > 1 and tracker.passes and numbers.reevaluation != "joint":
        raise InputError(
            f"Asking about {numbers.per_pass} queries per pass needs masks that all of them share; "
            "choose the joint re-evaluation."
        )
    return tracker


def tracker(name: str, **settings: Any) -> Tracker:
    """Any method by name, ours or a rival; `settings` are those of `load` or of the rival."""
    return load(name, **settings) if name in METHODS else rival(name).load(**settings)


def load_world(name: str) -> WorldModel:
    """A world model by name."""
    if name == "toy":
        return ToyWorld(error=6.0, wrong=0.4)
    if name in ("compact", "compact-total"):
        return CompactWorld.load(intervention="total" if name.endswith("total") else "content")
    if name in ("opt-cwm", "opt-cwm-512"):
        return load_folder(cache_dir() / "opt-cwm", 512 if name.endswith("512") else 256)
    raise InputError(f"{name!r} is no known world model; choose one of {', '.join(WORLDS)}.")


def load_adjudicator(
    name: str, score: str = "compact", weights: Path | str | None = None, device: str = "cpu"
) -> Adjudicator:
    """An adjudicator by name."""
    if name == "uniform":
        return uniform
    if name == "apa":
        return Analytic(load_score(score, device))
    if name == "lpa":
        return load_learned(Path(weights) if weights else packaged_lpa()).to(device)
    raise InputError(f"{name!r} is no known method; choose one of {', '.join(METHODS)}.")


def load_score(name: str, device: str = "cpu") -> ScoreField:
    """A score field by name; ADM in half precision on a GPU, as in the paper."""
    if name == "compact":
        return compact.load().eval()
    if name == "adm":
        return adm.load(half=not device.startswith("cpu")).eval()
    raise InputError(f"{name!r} is no known score field; choose one of {', '.join(SCORES)}.")


def packaged_lpa() -> Path:
    """The weights of LPA that ship."""
    return packaged_weights(LPA_FILE)


def load_learned(path: Path) -> Learned:
    """LPA from a safetensors file that the training wrote."""
    if not path.is_file():
        raise InputError(
            f"There are no LPA weights at {path}; train some with `lpa-cwm train lpa` or use another method."
        )
    try:
        weights = load_file(path)
        # Ablated networks lack branches, and their files the weights of these.
        branches = "interact.", "local.", "sight."
        network = Learned(*(any(name.startswith(branch) for name in weights) for branch in branches))
        network.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(
            f"{path} does not hold the weights of LPA ({reason}); give what the training wrote."
        ) from error
    return network.eval()
